"""Private names of `torch.nn`, `torch.optim` and others."""

from typing import Any

import torch
from torch.nn import _reduction
from torch.optim import _adafactor, _functional

__all__ = [
    "C",
    "adafactor",
    "disable_dynamo",
    "get_enum",
    "import_dotted_name",
    "load_from_state_dict",
    "sparse_adam",
]

C: Any = torch._C
"""The module of all that is C++, for what is exchanged in it by more than one name."""

get_enum = _reduction.get_enum
"""The number that operators of losses take for "none", "mean" or "sum"; its errors for anything else."""

load_from_state_dict = torch.nn.Module._load_from_state_dict
"""What loads a module's own tensors, where its class has nothing else for that."""

adafactor = _adafactor
"""The module of `torch.optim.Adafactor`, in which something is exchanged."""

sparse_adam = _functional
"""That of the step of `torch.optim.SparseAdam`."""

import_dotted_name = torch._import_dotted_name
"""What ``"torch.FloatTensor"`` names."""

disable_dynamo = torch._disable_dynamo
"""A decorator: PyTorch's compiler, which is imported with the first call, leaves the function alone."""
