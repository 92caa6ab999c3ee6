"""The dimensions of a selection by a mask of unknown values: which one is selected, and functions that move it.

A function of tensors with dimensions is that of the selection with its rows in front, with other numbers for the
dimensions; see `values.at_axis`.
"""

import math
from typing import Any

import torch
import torch.nn.functional as F

from ..errors import TracedValueError
from ..internals.tensors import canonicalize_dim
from ..rules.registry import (
    implements_at_axis,
    implements_by_length,
    implements_chosen,
    implements_selected,
    lookup_by_length,
    lookup_selected,
)
from ..runtime.translation import lift
from ..tensors.trees import map_arguments
from ..values.lengths import is_same_number, is_traced_number
from ..values.selected import Chosen, Selected, like, select
from ..values.selected_at_axis import (
    SelectedAtAxis,
    at_axis,
    broadcast,
    leading_of,
    merged,
    unknown_dims,
    with_leading,
)
from .bounds import known_values
from .selection import Shape
from .selection_nested import flattened, gather as gather_of_nested, viewed, write
from .selection_subscripts import items_of

Tensor = torch.Tensor
_REFUSED = "of a boolean-mask selection along a later dimension"


def _leading_dim(dim: int, at: int) -> int:
    """The number of a dimension once the one at `at` is in front."""
    return 0 if dim == at else dim + 1 if dim < at else dim


# What it is.


@implements_at_axis(Tensor.shape.__get__)
def shape(self):
    sizes = self.others
    return Shape((*sizes[: self.at], self.leading.number, *sizes[self.at :]))


@implements_at_axis(Tensor.__len__)
def length(self):
    return self.others[0]


# In another order.


def _permuted(input, order: list[int]):
    """``input.permute(order)``."""
    leading, at = leading_of(input)
    lead = leading.mask.ndim
    others = [_leading_dim(dim, at) + lead - 1 for dim in order if dim != at]
    if others != sorted(others):
        leading = like(leading.rows.permute(*range(lead), *others), leading)
    return at_axis(leading, order.index(at))


def _given(dims) -> tuple:
    return tuple(dims[0]) if len(dims) == 1 and isinstance(dims[0], (tuple, list)) else tuple(dims)


@implements_chosen(torch.permute, Tensor.permute)
def permute(input, *dims):
    order = [canonicalize_dim(input.ndim, dim) for dim in _given(dims)]
    if sorted(order) != list(range(input.ndim)):
        raise RuntimeError(f"permute(dims): got {tuple(order)} of a tensor of {input.ndim} dimensions")
    return _permuted(input, order)


@implements_chosen(torch.transpose, Tensor.transpose, torch.swapaxes, Tensor.swapaxes)
def transpose(input, dim0, dim1):
    order = list(range(input.ndim))
    dim0, dim1 = (canonicalize_dim(input.ndim, dim) for dim in (dim0, dim1))
    order[dim0], order[dim1] = order[dim1], order[dim0]
    return _permuted(input, order)


@implements_chosen(Tensor.mT.__get__)
def transposed_matrices(self):
    return transpose(self, -2, -1)


@implements_chosen(Tensor.T.__get__)
def reversed_dims(self):
    return _permuted(self, list(reversed(range(self.ndim))))


@implements_chosen(torch.t, Tensor.t)
def t(input):
    return reversed_dims(input)


@implements_chosen(torch.movedim, Tensor.movedim, torch.moveaxis, Tensor.moveaxis)
def movedim(input, source, destination):
    sources, positions = (
        [canonicalize_dim(input.ndim, dim) for dim in ((dims,) if isinstance(dims, int) else dims)]
        for dims in (source, destination)
    )
    rest = iter([dim for dim in range(input.ndim) if dim not in sources])
    there = dict(zip(positions, sources, strict=True))
    return _permuted(input, [there[dim] if dim in there else next(rest) for dim in range(input.ndim)])


@implements_at_axis(torch.flip, Tensor.flip)
def flip(input, *args, dims=None):
    dims = args if dims is None else (dims,)
    dims = [_leading_dim(canonicalize_dim(input.ndim, dim), input.at) for dim in _given(dims)]
    return at_axis(input.leading.flip(dims), input.at)


# With more dimensions, or fewer.


@implements_chosen(torch.unsqueeze, Tensor.unsqueeze)
def unsqueeze(input, dim):
    leading, at = leading_of(input)
    dim = canonicalize_dim(input.ndim + 1, dim)
    of_rows = leading.mask.ndim + (dim if dim <= at else dim - 1)
    return at_axis(like(leading.rows.unsqueeze(of_rows), leading), at + (dim <= at))


@implements_at_axis(torch.squeeze, Tensor.squeeze)
def squeeze(input, dim=None):
    lead, at = input.leading.mask.ndim, input.at
    dims = range(input.ndim) if dim is None else _given((dim,))
    dims = {canonicalize_dim(input.ndim, dim) for dim in dims}
    dropped = [dim for dim in dims if input.sizes[dim] == 1]  # those that data decide stay, though they may be one
    rows = (
        input.leading.rows.squeeze(tuple(_leading_dim(dim, at) + lead - 1 for dim in dropped))
        if dropped
        else input.leading.rows
    )
    return at_axis(like(rows, input.leading), at - len([dim for dim in dropped if dim < at]))


def joined(input) -> Selected:
    """The first dimensions, up to the selected one, merged; elements of the first index come first."""
    at = min(unknown_dims(input))
    leading = with_leading(input, at)
    if at == 0:
        return leading
    lead = leading.mask.ndim
    before = tuple(leading.rows.shape[lead : lead + at])
    order = [*range(lead, lead + at), *range(lead), *range(lead + at, leading.rows.ndim)]
    mask: Any = leading.mask.expand(*before, *leading.mask.shape)
    found = select(leading.rows.permute(order), mask)
    found.descend_from(leading)
    return found


_reshape: Any = lookup_selected(Tensor.reshape)


@implements_chosen(Tensor.reshape, torch.reshape)
def reshape(input, *shape):
    found = view(input, *shape)
    if isinstance(found, Selected) and math.prod(input.shape[: leading_of(input)[1]]) != 1:
        # In PyTorch it is a view or a copy: that depends on an order in memory which is not known here.
        found = like(found.rows.clone(), found)
        found.refuses_writes = True
    return found


@implements_chosen(Tensor.view)
def view(input, *shape):
    shape = _given(shape)
    if len(shape) == 1 and isinstance(shape[0], torch.dtype):
        return broadcast(lambda x: x.view(shape[0]), (input,), {}, "a view")
    leading, at = leading_of(input)
    if isinstance(leading.rows, Chosen):
        kept = viewed(input, shape)
        return _reshape(merged(input), *shape) if kept is None else kept
    sizes = tuple(leading.rows.shape[leading.mask.ndim :])
    before, behind = math.prod(sizes[:at]), math.prod(sizes[at:])
    for position, size in enumerate(shape):
        rest = (*shape[:position], *shape[position + 1 :])
        if any(map(is_traced_number, rest)) or (position == 0 and at == 0):
            continue
        is_it = is_same_number(size, leading.number) if is_traced_number(size) else size == -1
        if is_it and _fits(shape[:position], before) and _fits(shape[position + 1 :], behind):
            rows = leading.rows.reshape(
                *leading.mask.shape, *_sizes(shape[:position], before), *_sizes(shape[position + 1 :], behind)
            )
            return at_axis(like(rows, leading), position)
    return _reshape(joined(input), *shape)


def _fits(sizes: tuple, count: int) -> bool:
    """Returns True if a part of a shape holds so many elements."""
    known = math.prod(size for size in sizes if size != -1)
    return known > 0 and count % known == 0 if -1 in sizes else known == count


def _sizes(sizes: tuple, count: int) -> tuple:
    known = math.prod(size for size in sizes if size != -1)
    return tuple(count // known if size == -1 else size for size in sizes)


@implements_at_axis(torch.flatten, Tensor.flatten)
def flatten(input, start_dim=0, end_dim=-1):
    start, end = (canonicalize_dim(input.ndim, dim) for dim in (start_dim, end_dim))
    if len(unknown_dims(input)) > 1:
        if start == 0:
            return flattened(input, start, end)
        if any(start <= dim <= end for dim in unknown_dims(input)) and start != end:
            raise TracedValueError(f"torch.flatten, from dimension {start}, {_REFUSED}")
    if start <= input.at <= end:
        if start:
            raise TracedValueError(f"torch.flatten, from dimension {start}, {_REFUSED}")
        return reshape(input, -1, *input.shape[end + 1 :])
    leading, to = input.leading, [_leading_dim(dim, input.at) for dim in (start, end)]
    return at_axis(leading.flatten(*to), input.at - (end - start if end < input.at else 0))


# Subscripts.


@implements_at_axis(Tensor.__getitem__)
def getitem(self, index):
    if isinstance(self, SelectedAtAxis) and isinstance(index, SelectedAtAxis) and index.dtype == torch.bool:
        return merged(self, index.ndim)[merged(index, index.ndim)]
    items = items_of(index, self.ndim)
    return of_dims(self, items) if isinstance(self, SelectedAtAxis) else _by_axis_selections(self, items)


_setitem: Any = lookup_selected(Tensor.__setitem__)


@implements_chosen(Tensor.__setitem__)
def setitem(self, index, value):
    if not isinstance(self, SelectedAtAxis) and not (isinstance(self, Selected) and isinstance(self.rows, Chosen)):
        _setitem(self, index, value)
        return
    items = items_of(index, self.ndim)
    if None in [item for item in items if not isinstance(item, Tensor)]:
        raise TracedValueError("writing by a subscript with None to boolean-mask selections")
    write(self, items, value)


def _by_axis_selections(tensor, items: list):
    """A subscript by places that have a later dimension as long as data decide: all of them the same."""
    count = next((i for i, item in enumerate(items) if not isinstance(item, SelectedAtAxis)), len(items))
    positions, rest = items[:count], items[count:]
    if not positions or len({(x.at, x.ndim) for x in positions}) > 1 or any(isinstance(x, Tensor) for x in rest):
        raise TracedValueError(f"this subscript by places {_REFUSED}")
    by_dim = tuple(x.leading for x in positions)
    return at_axis(tensor[(*by_dim, *rest) if len(items) > 1 else by_dim[0]], positions[0].at)


def of_dims(chosen, items: list):
    """The result of a subscript with one item for each dimension, of which one may be a tensor."""
    found, at = leading_of(chosen)
    items = [*items, *[slice(None)] * (chosen.ndim - len([x for x in items if x is not None]))]
    tensors = [x for x in items if isinstance(x, Tensor) and not is_traced_number(x)]
    if len(tensors) > 1:
        leading = items[: len(tensors)]
        if at >= len(tensors) or not all(x is y for x, y in zip(tensors, leading, strict=True)):
            raise TracedValueError(f"a subscript by several tensors {_REFUSED},")
        return found[(leading.pop(at), *leading, *items[len(tensors) :])]
    position, dim, of_row, of_chosen = 0, 0, [], slice(None)
    for item in items:
        if item is not None and dim == at:
            of_chosen, position = item, sum(map(_dims_given, of_row))
        else:
            of_row.append(item)
        dim += item is not None
    if any(not (isinstance(x, slice) and x == slice(None)) for x in of_row):
        found = like(found.rows[(*[slice(None)] * found.mask.ndim, *of_row)], found)
    if not (isinstance(of_chosen, slice) and of_chosen == slice(None)):
        found = found[of_chosen]
        if not _leads(of_chosen):
            given = _dims_given(of_chosen)
            return found.movedim(tuple(range(given)), tuple(range(position, position + given))) if given else found
        if not isinstance(found, Chosen):  # a slice of a size that is known
            return found.movedim(0, position)
    return at_axis(found, position)


def _leads(item) -> bool:
    """Returns True if the dimension of a subscript's item has a length that data decide."""
    return isinstance(item, (slice, Selected)) or _is_unknown(item)


def _dims_given(item) -> int:
    """The number of dimensions that an item of a subscript for one dimension gives."""
    if isinstance(item, Tensor) and not is_traced_number(item):
        return 1 if item.dtype == torch.bool else item.ndim
    return int(item is None or isinstance(item, slice))


# Along one dimension, or over several.


def _of_all_results(function, result):
    return map_arguments(lambda x: function(x) if isinstance(x, torch.Tensor) else x, result)


_NOTHING: Any = object()


def _with_dims(function, position: int, default=_NOTHING):
    """Splits the dimensions from a call's arguments; returns them, and a function that puts others in their place."""

    def taken(args: tuple, kwargs: dict):
        if "dim" in kwargs:
            return kwargs["dim"], lambda dim: (args, {**kwargs, "dim": dim})
        if len(args) > position and not isinstance(args[position], bool):
            return args[position], lambda dim: ((*args[:position], dim, *args[position + 1 :]), kwargs)
        return default, lambda dim: (args, {**kwargs, "dim": dim})

    return taken


def _along(function, position: int, default=_NOTHING):
    """A function along one dimension, which stays."""
    taken = _with_dims(function, position, default)

    def along(input, *args, **kwargs):
        dim, with_dim = taken(args, kwargs)
        dim = canonicalize_dim(input.ndim, dim)
        args, kwargs = with_dim(_leading_dim(dim, input.at))
        is_more = [x for x in (*args, *kwargs.values()) if isinstance(x, Chosen)]
        if is_more:
            raise TracedValueError(f"torch.{function.__name__} {_REFUSED}, by such a tensor,")
        made = function(input.leading, *args, **kwargs)
        return _of_all_results(
            lambda x: at_axis(x, input.at) if isinstance(x, Selected) else x.movedim(0, input.at), made
        )

    return along


for _functions in (
    *((torch.softmax, Tensor.softmax, F.softmax), (torch.log_softmax, Tensor.log_softmax, F.log_softmax)),
    *((torch.cumsum, Tensor.cumsum), (torch.cumprod, Tensor.cumprod), (torch.logcumsumexp, Tensor.logcumsumexp)),
    *((torch.cummax, Tensor.cummax), (torch.cummin, Tensor.cummin)),
):
    for _function in _functions:
        implements_at_axis(_function)(_along(_function, 0))
for _functions in ((torch.sort, Tensor.sort), (torch.argsort, Tensor.argsort)):
    for _function in _functions:
        implements_at_axis(_function)(_along(_function, 0, -1))
for _function in (torch.topk, Tensor.topk):
    implements_at_axis(_function)(_along(_function, 1, -1))


def _over(function, position: int = 0, default=None):
    """A reduction over some dimensions, or over all."""
    taken = _with_dims(function, position, default)

    def over(input, *args, **kwargs):
        dim, with_dim = taken(args, kwargs)
        if isinstance(dim, torch.Tensor):  # torch.max of two
            return broadcast(function, (input, *args), kwargs, f"torch.{function.__name__}")
        at, ndim = input.at, input.ndim
        if dim is None or dim == ():
            return function(joined(input), *args, **kwargs)
        dims = {canonicalize_dim(ndim, d) for d in (dim if isinstance(dim, (tuple, list)) else (dim,))}
        to = [_leading_dim(d, at) for d in sorted(dims)]
        args, kwargs = with_dim(to if isinstance(dim, (tuple, list)) else to[0])
        made = function(input.leading, *args, **kwargs)

        def result(x):
            if not isinstance(x, Selected):
                return x.movedim(0, at) if x.ndim == ndim else x
            return at_axis(x, at if x.ndim == ndim else at - len([d for d in dims if d < at]))

        return _of_all_results(result, made)

    return over


for _name in (
    *("sum", "mean", "var", "std", "amax", "amin", "any", "all", "argmax", "argmin", "max", "min", "prod", "logsumexp"),
    *("nansum", "nanmean", "count_nonzero", "median", "nanmedian"),
):
    for _function in (getattr(torch, _name), getattr(Tensor, _name)):
        implements_at_axis(_function)(_over(_function))
for _function in (torch.mode, Tensor.mode):
    implements_at_axis(_function)(_over(_function, 0, -1))
for _function in (torch.kthvalue, Tensor.kthvalue):
    implements_at_axis(_function)(_over(_function, 1, -1))
for _function in (torch.quantile, Tensor.quantile, torch.nanquantile, Tensor.nanquantile):
    implements_at_axis(_function)(_over(_function, 1))
for _function in (torch.norm, Tensor.norm, torch.linalg.vector_norm):
    implements_at_axis(_function)(_over(_function, 1))


# Of several.


_gather: Any = lookup_selected(torch.gather)


@implements_chosen(torch.gather, Tensor.gather)
def gather(input, dim, index, *, sparse_grad=False):
    del sparse_grad
    dim = canonicalize_dim(input.ndim, dim)
    if dim and all(isinstance(x, Selected) and not isinstance(x.rows, Chosen) for x in (input, index)):
        return _gather(input, dim, index)
    return gather_of_nested(input, dim, index)


@implements_at_axis(torch.cat, torch.concat, torch.concatenate)
def cat(tensors, dim=0):
    dim = canonicalize_dim(tensors[0].ndim, dim)
    tensors = [x for x in tensors if isinstance(x, Chosen) or x.shape != (0,)]  # which PyTorch takes beside any shape
    shared = [set(unknown_dims(x)) for x in tensors]
    rest = set.union(*shared) - {dim}
    if any(rest - found for found in shared):
        raise TracedValueError("torch.cat of tensors of which data decide how long they are along different dimensions")
    at = min(rest, default=dim)
    by_dim = [
        with_leading(x, at) if isinstance(x, Chosen) and at in found else x.movedim(at, 0)
        for x, found in zip(tensors, shared, strict=True)
    ]
    return at_axis(torch.cat(by_dim, _leading_dim(dim, at)), at)


@implements_chosen(torch.stack)
def stack(tensors, dim=0):
    dim = canonicalize_dim(tensors[0].ndim + 1, dim)
    return torch.cat([x.unsqueeze(dim) for x in tensors], dim)


# Subscripts of tensors, and of selections, that make a later dimension as long as data decide.


def by_unknown(tensor, items: list) -> Any:
    """The result of a subscript with one data-dependent item, and no tensor beside it; None for other subscripts."""
    found = [i for i, item in enumerate(items) if _is_unknown(item)]
    if not found or len([x for x in items if isinstance(x, Tensor) and not is_traced_number(x)]) > 1:
        return None
    before, item, behind = items[: found[0]], items[found[0]], items[found[0] + 1 :]
    at = len([x for x in before if x is not None])
    if isinstance(item, Tensor) and item.dtype == torch.bool and item.ndim > 1:
        return None
    leading = (tensor.movedim(at, 0) if at else tensor)[item]
    return of_dims(at_axis(leading, at), [*before, slice(None), *behind])


def _is_unknown(item) -> bool:
    if isinstance(item, slice):
        return any(_is_unknown_number(x) for x in (item.start, item.stop, item.step))
    if isinstance(item, Selected):
        return True
    is_mask = isinstance(item, Tensor) and item.dtype == torch.bool and item.ndim > 0
    return is_mask and known_values(lift(item)) is None


def _is_unknown_number(value) -> bool:
    if is_traced_number(value):
        return True
    return isinstance(value, Tensor) and known_values(lift(value)) is None


_getitem: Any = lookup_selected(Tensor.__getitem__)


@implements_selected(Tensor.__getitem__)
def getitem_of_chosen(self, index):
    index = index[0] if isinstance(index, tuple) and len(index) == 1 else index
    items = items_of(index, self.ndim)
    if isinstance(self, Selected):
        if _are_full_rows(items) and any(map(_is_unknown, items[1:])):
            return of_dims(self, items)
        is_basic = all(x is None or isinstance(x, (int, slice)) for x in items)
        return of_dims(self, items) if items and items[0] is None and is_basic else _getitem(self, index)
    is_later = len(items) > 1 and not isinstance(items[0], Tensor)
    found = by_unknown(self, items) if is_later else None
    return _getitem(self, index) if found is None else found


@implements_at_axis(torch.unbind, Tensor.unbind)
def unbind(input, dim=0):
    dim = canonicalize_dim(input.ndim, dim)
    if dim in unknown_dims(input):
        raise TracedValueError(f"torch.unbind along a data-dependent dimension, {_REFUSED},")
    return tuple(select_one(input, dim, position) for position in range(input.shape[dim]))


@implements_at_axis(torch.split, Tensor.split, torch.split_with_sizes, Tensor.split_with_sizes)
def split(tensor, split_size_or_sections, dim=0):
    dim = canonicalize_dim(tensor.ndim, dim)
    if dim in unknown_dims(tensor):
        parts = tensor.movedim(dim, 0).split(split_size_or_sections)
        return tuple(part.movedim(0, dim) for part in parts)
    ends = torch.arange(tensor.shape[dim]).split(split_size_or_sections)
    lead = [slice(None)] * dim
    return tuple(
        of_dims(tensor, [*lead, slice(int(end[0]), int(end[-1]) + 1) if len(end) else slice(0)]) for end in ends
    )


@implements_chosen(torch.chunk, Tensor.chunk)
def chunk(input, chunks, dim=0):
    dim = canonicalize_dim(input.ndim, dim)
    if dim in unknown_dims(input):
        raise TracedValueError("torch.chunk of a dimension that a boolean mask selected")
    return input.split(-(-input.shape[dim] // chunks), dim)


def _are_full_rows(items: list) -> bool:
    """Returns True if a subscript takes part of each row, by one tensor at most."""
    is_full = bool(items) and isinstance(items[0], slice) and items[0] == slice(None)
    return is_full and len([x for x in items if isinstance(x, Tensor)]) < 2


@implements_chosen(torch.select, Tensor.select)
def select_one(input, dim, index):
    return input[(*[slice(None)] * canonicalize_dim(input.ndim, dim), index)]


@implements_chosen(torch.index_select, Tensor.index_select)
def index_select(input, dim, index):
    dim = canonicalize_dim(input.ndim, dim)
    return input[(*[slice(None)] * dim, index)]


def _later(function, dim_position: int):
    """A function that cuts something out along a dimension: of a later one, with that in front."""
    of_first: Any = lookup_by_length(function)[0]  # pyright: ignore[reportOptionalSubscript]

    def cut(input, *args, **kwargs):
        dim = kwargs.get("dim", args[dim_position] if len(args) > dim_position else 0)
        dim = canonicalize_dim(input.ndim, dim)
        if dim == 0:
            return of_first(input, *args, **kwargs)
        if "dim" in kwargs:
            kwargs = {**kwargs, "dim": 0}
        else:
            args = (*args[:dim_position], 0, *args[dim_position + 1 :])
        made = of_first(input.movedim(dim, 0), *args, **kwargs)
        return tuple(at_axis(x, dim) for x in made) if isinstance(made, tuple) else at_axis(made, dim)

    return cut


for _function in (torch.split, Tensor.split, torch.split_with_sizes, Tensor.split_with_sizes):
    implements_by_length(_function)(_later(_function, 1))
