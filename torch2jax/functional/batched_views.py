"""Views under `torch.vmap`: a view of one example becomes a view of all examples at once."""

import functools
from typing import Any

import jax

from ..internals.guards import DisableTorchFunction
from ..tensors.storage import Storage, View
from ..tensors.tensor import Torchish, make_region, make_view_of_shape
from ..tensors.view_kind import ViewKind
from ..tracing.tensor_spec import TensorSpec

__all__ = ["Kinds", "batched_region", "batched_view", "example_among", "kinds_between"]

Kinds = tuple[ViewKind, ...]
Geometry = tuple[tuple[int, ...], int]


def example_among(outer: Torchish, spec: TensorSpec, dim: int, array: jax.Array) -> Torchish:
    """One of the examples that a tensor of a form has along `dim`, with the strides that it has among the others."""
    with DisableTorchFunction():
        strides, offset = outer.stride(), int(outer.storage_offset())
    return spec.example(dim).at(array, (*strides[:dim], *strides[dim + 1 :]), offset)


def kinds_between(root: Storage | View, node: Storage | View) -> Kinds | None:
    """The views that lead from one node to another, the first on top of `root`; None if it is none of its."""
    kinds = []
    while node is not root:
        if isinstance(node, Storage):
            return None
        kinds.append(node.kind)
        node = node.parent
    return tuple(reversed(kinds))


def batched_view(
    outer: Torchish, dim: int, inner: Torchish, kinds: Kinds, example: Torchish, out_dim: int, array: jax.Array
) -> Torchish | None:
    """What views `outer`, whose examples lie along `dim`, as `example` views `inner`, one of them.

    None if no view does: where one example can be viewed so, all in memory need not be.

    Args:
        kinds: how `example` views its own.
        out_dim: where the result has the dimension of the examples.
        array: its values.
    """
    geometry = _geometry(outer, dim, inner, example, out_dim)
    bits = {kind.bit for kind in kinds if kind.bit is not None}
    if geometry is None or len(bits) > 1 or any(kind.traced for kind in kinds):
        return None
    kind = ViewKind(
        functools.partial(_read, kinds, dim, out_dim),
        functools.partial(_write, kinds, dim, out_dim),
        overlaps=any(kind.overlaps for kind in kinds),
        bit=next(iter(bits), None),
    )
    node = View(outer._node, kind)
    node._array, node._version = array, node.storage.memory.version
    return make_view_of_shape(outer, node, array.shape, example.dtype, *geometry)


def batched_region(outer: Torchish, dim: int, inner: Torchish, example: Torchish, out_dim: int) -> Torchish | None:
    """As `batched_view`, where `example` is a strided region of the memory of `inner`."""
    geometry = _geometry(outer, dim, inner, example, out_dim)
    if geometry is None or example._node.bits != inner._node.bits:
        return None
    shape = list(example.shape)
    shape.insert(out_dim, outer.shape[dim])
    return make_region(outer, tuple(shape), *geometry, example.dtype)


def _read(kinds: Kinds, dim: int, out_dim: int, array: jax.Array) -> Any:
    return jax.vmap(functools.partial(_read_one, kinds), dim, out_dim)(array)


def _write(kinds: Kinds, dim: int, out_dim: int, array: jax.Array, value: jax.Array) -> Any:
    return jax.vmap(functools.partial(_write_one, kinds), (dim, out_dim), dim)(array, value)


def _read_one(kinds: Kinds, array: jax.Array) -> Any:
    for kind in kinds:
        array = kind.read(array)
    return array


def _write_one(kinds: Kinds, array: jax.Array, value: jax.Array) -> Any:
    if not kinds:
        return value
    first, *rest = kinds
    return first.write(array, _write_one(tuple(rest), first.read(array), value))


def _geometry(outer: Torchish, dim: int, inner: Torchish, example: Torchish, out_dim: int) -> Geometry | None:
    """The strides and the offset of what views all examples as `example` views `inner`, one of them; None if none do.

    An example has the strides that it has among the others, and perhaps a memory of its own.
    """
    size, width = inner.dtype.itemsize, example.dtype.itemsize
    step, begin = outer.stride()[dim] * size, int(outer.storage_offset() - inner.storage_offset()) * size
    if step % width or begin % width:
        return None
    strides = list(example.stride())
    strides.insert(out_dim, step // width)
    return tuple(strides), int(example.storage_offset()) + begin // width
