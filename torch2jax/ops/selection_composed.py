"""Functions of selections by masks that are written in terms of others, or that act on each row or example."""

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from ..errors import TracedValueError
from ..internals.tensors import canonicalize_dim
from ..rules.registry import implements_by_length, implements_chosen, implements_selected
from ..values.lengths import tensor_of
from ..values.selected import Chosen, Selected, aligned, like, map_rows, packed
from ..values.selected_at_axis import ndim_of, over_padded, unknown_dims
from .selection_indices import in_place, index_copy

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
    found = cov(input)
    if not found.ndim:
        return found / found
    spread = found.diagonal().real.sqrt()
    found = found / spread[:, None] / spread
    return found if found.is_complex() else found.clamp(-1, 1)


@implements_chosen(F.cosine_similarity)
def cosine_similarity(x1, x2, dim=1, eps=1e-8):
    lengths = [torch.linalg.vector_norm(x, 2, dim, True).clamp(min=eps) for x in (x1, x2)]
    return ((x1 / lengths[0]) * (x2 / lengths[1])).sum(dim)


@implements_chosen(F.pairwise_distance)
def pairwise_distance(x1, x2, p=2.0, eps=1e-6, keepdim=False):
    return torch.linalg.vector_norm(x1 - x2 + eps, p, -1, keepdim)


@implements_chosen(Tensor.view_as, Tensor.reshape_as)
def view_as(self, other):
    return self.reshape(other.shape)


@implements_by_length(torch.broadcast_to, Tensor.broadcast_to)
def broadcast_to(input, size):
    return input.expand(size)


# With more dimensions.


def _of_each(function):
    def of_each(*tensors):
        given = tensors[0] if len(tensors) == 1 and isinstance(tensors[0], (tuple, list)) else tensors
        found = tuple(map(function, given))
        return found[0] if len(tensors) == 1 and isinstance(tensors[0], Tensor) else found

    return of_each


def _with_three(x: Tensor) -> Tensor:
    x = x.unsqueeze(0) if x.ndim == 1 else x
    return x.unsqueeze(-1) if x.ndim == 2 else x


implements_chosen(torch.atleast_1d)(_of_each(lambda x: x if x.ndim else x.reshape(1)))
implements_chosen(torch.atleast_2d)(_of_each(lambda x: x.reshape(1, 1) if not x.ndim else x if x.ndim > 1 else x[None]))
implements_chosen(torch.atleast_3d)(_of_each(lambda x: _with_three(x) if x.ndim else x.reshape(1, 1, 1)))


@implements_chosen(torch.dstack)
def dstack(tensors):
    return torch.cat([_with_three(x) for x in tensors], 2)


# Losses and products.


def reduced_loss(each, reduction: str):
    """The loss of each element, or their mean or sum."""
    if reduction not in ("none", "mean", "sum"):
        raise ValueError(f"{reduction} is not a valid value for reduction")
    return each if reduction == "none" else each.mean() if reduction == "mean" else each.sum()


def _zero(x: Tensor) -> Tensor:
    return torch.zeros((), dtype=x.dtype)


@implements_chosen(F.soft_margin_loss)
def soft_margin_loss(input, target, size_average=None, reduce=None, reduction="mean"):
    del size_average, reduce
    return reduced_loss(F.softplus(-target * input), reduction)


@implements_chosen(F.hinge_embedding_loss)
def hinge_embedding_loss(input, target, margin=1.0, size_average=None, reduce=None, reduction="mean"):
    del size_average, reduce
    far = torch.where(target == 1, _zero(input), (margin - input).clamp(min=0))
    return reduced_loss(far + torch.where(target == -1, _zero(input), input), reduction)


@implements_chosen(F.poisson_nll_loss)
def poisson_nll_loss(
    input, target, log_input=True, full=False, size_average=None, eps=1e-8, reduce=None, reduction="mean"
):
    del size_average, reduce
    each = input.exp() - target * input if log_input else input - target * (input + eps).log()
    if full:  # Stirling's approximation
        many = torch.where(target > 1, target, torch.ones((), dtype=target.dtype))
        stirling = many * many.log() - many + 0.5 * (2 * math.pi * many).log()
        each = each + torch.where(target > 1, stirling, _zero(stirling))
    return reduced_loss(each, reduction)


@implements_chosen(F.cosine_embedding_loss)
def cosine_embedding_loss(input1, input2, target, margin=0, size_average=None, reduce=None, reduction="mean"):
    del size_average, reduce
    squares = [x.square().sum(-1) + 1e-12 for x in (input1, input2)]
    cosine = (input1 * input2).sum(-1) / (squares[0] * squares[1]).sqrt()
    far = torch.where(target == -1, (cosine - margin).clamp(min=0), _zero(cosine))
    return reduced_loss(torch.where(target == 1, 1 - cosine, far), reduction)


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


@implements_chosen(torch.dist, Tensor.dist)
def dist(input, other, p=2):
    return torch.linalg.vector_norm(input - other, p)


@implements_chosen(torch.linalg.vecdot)
def vecdot(x, y, *, dim=-1):
    return (x.conj() * y).sum(dim)


@implements_chosen(torch.linalg.cross)
def linalg_cross(input, other, *, dim=-1):
    given = [(x, canonicalize_dim(x.ndim, dim)) for x in (input, other)]
    if any(at in unknown_dims(x) for x, at in given):
        raise TracedValueError("torch.linalg.cross along a boolean-mask selection")
    turned = [[x.index_select(at, torch.tensor(order)) for order in ([1, 2, 0], [2, 0, 1])] for x, at in given]
    return turned[0][0] * turned[1][1] - turned[0][1] * turned[1][0]


@implements_chosen(torch.trapezoid, torch.trapz)
def trapezoid(y, x=None, *, dx=1, dim=-1):
    if x is not None:
        raise TracedValueError("torch.trapezoid at given places of a boolean-mask selection")
    rows = y.movedim(dim, 0)
    return (rows[1:] + rows[:-1]).sum(0) * (dx / 2)


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


# Of each example.


def of_examples(function, chosen: Selected, what: str) -> Any:
    """``function(tensor)`` of a batch with the selection's number of examples, or a tuple of such results."""
    if chosen.mask.ndim > 1:
        chosen = packed(chosen)
    made = function(chosen.copied())
    found = tuple(like(x, chosen) for x in (made if isinstance(made, tuple) else (made,)))
    if any(len(x.rows) != chosen.mask.numel() for x in found):
        raise TracedValueError(f"{what} of a boolean-mask selection")
    return found if isinstance(made, tuple) else found[0]


def _along_last(function, count: Callable[[int], int]):
    """A function of one tensor that acts along its last dimensions, which data do not decide.

    Args:
        count: how many these are, for a tensor of so many dimensions.
    """
    what = f"torch.{function.__name__}"

    def along_last(input, *args, **kwargs):
        if not isinstance(input, Chosen) or any(isinstance(x, Chosen) for x in (*args, *kwargs.values())):
            raise TracedValueError(f"{what} beside a boolean-mask selection")
        ndim = ndim_of(input)
        if max(unknown_dims(input)) >= ndim - count(ndim):
            raise TracedValueError(f"{what} along a dimension of a boolean-mask selection whose length data decide")
        return over_padded(lambda x: function(x, *args, **kwargs), input)

    return along_last


_OF_IMAGES = {F.pixel_shuffle: 3, F.pixel_unshuffle: 3}
for _size in (1, 2, 3):
    for _name in ("conv", "conv_transpose"):
        _OF_IMAGES[getattr(F, f"{_name}{_size}d")] = _size + 1
    for _name in ("max_pool", "avg_pool", "adaptive_avg_pool", "adaptive_max_pool"):
        _OF_IMAGES[getattr(F, f"{_name}{_size}d")] = _size
    for _name in ("max_pool", "adaptive_max_pool"):
        _OF_IMAGES[getattr(F, f"{_name}{_size}d_with_indices")] = _size
for _function, _count in _OF_IMAGES.items():
    implements_chosen(_function)(_along_last(_function, lambda ndim, _count=_count: _count))
implements_chosen(F.interpolate)(_along_last(F.interpolate, lambda ndim: ndim - 2))
for _function in (F.group_norm, F.instance_norm):
    implements_chosen(_function)(_along_last(_function, lambda ndim: ndim - 1))


@implements_selected(F.grid_sample)
def grid_sample(input, grid, *args, **kwargs):
    if not isinstance(input, Selected) or not isinstance(grid, Selected):
        raise TracedValueError("torch.nn.functional.grid_sample of, or by, a boolean-mask selection")
    what = "torch.nn.functional.grid_sample"
    images, grids = aligned([packed(input), packed(grid)], what)
    return of_examples(lambda rows: F.grid_sample(rows, grids.copied(), *args, **kwargs), images, what)


@implements_selected(F.batch_norm)
def batch_norm(input, running_mean, running_var, weight=None, bias=None, training=False, momentum=0.1, eps=1e-5):
    if training:
        raise TracedValueError("torch.nn.functional.batch_norm, in training, of a boolean-mask selection")
    return of_examples(
        lambda rows: F.batch_norm(rows, running_mean, running_var, weight, bias, False, momentum, eps),
        input,
        "torch.nn.functional.batch_norm",
    )


# Torchvision's, of regions of interest: each is one.


def _of_regions(name: str):
    def of_regions(input, rois, *args):
        if isinstance(input, Selected):
            raise TracedValueError(f"torchvision.ops.{name} of images that a boolean mask selected")
        operator = getattr(torch.ops.torchvision, name)
        return of_examples(lambda rois: operator(input, rois, *args), rois, f"torchvision.ops.{name}")

    return of_regions


for _name in ("roi_align", "roi_pool", "ps_roi_align", "ps_roi_pool"):
    implements_selected(f"torchvision::{_name}")(_of_regions(_name))
