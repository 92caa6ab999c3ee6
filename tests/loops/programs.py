"""How tests look at loops in graphs."""

from collections.abc import Callable
from typing import Any

import jax
from jax.extend.core import jaxprs_in_params

__all__ = ["count", "scans"]


def count(program: Any) -> int:
    """The equations of a program, with those within."""
    jaxpr = getattr(program, "jaxpr", program)
    return sum(1 + sum(map(count, jaxprs_in_params(step.params))) for step in jaxpr.eqns)


def scans(f: Callable, *args) -> list[int]:
    """The lengths of all loops in the graph of a function, the outer ones first."""
    found: list[int] = []

    def visit(jaxpr):
        for step in jaxpr.eqns:
            if step.primitive.name == "scan":
                found.append(step.params["length"])
            for each in jaxprs_in_params(step.params):
                visit(each)

    visit(jax.make_jaxpr(f)(*args).jaxpr)
    return found
