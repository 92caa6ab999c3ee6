"""Functions of tensors whose dimensions have masks: which rule serves one, and what is elementwise.

An elementwise function is computed on all that there is room for. Dimensions are aligned from the last, as PyTorch
broadcasts them; where two tensors have a mask along the same one, they are put in one order under one mask.
"""

import types
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from jax import lax

from ..internals.dispatch import DisableAutocast
from ..rules import autocast, registry
from ..rules.features import handles
from ..rules.inplace import InPlace, WithFlag, check_cast
from ..rules.options import Tag
from ..rules.rule import Reflected
from ..runtime.errors import TracedValueError
from ..runtime.errors.locations import user_line, user_location
from ..runtime.translation import Call, lift
from ..tensors.tensor import wrap
from ..tensors.trees import flatten, map_arguments
from .lengths import expect_capacity, hinted_bound
from .masked import (
    Mask,
    Masked,
    Origin,
    aligned_along,
    as_long,
    at_axis,
    axes_of,
    expect_size,
    first,
    has_derivatives,
    has_shared_derivatives,
    ndim_of,
    packed,
    unknown_dims,
    unmasked_of,
    with_leading,
    with_masks,
)

_MULTIPLES = frozenset((Tag.PRODUCT, Tag.QUOTIENT))


# Of each element.


def broadcast(
    function: Callable,
    args: tuple,
    kwargs: dict,
    what: str,
    *,
    safe: bool = True,
    copies: bool = False,
    core: int = 0,
    dim: int | None = None,
    takes_one: bool = True,
) -> Any:
    """A function of each element, or of each row, that broadcasts its operands, whichever dimensions have masks.

    Args:
        function: takes tensors with room for all, and gives tensors that begin with their dimensions.
        args: operands, some of which are `Masked`.
        kwargs: as `args`.
        what: names the function in errors.
        safe: whether derivatives may be infinite for what was not chosen.
        copies: whether it has parameters besides, or indices, so that these must be finite, or within bounds.
        core: how many of the last dimensions it acts along, which have no mask.
        dim: another one, which results may lack.
        takes_one: whether a tensor of size one fits another size; else sizes are to be equal.
    """
    given = {id(x): x for x in flatten((args, kwargs))[0] if isinstance(x, torch.Tensor)}
    ndim = max(map(ndim_of, given.values()))
    if any(dim >= ndim_of(x) - core for x in given.values() for dim in unknown_dims(x)):
        raise TracedValueError(f"{what} along a dimension of a boolean-mask selection whose length data decide")
    masks = align(given, ndim, what, takes_one)
    chosen = next((x for x in given.values() if isinstance(x, Masked)), None)

    def operand(x: Any) -> Any:
        if not isinstance(x, torch.Tensor):
            return x
        x, dims = given[id(x)], unknown_dims(given[id(x)])
        x = with_masks(x.copied(), x) if copies and dims else x
        unmasked, missing = spread_over(masks, x, ndim), ndim - ndim_of(x)
        for at, mask in masks.items() if safe and not copies else ():
            if at - missing in dims:
                if mask.size and has_derivatives(unmasked):
                    unmasked = torch.where(spread(masks, at, ndim), unmasked, unmasked.detach())
            elif has_shared_derivatives(x):
                if not unmasked.ndim:
                    unmasked = unmasked.to(torch.result_type(unmasked_of(chosen), unmasked))  # as of no dimension
                unmasked = torch.where(spread(masks, at, ndim), unmasked, unmasked.detach())
        return unmasked

    args, kwargs = map_arguments(operand, (args, kwargs))
    whole_ndim = ndim + sum(mask.where.ndim - 1 for mask in masks.values())

    def result(x: Any) -> Any:
        if not isinstance(x, torch.Tensor):
            return x
        lacks = ndim if dim is None or x.ndim >= whole_ndim else dim
        return with_masks(x, chosen, {at - (at > lacks): mask for at, mask in masks.items()})

    return map_arguments(result, function(*args, **kwargs))


def of_first(function: Callable, core: Callable[..., int], *, copies: bool = True) -> Callable:
    """A function of each row of its first tensor, which acts along its last dimensions.

    Args:
        function: takes others besides, which have no masks.
        core: gives how many dimensions these are, for the number of all, and the other arguments.
        copies: as `broadcast` has it.
    """
    what = f"torch.{function.__name__}"

    def of_first(input: Any, *args: Any, **kwargs: Any) -> Any:
        if any(isinstance(x, Masked) for x in flatten((args, kwargs))[0]):
            raise TracedValueError(f"{what} beside a boolean-mask selection")
        if not isinstance(input, Masked):
            return function(input, *args, **kwargs)
        count = core(ndim_of(input), *args, **kwargs)
        return broadcast(lambda x: function(x, *args, **kwargs), (input,), {}, what, copies=copies, core=count)

    return of_first


def align(given: dict[int, Any], ndim: int, what: str, takes_one: bool = True) -> dict[int, Mask]:
    """Puts operands in one order; returns the masks of what they are broadcast to."""
    masks = {}
    for at in range(ndim):
        dims = {name: at - ndim + ndim_of(x) for name, x in given.items()}
        named = [name for name, x in given.items() if dims[name] in unknown_dims(x)]
        if not named:
            continue
        sizes = {x.shape[dims[name]] for name, x in given.items() if dims[name] >= 0 and name not in named}
        sizes -= {1} if takes_one else set()
        if sizes:  # what is beside a tensor of a known size has that
            given.update({name: as_long(given[name], dims[name], max(sizes)) for name in named})
            continue
        found = aligned_along([given[name] for name in named], [dims[name] for name in named], what)
        given.update(zip(named, found, strict=True))
        masks[at] = found[0].masks[dims[named[0]]]
    return masks


def spread_over(masks: dict[int, Mask], x: Any, ndim: int) -> Any:
    """All that there is room for of an operand, with as many dimensions for each mask as that has."""
    unmasked, missing = unmasked_of(x), ndim - ndim_of(x)
    for at in reversed(masks):
        if at >= missing and at - missing not in unknown_dims(x):
            for _ in range(masks[at].where.ndim - 1):
                unmasked = unmasked.unsqueeze(axes_of(x, at - missing)[0])
    return unmasked


def spread(masks: dict[int, Mask], at: int, ndim: int) -> torch.Tensor:
    """A mask, with dimensions of size one for those behind it."""
    where = masks[at].where
    behind = sum(masks[dim].where.ndim if dim in masks else 1 for dim in range(at + 1, ndim))
    return where.reshape(*where.shape, *[1] * behind)


def apply_elementwise(rule: Any, args: tuple, kwargs: dict) -> Any:
    """An elementwise rule, in one of its forms, of tensors some of which have masks."""
    if isinstance(rule, WithFlag):
        rule, args, kwargs = rule.form(args, kwargs)
    if not any(isinstance(x, Masked) for x in (*args, *kwargs.values())):
        return rule(args, kwargs)
    if isinstance(rule, InPlace):
        return _write_elementwise(rule, args, kwargs)
    apply = lambda *args, **kwargs: rule(args, kwargs)
    return broadcast(apply, args, kwargs, f"torch.{rule.name}", safe=_has_poles(rule, args))


def _write_elementwise(rule: InPlace, args: tuple, kwargs: dict) -> Any:
    target = args[0]
    if not isinstance(target, Masked) or "out" in kwargs:
        raise TracedValueError(f"torch.{rule.name} into a tensor of a boolean-mask selection")
    result = apply_elementwise(rule.rule, args, kwargs)
    if ndim_of(result) != ndim_of(target) or not {*unknown_dims(result)} <= {*unknown_dims(target)}:
        raise RuntimeError(
            f"torch.{rule.name}: got a target that does not have the shape of the result, at {user_location()}"
        )
    for dim in target.masks.keys() - unknown_dims(result):
        expect_size(target.masks[dim], result.shape[dim])
    check_cast(unmasked_of(result), target.unmasked)
    target.assign(with_masks(unmasked_of(result).to(target.dtype), result))
    return target


def _has_poles(rule: Any, args: tuple) -> bool:
    """Returns True if a rule's values or derivatives may be infinite at some values of its operands."""
    if not rule.tags.isdisjoint(_MULTIPLES) and isinstance(args[0], Masked) and not isinstance(rule, Reflected):
        return any(isinstance(x, torch.Tensor) for x in args[1:])
    return Tag.LINEAR not in rule.tags


# Functions of selections: by a declared rule, an elementwise one, or a body.


@handles(Masked, 0)
def run_masked(call: Call, function: Any, args: tuple, kwargs: dict) -> Any:
    """The result of a function of a tensor with masks."""
    rule = registry.lookup(function)
    device = autocast.region()
    if device is not None and rule is not None:
        treatment = autocast.of_function(function, rule, device)
        if treatment.is_operator:
            with DisableAutocast():
                return run_masked(call, function, *treatment.cast(args, kwargs))
    declared = registry.lookup_masked(function)
    if declared is not None:
        with call.inside():
            return pass_on_origin(declared(*args, **kwargs), args, kwargs)
    by_length = registry.lookup_by_length(function)
    if by_length is not None:
        with call.inside():
            return pass_on_origin(by_length.rule(*args, **kwargs), args, kwargs)
    if rule is not None and rule.elementwise:
        with call.inside():
            return apply_elementwise(rule, *rule.names.placed(function, args, kwargs))
    if rule is None and isinstance(function, types.FunctionType) and not call.is_own_body(function, args):
        return call.run_body(function, args, kwargs)
    name = function.__self__.__name__ if function.__name__ == "__get__" else function.__name__
    raise TracedValueError(f"torch.{name} of what a boolean mask chose")


# Where one comes from.


def begin(chosen: Masked, words: str = "a boolean-mask selection") -> Masked:
    """A selection that the user's line, where code is now, chooses."""
    bound = hinted_bound()
    if bound is not None and bound < chosen.mask.numel():
        length = expect_capacity(chosen.length, bound)
        chosen = first(packed(chosen, bound).rows, length)
    chosen.origin = Origin(words, user_line())
    return chosen


def pass_on_origin(result: Any, args: tuple, kwargs: dict) -> Any:
    """The results of a function of selections, each with the origin of the first of these."""
    for x in result if isinstance(result, tuple) else (result,):
        if type(x) is Masked and x.origin is None:
            given = [*args, *kwargs.values()]
            given += [x for each in given if isinstance(each, (tuple, list)) for x in each]
            x.origin = next((x.origin for x in given if isinstance(x, Masked)), None)
    return result


def refuse_length(chosen: Masked) -> TracedValueError:
    """The error of a selection that needs a known length: it names the line that made it."""
    if chosen.origin is None:
        return TracedValueError("a boolean-mask selection")
    return TracedValueError(chosen.origin.words, location=str(chosen.origin.location))


# Tensors that a loop carries though their size changes between iterations: room for the most, and a length.


def with_length(array: Any, length: Any, axis: int, dtype: torch.dtype) -> torch.Tensor:
    """A tensor whose dimension `axis` is as long as a traced number says.

    Args:
        array: ``(room, ...)``, with that dimension in front.
        length: an integer that is not beyond the room.
    """
    return at_axis(first(wrap(array, dtype), wrap(length, torch.int64)), axis)


def rows_and_length(tensor: torch.Tensor, axis: int) -> tuple[Any, Any] | None:
    """The array of a tensor with its dimension `axis` in front, in compact order, and how long that is.

    None where another dimension is as long as data decide.
    """
    if not isinstance(tensor, Masked):
        array = lift(tensor).read()
        order = (axis, *(dim for dim in range(array.ndim) if dim != axis))
        return lax.transpose(array, order), array.shape[axis]
    if unknown_dims(tensor) != [axis]:
        return None
    found = packed(with_leading(tensor, axis))
    length: Any = found.length
    return found.rows.read(), length.read()


def padded_to(rows: Any, capacity: int) -> Any:
    """The first `capacity` of rows ``(n, ...)``, with zeros after them if there are fewer."""
    if len(rows) >= capacity:
        return lax.slice_in_dim(rows, 0, capacity)
    return lax.pad(rows, np.zeros((), rows.dtype), [(0, capacity - len(rows), 0), *[(0, 0, 0)] * (rows.ndim - 1)])
