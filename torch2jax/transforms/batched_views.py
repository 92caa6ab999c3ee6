"""What `torch.vmap` gives for a view of an example: a view of the examples, for all of them at once."""

import functools
from typing import Any, NamedTuple

import jax

from ..tensors.storage import Storage, View
from ..tensors.tensor import Torchish, make_view_of_shape
from ..tensors.view_kind import ViewKind

__all__ = ["Kinds", "batched_view", "kinds_between"]

Kinds = tuple[ViewKind, ...]
Geometry = tuple[tuple[int, ...], int]


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
    outer: Torchish, dim: int, inner: Torchish, kinds: Kinds, example: Torchish, out_dim: int, array
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


def _geometry(outer: Torchish, dim: int, inner: Torchish, example: Torchish, out_dim: int) -> Geometry | None:
    """The strides and the offset of what views all examples as `example` views `inner`, one of them; None if none do.

    The memory of an example is dense, that of all need not be: a step there is so many steps along each dimension.
    """
    unit = min(inner.dtype.itemsize, example.dtype.itemsize)
    ratio, width = inner.dtype.itemsize // unit, example.dtype.itemsize // unit
    axes = _axes(outer, dim, inner, ratio)
    begin = _digits(int(example.storage_offset()) * width, axes)
    steps = [_digits(step * width, axes) for step in example.stride()]
    last = list(begin)
    for size, step in zip(example.shape, steps, strict=True):
        last = [x + max(size - 1, 0) * each for x, each in zip(last, step, strict=True)]
    if width > 1:  # an element is several behind each other
        if not axes or axes[-1].step > 1 or axes[-1].outer_step > 1:
            return None
        last[-1] += width - 1
    if any(x >= axis.size for x, axis in zip(last, axes, strict=True)):
        return None  # a dimension goes over several that do not lie behind each other
    strides, offset = [_along(step, axes) for step in steps], int(outer.storage_offset()) * ratio + _along(begin, axes)
    strides.insert(out_dim, outer.stride()[dim] * ratio)
    if any(x % width for x in (*strides, offset)):
        return None
    return tuple(x // width for x in strides), offset // width


class _Axis(NamedTuple):
    """A dimension of an example, or several that lie behind each other in all memory."""

    size: int
    step: int
    """In the example's memory."""
    outer_step: int
    """In the memory of all."""


def _axes(outer: Torchish, dim: int, inner: Torchish, ratio: int) -> list[_Axis]:
    """Those of an example, the outermost first, in elements of which so many make one of its own."""
    outer_steps = [step for i, step in enumerate(outer.stride()) if i != dim]
    found = zip(inner.shape, inner.stride(), outer_steps, strict=True)
    axes = [_Axis(ratio, 1, 1)] if ratio > 1 else []
    for size, step, outer_step in sorted((x for x in found if x[0] > 1), key=lambda x: x[1]):
        axis = _Axis(size, step * ratio, outer_step * ratio)
        if axes and axis.outer_step == axes[-1].outer_step * axes[-1].size:
            axes[-1] = axes[-1]._replace(size=axes[-1].size * size)
        else:
            axes.append(axis)
    return axes[::-1]


def _digits(steps: int, axes: list[_Axis]) -> list[int]:
    """How many steps along each axis make so many in an example's memory."""
    digits = []
    for axis in axes:
        digit, steps = divmod(steps, axis.step)
        digits.append(digit)
    return digits


def _along(digits: list[int], axes: list[_Axis]) -> int:
    return sum(digit * axis.outer_step for digit, axis in zip(digits, axes, strict=True))
