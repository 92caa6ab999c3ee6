"""The indices of a traced mask's true elements: ``nonzero`` under jit, and scatters by them."""

from typing import Any

import torch

from ..internals.tensors import canonicalize_dim
from ..rules.inplace import write_in_place
from ..rules.registry import implements_masked, lookup
from ..runtime.errors import TracedValueError
from ..runtime.translation import current, lift
from ..values.masked import (
    Masked,
    aligned_along,
    axes_of,
    filled,
    in_compact_order,
    in_flat_masks,
    masks_of,
    merged,
    ndim_of,
    packed,
    select,
    unknown_dims,
    unmasked_of,
    with_masks,
)
from ..values.masked_functions import begin, broadcast
from .selection_subscripts import by_mask, scattered, write

aten = torch.ops.aten
Tensor = torch.Tensor


# The places.


def _indices_of(condition) -> tuple[Masked, ...]:
    """For each dimension, the indices of the elements that are true, or not zero."""
    unmasked, masks, ndim = unmasked_of(condition), masks_of(condition), ndim_of(condition)
    where: Any = unmasked if unmasked.dtype == torch.bool else unmasked != 0
    if masks:
        where = merged(condition, ndim).masks[0].where & where
    found = []
    for dim in range(ndim):
        axes = axes_of(condition, dim)
        index = masks[dim].ranks() if dim in masks else torch.arange(unmasked.shape[axes[0]])
        sizes = [unmasked.shape[axis] for axis in axes]
        spread = index.reshape(*sizes, *[1] * (unmasked.ndim - axes[-1] - 1)).expand(unmasked.shape)
        found.append(select(spread, where))
    if masks and ndim == 1:
        found[0].indices_in = masks[0].where
    return tuple(found)


def _gives_indices(function, of_indices) -> None:
    """Makes a function like ``nonzero`` return the result of `of_indices` for traced values."""
    rule: Any = lookup(function)

    def of_unknown(input, **kwargs):
        if input.ndim == 0:
            raise TracedValueError(f"torch.{rule.name} of one number")
        if current().transformations:
            raise TracedValueError(
                f"torch.{rule.name}, within a transformation that the code has begun,",
                instead="subscript by the mask itself, as x[x != 0], or give it x.detach(), without jit",
            )
        with current().inside():
            tensor: Any = lift(input)
            found = of_indices(_indices_of(tensor.clone() if tensor.dtype == torch.bool else tensor), **kwargs)
            words = f"what torch.{rule.name} found"
            return tuple(begin(x, words) for x in found) if isinstance(found, tuple) else begin(found, words)

    rule.of_unknown = of_unknown


def _together(indices, as_tuple: bool = False):
    if as_tuple:
        return indices
    return select(torch.stack([position.rows for position in indices], -1), indices[0].mask)


_gives_indices(torch.nonzero, _together)
_gives_indices(torch.argwhere, _together)
_gives_indices(aten.where.default, lambda indices: indices)


@implements_masked(torch.nonzero, Tensor.nonzero, torch.argwhere, Tensor.argwhere)
def nonzero(input, *, as_tuple=False):
    return _together(_indices_of(input), as_tuple)


@implements_masked(torch.where)
def where(condition, *others, **named):
    if not others and not named:
        return _indices_of(condition)
    return broadcast(torch.where, (condition, *others), named, "torch.where", safe=False)


# Scatters.


@implements_masked(torch.index_put, Tensor.index_put)
def index_put(input, indices, values, accumulate=False):
    indices = [each for x in indices for each in (torch.where(x) if x is not None and x.dtype == torch.bool else (x,))]
    return scattered(input, [(dim, x) for dim, x in enumerate(indices) if x is not None], values, accumulate)


@implements_masked(torch.index_add, Tensor.index_add)
def index_add(input, dim, index, source, *, alpha=1):
    source = source if alpha == 1 else source * alpha
    return scattered(input, [(canonicalize_dim(input.ndim, dim), index)], source, True)


@implements_masked(torch.index_copy, Tensor.index_copy)
def index_copy(input, dim, index, source):
    return scattered(input, [(canonicalize_dim(input.ndim, dim), index)], source)


@implements_masked(torch.index_fill, Tensor.index_fill)
def index_fill(input, dim, index, value):
    return index_copy(input, dim, index, torch.as_tensor(value, dtype=input.dtype))


@implements_masked(torch.masked_scatter, Tensor.masked_scatter)
def masked_scatter(input, mask, source):
    if isinstance(input, Masked) or isinstance(mask, Masked):
        raise TracedValueError("torch.masked_scatter into a boolean-mask selection")
    found = input.clone()
    write(by_mask(found, 0, mask.expand(input.shape)), source.flatten())
    return found


def _in_dims(x, sizes: tuple[int, ...], dim: int) -> Any:
    """A tensor in compact order, with room for no more than so many along all dimensions but one."""
    for each in unknown_dims(x):
        x = packed(x, None if each == dim else sizes[each], each)
    return x


def _scattering(function):
    """A function that scatters, with one more element along its dimension, for the indices that are not there."""

    def scatter(input, dim, index, src, *args, **kwargs):
        dim = canonicalize_dim(input.ndim, dim)
        target = in_compact_order(input)
        divides = function is torch.scatter_reduce and isinstance(target, Masked)  # in derivatives of products
        padded = target.copied() if divides else unmasked_of(target)
        if isinstance(src, Tensor) and ndim_of(src):
            if unknown_dims(src) != unknown_dims(index):
                raise TracedValueError(
                    f"torch.{function.__name__} of tensors one of which is a boolean-mask selection,"
                )
            for each in unknown_dims(index):
                index, src = aligned_along([index, src], [each, each], "torch.scatter")
            src = _in_dims(src, padded.shape, dim)
            src = filled(src, 1) if isinstance(src, Masked) else src  # as products of zeros have no derivatives
        index = _in_dims(index, padded.shape, dim)
        size = padded.shape[dim]
        index = filled(in_flat_masks(index), size) if isinstance(index, Masked) else index
        more = padded.new_zeros((*padded.shape[:dim], 1, *padded.shape[dim + 1 :]))
        made = function(torch.cat([padded, more], dim), dim, index, src, *args, **kwargs).narrow(dim, 0, size)
        return with_masks(made, target)

    return scatter


for _function in (torch.scatter_add, torch.scatter, torch.scatter_reduce):
    implements_masked(_function, getattr(Tensor, _function.__name__))(_scattering(_function))


@implements_masked(torch.index_reduce, Tensor.index_reduce)
def index_reduce(input, dim, index, source, reduce, *, include_self=True):
    dim = canonicalize_dim(input.ndim, dim)
    places = index.reshape(-1, *[1] * (input.ndim - 1 - dim)).expand_as(source)
    return torch.scatter_reduce(input, dim, places, source, reduce, include_self=include_self)


def _write(target, result):
    """Writes a function's result for a target to that target."""
    if not isinstance(target, Masked):
        return write_in_place(target, result)
    target.assign(result)
    return target


for _name in (
    *("index_put", "index_add", "index_copy", "scatter", "scatter_add", "scatter_reduce", "index_fill"),
    "index_reduce",
    "masked_scatter",
):
    _function = getattr(torch, _name)
    implements_masked(getattr(Tensor, f"{_name}_"))(
        lambda self, *args, _function=_function, **kwargs: _write(self, _function(self, *args, **kwargs))
    )
