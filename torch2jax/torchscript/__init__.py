"""TorchScript: functions and modules that ``torch.jit`` scripted, traced or loaded run by their graphs.

What is registered on import stands in for PyTorch's interpreter while calls are translated.
"""

from . import calls as calls, compiling as compiling, files as files, modules as modules
