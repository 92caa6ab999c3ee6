"""How much there is to compile: equations, with those of the functions that they call."""

from collections.abc import Iterable
from typing import Any

from jax.extend.core import ClosedJaxpr, Jaxpr

__all__ = ["size_of", "total"]


def size_of(step: Any) -> int:
    """How many equations one is: a rematerialized layer is as many as it has within."""
    size = 1
    for value in step.params.values():
        kind = type(value)
        if kind is ClosedJaxpr or kind is Jaxpr:
            size += total(value.eqns)
        elif kind is tuple:  # the branches of a question
            for each in value:
                if type(each) is ClosedJaxpr or type(each) is Jaxpr:
                    size += total(each.eqns)
    return size


def total(steps: Iterable[Any]) -> int:
    return sum(map(size_of, steps))
