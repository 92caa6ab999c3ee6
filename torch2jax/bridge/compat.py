"""Names that users of wrap-torch2jax know, so that only an import line changes."""

from collections.abc import Callable
from typing import Any

import jax
import torch
from torch import Size

from ..tensors.dtypes import dtype_j2t, dtype_t2j
from ..tensors.interop import array_to_tensor, tensor_to_array
from .call_torch import torch2jax

__all__ = [
    "Size",
    "dtype_j2t",
    "dtype_t2j",
    "torch2jax_with_vjp",
    "torch2jax_without_vjp",
    "tree_j2t",
    "tree_t2j",
]


def torch2jax_with_vjp(fn: Callable, *example_args: object, depth: int = 2, **options: Any) -> Callable:
    """Like `torch2jax`, with all its options."""
    return torch2jax(fn, *example_args, depth=depth, **options)


def torch2jax_without_vjp(
    fn: Callable,
    *example_args: object,
    example_kw: dict[str, object] | None = None,
    output_shapes: object = None,
    out_specs: object = None,
    output_sharding_spec: object = None,
    vmap_method: str = "sequential",
    lock: object = False,
    **options: Any,
) -> Callable:
    """Like `torch2jax` with ``depth=0``: no gradients."""
    return torch2jax(
        fn,
        *example_args,
        example_kw=example_kw,
        depth=0,
        output_shapes=output_shapes,
        out_specs=out_specs,
        output_sharding_spec=output_sharding_spec,
        vmap_method=vmap_method,
        lock=lock,
        **options,
    )


def tree_t2j(tree: object, via: str = "dlpack", *, copy: bool = True) -> Any:
    """Converts each tensor of a tree to an array, like `t2j`. `via` is ignored; it exists for compatibility."""
    del via
    is_tensor = lambda leaf: isinstance(leaf, torch.Tensor)
    return jax.tree.map(lambda leaf: tensor_to_array(leaf, copy=copy) if is_tensor(leaf) else leaf, tree)


def tree_j2t(tree: object, via: str = "dlpack", *, copy: bool = True) -> Any:
    """Converts each array of a tree to a tensor, like `j2t`. `via` is ignored; it exists for compatibility."""
    del via
    return jax.tree.map(lambda leaf: array_to_tensor(leaf, copy=copy) if isinstance(leaf, jax.Array) else leaf, tree)
