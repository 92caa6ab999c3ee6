"""The number of steps of a loop, if it is known before the loop begins."""

from typing import Any

import jax
from jax import lax
from jax.core import eval_jaxpr
from jax.extend.core import Var

from ...tensors.traced import evaluating, is_traced

__all__ = ["count_steps"]

_MOST = 10**6


def count_steps(condition: Any, body: Any, known: list) -> int | None:
    """The number of steps, None if it is unknown or very large.

    Args:
        condition: the program (a closed jaxpr) of whether there is one more step.
        body: that of a step.
        known: of what is carried into the first step, the arrays that no traced input decides, and None for others.
    """
    constants = _Needs(condition, [0])
    needed = set(constants.inputs)
    while True:
        of_body = _Needs(body, sorted(needed))
        if needed >= of_body.inputs:
            break
        needed |= of_body.inputs
    if any(known[i] is None for i in needed) or any(map(is_traced, (*constants.constants, *of_body.constants))):
        return None
    places = sorted(needed)

    def filled(values) -> list:
        inputs: list[Any] = [None] * len(known)
        for place, value in zip(places, values, strict=True):
            inputs[place] = value
        return inputs

    def goes_on(state):
        count, values = state
        return lax.bitwise_and(constants.run(filled(values))[0], lax.lt(count, _MOST))

    def step(state):
        count, values = state
        return lax.add(count, 1), of_body.run(filled(values))

    with evaluating():
        count, _ = jax.jit(lambda values: lax.while_loop(goes_on, step, (0, values)))([known[i] for i in places])
    return int(count) if int(count) < _MOST else None


class _Needs:
    """What some results of a program need, and the program of these alone.

    Args:
        program: a closed jaxpr.
        outputs: the numbers of the results.
    """

    def __init__(self, program: Any, outputs: list[int]):
        jaxpr = program.jaxpr
        wanted = {jaxpr.outvars[i] for i in outputs if isinstance(jaxpr.outvars[i], Var)}
        steps: list[Any] = []
        for step in reversed(jaxpr.eqns):
            if not wanted.isdisjoint(step.outvars):
                wanted.update(x for x in step.invars if isinstance(x, Var))
                steps.append(step)
        self.inputs = {i for i, var in enumerate(jaxpr.invars) if var in wanted}
        pairs = zip(jaxpr.constvars, program.consts, strict=True)
        self._constants = [(var, value) for var, value in pairs if var in wanted]
        self._jaxpr = jaxpr.replace(
            constvars=[var for var, _ in self._constants],
            outvars=[jaxpr.outvars[i] for i in outputs],
            eqns=steps[::-1],
            debug_info=jaxpr.debug_info.with_unknown_names(),
        )

    @property
    def constants(self) -> list:
        return [value for _, value in self._constants]

    def run(self, inputs: list) -> list:
        """The results, for inputs of which only those needed are looked at."""
        return eval_jaxpr(self._jaxpr, self.constants, *inputs)
