"""How tests look at loops in graphs."""

from collections.abc import Callable
from typing import Any

import jax
from jax.extend.core import jaxprs_in_params

__all__ = ["count", "names_within", "scans"]


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


def names_within(program: Any, name: str) -> list[str]:
    """The primitives in the bodies of all equations of some primitive."""
    found: list[str] = []

    def visit(jaxpr, is_inside):
        for step in jaxpr.eqns:
            found.extend([step.primitive.name] if is_inside else [])
            for each in jaxprs_in_params(step.params):
                visit(each, is_inside or step.primitive.name == name)

    visit(getattr(program, "jaxpr", program), False)
    return found
