"""Functions of selections by masks of unknown values that are written in terms of others, or act on each row."""

import torch
import torch.nn.functional as F

from ..errors import TracedValueError
from ..internals.promotion import canonicalize_dim
from ..rules.registry import implements_by_length, implements_chosen, implements_selected
from ..values.selected import Selected, like, map_rows
from .selection_places import in_place, index_copy

Tensor = torch.Tensor


# In terms of others.


@implements_chosen(torch.masked_fill, Tensor.masked_fill)
def masked_fill(input, mask, value):
    return torch.where(mask, value, input).to(input.dtype)


@implements_chosen(torch.hstack)
def hstack(tensors):
    return torch.cat(tensors, 0 if tensors[0].ndim == 1 else 1)


@implements_chosen(torch.vstack)
def vstack(tensors):
    return torch.cat([x.unsqueeze(0) if x.ndim == 1 else x for x in tensors])


@implements_chosen(torch.column_stack)
def column_stack(tensors):
    return torch.cat([x.unsqueeze(1) if x.ndim == 1 else x for x in tensors], 1)


@implements_chosen(F.cosine_similarity)
def cosine_similarity(x1, x2, dim=1, eps=1e-8):
    lengths = [torch.linalg.vector_norm(x, 2, dim, True).clamp(min=eps) for x in (x1, x2)]
    return ((x1 / lengths[0]) * (x2 / lengths[1])).sum(dim)


@implements_chosen(F.pairwise_distance)
def pairwise_distance(x1, x2, p=2.0, eps=1e-6, keepdim=False):
    return torch.linalg.vector_norm(x1 - x2 + eps, p, -1, keepdim)


def _reduced(each, reduction: str):
    if reduction not in ("none", "mean", "sum"):
        raise ValueError(f"{reduction} is not a valid value for reduction")
    return each if reduction == "none" else each.mean() if reduction == "mean" else each.sum()


@implements_chosen(F.triplet_margin_loss)
def triplet_margin_loss(
    anchor,
    positive,
    negative,
    margin=1.0,
    p=2,
    eps=1e-6,
    swap=False,
    size_average=None,
    reduce=None,
    reduction="mean",
):
    del size_average, reduce
    near, far = pairwise_distance(anchor, positive, p, eps), pairwise_distance(anchor, negative, p, eps)
    far = torch.minimum(far, pairwise_distance(positive, negative, p, eps)) if swap else far
    return _reduced((margin + near - far).clamp(min=0), reduction)


@implements_chosen(F.margin_ranking_loss)
def margin_ranking_loss(input1, input2, target, margin=0, size_average=None, reduce=None, reduction="mean"):
    del size_average, reduce
    return _reduced((-target * (input1 - input2) + margin).clamp(min=0), reduction)


@implements_chosen(Tensor.view_as, Tensor.reshape_as)
def view_as(self, other):
    return self.reshape(other.shape)


@implements_by_length(torch.broadcast_to, Tensor.broadcast_to)
def broadcast_to(input, size):
    return input.expand(size)


# Of each element: what is beside them has no rows.


@implements_selected(torch.isin)
def isin(elements, test_elements, **options):
    if isinstance(test_elements, Selected) or not isinstance(elements, Selected):
        raise TracedValueError("torch.isin in a boolean-mask selection")
    return map_rows(lambda rows: torch.isin(rows, test_elements, **options), (elements,), {}, "torch.isin")


@implements_selected(torch.bucketize)
def bucketize(input, boundaries, **options):
    if isinstance(boundaries, Selected):
        raise TracedValueError("torch.bucketize between a boolean-mask selection")
    return map_rows(lambda rows: torch.bucketize(rows, boundaries, **options), (input,), {}, "torch.bucketize")


@implements_selected(torch.searchsorted)
def searchsorted(sorted_sequence, input, **options):
    if isinstance(sorted_sequence, Selected) or sorted_sequence.ndim > 1:
        raise TracedValueError("torch.searchsorted in a boolean-mask selection, or in rows of it,")
    search = lambda rows: torch.searchsorted(sorted_sequence, rows, **options)
    return map_rows(search, (input,), {}, "torch.searchsorted")


@implements_selected(torch.take, Tensor.take)
def take(input, index):
    if isinstance(input, Selected):
        raise TracedValueError("torch.take of a boolean-mask selection")
    return input.reshape(-1)[index]


for _function in (torch.rand_like, torch.randn_like):
    implements_selected(_function)(
        lambda input, _function=_function, **options: like(_function(input.rows, **options), input)
    )


# Along dimensions of a row.


def _of_row(function, what: str):
    """A function ``(input, dim, ...)`` along one dimension, of each row."""

    def of_row(input, dim, *args):
        dim = canonicalize_dim(input.ndim, dim)
        if dim == 0:
            raise TracedValueError(f"{what} along a boolean-mask selection")
        args = (input, dim - input.ndim, *args)
        return map_rows(lambda rows, dim, *args: function(rows, dim, *args), args, {}, what, safe=False)

    return of_row


@implements_selected(torch.roll, Tensor.roll)
def roll(input, shifts, dims=None):
    shifts, dims = ((x,) if isinstance(x, int) else x for x in (shifts, () if dims is None else dims))
    if len(shifts) != len(dims):
        raise TracedValueError("torch.roll over all of a boolean-mask selection")
    for shift, dim in zip(shifts, dims, strict=True):
        input = _of_row(lambda rows, dim, shift: rows.roll(shift, dim), "torch.roll")(input, dim, shift)
    return input


@implements_selected(torch.index_fill, Tensor.index_fill)
def index_fill(input, dim, index, value):
    if isinstance(index, Selected):
        return index_copy(input, dim, index, torch.as_tensor(value, dtype=input.dtype))
    return _of_row(lambda rows, dim: rows.index_fill(dim, index, value), "torch.index_fill")(input, dim)


implements_selected(Tensor.index_fill_)(in_place(index_fill))


@implements_selected(torch.take_along_dim, Tensor.take_along_dim)
def take_along_dim(input, indices, dim=None):
    if dim is None:
        raise TracedValueError("torch.take_along_dim without a dimension of a boolean-mask selection")
    return torch.gather(input, dim, indices)


@implements_selected(Tensor.unfold)
def unfold(self, dimension, size, step):
    return _of_row(lambda rows, dim: rows.unfold(dim, size, step), "Tensor.unfold")(self, dimension)


@implements_selected(Tensor.repeat)
def repeat(self, *repeats):
    repeats = tuple(repeats[0]) if len(repeats) == 1 and isinstance(repeats[0], (tuple, list)) else repeats
    if len(repeats) != self.ndim:
        raise TracedValueError("Tensor.repeat, into more dimensions, of a boolean-mask selection")
    if type(repeats[0]) is not int or repeats[0] != 1:
        self, repeats = self.expand(repeats[0], *self.shape).flatten(0, 1), (1, *repeats[1:])
    ones = [1] * self.mask.ndim
    return map_rows(lambda rows: rows.repeat(*ones, *repeats[1:]), (self,), {}, "Tensor.repeat", safe=False)


@implements_selected(torch.tile, Tensor.tile)
def tile(input, *dims):
    dims = tuple(dims[0]) if len(dims) == 1 and isinstance(dims[0], (tuple, list)) else dims
    return input.repeat(*[1] * (input.ndim - len(dims)), *dims)
