"""How much there is to compile: equations, with those of the functions that they call."""

from collections.abc import Iterable
from typing import Any

from jax.extend.core import ClosedJaxpr, Jaxpr

__all__ = ["sizes_of", "total"]


def sizes_of(steps: Iterable[Any]) -> list[int]:
    """How many equations each one is: a rematerialized layer is as many as it has within.

    What is no equation is one. A loop without calls, since every program is looked through.
    """
    sizes = []
    for step in steps:
        size = 1
        for value in getattr(step, "params", {}).values():
            kind = type(value)
            if kind is ClosedJaxpr or kind is Jaxpr:
                size += total(value.eqns)
            elif kind is tuple:  # the branches of a question
                for each in value:
                    if type(each) is ClosedJaxpr or type(each) is Jaxpr:
                        size += total(each.eqns)
        sizes.append(size)
    return sizes


def total(steps: Iterable[Any]) -> int:
    return sum(sizes_of(steps))
