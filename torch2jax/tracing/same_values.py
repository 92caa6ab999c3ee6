"""Equality of traced arrays, if both are the same computation, of a few steps, on the same arrays."""

from typing import Any

import numpy as np
from jax import lax
from jax.core import Tracer
from jax.extend.core import Literal
from jax.interpreters import partial_eval as pe

from ..internals.jax import BatchTracer
from ..loops.likeness import Atom, is_same, key_of
from .traces import without_derivatives
from .value_ranges import terms_of


def is_same_value(one: Any, other: Any, depth: int = 8) -> bool:
    """True if two arrays are the same computation, of a few steps, on the same ones; derivatives are ignored."""
    one, other = without_derivatives(one), without_derivatives(other)
    if one is other:
        return True
    if isinstance(one, BatchTracer) and isinstance(other, BatchTracer):
        is_one_batch = one._trace.tag is other._trace.tag and one.batch_dim == other.batch_dim
        return is_one_batch and is_same_value(one.val, other.val, depth)
    if not isinstance(one, Tracer) and not isinstance(other, Tracer):
        return one.dtype == other.dtype and np.array_equal(one, other)
    if not isinstance(one, pe.DynamicJaxprTracer) or not isinstance(other, pe.DynamicJaxprTracer):
        return False
    mine: Atom = one.val
    theirs: Atom = other.val
    if mine is theirs:
        return True
    if isinstance(mine, Literal) or isinstance(theirs, Literal):
        return isinstance(mine, Literal) and isinstance(theirs, Literal) and key_of(mine) == key_of(theirs)
    step, again = one.parent, other.parent
    if step is None or again is None or not depth or step.primitive is not again.primitive:
        return False
    if step.effects and step.primitive is not lax.axis_index_p:  # whose effect is that there is such an axis
        return False
    if not is_same(step.params, again.params) or step.outvars.index(mine) != again.outvars.index(theirs):
        return False
    pairs = zip(step.in_tracers, again.in_tracers, strict=False)
    return len(step.in_tracers) == len(again.in_tracers) and all(is_same_value(x, y, depth - 1) for x, y in pairs)


def distance(one: Any, other: Any) -> int | None:
    """The difference of two integer scalars; None where the sums that compute them do not show it."""
    (constant, terms), (number, others) = terms_of(one), terms_of(other)
    are_none = cancel_out([*terms, *((value, -times) for value, times in others)])
    return constant - number if are_none else None


def cancel_out(terms: list) -> bool:
    """Returns True if the terms of a sum, each with a factor, cancel out: some may be the same computation."""
    left = list(terms)
    while left:
        value, times = left.pop()
        alike = [x for x in left if is_same_value(value, x[0])]
        if times + sum(x[1] for x in alike):
            return False
        left = [x for x in left if not any(x is other for other in alike)]
    return True
