"""Functions of selections by masks of unknown values that are written in terms of others, or act on each row."""

import torch
import torch.nn.functional as F

from ..errors import TracedValueError
from ..internals.tensors import canonicalize_dim
from ..rules.registry import implements_by_length, implements_chosen, implements_selected
from ..values.lengths import tensor_of
from ..values.selected import Selected, like, map_rows
from .selection_indices import in_place, index_copy
from .selection_losses import reduced_loss

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


@implements_chosen(torch.masked_select, Tensor.masked_select)
def masked_select(input, mask):
    mask = mask & torch.ones_like(input, dtype=torch.bool)  # of one shape
    return torch.where(mask, input, torch.zeros((), dtype=input.dtype))[mask]


@implements_chosen(torch.cov, Tensor.cov)
def cov(input, *, correction=1, fweights=None, aweights=None):
    if fweights is not None or aweights is not None:
        raise TracedValueError("torch.cov by weights of a boolean-mask selection")
    rows = input if input.ndim > 1 else input.unsqueeze(0)
    rows = rows - rows.mean(1, keepdim=True)
    found = rows @ rows.transpose(0, 1).conj() / (tensor_of(rows.shape[1]) - correction).clamp(min=0)
    return found.squeeze()


@implements_chosen(torch.corrcoef, Tensor.corrcoef)
def corrcoef(input):
    rows = input if input.ndim > 1 else input.unsqueeze(0)
    rows = rows - rows.mean(1, keepdim=True)
    rows = rows / torch.linalg.vector_norm(rows, 2, 1, True)
    found = (rows @ rows.transpose(0, 1).conj()).clamp(-1, 1)
    return found.squeeze()


@implements_chosen(F.cosine_similarity)
def cosine_similarity(x1, x2, dim=1, eps=1e-8):
    lengths = [torch.linalg.vector_norm(x, 2, dim, True).clamp(min=eps) for x in (x1, x2)]
    return ((x1 / lengths[0]) * (x2 / lengths[1])).sum(dim)


@implements_chosen(F.pairwise_distance)
def pairwise_distance(x1, x2, p=2.0, eps=1e-6, keepdim=False):
    return torch.linalg.vector_norm(x1 - x2 + eps, p, -1, keepdim)


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
    return reduced_loss((margin + near - far).clamp(min=0), reduction)


@implements_chosen(F.margin_ranking_loss)
def margin_ranking_loss(input1, input2, target, margin=0, size_average=None, reduce=None, reduction="mean"):
    del size_average, reduce
    return reduced_loss((-target * (input1 - input2) + margin).clamp(min=0), reduction)


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


@implements_chosen(torch.take_along_dim, Tensor.take_along_dim)
def take_along_dim(input, indices, dim=None):
    if dim is None:
        raise TracedValueError("torch.take_along_dim without a dimension of a boolean-mask selection")
    dim = canonicalize_dim(input.ndim, dim)
    sizes = [[*x.shape] for x in (input, indices)]
    for one, other in (sizes, sizes[::-1]):
        one[:] = [
            y if at != dim and type(x) is int and x == 1 else x
            for at, (x, y) in enumerate(zip(one, other, strict=True))
        ]
    return torch.gather(input.expand(sizes[0]), dim, indices.expand(sizes[1]))


@implements_selected(Tensor.unfold)
def unfold(self, dimension, size, step):
    return _of_row(lambda rows, dim: rows.unfold(dim, size, step), "Tensor.unfold")(self, dimension)


@implements_by_length(Tensor.repeat)
@implements_chosen(Tensor.repeat)
def repeat(self, *repeats):
    repeats = tuple(repeats[0]) if len(repeats) == 1 and isinstance(repeats[0], (tuple, list)) else repeats
    if len(repeats) < self.ndim:
        raise RuntimeError(
            "Number of dimensions of repeat dims can not be smaller than number of dimensions of tensor: got "
            f"{len(repeats)} of a tensor of {self.ndim}"
        )
    for _ in range(len(repeats) - self.ndim):
        self = self.unsqueeze(0)
    for dim, times in enumerate(repeats):
        if type(times) is not int or times != 1:
            leading = self.movedim(dim, 0)
            self = leading.expand(times, *leading.shape).flatten(0, 1).movedim(0, dim)
    return self.clone()


@implements_by_length(torch.tile, Tensor.tile)
@implements_chosen(torch.tile, Tensor.tile)
def tile(input, *dims):
    dims = tuple(dims[0]) if len(dims) == 1 and isinstance(dims[0], (tuple, list)) else dims
    return input.repeat(*[1] * (input.ndim - len(dims)), *dims)
