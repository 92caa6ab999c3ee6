"""Functions of selections by masks that are written in terms of others, or that act on each row or example."""

import functools
import math
import operator
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from ..internals.tensors import canonicalize_dim
from ..rules.registry import implements_by_length, implements_masked
from ..runtime.errors import TracedValueError
from ..tensors.trees import flatten
from ..values.lengths import largest, smallest, tensor_of
from ..values.masked import (
    Masked,
    as_long,
    flat_along,
    index_along,
    ndim_of,
    unknown_dims,
    with_masks,
)
from ..values.masked_functions import broadcast, of_first
from .selection_matrices import LETTERS

Tensor = torch.Tensor


# In terms of others.


def functions(name: str) -> list[Any]:
    """The function of that name, and the method."""
    owners = (torch, Tensor) if "." not in name else (torch,)
    return [operator.attrgetter(name)(owner) for owner in owners if hasattr(owner, name.partition(".")[0])]


_IN_TERMS: dict[str, Callable[..., Any]] = {
    "masked_fill": lambda input, mask, value: torch.where(mask, value, input).to(input.dtype),
    "masked_select": lambda input, mask: _masked_select(input, mask & torch.ones_like(input, dtype=torch.bool)),
    "hstack": lambda tensors: torch.cat(tensors, 0 if tensors[0].ndim == 1 else 1),
    "vstack": lambda tensors: torch.cat([x.unsqueeze(0) if x.ndim == 1 else x for x in tensors]),
    "column_stack": lambda tensors: torch.cat([x.unsqueeze(1) if x.ndim == 1 else x for x in tensors], 1),
    "dstack": lambda tensors: torch.cat([_with_three(x) for x in tensors], 2),
    **{name: (lambda self, other: self.reshape(other.shape)) for name in ("view_as", "reshape_as")},
    "ravel": lambda input: input.flatten(),
    "take": lambda input, index: input.flatten()[index],
    "tile": lambda input, *dims: _tile(input, _given(dims)),
    "diagflat": lambda input, offset=0: torch.diag(input.flatten(), offset),
    "constant_pad_nd": lambda input, pad, value=0: F.pad(input, pad, value=value),
    "dist": lambda input, other, p=2: torch.linalg.vector_norm(input - other, p),
    "inner": lambda input, other: (
        torch.matmul(input, other.mT if other.ndim > 1 else other) if input.ndim and other.ndim else input * other
    ),
    "vdot": lambda input, other: torch.dot(input.conj(), other),
    "addmv": lambda input, mat, vec, *, beta=1, alpha=1: input * beta + torch.mv(mat, vec) * alpha,
    "addmm": lambda input, mat1, mat2, *, beta=1, alpha=1: input * beta + torch.mm(mat1, mat2) * alpha,
    "addr": lambda input, vec1, vec2, *, beta=1, alpha=1: input * beta + torch.outer(vec1, vec2) * alpha,
    "addbmm": lambda input, batch1, batch2, *, beta=1, alpha=1: input * beta + torch.bmm(batch1, batch2).sum(0) * alpha,
    "baddbmm": lambda input, batch1, batch2, *, beta=1, alpha=1: input * beta + torch.bmm(batch1, batch2) * alpha,
    "linalg.vecdot": lambda x, y, *, dim=-1: (x.conj() * y).sum(dim),
    "linalg.multi_dot": lambda tensors: functools.reduce(torch.matmul, tensors),
    "linalg.diagonal": lambda A, *, offset=0, dim1=-2, dim2=-1: torch.diagonal(A, offset, dim1, dim2),
    **{name: (lambda y, x=None, *, dx=1, dim=-1: _trapezoids(y, x, dx, dim).sum(0)) for name in ("trapezoid", "trapz")},
    "cumulative_trapezoid": lambda y, x=None, *, dx=1, dim=-1: _trapezoids(y, x, dx, dim).cumsum(0).movedim(0, dim),
    "pairwise_distance": lambda x1, x2, p=2.0, eps=1e-6, keepdim=False: torch.linalg.vector_norm(
        x1 - x2 + eps, p, -1, keepdim
    ),
    "msort": lambda input: torch.sort(input, 0).values,
    "flipud": lambda input: input.flip(0),
    "fliplr": lambda input: input.flip(1),
    "count_nonzero": lambda input, dim=None: (input != 0).sum(dim),
    "aminmax": lambda input, *, dim=None, keepdim=False: torch.return_types.aminmax(
        (torch.amin(input, dim, keepdim), torch.amax(input, dim, keepdim))
    ),
    "nanmean": lambda input, dim=None, keepdim=False, *, dtype=None: (
        torch.nansum(input, dim, keepdim, dtype=dtype) / input.isnan().logical_not().sum(dim, keepdim)
    ),
    "alias_copy": lambda input: input.clone(),
    **{name: (lambda input: input) for name in ("resolve_conj", "resolve_neg", "positive", "__pos__")},
    "unsafe_split": lambda *args, **kwargs: torch.split(*args, **kwargs),
    "unsafe_chunk": lambda *args, **kwargs: torch.chunk(*args, **kwargs),
    "expand_as": lambda self, other: self.expand(*other.shape),
    "type_as": lambda self, other: self.to(other.dtype),
    "t": lambda input: input.permute(*reversed(range(input.ndim))),
    "stack": lambda tensors, dim=0: _stack(tensors, canonicalize_dim(tensors[0].ndim + 1, dim)),
    **{name: (lambda input, dim, index: _at(input, dim, index)) for name in ("select", "index_select")},
    "narrow": lambda input, dim, start, length: _at(input, dim, slice(start, start + length)),
    "trace": lambda input: input.diagonal().sum(),
    "diag": lambda input, diagonal=0: (
        torch.diagonal(input, diagonal) if input.ndim == 2 else torch.diag_embed(input, diagonal)
    ),
    "triu_": lambda self, diagonal=0: self.copy_(torch.triu(self, diagonal)),
    "tril_": lambda self, diagonal=0: self.copy_(torch.tril(self, diagonal)),
    "__rmatmul__": lambda self, other: torch.matmul(other, self),
}
for _name, _rule in _IN_TERMS.items():
    implements_masked(*functions(_name))(_rule)
implements_masked(F.pairwise_distance)(_IN_TERMS["pairwise_distance"])
implements_by_length(torch.broadcast_to, Tensor.broadcast_to)(lambda input, size: input.expand(size))
implements_by_length(Tensor.expand_as)(_IN_TERMS["expand_as"])
implements_by_length(torch.tile, Tensor.tile)(_IN_TERMS["tile"])


def _at(input, dim: int, index):
    return input[(*[slice(None)] * canonicalize_dim(input.ndim, dim), index)]


def _given(dims: tuple) -> tuple:
    return tuple(dims[0]) if len(dims) == 1 and isinstance(dims[0], (tuple, list)) else dims


def _masked_select(input, mask):
    return torch.where(mask, input, torch.zeros((), dtype=input.dtype))[mask]


def _tile(input, dims: tuple):
    return input.repeat(*[1] * (input.ndim - len(dims)), *dims)


def _stack(tensors, dim: int):
    return torch.cat([x.unsqueeze(dim) for x in tensors], dim)


def _trapezoids(y, x, dx, dim: int):
    """The area under each line between two points, with their dimension in front."""
    rows = y.movedim(dim, 0)
    both = (rows[1:] + rows[:-1]) / 2
    if x is None:
        return both * dx
    if canonicalize_dim(y.ndim, dim) in unknown_dims(y) and not isinstance(x, Masked):  # of no points there is no area
        raise TracedValueError("torch.trapezoid of a boolean-mask selection, at known points,")
    points = x.movedim(dim, 0) if x.ndim > 1 else x.reshape(-1, *[1] * (y.ndim - 1))
    return both * (points[1:] - points[:-1])


@implements_masked(torch.cov, Tensor.cov)
def cov(input, *, correction=1, fweights=None, aweights=None):
    if fweights is not None or aweights is not None:
        raise TracedValueError("torch.cov by weights of a boolean-mask selection")
    rows = input if input.ndim > 1 else input.unsqueeze(0)
    rows = rows - rows.mean(1, keepdim=True)
    found = rows @ rows.transpose(0, 1).conj() / (tensor_of(rows.shape[1]) - correction).clamp(min=0)
    return found.squeeze()


@implements_masked(torch.corrcoef, Tensor.corrcoef)
def corrcoef(input):
    found = cov(input)
    if not found.ndim:
        return found / found
    spread = found.diagonal().real.sqrt()
    found = found / spread[:, None] / spread
    return found if found.is_complex() else found.clamp(-1, 1)


@implements_masked(F.cosine_similarity)
def cosine_similarity(x1, x2, dim=1, eps=1e-8):
    lengths = [torch.linalg.vector_norm(x, 2, dim, True).clamp(min=eps) for x in (x1, x2)]
    return ((x1 / lengths[0]) * (x2 / lengths[1])).sum(dim)


@implements_masked(torch.tensordot)
def tensordot(a, b, dims=2, out=None):
    if out is not None:
        raise TracedValueError("torch.tensordot(out=) of boolean-mask selections")
    dims = (range(a.ndim - dims, a.ndim), range(dims)) if type(dims) is int else dims
    both = [[canonicalize_dim(x.ndim, dim) for dim in each] for x, each in zip((a, b), dims, strict=True)]
    one, other = LETTERS[: a.ndim], [*LETTERS[a.ndim : a.ndim + b.ndim]]
    for dim, shared in zip(both[1], both[0], strict=True):
        other[dim] = one[shared]
    free = [x for x in (*one, *other) if not (x in one and x in other)]
    return torch.einsum(f"{one},{''.join(other)}->{''.join(free)}", a, b)


@implements_masked(torch.rot90, Tensor.rot90)
def rot90(input, k=1, dims=(0, 1)):
    turned = input.flip({0: (), 1: dims[1], 2: dims, 3: dims[0]}[k % 4]) if k % 4 else input.clone()
    return turned.transpose(*dims) if k % 2 else turned


@implements_masked(torch.renorm, Tensor.renorm)
def renorm(input, p, dim, maxnorm):
    others = [each for each in range(input.ndim) if each != canonicalize_dim(input.ndim, dim)]
    norm = torch.linalg.vector_norm(input, p, others, True)
    return input * torch.where(norm > maxnorm, maxnorm / (norm + 1e-7), 1)


@implements_masked(F.prelu, torch.prelu)
def prelu(input, weight):
    weight = weight if weight.numel() == 1 else weight.reshape(-1, *[1] * (input.ndim - 2))
    return torch.where(input >= 0, input, weight * input)


@implements_masked(F.channel_shuffle, torch.channel_shuffle)
def channel_shuffle(input, groups):
    return input.unflatten(1, (groups, -1)).transpose(1, 2).flatten(1, 2)


@implements_masked(torch.linalg.matrix_norm)
def matrix_norm(A, ord="fro", dim=(-2, -1), keepdim=False, *, dtype=None):
    if ord == "fro":
        return torch.linalg.vector_norm(A, 2, dim, keepdim, dtype=dtype)
    if ord not in (1, -1, math.inf, -math.inf):
        raise TracedValueError(f"torch.linalg.matrix_norm(ord={ord!r}) of a boolean-mask selection")
    A = A if dtype is None else A.to(dtype)
    first, last = (canonicalize_dim(A.ndim, each) for each in (dim if abs(ord) == 1 else reversed(dim)))
    sums = A.abs().sum(first, keepdim=True)
    found = sums.amax(last, True) if ord > 0 else sums.amin(last, True)
    return found if keepdim else found.squeeze((first, last))


@implements_masked(torch.linalg.norm)
def norm(A, ord=None, dim=None, keepdim=False, *, dtype=None):
    if ord is None or isinstance(dim, int) or (dim is None and A.ndim == 1) or (dim is not None and len(dim) == 1):
        return torch.linalg.vector_norm(A, 2 if ord is None else ord, dim, keepdim, dtype=dtype)
    return torch.linalg.matrix_norm(A, ord, (0, 1) if dim is None else dim, keepdim, dtype=dtype)


def _parts_written(view):
    """A function that writes a tensor to a view of a copy of another one."""

    def written(input, src, *args, **kwargs):
        found = input.clone()
        view(found, *args, **kwargs).copy_(src)
        return found

    return written


implements_masked(torch.select_scatter, Tensor.select_scatter)(_parts_written(torch.select))
implements_masked(torch.slice_scatter, Tensor.slice_scatter)(
    _parts_written(lambda x, dim=0, start=None, end=None, step=1: x[(*[slice(None)] * dim, slice(start, end, step))])
)


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


implements_masked(torch.atleast_1d)(_of_each(lambda x: x if x.ndim else x.reshape(1)))
implements_masked(torch.atleast_2d)(_of_each(lambda x: x.reshape(1, 1) if not x.ndim else x if x.ndim > 1 else x[None]))
implements_masked(torch.atleast_3d)(_of_each(lambda x: _with_three(x) if x.ndim else x.reshape(1, 1, 1)))


# Losses and products.


def reduced_loss(each, reduction: str):
    """The loss of each element, or their mean or sum."""
    if reduction not in ("none", "mean", "sum"):
        raise ValueError(f"{reduction} is not a valid value for reduction")
    return each if reduction == "none" else each.mean() if reduction == "mean" else each.sum()


def _zero(x: Tensor) -> Tensor:
    return torch.zeros((), dtype=x.dtype)


@implements_masked(F.cosine_embedding_loss)
def cosine_embedding_loss(input1, input2, target, margin=0, size_average=None, reduce=None, reduction="mean"):
    del size_average, reduce
    squares = [x.square().sum(-1) + 1e-12 for x in (input1, input2)]
    cosine = (input1 * input2).sum(-1) / (squares[0] * squares[1]).sqrt()
    far = torch.where(target == -1, (cosine - margin).clamp(min=0), _zero(cosine))
    return reduced_loss(torch.where(target == 1, 1 - cosine, far), reduction)


@implements_masked(F.triplet_margin_loss)
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
    near, far = F.pairwise_distance(anchor, positive, p, eps), F.pairwise_distance(anchor, negative, p, eps)
    far = torch.minimum(far, F.pairwise_distance(positive, negative, p, eps)) if swap else far
    return reduced_loss((margin + near - far).clamp(min=0), reduction)


@implements_masked(torch.cross, Tensor.cross)
def cross(input, other, dim=None):
    if dim is None:  # the first of three elements
        dim = next(at for at, size in enumerate(input.shape) if at in unknown_dims(input) or size == 3)
        if dim in unknown_dims(input):
            raise TracedValueError("torch.cross along a boolean-mask selection")
    return cross_along(input, other, dim=dim)


@implements_masked(torch.linalg.cross)
def cross_along(input, other, *, dim=-1):
    given = [(x, canonicalize_dim(x.ndim, dim)) for x in (input, other)]
    given = [(as_long(x, at, 3) if at in unknown_dims(x) else x, at) for x, at in given]
    turned = [[x.index_select(at, torch.tensor(order)) for order in ([1, 2, 0], [2, 0, 1])] for x, at in given]
    return turned[0][0] * turned[1][1] - turned[0][1] * turned[1][0]


# The copies of views.


for _name in (
    "diagonal",
    "expand",
    "narrow",
    "permute",
    "select",
    "squeeze",
    "t",
    "transpose",
    "unfold",
    "unsqueeze",
    "view",
):
    _view = getattr(Tensor, _name)
    implements_masked(getattr(torch, f"{_name}_copy"))(
        lambda input, *args, _view=_view, **kwargs: _view(input, *args, **kwargs).clone()
    )
for _name in ("split", "split_with_sizes", "unbind"):
    _parts = getattr(torch, _name)
    implements_masked(getattr(torch, f"{_name}_copy"))(
        lambda input, *args, _parts=_parts, **kwargs: tuple(x.clone() for x in _parts(input, *args, **kwargs))
    )
implements_masked(Tensor.mH.__get__, Tensor.H.__get__)(lambda self: self.mT.conj())


# Parts of equal sizes.


def _cut(dim_of: Callable[[int], int]):
    def cut(input, indices_or_sections):
        return torch.tensor_split(input, indices_or_sections, dim_of(input.ndim))

    return cut


@implements_masked(torch.tensor_split, Tensor.tensor_split)
def tensor_split(input, indices_or_sections, dim=0):
    dim, length = canonicalize_dim(input.ndim, dim), input.shape[dim]
    ends = indices_or_sections
    if isinstance(ends, Tensor):
        raise TracedValueError("torch.tensor_split of a boolean-mask selection by a tensor")
    if type(ends) is int:  # the first parts are longer by one
        sizes = [(length + (ends - 1 - i)) // ends for i in range(ends)]
        ends = [functools.reduce(lambda one, other: one + other, sizes[: i + 1]) for i in range(ends - 1)]
    parts = zip([None, *ends], [*ends, None], strict=True)
    return tuple(input[(*[slice(None)] * dim, slice(*part))] for part in parts)


for _name, _dim_of in (("hsplit", lambda ndim: int(ndim > 1)), ("vsplit", lambda ndim: 0), ("dsplit", lambda ndim: 2)):
    implements_masked(getattr(torch, _name), getattr(Tensor, _name))(_cut(_dim_of))


# Of each element: what is beside them has no rows.


for _function in (torch.isin, torch.bucketize):
    implements_masked(_function)(of_first(_function, lambda *args, **kwargs: 0))


@implements_masked(torch.searchsorted)
def searchsorted(sorted_sequence, input, **options):
    if isinstance(sorted_sequence, Masked) or sorted_sequence.ndim > 1:
        raise TracedValueError("torch.searchsorted in a boolean-mask selection, or in rows of it,")
    return broadcast(lambda x: torch.searchsorted(sorted_sequence, x, **options), (input,), {}, "torch.searchsorted")


for _function in (torch.rand_like, torch.randn_like):
    implements_masked(_function)(
        lambda input, _function=_function, **options: with_masks(_function(input.unmasked, **options), input)
    )


# Along dimensions of a row.


@implements_masked(torch.roll, Tensor.roll)
def roll(input, shifts, dims=None):
    shifts, dims = ((x,) if isinstance(x, int) else x for x in (shifts, () if dims is None else dims))
    if not dims:
        raise TracedValueError("torch.roll over all of a boolean-mask selection")
    for shift, dim in zip(shifts, dims, strict=True):
        dim = canonicalize_dim(input.ndim, dim)
        if dim in input.masks:
            place = index_along(input, dim).flatten() - shift
            input = input.index_select(dim, torch.remainder(place, tensor_of(input.shape[dim]).clamp(min=1)))
        else:
            input = with_masks(input.unmasked.roll(shift, input.axis(dim)), input)
    return input


@implements_masked(torch.take_along_dim, Tensor.take_along_dim)
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


@implements_masked(Tensor.unfold)
def unfold(self, dimension, size, step):
    dim = canonicalize_dim(self.ndim, dimension)
    if dim not in self.masks:
        return with_masks(self.unmasked.unfold(self.axis(dim), size, step), self)
    starts = torch.arange(smallest(largest(self.shape[dim] - size, -1) + 1, self.shape[dim]))[::step]
    places = starts[:, None] + torch.arange(size)
    return self[(*[slice(None)] * dim, places)].movedim(dim + 1, -1)


@implements_by_length(Tensor.repeat)
@implements_masked(Tensor.repeat)
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


# Of each example, or row.


_SQUARE = (
    *("linalg_cholesky", "linalg_cholesky_ex", "linalg_det", "linalg_eig", "linalg_eigh", "linalg_eigvals", "det"),
    *("linalg_eigvalsh", "linalg_inv", "linalg_inv_ex", "linalg_ldl_factor", "linalg_ldl_factor_ex", "inverse"),
    *("linalg_matrix_exp", "linalg_matrix_power", "linalg_slogdet", "logdet", "slogdet", "matrix_exp", "matrix_power"),
)
"""Functions of matrices that have as many rows as columns, as PyTorch checks."""
_LAST: dict[Any, int] = {F.pixel_shuffle: 3, F.pixel_unshuffle: 3}
"""How many of the last dimensions of its first tensor a function acts along; it may give tensors without these."""
for _size in (1, 2, 3):
    for _name in ("conv", "conv_transpose"):
        _LAST[getattr(F, f"{_name}{_size}d")] = _size + 1
    for _name in ("max_pool", "avg_pool", "adaptive_avg_pool", "adaptive_max_pool"):
        _LAST[getattr(F, f"{_name}{_size}d")] = _size
    for _name in ("max_pool", "adaptive_max_pool"):
        _LAST[getattr(F, f"{_name}{_size}d_with_indices")] = _size
for _name in (
    *("cholesky", "cholesky_ex", "cond", "det", "eig", "eigh", "eigvals", "eigvalsh", "inv", "inv_ex", "ldl_factor"),
    *("ldl_factor_ex", "lu", "lu_factor", "lu_factor_ex", "matrix_exp", "matrix_power", "matrix_rank", "pinv", "qr"),
    *("slogdet", "svd", "svdvals", "lu_factor_ex", "householder_product"),
):
    _LAST[getattr(torch.linalg, _name)] = 2
for _name in (
    *("cholesky", "det", "inverse", "logdet", "matrix_exp", "matrix_power", "pinverse", "qr", "slogdet", "svd"),
    *("cholesky_inverse", "geqrf"),
):
    _LAST[getattr(torch, _name)] = _LAST[getattr(Tensor, _name)] = 2
_LAST[torch.view_as_complex] = 1


def _square(function):
    def of_square(input, *args, **kwargs):
        for dim, other in ((-2, -1), (-1, -2)):
            unknown = unknown_dims(input)
            if input.ndim + dim in unknown and input.ndim + other not in unknown:
                input = as_long(input, input.ndim + dim, input.shape[other])
        return function(input, *args, **kwargs)

    return of_square


for _function, _count in _LAST.items():
    _rule = of_first(_function, lambda ndim, *args, _count=_count, **kwargs: _count)
    implements_masked(_function)(_square(_rule) if _function.__name__ in _SQUARE else _rule)
implements_masked(F.interpolate)(of_first(F.interpolate, lambda ndim, *args, **kwargs: ndim - 2))
for _function in (F.group_norm, F.instance_norm):
    implements_masked(_function)(of_first(_function, lambda ndim, *args, **kwargs: ndim - 1))


def _of_batch(input, running_mean, running_var, weight, bias, momentum, eps):
    dims = [dim for dim in range(input.ndim) if dim != 1]
    mean, var = input.mean(dims, keepdim=True), input.var(dims, unbiased=False, keepdim=True)
    if running_mean is not None:
        count = tensor_of(input.numel() // input.shape[1])
        unbiased = var.detach().flatten() * (count / (count - 1))
        for running, found in ((running_mean, mean.detach().flatten()), (running_var, unbiased)):
            running.mul_(1 - momentum).add_(found * momentum)
    scale, shift = (x if x is None else x.reshape(-1, *[1] * (input.ndim - 2)) for x in (weight, bias))
    normal = (input - mean) / (var + eps).sqrt()
    normal = normal if scale is None else normal * scale
    return normal if shift is None else normal + shift


@implements_masked(F.batch_norm)
def batch_norm(input, running_mean, running_var, weight=None, bias=None, training=False, momentum=0.1, eps=1e-5):
    if training or running_mean is None:
        return _of_batch(input, running_mean, running_var, weight, bias, momentum, eps)
    norm = of_first(F.batch_norm, lambda ndim, *args: ndim - 1)
    return norm(input, running_mean, running_var, weight, bias, False, momentum, eps)


def _last_of(default, position: int = 2):
    """How many dimensions, the last ones, a function acts along that has them as an argument."""

    def count(ndim: int, *args, dim=None, **kwargs) -> int:
        found = args[position - 1] if len(args) >= position else default if dim is None else dim
        dims = range(ndim) if found is None else (found,) if isinstance(found, int) else found
        return max((ndim - canonicalize_dim(ndim, each) for each in dims), default=0)

    return count


for _name in ("fft", "ifft", "rfft", "irfft", "hfft", "ihfft"):
    for _end, _default in (("", -1), ("2", (-2, -1)), ("n", None)):
        _function = getattr(torch.fft, f"{_name}{_end}")
        implements_masked(_function)(of_first(_function, _last_of(_default)))
implements_masked(F.glu)(of_first(F.glu, _last_of(-1, 1)))
for _function in (torch.fft.fftshift, torch.fft.ifftshift):
    implements_masked(_function)(of_first(_function, _last_of(None, 1)))


def _of_all(function, core: Callable[[int], int], takes_one: bool = True):
    """A function of each row of all its tensors, which acts along their last dimensions."""
    what = f"torch.{function.__name__}"

    def of_all(*args, **kwargs):
        ndims = {ndim_of(x) for x in flatten((args, kwargs))[0] if isinstance(x, Tensor)}
        if len(ndims) > 1:  # which dimensions are an example's is not told by their number
            raise TracedValueError(f"{what} beside a boolean-mask selection")
        count = core(ndims.pop())
        return broadcast(function, args, kwargs, what, copies=True, core=count, takes_one=takes_one)

    return of_all


for _size in (1, 2, 3):
    _function = getattr(F, f"max_unpool{_size}d")
    implements_masked(_function)(_of_all(_function, lambda ndim, _size=_size: _size, False))
for _function in (
    *(torch.cholesky_solve, torch.triangular_solve, torch.linalg.solve_triangular, torch.linalg.lstsq),
    *(torch.linalg.solve, torch.linalg.solve_ex),
):
    implements_masked(_function)(_of_all(_function, lambda ndim: 2))
for _function in (F.grid_sample, torch.grid_sampler_2d, torch.grid_sampler_3d, torch.grid_sampler):
    implements_masked(_function)(_of_all(_function, lambda ndim: ndim - 1, False))


# Torchvision's, of regions of interest: each is one.


def _of_regions(name: str):
    def of_regions(input, rois, *args):
        if isinstance(input, Masked):
            raise TracedValueError(f"torchvision.ops.{name} of images that a boolean mask selected")
        operator, what = getattr(torch.ops.torchvision, name), f"torchvision.ops.{name}"
        of_each = lambda rois: operator(input, rois, *args)
        return broadcast(of_each, (flat_along(rois, 0),), {}, what, copies=True, core=1)

    return of_regions


for _name in ("roi_align", "roi_pool", "ps_roi_align", "ps_roi_pool"):
    implements_masked(f"torchvision::{_name}")(_of_regions(_name))
