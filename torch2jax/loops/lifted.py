"""Iterations numbers inside rematerialized iterations into operands, because they may differ, as random keys do."""

from collections.abc import Mapping, Sequence
from typing import Any

from jax.extend.core import DebugInfo, JaxprEqn, Literal, Var

from ..internals.jax_programs import remat_p
from .alike import key_of

__all__ = ["with_numbers_lifted"]

_Place = tuple[int, int]
"""An equation within, and an operand of it."""
_DEBUG_INFO = DebugInfo("loops", "torch2jax", None, None)


def with_numbers_lifted(iterations: Sequence[Sequence[JaxprEqn]]) -> list[list[JaxprEqn]]:
    """The iterations, whose equations that rematerialize take as operands the numbers which differ within them."""
    rows = [_lifted(row) if row[0].primitive is remat_p else row for row in zip(*iterations, strict=True)]
    return [list(iteration) for iteration in zip(*rows, strict=True)]


def _lifted(row: Sequence[JaxprEqn]) -> Sequence[JaxprEqn]:
    """One equation of each iteration, so that they differ in operands alone."""
    first = row[0].params["jaxpr"]
    places: dict[_Place, None] = {}
    for step in row[1:]:
        jaxpr = step.params["jaxpr"]
        if len(jaxpr.eqns) != len(first.eqns):
            return row
        for at, (ours, others) in enumerate(zip(first.eqns, jaxpr.eqns, strict=True)):
            if ours is not others:
                operands = enumerate(zip(ours.invars, others.invars, strict=False))
                places.update(((at, operand), None) for operand, (x, y) in operands if _are_other_numbers(x, y))
    return [_with_operands(step, places) for step in row] if places else row


def _are_other_numbers(one: Any, other: Any) -> bool:
    are_numbers = isinstance(one, Literal) and isinstance(other, Literal)
    return are_numbers and one.aval == other.aval and key_of(one) != key_of(other)


def _with_operands(step: JaxprEqn, places: Mapping[_Place, None]) -> JaxprEqn:
    jaxpr = step.params["jaxpr"]
    steps, invars, numbers = list(jaxpr.eqns), [], []
    for at, operand in places:
        number: Any = steps[at].invars[operand]
        if not isinstance(number, Literal):
            return step
        var, taken = Var(number.aval.strip_weak_type()), list(steps[at].invars)
        taken[operand] = var
        steps[at] = steps[at].replace(invars=taken)
        invars.append(var)
        numbers.append(number)
    lifted = jaxpr.replace(invars=[*jaxpr.invars, *invars], eqns=steps, debug_info=_DEBUG_INFO)
    return step.replace(invars=[*step.invars, *numbers], params={**step.params, "jaxpr": lifted})
