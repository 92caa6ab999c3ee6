"""Functions of ``x[mask]`` under jit, whose length is unknown, except for elementwise ones."""

import functools
import inspect
import math
from typing import Any

import torch
import torch.nn.functional as F
from jax import lax

from ..internals.tensors import canonicalize_dim
from ..rules.array_rule import InnerRule
from ..rules.registry import implements_masked
from ..runtime.errors import TracedValueError
from ..runtime.errors.unwinding import Restart
from ..runtime.translation import current
from ..tensors.dtypes import is_integral
from ..tensors.trees import map_arguments
from ..values.lengths import is_traced_number
from ..values.masked import (
    Mask,
    Masked,
    aligned,
    as_long,
    at_axis,
    first as first_of,
    flat_along,
    has_derivatives,
    leads,
    like,
    ndim_of,
    select,
    unknown_dims,
    with_leading,
    with_masks,
    zeroed,
)
from ..values.masked_functions import broadcast, of_first
from .arrays import highest, lowest

Tensor = torch.Tensor


# Of rows.


def _on_rows(function, what: str, safe: bool):
    """A function of each element, whichever dimensions of its operands were chosen."""
    return lambda *args, **kwargs: broadcast(function, args, kwargs, what, safe=safe)


_LINEAR = (
    *(Tensor.where, torch.clone, Tensor.clone, torch.detach, Tensor.detach, Tensor.contiguous),
    *(Tensor.float, Tensor.double, Tensor.half, Tensor.bfloat16, Tensor.cfloat, Tensor.cdouble),
    *(Tensor.byte, Tensor.char, Tensor.short, Tensor.int, Tensor.long, Tensor.bool),
    *(torch.zeros_like, torch.ones_like, torch.full_like, torch.real, torch.imag, torch.isreal, Tensor.isreal),
    *(torch.conj, Tensor.conj, torch.conj_physical, Tensor.conj_physical),
)
_SINGULAR = (
    *(
        torch.frexp,
        Tensor.frexp,
        torch.special.polygamma,
        torch.special.ndtr,
        torch.special.entr,
        torch.polygamma,
        Tensor.polygamma,
    ),
    *(torch.mvlgamma, Tensor.mvlgamma, F.one_hot, F.dropout, F.alpha_dropout),
)
for _functions, _is_singular in ((_LINEAR, False), (_SINGULAR, True)):
    for _function in _functions:
        _rule_of_rows = _on_rows(_function, f"torch.{_function.__name__}", safe=_is_singular)
        implements_masked(_function)(_rule_of_rows)

_to = _on_rows(Tensor.to, "torch.to", safe=False)


@implements_masked(Tensor.to)
def to(self, *args, **kwargs):
    """`Tensor.to` of a selection, or to its dtype, if the other tensor is one."""
    args = tuple(x.dtype if isinstance(x, Tensor) else x for x in args)
    kwargs = {"dtype" if name == "other" else name: x.dtype if name == "other" else x for name, x in kwargs.items()}
    return _to(self, *args, **kwargs) if isinstance(self, Masked) else self.to(*args, **kwargs)


@implements_masked(F.linear)
def linear(input, weight, bias=None):
    if isinstance(weight, Masked) or isinstance(bias, Masked) or ndim_of(input) - 1 in input.masks:
        found = torch.matmul(input, weight.mT if weight.ndim > 1 else weight)
        return found if bias is None else found + bias
    return with_masks(F.linear(zeroed(input), weight, bias), input)


for _function in (F.layer_norm, F.rms_norm):
    implements_masked(_function)(of_first(_function, lambda ndim, shape, *args, **kwargs: len(shape)))
_embedding = of_first(F.embedding, lambda *args, **kwargs: 0)


@implements_masked(F.embedding)
def embedding(input, weight, padding_idx=None, max_norm=None, *args, **kwargs):
    if isinstance(weight, Masked) and max_norm is None and padding_idx is None:
        return weight[input]
    return _embedding(input, weight, padding_idx, max_norm, *args, **kwargs)


# What it is.

for _name in (
    *("dtype", "device", "layout", "requires_grad", "itemsize"),
    *("is_quantized", "is_sparse", "is_cuda", "is_cpu", "is_meta", "is_mps"),
):
    _function = getattr(Tensor, _name).__get__
    _of_base: Any = lambda self, _function=_function: _function(self.unmasked)
    implements_masked(_function)(_of_base)
for _name in (
    *("element_size", "is_contiguous", "is_signed", "get_device", "is_conj", "is_neg"),
    *("is_floating_point", "is_complex"),
):
    _function = getattr(Tensor, _name)
    _of_base = lambda self, *args, _function=_function: _function(self.unmasked, *args)
    implements_masked(_function, *(x for x in (getattr(torch, _name, None),) if x is not None))(_of_base)
implements_masked(Tensor.dim, Tensor.ndimension, Tensor.ndim.__get__)(ndim_of)


class Shape(tuple):
    """A shape that begins with a number which data decide."""

    def numel(self) -> Any:
        return math.prod(self)

    def __getitem__(self, at):
        found = super().__getitem__(at)
        if not isinstance(at, slice):
            return found
        return Shape(found) if any(map(is_traced_number, found)) else torch.Size(found)


@implements_masked(Tensor.shape.__get__)
def shape(self):
    return Shape([self.masks[dim].number if dim in self.masks else size for dim, size in enumerate(self.sizes)])


@implements_masked(Tensor.size)
def size(self, dim=None):
    return self.shape if dim is None else self.shape[dim]


@implements_masked(Tensor.__len__)
def length(self):
    if 0 not in self.masks:
        return self.sizes[0]
    if not current().execution.tracks_lengths:
        raise Restart  # Python's own function asks, which needs to know
    raise TracedValueError("the length of a boolean-mask selection")


@implements_masked(Tensor.numel, Tensor.nelement, torch.numel)
def numel(input):
    numbers = [mask.number for mask in input.masks.values()]
    rest = math.prod(size for dim, size in enumerate(input.sizes) if dim not in input.masks)
    return functools.reduce(lambda one, other: one * other, numbers) * rest


# Along one dimension.


def along(function, of_chosen):
    """A function along one dimension: of each row, or, along one that data decide, what `of_chosen` gives.

    Args:
        function: takes the tensor and the dimension first.
        of_chosen: takes what was chosen, with that dimension in front, and the other arguments.
    """
    what = f"torch.{function.__name__}"

    def along(input, dim=-1, *args, **kwargs):
        ndim = ndim_of(input)
        dim = canonicalize_dim(ndim, dim)
        if dim in unknown_dims(input):
            made = of_chosen(with_leading(input, dim), *args, **kwargs)
            back = lambda x: at_axis(x, dim) if isinstance(x, Tensor) and ndim_of(x) == ndim else x
            return map_arguments(back, made)
        at = input.axis(dim) - input.unmasked.ndim if isinstance(input, Masked) else dim - ndim
        of_rows = lambda x, *args, **kwargs: function(x, at, *args, **kwargs)
        return broadcast(of_rows, (input, *args), kwargs, what, dim=dim)

    return along


@implements_masked(torch.cat, torch.concat, torch.concatenate)
def cat(tensors, dim=0):
    dim = canonicalize_dim(ndim_of(tensors[0]), dim)
    tensors = [x for x in tensors if isinstance(x, Masked) or x.shape != (0,)]  # which PyTorch takes beside any shape
    for at in {at for x in tensors for at in unknown_dims(x)} - {dim}:
        sizes = [x.shape[at] for x in tensors if at not in unknown_dims(x)]
        tensors = [as_long(x, at, sizes[0]) if sizes and at in unknown_dims(x) else x for x in tensors]
    shared = [set(unknown_dims(x)) for x in tensors]
    if not any(shared):
        return torch.cat(tensors, dim)
    if dim not in set.union(*shared):
        for at in {at for x in tensors for at in unknown_dims(x) if at > dim}:
            tensors = [flat_along(x, at) if at in unknown_dims(x) else x for x in tensors]
        behind = dim - ndim_of(tensors[0])
        return broadcast(lambda *rows: torch.cat(rows, behind), tuple(tensors), {}, "torch.cat", safe=False)
    rest = sorted(set.union(*shared) - {dim})
    if rest:
        found = aligned([with_leading(x, rest[0]) for x in tensors], "torch.cat")
        behind = found[0].mask.ndim - 1
        rows = torch.cat([x.rows for x in found], behind + dim + (dim < rest[0]))
        return at_axis(like(rows, found[0]), rest[0])
    return at_axis(
        _together([with_leading(x, dim) if isinstance(x, Masked) else x.movedim(dim, 0) for x in tensors]), dim
    )


def _put_behind(rows, more, length):
    """Rows ``(n, ...)`` with others ``(m, ...)`` put after the first `length` of them: ``(n + m, ...)``."""
    both = lax.concatenate([rows, more], 0)
    return lax.dynamic_update_slice(both, more, (length, *[lax.full_like(length, 0)] * (rows.ndim - 1)))


_PUT_BEHIND = InnerRule(_put_behind, "cat")


def _is_behind(lead, others) -> bool:
    """Returns True if tensors of known length are concatenated behind a flat selection in compact order."""
    is_flat = leads(lead) and lead.is_compact and not isinstance(lead.rows, Masked)
    return is_flat and not any(isinstance(x, Masked) for x in others)


def _together(tensors) -> Masked:
    """Selections and tensors one after the other."""
    dtype = functools.reduce(torch.promote_types, (x.dtype for x in tensors))
    lead, *others = tensors
    if _is_behind(lead, others):
        others = [x.to(dtype) for x in others if x.shape != (0,)]
        if not others:
            return lead.to(dtype)
        more = torch.cat(others)
        together = _PUT_BEHIND((lead.rows.to(dtype), more, lead.length), {})
        return first_of(together, lead.length + len(more))
    rows, masks = [], []
    for x in tensors:
        if leads(x):
            rows.append(x.rows.flatten(0, x.mask.ndim - 1).to(dtype))
            masks.append(x.mask.reshape(-1))
        elif x.shape != (0,):  # which PyTorch takes beside any shape
            rows.append(x.to(dtype))
            masks.append(torch.ones(len(x), dtype=torch.bool))
    mask, rows = torch.cat(masks), torch.cat(rows)
    lengths = [x.length if leads(x) else len(x) for x in tensors if x.ndim > 1 or len(x.shape) == 1]
    return select(rows, Mask(mask, functools.reduce(lambda one, other: one + other, lengths)))


# Of all that was chosen.


def dims_of(chosen: Masked, dim) -> tuple[int, ...]:
    """Dimensions of a selection, counted from the front."""
    ndim = ndim_of(chosen)
    dims = range(ndim) if dim is None or dim == () else dim if isinstance(dim, (tuple, list)) else (dim,)
    return tuple(sorted({canonicalize_dim(ndim, d) for d in dims}))


def reduced(reduce, x: Masked, dims: tuple[int, ...], keepdim: bool, neutral):
    """A reduction over some dimensions, in which those that were not chosen count as `neutral`."""
    unmasked: Any = x.unmasked
    for dim in x.masks:
        if dim in dims:
            unmasked = torch.where(x.spread(dim), unmasked, neutral)
        elif has_derivatives(unmasked) and x.masks[dim].size:  # without derivatives with respect to others
            unmasked = torch.where(x.spread(dim), unmasked, unmasked.detach())
    rest = {dim: mask for dim, mask in x.masks.items() if dim not in dims}
    masks = rest if keepdim else {dim - len([d for d in dims if d < dim]): mask for dim, mask in rest.items()}
    axes = [axis for dim in dims for axis in x.axes(dim)]
    is_plain = len(axes) == len(dims)
    made = reduce(unmasked, axes, keepdim and is_plain)
    for dim in dims if keepdim and not is_plain else ():
        made = made.unsqueeze(dim + sum(mask.where.ndim - 1 for at, mask in rest.items() if at < dim))
    return with_masks(made, x, masks)


def count_of(chosen: Masked, dims: tuple[int, ...]):
    """The number of elements in one group of a reduction."""
    sizes = [size for dim, size in enumerate(chosen.sizes) if dim in dims and dim not in chosen.masks]
    counts = [mask.where.sum() for dim, mask in chosen.masks.items() if dim in dims]
    count = functools.reduce(lambda one, other: one * other, counts)
    return count if math.prod(sizes) == 1 else count * math.prod(sizes)


def _prod(x, dims, keepdim, **options):
    if len(dims) == x.ndim and not keepdim:
        return x.prod(**options)
    for dim in reversed(dims):
        x = x.prod(dim, keepdim, **options)
    return x


def _reduction(function, neutral):
    def reduction(input, dim=None, keepdim=False, **options):
        least = neutral(input.unmasked.read()) if callable(neutral) else neutral
        reduce = lambda x, dims, keep: function(x, dims, keep, **options)
        return reduced(reduce, input, dims_of(input, dim), keepdim, least)

    return reduction


_NEUTRAL: dict[str, Any] = {
    "sum": 0,
    "nansum": 0,
    "any": False,
    "all": True,
    "prod": 1,
    "logsumexp": -math.inf,
    "amax": lowest,
    "amin": highest,
}
for _name, _neutral in _NEUTRAL.items():
    _function = getattr(torch, _name)
    _rule: Any = _reduction(_prod if _name == "prod" else _function, _neutral)
    implements_masked(_function, getattr(Tensor, _name))(_rule)


@implements_masked(torch.mean, Tensor.mean)
def mean(input, dim=None, keepdim=False, *, dtype=None):
    dims = dims_of(input, dim)
    if not input.masks.keys() & dims:
        return reduced(lambda x, dims, keep: x.mean(dims, keep, dtype=dtype), input, dims, keepdim, 0)
    if is_integral(input.dtype) and dtype is None:
        raise RuntimeError(f"mean(): could not infer output dtype, got {input.dtype}; pass dtype=")
    return input.sum(dims, keepdim, dtype=dtype) / count_of(input, dims)


def _of_variance(input, dim, unbiased, correction):
    """The dimensions and the correction of a variance; its first argument may be `unbiased`, as in older versions."""
    if isinstance(dim, bool):
        dim, unbiased = None, dim
    return dims_of(input, dim), int(unbiased) if correction is None else correction


@implements_masked(torch.var, Tensor.var)
def var(input, dim=None, unbiased=True, keepdim=False, *, correction=None):
    dims, correction = _of_variance(input, dim, unbiased, correction)
    if not input.masks.keys() & dims:
        return reduced(lambda x, dims, keep: x.var(dims, correction=correction, keepdim=keep), input, dims, keepdim, 0)
    centre = mean(input, dims, keepdim=True)
    free = (count_of(input, dims) - correction).clamp(min=0)
    while centre.ndim and not unknown_dims(centre) and centre.shape[0] == 1:
        centre = centre.squeeze(0)
    distances = input - centre
    return (distances.abs() if distances.is_complex() else distances).square().sum(dims, keepdim) / free


@implements_masked(torch.std, Tensor.std)
def std(input, dim=None, unbiased=True, keepdim=False, *, correction=None):
    dims, correction = _of_variance(input, dim, unbiased, correction)
    if not input.masks.keys() & dims:
        return reduced(lambda x, dims, keep: x.std(dims, correction=correction, keepdim=keep), input, dims, keepdim, 0)
    variance = var(input, dims, keepdim=keepdim, correction=correction)
    is_constant = variance == 0  # of which PyTorch says that the derivative is zero
    return torch.where(is_constant, 0, torch.where(is_constant, 1, variance).sqrt())


# Losses.


_MEAN_BY_WEIGHT = (F.mse_loss, F.l1_loss)


def _elementwise_loss(function):
    signature = inspect.signature(function)

    @functools.wraps(function)
    def loss(*args, **kwargs):
        given = signature.bind(*args, **kwargs).arguments
        reduction = given.pop("reduction", "mean")
        if reduction not in ("none", "mean", "sum"):
            raise TracedValueError(
                f"torch.nn.functional.{function.__name__} with reduction={reduction!r} of a selection"
            )
        of_each = functools.partial(function, reduction="none")
        each = broadcast(of_each, (), given, function.__name__)
        if reduction == "mean" and function in _MEAN_BY_WEIGHT and given.get("weight") is not None:
            return each.sum() / given["weight"].sum()
        return each if reduction == "none" else each.mean() if reduction == "mean" else each.sum()

    return loss


for _function in (
    F.mse_loss,
    F.l1_loss,
    F.smooth_l1_loss,
    F.huber_loss,
    F.binary_cross_entropy,
    F.binary_cross_entropy_with_logits,
    F.kl_div,
    F.soft_margin_loss,
    F.hinge_embedding_loss,
    F.poisson_nll_loss,
    F.margin_ranking_loss,
):
    _loss = _elementwise_loss(_function)
    implements_masked(_function)(_loss)


def _of_classes(function):
    """A loss of rows ``(C, ...)`` and their classes ``(...)``: those that were not chosen are ignored."""
    what = f"torch.nn.functional.{function.__name__}"

    def loss(
        input, target, weight=None, size_average=None, ignore_index=-100, reduce=None, reduction="mean", **options
    ):
        del size_average, reduce
        options |= {"ignore_index": ignore_index, "reduction": reduction}
        if leads(input) != leads(target):
            input = as_long(input, 0, target.shape[0]) if leads(input) else input
            target = as_long(target, 0, input.shape[0]) if leads(target) else target
            return function(input, target, weight, **options)
        if leads(input) and isinstance(input.rows, Masked) and input.row_ndim == 1:
            return _of_unknown_classes(function, input, target, weight, **options)
        if not leads(input) or input.row_ndim != target.row_ndim + 1:
            raise TracedValueError(f"{what} of a boolean-mask selection, but not of rows and their classes")
        input, target = aligned([input, target], what)
        lead = input.mask.ndim
        classes = target.filled(ignore_index).flatten(0, lead - 1)
        found = function(input.filled(0).flatten(0, lead - 1), classes, weight, **options)
        return like(found.unflatten(0, tuple(input.mask.shape)), input) if reduction == "none" else found

    return loss


def _of_unknown_classes(function, input, target, weight, ignore_index, reduction: str, label_smoothing: float = 0.0):
    """The loss of rows with a data-dependent number of classes."""
    if weight is not None or label_smoothing:
        raise TracedValueError(f"torch.{function.__name__} with weights, of as many classes as data decide,")
    logs = input.log_softmax(1) if function is F.cross_entropy else input
    counts = target != ignore_index
    each = -logs.gather(1, torch.where(counts, target, 0).unsqueeze(1)).squeeze(1)
    each = torch.where(counts, each, torch.zeros((), dtype=each.dtype))
    if reduction == "none":
        return each
    return each.sum() / counts.sum() if reduction == "mean" else each.sum()


for _function in (F.cross_entropy, F.nll_loss):
    implements_masked(_function)(_of_classes(_function))
