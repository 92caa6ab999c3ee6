"""Parts of tensors that begin where data decide, and have a known length: ``x[:, i : i + n]``.

Such a part is a view, which one ``dynamic_slice`` reads and one ``dynamic_update_slice`` writes. Slices of a length
that data decide are in `selection_subscripts.py`.
"""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from ..runtime.translation import current, lift
from ..tensors.dtypes import is_integral
from ..tensors.storage import View
from ..tensors.tensor import Torchish, geometry, make_view
from ..tensors.view_kind import ViewKind, rows_of
from ..values.item import Item
from ..values.lengths import distance, is_traced_number, range_of_number
from .arrays import cast, highest, is_inexact, like, lowest, where
from .bounds import known_values, seen
from .indexing import from_start

aten = torch.ops.aten
Tensor = torch.Tensor


class Span(NamedTuple):
    """The part of a dimension that a view has."""

    start: Any
    """A number, or a scalar array that a traced input decides."""
    size: int
    is_one: bool = False
    """True if it is one element, without the dimension."""
    is_negative: bool = False
    """True if the start may be counted from the end."""
    is_in_doubt: bool = False
    """True if PyTorch's slice may be shorter."""

    def in_view(self, count: int, is_checked: bool) -> tuple[object, bool, object]:
        """The start, whether that may be negative, and whether PyTorch's slice is as long.

        Args:
            count: the size of the dimension.
            is_checked: whether it is asked if the slice is as long; else the last of the results is None.
        """
        if isinstance(self.start, int) or not (self.is_one or (is_checked and self.is_in_doubt)):
            return self.start, self.is_negative, None
        position = from_start(self.start, count) if self.is_negative else self.start
        if self.is_one:
            return position, False, None
        zero, last = like(position, 0), like(position, count - self.size)
        if not self.is_negative:
            return position, False, lax.le(position, last)
        # One that begins before the end, ``x[-3:-1]``, has to end there.
        last = where(lax.lt(self.start, zero), like(position, count - self.size - 1), last)
        return position, False, lax.bitwise_and(lax.ge(position, zero), lax.le(position, last))


def spanning(input: Tensor, spans: dict[int, Span], is_expected: bool = False) -> Torchish:
    """The view of one span along each of some dimensions.

    Where a span does not fit, what is read and written is nan; integers are what JAX's gathers give for what is not
    there.

    Args:
        is_expected: whether PyTorch raises an error where a span does not fit, which is taken not to be.
    """
    input = lift(input)
    view, shape = input, tuple(input.shape)
    for dim, span in spans.items():
        view = geometry(aten.slice.Tensor, view, dim, 0, span.size)
    ones = tuple(dim for dim, span in spans.items() if span.is_one)
    for dim in reversed(ones):
        view = geometry(aten.select.int, view, dim, 0)
    policy = current().execution.path.policy
    is_checked = not is_expected or policy.checking is not None
    given = [spans.get(dim, Span(0, size)) for dim, size in enumerate(shape)]
    positions, negative, flags = zip(
        *[x.in_view(n, is_checked) for x, n in zip(given, shape, strict=True)], strict=True
    )
    dtype = functools.reduce(
        np.promote_types, (position.dtype for position in positions if not isinstance(position, int))
    )
    corner = [np.asarray(x, dtype) if isinstance(x, int) else cast(x, dtype) for x in positions]
    sizes = [span.size for span in given]
    fits, in_doubt = None, [dim for dim, flag in enumerate(flags) if flag is not None]
    if in_doubt:
        fits = functools.reduce(lax.bitwise_and, (flags[dim] for dim in in_doubt))
        policy.check(fits, _beyond([(sizes[dim], shape[dim]) for dim in in_doubt]))
    is_given = None if is_expected else fits

    def read(array):
        part = lax.dynamic_slice(array, corner, sizes, allow_negative_indices=negative)
        return lax.squeeze(_checked(part, is_given), ones)

    def write(array, value):
        value = _checked(lax.expand_dims(value, ones), is_given)
        return lax.dynamic_update_slice(array, value, corner, allow_negative_indices=negative)

    traced = tuple(
        (dim, np.asarray(x.start) if isinstance(x.start, int) else x.start, x.size) for dim, x in spans.items()
    )
    return make_view(input, View(input._node, ViewKind(read, write, traced=traced)), view)


def _beyond(sizes: Sequence[tuple[int, int]]) -> str:
    parts = " and ".join(f"{size} of {count} elements" for size, count in sizes)
    return f"got a slice that is to have {parts}, and begins where there are fewer left"


def _checked(part: jax.Array, fits: Any) -> jax.Array:
    """A part, without values where it does not fit: nan, and with nan for derivatives."""
    if fits is None:
        return part
    if is_inexact(part):
        there = lax.convert_element_type(lax.select(fits, np.float32(1), np.float32(np.nan)), part.dtype)
        return lax.mul(part, rows_of(there, part))
    nothing = lowest(part) if jnp.issubdtype(part.dtype, np.signedinteger) else highest(part)
    return where(fits, part, lax.full_like(part, nothing))


def as_number(value: Any) -> Any:
    """The value of an end of a slice: a tensor is its number, a Python int if it is known."""
    if is_traced_number(value) and value.is_floating_point():
        raise TypeError("slice indices must be integers or None or have an __index__ method")
    if not isinstance(value, Tensor) or is_traced_number(value):
        return value
    value = lift(value)
    known = known_values(value)
    return Item.out_of(value) if known is None else int(known)


def items_of(index, ndim: int) -> list:
    """A subscript's items, without an ellipsis, and with tensors for lists."""
    items = list(index) if isinstance(index, tuple) else [index]
    items = [torch.as_tensor(x) if isinstance(x, list) else x for x in items]
    positions = [i for i, item in enumerate(items) if item is Ellipsis]
    if positions:
        taken = sum(1 for item in items if item is not None and item is not Ellipsis)
        items[positions[0] : positions[0] + 1] = [slice(None)] * (ndim - taken)
    return items


def spanned(self: Tensor, index, value: object = None) -> tuple[Tensor, tuple] | None:
    """The view for slices with traced starts and known lengths, and the rest of the subscript.

    So is the part of a device, ``x[rank * n : (rank + 1) * n]``. None where there are no such slices.

    Args:
        value: what is to be written, if it is: PyTorch refuses a tensor that is longer than the slice.
    """
    spans: dict[int, Span] = {}
    left, dim, has_slice = [], 0, False
    shape = tuple(self.shape)
    for item in items_of(index, len(shape)):
        found = None
        if dim < len(shape):
            if isinstance(item, slice):
                found = _span_of_slice(item, shape[dim])
                has_slice = has_slice or (found is not None and not isinstance(found.start, int))
            else:
                found = _span_of_number(item, shape[dim])
        if found is None:
            left.append(item)
        else:
            spans[dim] = found
            left.extend([] if found.is_one else [slice(None, None, item.step)])
        mask = isinstance(item, Tensor) and item.dtype in (torch.bool, torch.uint8)
        dim += 0 if item is None or type(item) is bool else item.ndim if mask else 1
    if not has_slice:
        return None
    return spanning(self, spans, _is_as_long(value, spans, left, len(shape))), tuple(left)


def _is_as_long(value: object, spans: dict[int, Span], left: list, ndim: int) -> bool:
    """Returns True if a tensor to write has the length of each slice: PyTorch refuses it for a shorter slice."""
    if not isinstance(value, Tensor) or not all(isinstance(item, slice) for item in left):
        return False
    kept = [dim for dim in range(ndim) if dim not in spans or not spans[dim].is_one]
    sizes = dict(zip(reversed(kept), reversed(tuple(value.shape)), strict=False))
    in_doubt = {dim: span.size for dim, span in spans.items() if span.is_in_doubt}
    return all(type(sizes.get(dim)) is int and sizes[dim] == size > 1 for dim, size in in_doubt.items())


def _span_of_slice(item: slice, count: int) -> Span | None:
    """The span of a slice with a known length; None for other slices."""
    step = 1 if item.step is None else item.step
    start, stop = as_number(item.start), as_number(item.stop)
    if is_traced_number(start) and is_traced_number(stop):
        size = _distance(stop, start)
        if type(step) is not int or step < 1 or size is None or not 0 <= size <= count:
            return None
        (low, high), position = range_of_number(start), start.read()
        if low >= 0:
            size -= (size - 1) % step if size else 0  # no element is behind the last step
        if size == 0 or (low >= 0 and high <= count - size):
            return Span(position, size, is_negative=True)  # as `dynamic_slice` takes it by default
        return Span(position, size, is_negative=low < 0, is_in_doubt=True)
    if type(step) is not int or step != 1 or not all(x is None or type(x) is int for x in (start, stop)):
        return None
    start, stop, _ = slice(start, stop).indices(count)
    return Span(start, max(stop - start, 0))


def _distance(stop: object, start: object) -> int | None:
    """The difference of two traced numbers if it is the same in any case; else None."""
    found = distance(stop, start)
    if found is None:
        one, other = seen(stop), seen(start)
        apart = None if one is None or other is None else np.unique(one - other)
        return int(apart[0]) if apart is not None and apart.size == 1 else None
    return found


def _span_of_number(item: Any, count: int) -> Span | None:
    """The span of an integer index, unless it is known to be outside of the dimension."""
    if type(item) is int:
        return Span(item % count, 1, is_one=True) if -count <= item < count else None
    if not isinstance(item, Tensor) or item.ndim or not is_integral(item.dtype):
        return None
    if item.dtype in (torch.bool, torch.uint8):
        return None
    number = as_number(item)
    if not is_traced_number(number):
        return Span(number % count, 1, is_one=True) if -count <= number < count else None
    return Span(number.read(), 1, is_negative=range_of_number(number)[0] < 0, is_one=True)
