"""Views of a selection in rows of another size, which its elements, a data-dependent number of them, must fill.

PyTorch raises an error where they do not. Here that they do is proved by the sums that make the numbers, or else it is
in doubt, and the results of the call tell: see `expect_to_fit`.
"""

import math
from collections.abc import Callable
from typing import Any

import torch

from ..errors import TracedValueError
from ..values.lengths import expect_to_fit, is_multiple, is_same_number, is_traced_number, tensor_of
from ..values.selected import Selected, first, positions_of
from ..values.selected_at_axis import at_axis
from .selection_views import is_view, rows_at


def in_rows(chosen: Selected, flat: Selected, shape: tuple) -> Selected:
    """All elements in rows of a known size; data decide the number of rows."""
    count, size = shape[0], math.prod(shape[1:])
    if not size:
        raise TracedValueError(f"a view of shape {shown(shape)} of a boolean-mask selection")
    if is_traced_number(count):
        length = tensor_of(count)
        _expect_filled(shape, length * size == flat.length)
    else:
        length = flat.length // size
        if not is_multiple(chosen.length, size, math.prod(chosen.rows.shape[chosen.mask.ndim :])):
            _expect_filled(shape, length * size == flat.length)
    capacity = flat.mask.numel() // size
    return _at_positions(flat, torch.arange(capacity * size), (capacity, *shape[1:]), length)


def in_parts(chosen: Selected, flatten: Callable[[], Selected], shape: tuple) -> Any:
    """A view whose only data-dependent dimension is a later one, so that there are equal parts; None if it is not."""
    unknown = [i for i, size in enumerate(shape) if is_traced_number(size) or size == -1]
    if len(unknown) != 1 or unknown[0] == 0:
        return None
    (at,) = unknown
    before, behind = tuple(shape[:at]), tuple(shape[at + 1 :])
    times, count = math.prod(chosen.rows.shape[chosen.mask.ndim :]), math.prod(before)
    size = count * math.prod(behind)
    if size < 1:
        return None
    flat = flatten()
    if is_traced_number(shape[at]):
        length, is_sure = tensor_of(shape[at]), is_same_number(shape[at] * size, chosen.number * times)
    else:
        length, is_sure = flat.length // size, is_multiple(chosen.length, size, times)
    if not is_sure:
        _expect_filled(shape, length * size == flat.length)
    capacity, part = flat.mask.numel() // size, math.prod(behind)
    index = torch.arange(capacity * part).reshape(capacity, 1, part) + torch.arange(count)[:, None] * (length * part)
    return at_axis(_at_positions(flat, index.reshape(-1), (capacity, *before, *behind), length), at)


def filled_with_zeros(flat: Selected, shape: tuple[int, ...]) -> torch.Tensor:
    """A view of known size."""
    size = math.prod(shape)
    if size > flat.mask.numel():
        raise RuntimeError(f"shape '{list(shape)}' is invalid for input of at most {flat.mask.numel()} elements")
    _expect_filled(shape, flat.length == size)
    found = _at_positions(flat, torch.arange(size), shape, flat.length)
    if found.refuses_writes:
        raise TracedValueError(f"a view of shape {list(shape)} of a boolean-mask selection with other strides")
    return found.rows


def _at_positions(flat: Selected, positions: torch.Tensor, shape: tuple[int, ...], length: torch.Tensor) -> Selected:
    """The view of the elements at indices into the selection, in rows of which the first few are valid."""
    rows = flat.rows.flatten(0, flat.mask.ndim - 1)
    positions = positions.clamp(0, max(len(rows) - 1, 0))
    if not flat.is_compact:
        positions = positions_of(flat, flat.mask.numel())[positions]
    found = first(rows_at(rows, positions, flat.length).reshape(shape), length, flat.is_safe)
    found.shares_memory, found.refuses_writes = True, flat.refuses_writes or not is_view(rows, flat.rows)
    return found


def _expect_filled(shape: tuple, fits: torch.Tensor) -> None:
    text = shown(shape)
    expect_to_fit(fits, f"a view of shape {text}", f"shape '{text}' is invalid for as many elements as data decide")


def shown(shape: tuple) -> str:
    return f"[{', '.join('n' if is_traced_number(size) else str(size) for size in shape)}]"
