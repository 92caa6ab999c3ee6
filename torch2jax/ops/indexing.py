"""Reading and writing elements by index tensors and masks; `x[...]` and `x[...] = v`."""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from ..dtypes import canonical, dtype_j2t
from ..errors import TracedValueError
from ..registry import implements, implements_tensors
from ..rule import ArrayRule, write_in_place
from ..storage import ViewKind, evaluate, is_traced
from ..tensor import Torchish, geometry, make_view
from ..translation import current
from .elementwise import where
from .shape import wrap_dim
from .views import reshape

aten = torch.ops.aten
Tensor = torch.Tensor

_IN_BOUNDS = lax.GatherScatterMode.PROMISE_IN_BOUNDS


# Along one dimension: gather, scatter and index_select are all this, with other dimensions batched or taken whole.


class _Along(NamedTuple):
    """How indices along `dim` meet an operand: for each element of the other dimensions, or for all of `windows`.

    The indices have as many dimensions as the operand, of size one in `windows`.
    """

    dim: int
    windows: tuple[int, ...] = ()

    def _batch(self, ndim: int):
        """The dimensions that operand and indices share, and their places among the indices' dimensions."""
        rest = [d for d in range(ndim) if d not in self.windows]
        batch = tuple(d for d in rest if d != self.dim)
        return batch, tuple(rest.index(d) for d in batch)

    def starts(self, indices):
        """Index vectors of length one, as the lax operators take them."""
        kept = [size for d, size in enumerate(indices.shape) if d not in self.windows]
        return lax.reshape(indices, (*kept, 1))

    def gather(self, operand, indices):
        """``operand[..., indices, ...]``."""
        batch, places = self._batch(operand.ndim)
        numbers = lax.GatherDimensionNumbers(
            offset_dims=self.windows,
            collapsed_slice_dims=(self.dim,),
            start_index_map=(self.dim,),
            operand_batching_dims=batch,
            start_indices_batching_dims=places,
        )
        sizes = [size if d in self.windows else 1 for d, size in enumerate(operand.shape)]
        return lax.gather(operand, self.starts(indices), numbers, sizes, mode=_IN_BOUNDS)

    def scatter(self, function, operand, indices, updates):
        """``operand[..., indices, ...] = updates``, or another way to combine than ``=``, by the lax `function`."""
        batch, places = self._batch(operand.ndim)
        numbers = lax.ScatterDimensionNumbers(
            update_window_dims=self.windows,
            inserted_window_dims=(self.dim,),
            scatter_dims_to_operand_dims=(self.dim,),
            operand_batching_dims=batch,
            scatter_indices_batching_dims=places,
        )
        return function(operand, self.starts(indices), updates, numbers, mode=_IN_BOUNDS)


def _check_bounds(indices, size: int, dim: int, *, wraps: bool = False, error: type[Exception] = IndexError) -> None:
    """Raises where concrete `indices` leave a dimension; traced ones are taken at their word."""
    if is_traced(indices) or indices.size == 0:
        return
    indices = np.asarray(indices)
    bad = indices[(indices < (-size if wraps else 0)) | (indices >= size)]
    if bad.size:
        raise error(f"index {bad[0]} is out of bounds for dimension {dim} with size {size}")


@implements(torch.gather)
def gather(input, dim, index, *, sparse_grad=False):
    dim = wrap_dim(dim, input.ndim)
    if index.size == 0:
        return jnp.zeros(index.shape, input.dtype)
    if max(index.ndim, 1) != max(input.ndim, 1):
        raise RuntimeError(
            f"Index tensor must have the same number of dimensions as input tensor, got {index.ndim} and {input.ndim}"
        )
    shape = index.shape
    input, index = jnp.atleast_1d(input), jnp.atleast_1d(index)
    part = [size if d == dim else index.shape[d] for d, size in enumerate(input.shape)]
    if any(wanted > size for wanted, size in zip(part, input.shape, strict=True)):
        raise RuntimeError(
            f"Size does not match at dimension other than {dim}: expected index {list(index.shape)} to be no larger "
            f"than self {list(input.shape)} apart from dimension {dim}"
        )
    _check_bounds(index, input.shape[dim], dim, error=RuntimeError)
    input = lax.slice(input, [0] * input.ndim, part) if tuple(part) != input.shape else input
    return reshape(_Along(dim).gather(input, index), shape)


# x[indices]: index tensors, masks, and None for a dimension taken whole.


def _known(tensor: Torchish):
    """The values of an index that are known, as a numpy array, else None."""
    known = tensor.read() if not is_traced(tensor.read()) else evaluate(tensor.known)
    return None if known is None or is_traced(known) else np.asarray(known)


@dataclasses.dataclass(frozen=True, eq=False)
class _Fixed:
    """An index whose values are known; it passes through a rule as it is, and is no operand."""

    values: np.ndarray


def _is_mask(index) -> bool:
    return index.dtype in (torch.bool, torch.uint8)


def _check_index_dtypes(indices) -> None:
    for index in indices:
        if index is not None and index.dtype not in (
            torch.int64,
            torch.int32,
            torch.int16,
            torch.int8,
            torch.bool,
            torch.uint8,
        ):
            raise IndexError("tensors used as indices must be long, int, byte or bool tensors")


def _lifted(indices) -> list[Torchish | None]:
    call = current()
    return [None if index is None else call.lift(index) for index in indices]  # pyright: ignore[reportOptionalMemberAccess]


def _check_masks(shape, indices) -> None:
    dim = 0
    for index in indices:
        if index is None or not _is_mask(index):
            dim += 1
            continue
        for size in index.shape:
            if dim >= len(shape) or shape[dim] != size:
                raise IndexError(
                    f"The shape of the mask {list(index.shape)} at index 0 does not match the shape of the indexed "
                    f"tensor {list(shape)} at index {dim}"
                )
            dim += 1
    if dim > len(shape):
        raise IndexError(f"too many indices for tensor of dimension {len(shape)}")


def _without_masks(indices, what: str) -> list:
    """The indices with each mask replaced by the indices of its true elements."""
    result = []
    for index in indices:
        if index is None or not _is_mask(index):
            result.append(index)
            continue
        mask = _known(index)
        if mask is None:
            raise TracedValueError(what)
        result.extend(_Fixed(places.astype(np.int32)) for places in np.nonzero(mask))
    return result


def _fixed_where_known(indices) -> list:
    """The indices, where their values are known (and short enough to be literals) these values."""
    result = []
    for index in indices:
        if isinstance(index, Torchish):
            values = _known(index)
            index = index if values is None else _Fixed(values)
        result.append(index)
    return result


@implements_tensors(aten.index.Tensor, aten._unsafe_index.Tensor)
def index(self, indices):
    indices = _lifted(indices)
    _check_index_dtypes(indices)
    _check_masks(self.shape, indices)
    indices = _fixed_where_known(_without_masks(indices, "indexing with a boolean mask"))
    return _index((self, indices), {})


def _entries(shape, indices) -> tuple:
    """The indices for jax: slices for what is taken whole, everything checked and not negative."""
    entries = []
    for dim, index in enumerate(indices):
        if index is None:
            entries.append(slice(None))
            continue
        array = index.values if isinstance(index, _Fixed) else index
        size = shape[dim]
        _check_bounds(array, size, dim, wraps=True)
        entries.append(_counted_from_front(array, size))
    return tuple(entries)


def _counted_from_front(array, size: int):
    if is_traced(array):
        return where(lax.lt(array, _like(array, 0)), lax.add(array, _like(array, size)), array)
    values = np.asarray(array)
    return np.where(values < 0, values + size, values) if (values < 0).any() else array


def _like(array, value):
    return np.asarray(value).astype(array.dtype)


def _progression(values: np.ndarray, size: int) -> slice | None:
    """The slice that a one-dimensional list of indices amounts to, if there is one."""
    if values.ndim != 1 or values.size == 0:
        return None
    first, step = int(values[0]), int(values[1] - values[0]) if values.size > 1 else 1
    if step == 0 or not np.array_equal(values, first + step * np.arange(values.size)):
        return None
    stop = first + step * values.size
    return slice(first, stop if stop >= 0 else None, step)


def _gather(input, indices):
    entries = _entries(input.shape, indices)
    at = [dim for dim, entry in enumerate(entries) if not isinstance(entry, slice)]
    if len(at) == 1 and is_traced(input) and not is_traced(entries[at[0]]):
        region = _progression(np.asarray(entries[at[0]]), input.shape[at[0]])
        if region is not None:
            return _sliced(input, at[0], region)
    return input.at[entries].get(mode="promise_in_bounds", wrap_negative_indices=False)


def _sliced(array, dim: int, region: slice):
    start, stop, step = region.indices(array.shape[dim])
    if step < 0:
        count = len(range(start, stop, step))
        last = start + (count - 1) * step
        return lax.rev(_sliced(array, dim, slice(last, start + 1, -step)), (dim,))
    if (start, stop, step) == (0, array.shape[dim], 1):
        return array
    return lax.slice_in_dim(array, start, stop, step, dim)


_index = ArrayRule(_gather, "index")


@implements_tensors(torch.index_put, Tensor.index_put, aten.index_put.default, aten._unsafe_index_put.default)
def index_put(input, indices, values, accumulate=False):
    call = current()
    input, values = call.lift(input), call.lift(values)  # pyright: ignore[reportOptionalMemberAccess]
    indices = _lifted(indices)
    _check_index_dtypes(indices)
    if values.dtype != input.dtype and values.ndim:
        raise RuntimeError(
            f"Index put requires the source and destination dtypes match, got {input.dtype} for the destination and "
            f"{values.dtype} for the source."
        )
    _check_masks(input.shape, indices)
    indices = _without_masks(indices, "masked")
    return _index_put((input, _fixed_where_known(indices), values, accumulate), {})


@implements_tensors(torch.index_put_, Tensor.index_put_, aten.index_put_.default, aten._index_put_impl_.default)
def index_put_(input, indices, values, accumulate=False, unsafe=False):
    return write_in_place(input, index_put(input, indices, values, accumulate), (values,))


def _put(input, indices, values, accumulate):
    entries = _entries(input.shape, indices)
    target = input.at[entries]
    write = target.add if accumulate else target.set
    return write(values.astype(input.dtype), mode="promise_in_bounds", wrap_negative_indices=False)


_index_put = ArrayRule(_put, "index_put")


# Masks.


@implements(torch.masked_fill, Tensor.masked_fill)
def masked_fill(input, mask, value):
    if mask.dtype != bool:
        raise RuntimeError(f"masked_fill only supports boolean masks, but got mask with dtype {mask.dtype}")
    if np.ndim(value):
        raise RuntimeError(
            f"masked_fill_ only supports a 0-dimensional value tensor, but got tensor with {np.ndim(value)} dimension(s)."
        )
    if isinstance(value, jax.Array):
        value = lax.convert_element_type(value, input.dtype)
    else:
        value = np.asarray(value).astype(input.dtype)
    return where(mask, value, input)
