"""Elements by index along one dimension, by flat index and by mask. `x[...]` and `x[...] = v` are in `subscript.py`."""

import functools
import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from ..rules.inplace import write_out
from ..rules.options import Tag
from ..rules.registry import implements, implements_tensors
from ..runtime.translation import current, lift
from ..tensors.dtypes import NUMBERS, REALS, REALS_AND_BOOL, canonical, cpp_name, dtype_j2t, number_in_dtype, type_name
from ..tensors.storage import View
from ..tensors.tensor import Torchish, geometry, make_view
from ..tensors.traced import is_traced
from ..tensors.view_kind import ViewKind, reshape
from .arrays import at_least_1d, axis_of, highest, is_inexact, like, lowest, truth, where
from .bounds import expect_within, known_values, outside, seen

aten = torch.ops.aten
Tensor = torch.Tensor

IN_BOUNDS = lax.GatherScatterMode.PROMISE_IN_BOUNDS


# Indices.


def progression(values: np.ndarray) -> slice | None:
    """The slice with the elements of a list of indices, none of them negative, if there is one."""
    if values.ndim != 1 or values.size == 0:
        return None
    first, step = int(values[0]), int(values[1]) - int(values[0]) if values.size > 1 else 1
    if step == 0 or not np.array_equal(values, first + step * np.arange(values.size)):
        return None
    stop = first + step * values.size
    return slice(first, None if stop < 0 else stop, step)


def sliced(array, dim: int, region: slice):
    """``array[..., region, ...]``, also with a negative step; nothing is emitted for the whole dimension."""
    size = array.shape[dim]
    start, stop, step = region.indices(size)
    if step < 0:
        last = start + (len(range(start, stop, step)) - 1) * step
        return lax.rev(sliced(array, dim, slice(last, start + 1, -step)), (dim,))
    if (start, stop, step) == (0, size, 1):
        return array
    return lax.slice_in_dim(array, start, stop, step, dim)


def from_start(indices, size: int):
    """Indices, some of them perhaps negative, counted from the front."""
    if indices.dtype.itemsize < 4:
        indices = lax.convert_element_type(indices, np.int32)
    if not is_traced(indices) and not np.any(np.asarray(indices) < 0):
        return indices
    return where(lax.lt(indices, like(indices, 0)), lax.add(indices, like(indices, size)), indices)


def same_dtype(input, source, name: str) -> None:
    """Raises an error if a written value has another dtype than its target."""
    if input.dtype != source.dtype:
        raise RuntimeError(
            f"{name}: expected the source to have the dtype of the input, {input.dtype}, but got {source.dtype}"
        )


def _expect_index(index, name: str, *, long: bool = False, error: type[Exception] = RuntimeError) -> None:
    """Refuses an index of another dtype than int64, or int32 unless that is to be `long`."""
    if index.dtype != canonical(torch.int64) and (long or index.dtype != np.int32):
        wanted = "a long tensor" if long else "dtype int32/int64"
        raise error(f"{name}(): Expected {wanted} for index, but got {index.dtype}")


# Along one dimension: gather, scatter, index_select and their like are all this.


class _Along(NamedTuple):
    """The way in which indices meet an operand: along `dim`, one for each element of the other dimensions, or for all
    of `windows`.

    The indices have the operand's dimensions without `windows`, and its sizes but along `dim`.
    """

    dim: int
    windows: tuple[int, ...]

    def _batch(self, ndim: int):
        """The dimensions in which operand and indices go together, and their places among the indices' own."""
        kept = [d for d in range(ndim) if d not in self.windows]
        batch = tuple(d for d in kept if d != self.dim)
        return batch, tuple(kept.index(d) for d in batch)

    def gather(self, operand, indices):
        """The elements of `operand` at `indices`."""
        batch, positions = self._batch(operand.ndim)
        numbers = lax.GatherDimensionNumbers(
            offset_dims=self.windows,
            collapsed_slice_dims=(self.dim,),
            start_index_map=(self.dim,),
            operand_batching_dims=batch,
            start_indices_batching_dims=positions,
        )
        sizes = [size if d in self.windows else 1 for d, size in enumerate(operand.shape)]
        return lax.gather(operand, _vectors(indices), numbers, sizes, mode=IN_BOUNDS)

    def scatter(self, function: Callable, operand, updates, indices, unique: bool = False):
        """`operand` with `updates` combined into its elements at `indices`, by one of lax's scatter functions."""
        batch, positions = self._batch(operand.ndim)
        numbers = lax.ScatterDimensionNumbers(
            update_window_dims=self.windows,
            inserted_window_dims=(self.dim,),
            scatter_dims_to_operand_dims=(self.dim,),
            operand_batching_dims=batch,
            scatter_indices_batching_dims=positions,
        )
        return function(operand, _vectors(indices), updates, numbers, mode=IN_BOUNDS, unique_indices=unique)


def _vectors(indices):
    """Indices as the index vectors, of length one, that lax takes."""
    return lax.expand_dims(indices, (indices.ndim,))


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _overwrite(write, operand, updates, *indices):
    return write(operand, updates, *indices, unique=False)


@_overwrite.defjvp
def _(write, primals, tangents):
    # As in PyTorch, every update gets the gradient of the place it was written to, also where several met there.
    return _overwrite(write, *primals), write(*tangents[:2], *primals[2:], unique=True)


def overwrite(write: Callable, operand, updates, *indices):
    """``write(operand, updates, *indices, unique=...)``, which puts `updates` in their places, with its derivative."""
    if not is_inexact(operand):
        return write(operand, updates, *indices, unique=False)
    return _overwrite(write, operand, updates, *indices)


def _put(along: _Along, operand, updates, indices):
    return overwrite(functools.partial(along.scatter, lax.scatter), operand, updates, indices)


def _add(along: _Along, operand, updates, indices):
    function = lax.scatter_max if operand.dtype == bool else lax.scatter_add
    return along.scatter(function, operand, updates, indices)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _multiply(along: _Along, operand, updates, indices):
    function = lax.scatter_min if operand.dtype == bool else lax.scatter_mul
    return along.scatter(function, operand, updates, indices)


@_multiply.defjvp
def _(along, primals, tangents):
    operand, updates, indices = primals
    product = _multiply(along, operand, updates, indices)
    zero, one = like(operand, 0), like(operand, 1)
    # The factor of a tangent is the product of all others: by division, or afresh without a zero that stands alone.
    nonzero = where(lax.eq(operand, zero), one, operand)
    of_operand = lax.div(_multiply(along, nonzero, updates, indices), nonzero)
    is_zero = lax.eq(updates, zero)
    zeros = along.scatter(lax.scatter_add, lax.full_like(operand, 0), is_zero.astype(operand.dtype), indices)
    alone = lax.bitwise_and(is_zero, lax.eq(along.gather(zeros, indices), one))
    others = _multiply(along, operand, where(alone, one, updates), indices)
    product_there = along.gather(product, indices)
    of_updates = where(
        alone,
        along.gather(others, indices),
        where(
            is_zero, _differentiable_once(product_there, is_zero), lax.div(product_there, where(is_zero, one, updates))
        ),
    )
    tangent = lax.mul(of_operand, tangents[0])
    return product, along.scatter(lax.scatter_add, tangent, lax.mul(of_updates, tangents[1]), indices)


@jax.custom_jvp
def _differentiable_once(factor, where_several):
    """The factor of zero where several zeros met: its own derivatives are NaN. PyTorch refuses to differentiate it."""
    del where_several
    return factor


@_differentiable_once.defjvp
def _(primals, tangents):
    factor, where_several = primals
    slope = where(where_several, like(factor, np.nan), like(factor, 0))  # nobody asks for the others
    return _differentiable_once(*primals), lax.mul(tangents[0], slope)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0, 1))
def _extreme(function, along: _Along, operand, updates, indices):
    return along.scatter(function, operand, updates, indices)


@_extreme.defjvp
def _(function, along, primals, tangents):
    operand, updates, indices = primals
    result = _extreme(function, along, operand, updates, indices)
    zero = like(operand, 0)
    won, won_updates = lax.eq(operand, result), lax.eq(updates, along.gather(result, indices))
    # Those that tie share the gradient.
    winners = along.scatter(lax.scatter_add, won.astype(operand.dtype), won_updates.astype(operand.dtype), indices)
    tangent = along.scatter(
        lax.scatter_add, where(won, tangents[0], zero), where(won_updates, tangents[1], zero), indices
    )
    return result, lax.div(tangent, winners)


def _count(along: _Along, operand, updates, indices, include_self: bool):
    ones = lax.full(operand.shape, int(include_self), operand.dtype)
    count = along.scatter(lax.scatter_add, ones, lax.full(updates.shape, 1, operand.dtype), indices)
    return count if include_self else lax.max(count, like(count, 1))


def _reduce(along: _Along, operand, updates, indices, reduce: str, include_self: bool):
    if reduce not in _IDENTITIES:
        raise RuntimeError(f"reduce argument must be one of {', '.join(_IDENTITIES)}, but got {reduce!r}")
    start = operand
    if not include_self:
        identity = _IDENTITIES[reduce](operand)
        start = _put(along, operand, lax.full(updates.shape, identity, operand.dtype), indices)
    if reduce == "prod":
        return _multiply(along, start, updates, indices)
    if reduce in ("amax", "amin"):
        function = lax.scatter_max if reduce == "amax" else lax.scatter_min
        return _extreme(function, along, start, updates, indices)
    total = _add(along, start, updates, indices)
    if reduce == "sum":
        return total
    count = _count(along, operand, updates, indices, include_self)
    return lax.div(total, count) if is_inexact(total) else jnp.floor_divide(total, count)


_IDENTITIES: dict[str, Callable] = {
    "sum": lambda _: 0,
    "prod": lambda _: 1,
    "mean": lambda _: 0,
    "amax": lowest,
    "amin": highest,
}


# gather and scatter: one index for each element.


def _unexpanded(input, dim, index, *args, **kwargs):
    """The call with its index as it was before it was expanded: then whole rows are moved, not single elements."""
    index = lift(index)
    if index.ndim > 1 and 0 in index.stride():
        shape, axis = tuple(index.shape), axis_of(index, dim)
        windows = tuple(d for d, stride in enumerate(index.stride()) if stride == 0 and d != axis and shape[d] > 1)
        index = _without_dims(index, windows)
        kwargs = {**kwargs, "shape": shape, "windows": windows}
    return (input, dim, index, *args), kwargs


def _without_dims(index: Torchish, dims: tuple[int, ...]) -> Torchish:
    """`index` without dimensions that it was expanded in."""
    like = index
    for dim in reversed(dims):
        like = geometry(aten.select.int, like, dim, 0)
    node, shape = index._node, tuple(like.shape)
    if isinstance(node, View) and node.parent.read().size == math.prod(shape) and _is_expansion(node.kind):
        before = node.parent.read().shape
        kind = ViewKind(lambda array: reshape(array, shape), lambda _, value: reshape(value, before), covers=True)
        return make_view(index, View(node.parent, kind), like)
    for dim in reversed(dims):
        index = index.select(dim, 0)
    return index


def _is_expansion(kind: ViewKind) -> bool:
    return getattr(kind.read, "func", None) is lax.broadcast_in_dim


def _check_elements(input, dim, index, *args, **kwargs):
    dim = axis_of(input, dim)
    expect_within(index, input.shape[dim] if input.ndim else 1, dim, error=RuntimeError)


class _Elements:
    """One call of gather or scatter, checked: the region of the input that the index speaks of, and how."""

    def __init__(self, name: str, input, dim: int, index, shape: tuple[int, ...] | None, windows: tuple[int, ...]):
        dim = axis_of(input, dim)
        shape = index.shape if shape is None else shape
        self.result_shape, self.input_shape = shape, input.shape
        if max(len(shape), 1) != max(input.ndim, 1):
            raise RuntimeError(
                f"Index tensor must have the same number of dimensions as input tensor, but got {len(shape)} and "
                f"{input.ndim}"
            )
        self.input, self.index, self.shape = at_least_1d(input), at_least_1d(index), shape or (1,)
        self.region = [size if d == dim else self.shape[d] for d, size in enumerate(self.input.shape)]
        if any(wanted > size for wanted, size in zip(self.region, self.input.shape, strict=True)):
            raise RuntimeError(
                f"Size does not match at dimension other than {dim}: expected index {list(shape)} to be no larger than "
                f"self {list(input.shape)} apart from dimension {dim}"
            )
        _expect_index(self.index, name)
        self.along = _Along(dim, windows)

    def part(self, array, limits):
        """The beginning of `array` in every dimension."""
        return array if array.shape == tuple(limits) else lax.slice(array, [0] * array.ndim, limits)

    def gather(self):
        return reshape(self.along.gather(self.part(self.input, self.region), self.index), self.result_shape)

    def updates(self, src):
        """The values to scatter, one for each element of the index."""
        if not isinstance(src, (jax.Array, np.ndarray)):
            return lax.full(self.shape, src, self.input.dtype)
        same_dtype(self.input, src, "scatter")
        src = at_least_1d(src)
        if src.ndim != self.input.ndim or any(n > size for n, size in zip(self.shape, src.shape, strict=True)):
            raise RuntimeError(
                f"Expected index {list(self.shape)} to be no larger than src {list(src.shape)} in every dimension"
            )
        return self.part(src, self.shape)

    def scatter(self, combine: Callable, src):
        """The input with `src` combined into it."""
        updates = self.updates(src)
        part = self.part(self.input, self.region)
        result = combine(self.along, part, updates, self.index)
        if part.shape != self.input.shape:
            result = lax.dynamic_update_slice(self.input, result, [np.int32(0)] * result.ndim)
        return reshape(result, self.input_shape)


@implements(
    torch.gather, check=_check_elements, prepare=_unexpanded, exact_out=True, tags=[Tag.LINEAR, Tag.READS_BY_INDEX]
)
def gather(input, dim, index, *, sparse_grad=False, shape=None, windows=()):
    if index.size == 0:
        return lax.full(index.shape if shape is None else shape, 0, input.dtype)
    return _Elements("gather", input, dim, index, shape, windows).gather()


def _scatter(combine: Callable, input, dim, index, src, **expansion):
    if index.size == 0:
        return input
    return _Elements("scatter", input, dim, index, **expansion).scatter(combine, src)


@implements(
    torch.scatter,
    aten.scatter,
    check=_check_elements,
    prepare=_unexpanded,
    fits=("src", "value"),
    tags=[Tag.WRITES_BY_INDEX],
)
def scatter(input, dim, index, src=None, *, value=None, reduce=None, shape=None, windows=()):
    if reduce not in (None, "add", "multiply"):
        raise RuntimeError(f"reduce argument must be either add or multiply, but got {reduce!r}")
    combine = {None: _put, "add": _add, "multiply": _multiply}[reduce]
    return _scatter(combine, input, dim, index, value if src is None else src, shape=shape, windows=windows)


@implements(torch.scatter_add, check=_check_elements, prepare=_unexpanded, tags=[Tag.WRITES_BY_INDEX])
def scatter_add(input, dim, index, src, *, shape=None, windows=()):
    return _scatter(_add, input, dim, index, src, shape=shape, windows=windows)


def _reducible(input, dim, index, src, reduce, **_):
    """The dtypes whose elements have a mean, or an order."""
    return {"mean": NUMBERS, "amax": REALS_AND_BOOL, "amin": REALS_AND_BOOL}.get(reduce)


@implements(
    torch.scatter_reduce,
    aten.scatter_reduce,
    takes=_reducible,
    check=_check_elements,
    prepare=_unexpanded,
    tags=[Tag.WRITES_BY_INDEX],
)
def scatter_reduce(input, dim, index, src, reduce, *, include_self=True, shape=None, windows=()):
    combine = functools.partial(_reduce, reduce=reduce, include_self=include_self)
    return _scatter(combine, input, dim, index, src, shape=shape, windows=windows)


def _broadcast_along(input, indices, dim=None):
    input, indices = lift(input), lift(indices)
    if dim is None:
        input, indices, dim = input.reshape(-1), indices.reshape(-1), 0
    elif input.ndim != indices.ndim:
        raise RuntimeError(
            "torch.take_along_dim(): input and indices should have the same number of dimensions, but got "
            f"{input.ndim} dimensions for input, and {indices.ndim} dimensions for indices"
        )
    dim = axis_of(input, dim)
    shape = np.broadcast_shapes(_without(input.shape, dim), _without(indices.shape, dim))
    input = input.expand(*shape[:dim], input.shape[dim], *shape[dim:])
    indices = indices.expand(*shape[:dim], indices.shape[dim], *shape[dim:])
    values = known_values(indices)
    wraps = values is None or (values.size > 0 and (values.min() < 0 or values.max() >= input.shape[dim]))
    (input, dim, indices), expansion = _unexpanded(input, dim, indices)
    return (input, indices, dim), {**expansion, "wraps": wraps}


def _check_flat(input, indices, dim=None):
    if dim is None:  # else they are taken around
        expect_within(indices, input.numel(), 0, error=RuntimeError)


@implements(torch.take_along_dim, check=_check_flat, prepare=_broadcast_along, tags=[Tag.READS_BY_INDEX])
def take_along_dim(input, indices, dim=None, *, shape=None, windows=(), wraps=True):
    _expect_index(indices, "take_along_dim", long=True)
    if wraps and indices.size:  # around, as often as need be
        size = input.shape[dim]
        indices = from_start(lax.rem(indices, like(indices, size)), size)
    return gather(input, dim, indices, shape=shape, windows=windows)


def _without(shape, dim: int) -> tuple[int, ...]:
    return (*shape[:dim], *shape[dim + 1 :])


# index_select and its like: one index for each row.


class _RowIndex:
    """The checked arguments of an operator that takes a list of rows along a dimension."""

    def __init__(self, input, dim: int, index, *, negative: bool = False):
        if index.ndim > 1:
            raise IndexError(f"Index is supposed to be a vector, but got {index.ndim} dimensions")
        self.dim, self.input_shape = axis_of(input, dim), input.shape
        self.input = at_least_1d(input)
        if negative:
            index = from_start(index, self.input.shape[self.dim])
        self.count = index.size
        self.index = at_least_1d(index)
        self.along = _Along(self.dim, tuple(d for d in range(self.input.ndim) if d != self.dim))

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the rows together."""
        return tuple(self.count if d == self.dim else size for d, size in enumerate(self.input.shape))

    def scatter(self, combine: Callable, source, name: str):
        _expect_index(self.index, name, long=name == "index_copy")
        same_dtype(self.input, source, name)
        source = at_least_1d(source)
        if source.shape != self.shape:
            if name == "index_add" and _without(source.shape, self.dim) != _without(self.input.shape, self.dim):
                raise RuntimeError(
                    "source tensor shape must match self tensor shape, excluding the specified dimension. Got "
                    f"self.shape = {list(self.input_shape)} source.shape = {list(source.shape)}"
                )
            error = IndexError if name == "index_copy" else RuntimeError
            raise error(f"{name}(): expected a source of shape {list(self.shape)}, but got {list(source.shape)}")
        return reshape(combine(self.along, self.input, source, self.index), self.input_shape)


def _check_rows(input, dim, index, *args, negative: bool = False, **kwargs) -> None:
    dim = axis_of(input, dim)
    expect_within(index, input.shape[dim] if input.ndim else 1, dim, negative=negative)


def _check_selected(input, dim, index) -> None:
    """Raises the errors of PyTorch's index_select for missing rows: its other functions raise others."""
    dim, shape = axis_of(input, dim), input.shape
    size = shape[dim] if shape else 1
    if index.numel() and size == 0:
        raise RuntimeError("index_select(): self indexing axis dim should be positive")
    if not shape and index.numel() != 1:
        raise RuntimeError(f"index_select(): Index to scalar can have only 1 value, got {index.numel()} value(s)")
    bad = outside(index, 0, size - 1)
    if bad is not None and (dim == 1 or 0 in shape):
        raise RuntimeError(f"INDICES element is out of DATA bounds, id={bad} axis_dim={size}")
    if bad is not None:
        raise IndexError(f"index out of range in self: {bad} for dimension {dim} with size {size}")


def _slice_where_known(input, dim, index, *source):
    """The call with a slice in place of an index that amounts to one."""
    call = current()
    input, index = call.constants.lift(input), call.constants.lift(index)
    if (is_traced(input.buffer.array) or is_traced(index.buffer.array)) and index.ndim == 1:
        values = known_values(index)
        if values is not None and values.size:
            index = progression(values) or index
    return (input, dim, index, *source), {}


def _put_block(along: _Along, operand, updates, indices):
    """Writes adjacent rows at once."""
    corner = [indices[0] if d == along.dim else np.zeros((), indices.dtype) for d in range(operand.ndim)]
    return lax.dynamic_update_slice(operand, updates, corner, allow_negative_indices=False)


@implements(
    torch.index_select, check=_check_selected, prepare=_slice_where_known, tags=[Tag.LINEAR, Tag.READS_BY_INDEX]
)
def index_select(input, dim, index):
    if isinstance(index, slice):
        return sliced(input, axis_of(input, dim), index) if input.ndim else input
    _expect_index(index, "index_select")
    rows = _RowIndex(input, dim, index)
    selected = rows.along.gather(rows.input, rows.index)
    return selected if input.ndim else reshape(selected, ())


@implements(torch.index_add, fits=("alpha",), check=_check_rows, tags=[Tag.WRITES_BY_INDEX])
def index_add(input, dim, index, source, *, alpha=1):
    if alpha != 1:
        source = (lax.bitwise_and if source.dtype == bool else lax.mul)(source, like(source, alpha))
    return _RowIndex(input, dim, index).scatter(_add, source, "index_add")


@implements(torch.index_copy, check=_check_rows, prepare=_slice_where_known, tags=[Tag.WRITES_BY_INDEX])
def index_copy(input, dim, index, source):
    if source.ndim == 0 and input.ndim == 1:
        source = at_least_1d(source)
    follow = index.step == 1 if isinstance(index, slice) else index.size == 1
    if isinstance(index, slice):
        index = np.arange(*index.indices(at_least_1d(input).shape[dim]), dtype=canonical(torch.int64))
    return _RowIndex(input, dim, index).scatter(_put_block if follow else _put, source, "index_copy")


def _prepare_fill(input, dim, index, value):
    is_complex = value.is_complex() if isinstance(value, torch.Tensor) else isinstance(value, complex)
    if is_complex and not input.is_complex():
        raise RuntimeError("index_fill_(): Converting complex Scalar to non-complex type is not supported")
    return (input, dim, index, value), {}


@implements(
    torch.index_fill,
    aten.index_fill,
    fits=("value",),
    check=functools.partial(_check_rows, negative=True),
    prepare=_prepare_fill,
    tags=[Tag.WRITES_BY_INDEX, Tag.INTO_EXPANDED],
)
def index_fill(input, dim, index, value):
    if np.ndim(value):
        raise RuntimeError(
            f"index_fill_ only supports a 0-dimensional value tensor, but got tensor with {np.ndim(value)} "
            "dimension(s)."
        )
    _expect_index(index, "index_fill", long=True, error=IndexError)
    rows = _RowIndex(input, dim, index, negative=True)
    shape = rows.input.shape
    filled = jnp.zeros(shape[rows.dim], bool).at[rows.index].set(True, mode="promise_in_bounds")
    filled = reshape(lax.broadcast_in_dim(filled, shape, (rows.dim,)), input.shape)
    return where(filled, _as_dtype(value, input.dtype), input)


@implements(torch.index_reduce, takes=REALS, check=_check_rows, tags=[Tag.WRITES_BY_INDEX])
def index_reduce(input, dim, index, source, reduce, *, include_self=True):
    combine = functools.partial(_reduce, reduce=reduce, include_self=include_self)
    return _RowIndex(input, dim, index).scatter(combine, source, "index_reduce")


def _as_dtype(value, dtype):
    """A number or array as an array of `dtype`."""
    if isinstance(value, jax.Array) and jnp.iscomplexobj(value) and not jnp.issubdtype(dtype, np.complexfloating):
        name = cpp_name(dtype_j2t(dtype))
        raise RuntimeError(f"value cannot be converted to type {name} without overflow, got a complex tensor")
    return lax.convert_element_type(value, dtype) if isinstance(value, jax.Array) else number_in_dtype(value, dtype)


# By flat index.


def _check_taken(input, index, *args, **kwargs) -> None:
    bad = outside(index, -input.numel(), input.numel() - 1)
    if bad is not None:
        raise IndexError(f"out of range: tried to access index {bad} on a tensor of {input.numel()} elements.")


def _flat_index(input, index, name: str):
    _expect_index(index, name, long=True)
    return from_start(reshape(index, (index.size,)), input.size)


@implements(torch.take, check=_check_taken, tags=[Tag.READS_BY_INDEX])
def take(input, index):
    if index.size == 0:
        return lax.full(index.shape, 0, input.dtype)
    flat = reshape(input, (input.size,))
    return reshape(_Along(0, ()).gather(flat, _flat_index(input, index, "take")), index.shape)


@implements(torch.Tensor.put, torch.put, check=_check_taken, tags=[Tag.WRITES_BY_INDEX])
def put(input, index, source, accumulate=False):
    same_dtype(input, source, "put_")
    if index.size != source.size:
        raise RuntimeError(
            f"put_(): Expected source and index to have the same number of elements, but got {source.size} and "
            f"{index.size}"
        )
    if index.size == 0:
        return input
    combine = _add if accumulate else _put
    flat, updates = reshape(input, (input.size,)), reshape(source, (source.size,))
    return reshape(combine(_Along(0, ()), flat, updates, _flat_index(input, index, "put_")), input.shape)


# By mask.


def in_order_of(mask, values, dim: int):
    """`values` along `dim`, moved to the true elements of `mask`, in order; other elements are meaningless.

    The dimension `dim` of the result is that of the flattened mask.
    """
    if values.shape[dim] == 0:  # no element is true
        return lax.full((*values.shape[:dim], mask.size, *values.shape[dim + 1 :]), 0, values.dtype)
    count = lax.cumsum(lax.convert_element_type(reshape(mask, (mask.size,)), np.int32))
    rank = lax.max(lax.sub(count, np.int32(1)), np.int32(0))
    along = _Along(dim, tuple(d for d in range(values.ndim) if d != dim))
    return along.gather(values, rank)


def _check_mask(mask, name: str) -> None:
    if mask.dtype != bool:
        dtype = type_name(dtype_j2t(mask.dtype))
        raise RuntimeError(f"{name} only supports boolean masks, but got mask with dtype {dtype}")


@implements(torch.masked_fill, fits=("value",), tags=[Tag.INTO_EXPANDED])
def masked_fill(input, mask, value):
    _check_mask(mask, "masked_fill")
    if np.ndim(value):
        raise RuntimeError(
            f"masked_fill_ only supports a 0-dimensional value tensor, but got tensor with {np.ndim(value)} "
            "dimension(s)."
        )
    return where(mask, _as_dtype(value, input.dtype), input)


def _check_count(input, mask, source) -> None:
    values = seen(mask) if mask.dtype == torch.bool else None
    if values is None:
        return
    spread = math.prod(np.broadcast_shapes(input.shape, mask.shape)) // max(mask.numel(), 1)
    most = int(values.reshape(len(values), -1).sum(1).max(initial=0)) * spread
    if source.numel() < most:
        raise RuntimeError(
            f"masked_scatter: expected source to have at least as many elements as the mask has ones, but got "
            f"{source.numel()} and {most}"
        )


@implements(torch.masked_scatter, check=_check_count)
def masked_scatter(input, mask, source):
    _check_mask(mask, "masked_scatter_")
    same_dtype(input, source, "masked_scatter")
    shape = np.broadcast_shapes(input.shape, mask.shape)
    mask, input = jnp.broadcast_to(mask, shape), jnp.broadcast_to(input, shape)
    if source.size == 0 or input.size == 0:
        return input
    values = in_order_of(mask, reshape(source, (source.size,)), 0)
    return where(mask, reshape(values, shape), input)


@implements_tensors(torch.masked_select, Tensor.masked_select, aten.masked_select.default)
def masked_select(input, mask, *, out=None):
    if mask.dtype != torch.bool:
        raise RuntimeError(f"masked_select: expected BoolTensor for mask, but got {mask.dtype}")
    input, mask = torch.broadcast_tensors(*torch.atleast_1d(input, mask))
    result = input[mask]
    return result if out is None else write_out(result, out, (input, mask), by_index=True)


# From values to indices: the shapes depend on data.


@implements(torch.nonzero, concrete=True, dtype=torch.int64, tags=[Tag.READS_BY_INDEX])
def nonzero(input, *, as_tuple=False):
    if as_tuple:
        return tuple(jnp.asarray(index) for index in np.nonzero(np.atleast_1d(input)))
    return jnp.asarray(np.argwhere(input))


@implements(aten.where.default, concrete=True, dtype=torch.int64)
def where_alone(condition):
    return nonzero(condition, as_tuple=True)


@implements(torch.argwhere, concrete=True, dtype=torch.int64)
def argwhere(input):
    return jnp.asarray(np.argwhere(input))


@implements(torch.nonzero_static, dtype=torch.int64)
def nonzero_static(input, *, size, fill_value=-1):
    if size < 0:
        raise RuntimeError(f"nonzero_static: 'size' must be an non-negative integer, got {size}")
    mask = reshape(truth(input), (input.size,))
    rank = lax.cumsum(lax.convert_element_type(mask, np.int32))
    slots = lax.select(mask, rank, lax.full_like(rank, 0))  # counted from one; the zeroth is for the others
    positions = (
        lax.full((size + 1,), np.int32(-1)).at[slots].set(np.arange(input.size, dtype=np.int32), mode="drop")[1:]
    )
    missing, strides = lax.lt(positions, np.int32(0)), np.cumprod((1, *input.shape[:0:-1]), dtype=np.int32)[::-1]
    columns = [
        lax.select(missing, lax.full_like(positions, fill_value), lax.rem(lax.div(positions, stride), np.int32(n)))
        for n, stride in zip(input.shape, strides, strict=False)
    ]
    return jnp.stack(columns, 1) if columns else lax.full((size, 0), np.int32(0))


@implements_tensors(aten.nonzero_numpy.default)
def nonzero_numpy(input):
    return list(torch.nonzero(input, as_tuple=True))
