"""What `torch.vmap` gives for a view of an example: a view of the examples, for all of them at once."""

import functools
from typing import Any

import jax

from ..tensors.storage import Storage, View, ViewKind
from ..tensors.tensor import Torchish, make_view_of_shape, strides_of_shape

__all__ = ["Kinds", "batched_view", "kinds_between"]

Kinds = tuple[ViewKind, ...]


def kinds_between(root: Storage | View, node: Storage | View) -> Kinds | None:
    """The views that lead from one node to another, the first on top of `root`; None if it is none of its."""
    kinds = []
    while node is not root:
        if isinstance(node, Storage):
            return None
        kinds.append(node.kind)
        node = node.parent
    return tuple(reversed(kinds))


def batched_view(outer: Torchish, dim: int, kinds: Kinds, example: Torchish, out_dim: int, array) -> Torchish | None:
    """What views `outer`, whose examples lie along `dim`, as `example` views one of them; None if that cannot be said.

    Args:
        kinds: how `example` views its own.
        out_dim: where the result has the dimension of the examples.
        array: its values.
    """
    bits = {kind.bit for kind in kinds if kind.bit is not None}
    if len(bits) > 1 or any(kind.traced for kind in kinds):
        return None
    kind = ViewKind(
        functools.partial(_read, kinds, dim, out_dim),
        functools.partial(_write, kinds, dim, out_dim),
        overlaps=any(kind.overlaps for kind in kinds),
        bit=next(iter(bits), None),
    )
    node = View(outer._node, kind)
    node._array, node._version = array, node.storage.memory.version
    strides, offset = _geometry(outer, dim, example, out_dim, array.shape)
    return make_view_of_shape(outer, node, array.shape, example.dtype, strides, offset)


def _read(kinds: Kinds, dim: int, out_dim: int, array) -> Any:
    return jax.vmap(functools.partial(_read_one, kinds), dim, out_dim)(array)


def _write(kinds: Kinds, dim: int, out_dim: int, array, value) -> Any:
    return jax.vmap(functools.partial(_write_one, kinds), (dim, out_dim), dim)(array, value)


def _read_one(kinds: Kinds, array) -> Any:
    for kind in kinds:
        array = kind.read(array)
    return array


def _write_one(kinds: Kinds, array, value) -> Any:
    if not kinds:
        return value
    first, *rest = kinds
    return first.write(array, _write_one(tuple(rest), first.read(array), value))


def _geometry(outer: Torchish, dim: int, example: Torchish, out_dim: int, shape) -> tuple[tuple[int, ...], int]:
    """The strides and offset of all examples; strides as of a new tensor, where those of an example are not its own."""
    strides, offset = outer.stride(), int(outer.storage_offset())
    if any(stride > strides[dim] for stride in strides):
        return strides_of_shape(shape), offset
    own = example.stride()
    return (*own[:out_dim], strides[dim], *own[out_dim:]), offset + int(example.storage_offset())
