"""Run PyTorch code in JAX."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from torch import Size

from . import ops as ops  # registers the rules, and what stands in
from .modules.convert import t2j
from .modules.layers import stack_layers, unstack_layers
from .rules.promotion import Promotion
from .rules.registry import Rules, implements, implements_tensors
from .runtime.errors import (
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
from .runtime.errors.locations import error_of as _error_of
from .runtime.layers import BRIDGE as _BRIDGE, EXPORTING as _EXPORTING, SPARSE as _SPARSE
from .tensors.dtypes import dtype_j2t, dtype_t2j
from .tensors.padded import Padded
from .tensors.wrapped import Wrapped

if TYPE_CHECKING:  # what is imported when it is first used
    from . import sharding
    from .bridge.call_torch import torch2jax, torch2jax_auto
    from .bridge.compat import torch2jax_with_vjp, torch2jax_without_vjp, tree_j2t, tree_t2j
    from .bridge.j2t import j2t
    from .modules.checkpoints import load_state
    from .modules.exporting.export import export
    from .tensors.sparse_arrays import CompressedArray

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


_IN_LAYERS = {
    _BRIDGE: "j2t torch2jax torch2jax_auto torch2jax_with_vjp torch2jax_without_vjp tree_j2t tree_t2j",
    _EXPORTING: "export load_state",
    _SPARSE: "CompressedArray",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("torch2jax")
    if name == "sharding":
        return import_module(".sharding", __name__)
    for layer, names in _IN_LAYERS.items():
        if name in names.split():
            found = globals()[name] = getattr(layer, name)
            return found
    raise _error_of(__name__, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
