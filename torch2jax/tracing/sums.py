"""Whether two traced integers are equal, as the sums that compute them show."""

from typing import Any

import numpy as np
from jax.core import Tracer
from jax.extend.core import Literal
from jax.interpreters import partial_eval as pe

from ..internals.jax_traces import BatchTracer
from .traces import without_derivatives

__all__ = ["terms_of"]

_DEPTH = 16


def terms_of(array: Any) -> tuple[int, list[tuple[Any, int]]]:
    """A scalar as a sum: a number, and arrays with how often each is added."""
    constant, terms = 0, []
    for value, times in _taken_apart(without_derivatives(array), 1, _DEPTH):
        if isinstance(value, int):
            constant += value * times
            continue
        same = next((i for i, (other, _) in enumerate(terms) if other is value or _is_same(other, value)), None)
        if same is None:
            terms.append((value, times))
        else:
            terms[same] = value, terms[same][1] + times
    return constant, [(value, times) for value, times in terms if times]


def _is_same(one: Any, other: Any) -> bool:
    are_traced = isinstance(one, pe.DynamicJaxprTracer) and isinstance(other, pe.DynamicJaxprTracer)
    return are_traced and one.val is other.val


def _taken_apart(value: Any, times: int, depth: int):
    if isinstance(value, BatchTracer):  # of whose examples each is such a sum
        value = value.val
    if not isinstance(value, Tracer):
        yield (int(value) if np.ndim(value) == 0 else value), times
        return
    if isinstance(value, pe.DynamicJaxprTracer):
        if isinstance(value.val, Literal):
            yield int(value.val.val), times
            return
        step: Any = value.parent
        if step is None or not depth:
            yield value, times
            return
        name = step.primitive.name
        if name in ("add", "sub"):
            one, other = step.in_tracers
            yield from _taken_apart(one, times, depth - 1)
            yield from _taken_apart(other, times if name == "add" else -times, depth - 1)
            return
        if name in ("convert_element_type", "copy", "neg", "pvary") or (
            name in ("broadcast_in_dim", "reshape", "squeeze") and np.ndim(step.in_tracers[0]) == 0
        ):
            yield from _taken_apart(step.in_tracers[0], -times if name == "neg" else times, depth - 1)
            return
        if name == "mul":
            for one, other in (step.in_tracers, step.in_tracers[::-1]):
                factor = list(_taken_apart(one, 1, depth - 1))
                if all(isinstance(x, int) for x, _ in factor):
                    number = sum(x * n for x, n in factor)
                    yield from _taken_apart(other, times * number, depth - 1)
                    return
    yield value, times
