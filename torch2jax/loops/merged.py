"""Merges equations that compute the same, so that what depends on no iteration is only in the first one."""

from collections.abc import Sequence
from typing import Any

from jax.extend.core import JaxprEqn, Literal, Var

from .alike import Atom, is_same, key_of
from .likeness import Likeness
from .program import Program

__all__ = ["merged"]


def merged(program: Program, likeness: Likeness) -> Program:
    """The program, which consists of equations, with one for all that compute the same."""
    renamed: dict[Var, Atom] = {}
    known: dict[Any, JaxprEqn] = {}
    kept = []
    for step in program.statements:
        taken = [x for x in step.invars if type(x) is not Literal]
        if not renamed.keys().isdisjoint(taken):
            number = likeness.number(step)
            step = step.replace(invars=_renamed(step.invars, renamed))
            likeness.note(step, number)
        if not step.effects:
            operands = [key_of(x) if isinstance(x, Literal) else x for x in step.invars]
            key = likeness.number(step), step.params.get("start_indices"), *operands
            same = known.setdefault(key, step)
            if same is not step and is_same(same.params, step.params):
                renamed.update(zip(step.outvars, same.outvars, strict=True))
                continue
        kept.append(step)
    return Program(kept, _renamed(program.results, renamed))


def _renamed(atoms: Sequence[Atom], names: dict[Var, Atom]) -> list[Atom]:
    return [names.get(x, x) if isinstance(x, Var) else x for x in atoms]
