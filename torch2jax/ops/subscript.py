"""`x[...]` and `x[...] = v`: index tensors, masks, and their mixtures with slices.

PyTorch's own C++ takes a subscript apart: integers, slices, None and ... become views, and what is left arrives here as
``aten.index`` and ``aten.index_put_``, with None for each dimension taken whole.
"""

import dataclasses
import functools
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from ..internals.dispatch import DisableTorchDispatch, DisableTorchFunction
from ..rules.inplace import write_in_place
from ..rules.options import Tag
from ..rules.pointwise import Operand, result_strides
from ..rules.registry import implements, implements_tensors
from ..runtime.caches import remembered
from ..runtime.errors import TracedValueError
from ..runtime.errors.locations import user_level
from ..runtime.layers import SELECTIONS
from ..runtime.translation import current, lift
from ..tensors.dtypes import is_integral
from ..tensors.tensor import Torchish, strides_of_shape
from ..tensors.traced import is_traced
from ..tensors.view_kind import reshape
from ..values.at_once import known_element
from ..values.item import has_item
from ..values.masked import select
from ..values.masked_functions import begin
from .bounds import expect_within, known_values
from .creation import filled
from .indexing import from_start, in_order_of, overwrite, progression, sliced
from .traced_slices import Span, spanned, spanning

aten = torch.ops.aten
Tensor = torch.Tensor

_INDEX_DTYPES = (torch.int64, torch.int32, torch.bool, torch.uint8)


_BYTES = "indexing with dtype torch.uint8 is now deprecated, please use a dtype torch.bool instead."


@dataclasses.dataclass
class _Fixed:
    """An index that is known at trace time; it passes through a rule as it is, and cannot be hashed."""

    values: np.ndarray

    @property
    def shape(self):
        return self.values.shape


# Scalar tensors as indices. PyTorch would ask for their values; those that are unknown become views instead.


@implements_tensors(Tensor.__getitem__, tags=[Tag.INDEXES, Tag.DATA])
def _getitem(self, index):
    if type(index) is list or type(index) is tuple:
        index = _with_numbers_as_tensors(index)
    element = known_element(self, index)
    if element is not None:
        return element
    if isinstance(index, tuple) and index and all(_is_all(item) for item in index[1:]):
        index = index[0] if _is_unknown_mask(self, index[0]) else index
    if _is_unknown_mask(self, index):
        call = current()
        return begin(select(call.constants.lift(self).clone(), call.constants.lift(index).clone()))
    try:
        return current().run_compiled(Tensor.__getitem__, _with_scalars_taken(self, index), {})
    except TracedValueError:
        found = SELECTIONS.by_unknown(self, index)
        if found is None:
            raise
        return found


def _with_numbers_as_tensors(index):
    """A subscript in which lists that have traced numbers are tensors."""
    if type(index) is list:
        return torch.tensor(index) if has_item(index) else index
    if list in map(type, index):
        return tuple(torch.tensor(x) if type(x) is list and has_item(x) else x for x in index)
    return index


def _is_all(item) -> bool:
    return item is Ellipsis or (isinstance(item, slice) and item.start is item.stop is item.step is None)


@implements_tensors(Tensor.__setitem__, tags=[Tag.WRITES, Tag.DATA])
def _setitem(self, index, value):
    if type(index) is list or type(index) is tuple:
        index = _with_numbers_as_tensors(index)
    if type(value) in (int, float, bool):
        element = known_element(self, index)
        if element is not None:
            write_in_place(element, filled((), value, element.dtype), fills=True)
            return
    try:
        current().run_compiled(Tensor.__setitem__, (*_with_scalars_taken(self, index), value), {})
    except TracedValueError:
        cut = spanned(self, index, value)
        if cut is None:
            raise
        cut[0][cut[1]] = value


def _with_scalars_taken(self, index):
    """The tensor and the subscript that is left of it, once its scalars of unknown value are views of the tensor."""
    if isinstance(index, tuple):
        index = tuple(_as_one_index(item) for item in index)
    items = index if isinstance(index, tuple) else (index,)
    if not any(_is_unknown_scalar(item) for item in items):
        return self, index
    self = lift(self)
    missing = self.ndim - sum(_dims_taken(item) for item in items)
    if missing < 0:
        raise IndexError(f"too many indices for tensor of dimension {self.ndim}")
    left, chosen, flags, dim = [], {}, [], 0
    for item in items:
        taken = missing if item is Ellipsis else _dims_taken(item)
        if not _is_unknown_scalar(item):
            left.append(item)
        elif _is_flag(item):
            flags.append(dim - len(chosen) + len(flags))
            left.append(lift(item).reshape(1))
        else:
            chosen[dim] = Span(lift(item).read(), 1, is_one=True, is_negative=True)
        dim += taken
    if chosen:
        self = spanning(self, chosen)
    for dim in flags:
        self = self.unsqueeze(dim)
    return self, tuple(left) or Ellipsis


def _as_one_index(item):
    """A tensor in place of a list of scalar tensors, whose memory PyTorch would read."""
    if isinstance(item, (list, tuple)) and any(isinstance(part, torch.Tensor) for part in item):
        return torch.stack([torch.as_tensor(part) for part in item])
    return item


def _is_unknown_scalar(item) -> bool:
    if not isinstance(item, (Torchish, jax.Array)) or item.ndim:
        return False
    item = lift(item)
    return is_integral(item.dtype) and known_values(item) is None


def _is_unknown_mask(self, index) -> bool:
    """Returns True if a subscript is a traced mask over the first dimensions, and nothing else."""
    if not isinstance(index, torch.Tensor) or index.dtype != torch.bool or index.ndim == 0:
        return False
    return self.shape[: index.ndim] == index.shape and known_values(lift(index)) is None


def _is_flag(item) -> bool:
    return str(item.dtype).removeprefix("torch.") in ("bool", "uint8")


def _dims_taken(item) -> int:
    """The number of dimensions of a tensor that an item of a subscript takes."""
    if item is None or item is Ellipsis or isinstance(item, bool):
        return 0
    if isinstance(item, (list, tuple)):
        item = np.asarray(item) if not any(isinstance(part, torch.Tensor) for part in item) else item
    return item.ndim if hasattr(item, "dtype") and _is_flag(item) else 1


# Before the arrays: what is known of the indices decides the form of the graph.


def _lifted(shape, indices) -> list[Torchish | None]:
    """The index tensors, checked, with bytes as the masks that they are."""
    lifted, dim = [], 0
    for position, index in enumerate(indices):
        if index is None:
            lifted.append(None)
            dim += 1
            continue
        index = lift(index)
        if index.dtype not in _INDEX_DTYPES:
            raise IndexError("tensors used as indices must be long, int, byte or bool tensors")
        if index.dtype in (torch.bool, torch.uint8):
            if index.dtype == torch.uint8:
                warnings.warn(_BYTES, UserWarning, stacklevel=user_level())
            if tuple(index.shape) != tuple(shape[dim : dim + index.ndim]):
                raise IndexError(
                    f"The shape of the mask {list(index.shape)} at index {position} does not match the shape of the "
                    f"indexed tensor {list(shape)} at dimension {dim}"
                )
            index = index if index.dtype == torch.bool else index != 0
            dim += index.ndim
        else:
            dim += 1
        lifted.append(index)
    if dim > len(shape):
        raise IndexError(f"too many indices for tensor of dimension {len(shape)}")
    return lifted


def _is_mask(index) -> bool:
    return index is not None and not isinstance(index, (_Fixed, slice)) and index.dtype in (torch.bool, np.bool_)


def _spread(indices) -> list:
    """The indices with each known mask replaced by the indices of its true elements."""
    result = []
    for index in indices:
        mask = known_values(index) if _is_mask(index) else None
        if mask is None:
            result.append(index)
        else:
            result.extend(_Fixed(positions.astype(np.int32)) for positions in np.nonzero(mask))
    return result


def _as_slices(input: Torchish, indices) -> tuple[list, tuple[int, ...]]:
    """The indices with slices for those that amount to one, and the dimensions whose indices may be negative."""
    result, negative, dim = [], [], 0
    alone = sum(index is not None for index in indices) == 1
    for index in indices:
        if index is None or _is_mask(index):
            result.append(index)
            dim += 1 if index is None else index.ndim
            continue
        values = index.values if isinstance(index, _Fixed) else known_values(index)
        size = input.shape[dim]
        expect_within(index if values is None else values, size, dim, negative=True)
        if values is None:
            negative.append(dim)
        else:
            if values.size and values.min() < 0:
                values = np.where(values < 0, values + size, values)
                index = _Fixed(values)
            if alone and _is_staged(input, index):
                index = progression(values) or index
        result.append(index)
        dim += 1
    return result, tuple(negative)


def _is_staged(*operands) -> bool:
    """Returns True if an operation on these is staged: its form matters more than the time to find it."""
    return any(isinstance(x, Torchish) and is_traced(x.buffer.array) for x in operands)


def _prepare_read(input, indices):
    input = lift(input)
    indices = _spread(_lifted(input.shape, indices))
    if any(_is_mask(index) for index in indices):
        raise TracedValueError("indexing with a boolean mask")
    strides = _strides_of_read(input, indices)
    indices, negative = _as_slices(input, indices)
    part = _part(input, indices)
    if part is not None:
        input, indices, negative = part, [None] * part.ndim, ()
    return (input, indices), {"negative": negative} | ({} if strides is None else {"strides": strides})


def _strides_of_read(input: Torchish, indices) -> tuple[int, ...] | None:
    """The strides of the elements that indices choose; None if they are contiguous."""
    own, given = _operand(input), tuple([None if index is None else _operand(index) for index in indices])
    if not any(given) or all(x is None or x.strides == strides_of_shape(x.shape) for x in (own, *given)):
        return None
    return _strides_of_chosen(own, given)


def _operand(tensor: Torchish | _Fixed) -> Operand:
    shape = tuple(tensor.shape)
    return Operand(shape, tensor.stride() if isinstance(tensor, torch.Tensor) else strides_of_shape(shape))


@remembered(1024)
def _strides_of_chosen(input: Operand, indices: tuple[Operand | None, ...]) -> tuple[int, ...] | None:
    """The strides of an indexed result, from PyTorch's iteration over the input and the indices."""
    given = [dim for dim, index in enumerate(indices) if index is not None]
    shape = _result_shape(input.shape, [slice(None) if x is None else np.empty(x.shape, bool) for x in indices])
    own = [stride for dim, stride in enumerate(input.strides) if dim not in given]
    before = given[0] if given[-1] - given[0] < len(given) else 0  # those that are apart come first
    ndim = len(shape) - len(own)
    together, ones = shape[before : before + ndim], (1,) * (len(own) - before)
    operands = [Operand(shape, (*own[:before], *[0] * ndim, *own[before:]))]
    with DisableTorchFunction(), DisableTorchDispatch():
        for index in filter(None, indices):
            full = torch.empty_strided(*index, device="meta").expand(together)
            reshaped = full.reshape((1,) * before + together + ones)
            operands.append(Operand(tuple(reshaped.shape), reshaped.stride()))
    strides = result_strides(operands, shape)
    return None if strides == strides_of_shape(shape) else strides


def _as_found(_shape: tuple[int, ...], *_args: object, strides=None, **_options: object) -> tuple[int, ...] | None:
    return strides


def _part(input: Torchish, indices) -> torch.Tensor | None:
    """The elements that several known indices choose, each along a dimension of its own, as with `numpy.ix_`."""
    dims = [dim for dim, index in enumerate(indices) if index is not None]
    if len(dims) < 2 or dims[-1] - dims[0] >= len(dims) or not _is_staged(input):
        return None
    chosen = [
        index.values if isinstance(index, _Fixed) else known_values(index) for index in map(indices.__getitem__, dims)
    ]
    if any(values is None or not values.size for values in chosen):
        return None
    together = np.broadcast_shapes(*(values.shape for values in chosen))
    axes = [_axis(values, len(together)) for values in chosen]
    walks = [progression(values.reshape(-1)) for values in chosen]
    walked = [axis for axis in axes if axis is not None and axis >= 0]
    if None in axes or len({*walked}) < len(walked) or not all(walk and walk.step > 0 for walk in walks):
        return None
    part = input[(slice(None),) * dims[0] + tuple(walks)]
    order = sorted(range(len(dims)), key=axes.__getitem__)
    after = range(dims[-1] + 1, input.ndim)
    part = part.permute(*range(dims[0]), *(dims[position] for position in order), *after)
    return part.reshape(*input.shape[: dims[0]], *together, *(input.shape[dim] for dim in after))


def _axis(values: np.ndarray, ndim: int) -> int | None:
    """The only dimension, of `ndim`, in which an index has more than one value; -1 if there is none."""
    axes = [axis for axis, size in enumerate(values.shape, ndim - values.ndim) if size > 1]
    return None if len(axes) > 1 else axes[0] if axes else -1


def _prepare_write(input, indices, values, accumulate=False):
    input, values = lift(input), lift(values)
    indices = _lifted(input.shape, indices)
    mask = _only_mask(indices)
    if values.dtype != input.dtype:
        if mask is None or values.numel() != 1 or accumulate:
            _expect_known_broadcast(input.shape, _spread(indices), values.shape)
            raise RuntimeError(
                f"Index put requires the source and destination dtypes match, got {input.dtype} for the destination "
                f"and {values.dtype} for the source."
            )
        values = values.to(input.dtype)
    if mask is None or _has_count(values, input.ndim - mask - indices[mask].ndim):
        indices = _spread(indices)
    indices, negative = _as_slices(input, indices)
    return (input, indices, values, accumulate), {"negative": negative}


def _expect_known_broadcast(shape, indices, values) -> None:
    """As `_expect_broadcast`, for the shapes of values and indices, if these say how much they choose."""
    if not any(_is_mask(index) for index in indices):
        _expect_broadcast(values, _result_shape(shape, [slice(None) if index is None else index for index in indices]))


def _only_mask(indices) -> int | None:
    """The place of a mask that is the only index."""
    given = [position for position, index in enumerate(indices) if index is not None]
    return given[0] if len(given) == 1 and _is_mask(indices[given[0]]) else None


def _has_count(values, after: int) -> bool:
    """True if `values` has a dimension for the true elements of a mask with `after` dimensions after it."""
    return values.ndim > after and values.shape[values.ndim - after - 1] != 1


# On arrays.


def _entries(shape, indices, negative) -> tuple:
    """The indices as JAX takes them, none of them negative."""
    entries = []
    for dim, index in enumerate(indices):
        if index is None:
            entries.append(slice(None))
        else:
            array = index.values if isinstance(index, _Fixed) else index
            entries.append(from_start(array, shape[dim]) if dim in negative else array)
    return tuple(entries)


def _region(indices) -> tuple[int, slice] | None:
    """The dimension and slice of a subscript that is but one slice."""
    return next(((dim, index) for dim, index in enumerate(indices) if isinstance(index, slice)), None)


def _result_shape(shape, entries) -> tuple[int, ...]:
    """The shape of the elements that the entries, none of them a slice, choose."""
    at = [dim for dim, entry in enumerate(entries) if not isinstance(entry, slice)]
    shapes = [np.shape(entries[dim]) for dim in at]
    try:
        together = np.broadcast_shapes(*shapes)
    except ValueError:
        raise IndexError(
            "shape mismatch: indexing tensors could not be broadcast together with shapes "
            + ", ".join(str(list(shape)) for shape in shapes)
        ) from None
    if at == list(range(at[0], at[-1] + 1)):
        return (*shape[: at[0]], *together, *shape[at[-1] + 1 :])
    return (*together, *(size for dim, size in enumerate(shape) if dim not in at))


@implements(aten.index, aten._unsafe_index, prepare=_prepare_read, strides=_as_found, tags=[Tag.LINEAR])
def index(input, indices, *, negative=(), strides=None):
    del strides  # only told of
    region = _region(indices)
    if region is not None:
        return sliced(input, *region)
    if all(index is None for index in indices):
        return input
    entries = _entries(input.shape, indices, negative)
    _result_shape(input.shape, entries)
    return input.at[entries].get(mode="promise_in_bounds", wrap_negative_indices=False)


@implements(
    torch.index_put, aten._unsafe_index_put, prepare=_prepare_write, tags=[Tag.WRITES_BY_INDEX, Tag.INTO_EXPANDED]
)
def index_put(input, indices, values, accumulate=False, *, negative=()):
    mask = _only_mask(indices)
    if mask is not None:
        return _put_where(input, mask, indices[mask], values, accumulate)
    region = _region(indices)
    if region is not None:
        return _put_slice(input, *region, values, accumulate)
    if all(index is None for index in indices):
        return _combined(input, _expanded(values, input.shape), accumulate)
    mode = "promise_in_bounds"
    if any(_is_mask(index) for index in indices):
        mode, (indices, values) = "drop", _without_masks(input.shape, indices, values)
    entries = _entries(input.shape, indices, negative)
    values = _expanded(values, _result_shape(input.shape, entries))
    positions = [entry for entry in entries if not isinstance(entry, slice)]
    layout = tuple(isinstance(entry, slice) for entry in entries)
    write = functools.partial(_write, layout, mode, accumulate)
    return write(input, values, *positions) if accumulate else overwrite(write, input, values, *positions)


@implements_tensors(aten._index_put_impl_.default)
def _index_put_impl_(self, indices, values, accumulate=False, unsafe=False):
    return self.index_put_(indices, values, accumulate)


def _write(full, mode, accumulate, operand, updates, *positions, unique=False):
    remaining = iter(positions)
    target = operand.at[tuple(slice(None) if is_full else next(remaining) for is_full in full)]
    function = target.set if not accumulate else target.max if operand.dtype == bool else target.add
    return function(updates, mode=mode, unique_indices=unique, wrap_negative_indices=False)


def _combined(before, values, accumulate):
    if not accumulate:
        return values
    return lax.bitwise_or(before, values) if before.dtype == bool else lax.add(before, values)


def _expanded(values, shape):
    _expect_broadcast(values.shape, shape)
    return jnp.broadcast_to(values, shape)


def _expect_broadcast(values, shape) -> None:
    """Refuses values of a shape that does not broadcast to the written part."""
    try:
        fits = np.broadcast_shapes(values, shape) == tuple(shape)
    except ValueError:
        fits = False
    if not fits:
        raise RuntimeError(
            f"shape mismatch: value tensor of shape {list(values)} cannot be broadcast to indexing result of "
            f"shape {list(shape)}"
        )


def _put_slice(input, dim: int, region: slice, values, accumulate):
    start, stop, step = region.indices(input.shape[dim])
    count = len(range(start, stop, step))
    values = _expanded(values, (*input.shape[:dim], count, *input.shape[dim + 1 :]))
    if step < 0:
        start, step, values = start + (count - 1) * step, -step, lax.rev(values, (dim,))
    region = slice(start, start + (count - 1) * step + 1, step)
    values = _combined(sliced(input, dim, region) if accumulate else None, values, accumulate)
    if step == 1:
        starts = [np.int32(start if d == dim else 0) for d in range(input.ndim)]
        return values if count == input.shape[dim] else lax.dynamic_update_slice(input, values, starts)
    index = (slice(None),) * dim + (region,)
    return input.at[index].set(values, unique_indices=True, indices_are_sorted=True)


def _put_where(input, dim: int, mask, values, accumulate):
    """Writes at the true elements of a mask over the dimensions from `dim`, as a selection of fixed shape."""
    after = input.ndim - dim - mask.ndim
    if values.ndim > after:
        axis = values.ndim - after - 1
        if _has_count(values, after):
            values = in_order_of(mask, values, axis)
            inner = mask.shape
        else:
            inner = (1,) * mask.ndim
        values = reshape(values, (*values.shape[:axis], *inner, *values.shape[axis + 1 :]))
    values = _combined(input, _expanded(values, input.shape), accumulate)
    mask = lax.broadcast_in_dim(mask, input.shape, range(dim, dim + mask.ndim))
    return lax.select(mask, values, input)


def _without_masks(shape, indices, values):
    """Traced masks as indices of a fixed number, of which the surplus ones are out of bounds."""
    count = min(index.size for index in indices if _is_mask(index))
    result = []
    for index in indices:
        if _is_mask(index):
            result.extend(jnp.nonzero(index, size=count, fill_value=index.shape))
        else:
            array = index.values if isinstance(index, _Fixed) else index
            result.append(array if array is None else _padded(array, array.ndim - 1, count))
    chosen = _result_shape(shape, [slice(None) if index is None else index for index in result])
    at = [dim for dim, index in enumerate(result) if index is not None]
    together = np.broadcast_shapes(*(result[dim].shape for dim in at))
    adjacent = at == list(range(at[0], at[-1] + 1))
    behind = len(chosen) - len(together) - (at[0] if adjacent else 0)
    return result, _padded(values, values.ndim - behind - 1, count)


def _padded(array, axis: int, size: int):
    """`array` with more elements along `axis`, unless it has one, which is broadcast."""
    if axis < 0 or array.shape[axis] in (1, size):
        return array
    edges = [(0, size - array.shape[axis] if d == axis else 0, 0) for d in range(array.ndim)]
    return lax.pad(array, np.zeros((), array.dtype), edges)
