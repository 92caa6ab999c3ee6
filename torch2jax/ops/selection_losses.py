"""Losses and products of selections by masks of unknown values, in terms of others, by PyTorch's documentation."""

import math

import torch
import torch.nn.functional as F

from ..errors import TracedValueError
from ..internals.tensors import canonicalize_dim
from ..rules.registry import implements_chosen
from ..values.selected_at_axis import unknown_dims

Tensor = torch.Tensor


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
