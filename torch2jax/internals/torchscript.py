"""TorchScript: C++ objects, and their wrappers."""

from collections.abc import Callable

import torch
from torch.jit import _recursive

BufferDict = torch._C.BufferDict
"""Its buffers."""

ConcreteModuleType = torch._C.ConcreteModuleType
"""The type that a module is compiled as; ``from_jit_type`` of a type gives one that knows its attributes."""

ModuleDict = torch._C.ModuleDict
"""The parts of a module in C++: ``items()`` are names and modules."""

ParameterDict = torch._C.ParameterDict
"""Its parameters."""

ScriptFunction = torch._C.ScriptFunction
"""The class of scripted and traced functions; its ``__call__`` runs one."""

ScriptMethod = torch._C.ScriptMethod
"""The class of a module's methods; its ``__call__`` runs one."""

get_tracing_state: Callable[[], object | None] = torch._C._get_tracing_state
"""The state that `torch.jit.trace` records into on this thread; None outside of it."""

wrap_cpp_module = _recursive.wrap_cpp_module
"""A module of Python's around one of C++."""
