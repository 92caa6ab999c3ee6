"""Run PyTorch code in JAX."""

from typing import Any

from . import ops as ops, sharding as sharding  # registers the rules, and what stands in
from .bridge.call_torch import torch2jax, torch2jax_auto
from .bridge.compat import (
    Size,
    dtype_j2t,
    dtype_t2j,
    torch2jax_with_vjp,
    torch2jax_without_vjp,
    tree_j2t,
    tree_t2j,
)
from .checkpoints import load_state
from .convert import j2t, t2j
from .errors import (
    BatchedValueError,
    BranchError,
    EndedCallError,
    NoRuleError,
    OnMetaError,
    QuantizedError,
    SparseLayoutError,
    StaleGradientError,
    StridedNestedError,
    SymbolicSizeError,
    TracedValueError,
    WithoutValuesError,
    WrapsOthersError,
)
from .errors.names import error_of as _error_of
from .exporting.export import export
from .modules.layers import stack_layers, unstack_layers
from .rules.promotion import Promotion
from .rules.registry import Rules, implements, implements_tensors
from .tensors.padded import Padded
from .tensors.sparse_arrays import CompressedArray
from .tensors.wrapped import Wrapped

__all__ = [
    "BatchedValueError",
    "BranchError",
    "CompressedArray",
    "EndedCallError",
    "NoRuleError",
    "OnMetaError",
    "Padded",
    "Promotion",
    "QuantizedError",
    "Rules",
    "Size",
    "SparseLayoutError",
    "StaleGradientError",
    "StridedNestedError",
    "SymbolicSizeError",
    "TracedValueError",
    "WithoutValuesError",
    "Wrapped",
    "WrapsOthersError",
    "dtype_j2t",
    "dtype_t2j",
    "export",
    "implements",
    "implements_tensors",
    "j2t",
    "load_state",
    "sharding",
    "stack_layers",
    "t2j",
    "torch2jax",
    "torch2jax_auto",
    "torch2jax_with_vjp",
    "torch2jax_without_vjp",
    "tree_j2t",
    "tree_t2j",
    "unstack_layers",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("torch2jax")
    raise _error_of(__name__, name)
