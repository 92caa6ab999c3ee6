"""Private names of `torch.nn`, `torch.optim`, TorchScript and others.

Among them `torch.utils.checkpoint`, `torch.nn.attention.flex_attention`, and PyTorch's control flow, below the public
functions.
"""

import importlib
from collections.abc import Callable

import torch
from torch import _higher_order_ops
from torch._higher_order_ops import utils as _utils
from torch.jit import _recursive
from torch.nn import _reduction
from torch.nn.attention import flex_attention as _flex
from torch.optim import _adafactor, _functional
from torch.utils import checkpoint

C: object = torch._C
"""The module of PyTorch's C++ functions, for those that are replaced there under more than one name."""

get_enum = _reduction.get_enum
"""The number that operators of losses take for "none", "mean" or "sum"; its errors for anything else."""

load_from_state_dict = torch.nn.Module._load_from_state_dict
"""The default that loads a module's own tensors, where its class does not override it."""

adafactor = _adafactor
"""The module of `torch.optim.Adafactor`, in which something is exchanged."""

sparse_adam = _functional
"""The module of the step of `torch.optim.SparseAdam`."""

import_dotted_name = torch._import_dotted_name
"""Returns the object that a name like ``"torch.FloatTensor"`` names."""

disable_dynamo = torch._disable_dynamo
"""A decorator: PyTorch's compiler, which is imported with the first call, leaves the function alone."""


DEFAULT_DETERMINISM_MODE = checkpoint._DEFAULT_DETERMINISM_MODE
"""The ``determinism_check`` where none is given."""

ALLOWED_DETERMINISM_CHECKS = checkpoint._allowed_determinism_checks_to_fns
"""A dictionary whose keys are the allowed checks."""


def checkpoint_debug_enabled() -> bool | None:
    """The value that `torch.utils.checkpoint.set_checkpoint_debug_enabled` set; None without."""
    return checkpoint._checkpoint_debug_enabled


identity = _flex._identity
"""The `score_mod` that leaves scores as they are."""

vmap_for_bhqkv = _flex._vmap_for_bhqkv
"""A function of one score, by `torch.vmap` one of all, along batch, heads, queries and keys."""


scan = _higher_order_ops.scan
"""Checks its arguments, and goes on to the operator of that name."""

associative_scan = _higher_order_ops.associative_scan
"""The same."""

# Modules in which something is exchanged.

associative_scan_module: object = importlib.import_module("torch._higher_order_ops.associative_scan")
"""The module of `associative_scan`, whose parent has the function under that name."""

utils = _utils
"""The module with which operators of control flow compile themselves."""


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
