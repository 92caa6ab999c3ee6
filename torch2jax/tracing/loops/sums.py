"""Sums of slices padded with zeros, as the derivatives of slices are: they become concatenations.

``x[:, 0]`` to ``x[:, 9]`` have derivatives that are padded to the shape of ``x``, each in another place, and added one
after another. Where the places do not overlap the sum is the concatenation of what was padded. That is what the
iterations of a loop can give, each its part.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from jax import lax
from jax.extend.core import JaxprEqn, Literal, Var
from jax.interpreters import ad

from .likeness import Atom
from .program import Program, new_step, operands

_LEAST = 4
_ADDING = (ad.add_jaxvals_p, lax.add_p)


class _Sum(NamedTuple):
    """The terms that an equation adds up."""

    padded: list[JaxprEqn]
    rest: Atom | None
    inside: list[JaxprEqn]
    """The equations that are no longer needed if the sum is taken otherwise."""


def with_sums_joined(program: Program) -> Program:
    """The program, which consists of equations, with concatenations in place of such sums."""
    if len([step for step in program.statements if step.primitive is lax.pad_p]) < _LEAST:
        return program
    sums = _sums(program)
    replaced: dict[int, list[JaxprEqn]] = {}
    for step, found in sums:
        steps = _joined(step, found)
        if steps is not None:
            replaced.update((id(each), []) for each in found.inside)
            replaced[id(step)] = steps
    statements = [new for step in program.statements for new in replaced.get(id(step), [step])]
    return Program(statements, program.results)


def _sums(program: Program) -> Iterable[tuple[JaxprEqn, _Sum]]:
    """The last equation of each sum, and what that adds up."""
    users = _user_counts(program)
    open_sums: dict[Var, tuple[JaxprEqn, _Sum]] = {}
    for step in program.statements:
        if step.primitive is lax.pad_p and _is_among_zeros(step):
            open_sums[step.outvars[0]] = step, _Sum([step], None, [])
        elif step.primitive in _ADDING:
            found = _added(step, open_sums, users)
            if found is not None:
                for x in step.invars:
                    open_sums.pop(x, None)
                open_sums[step.outvars[0]] = step, found
    return [(step, found) for step, found in open_sums.values() if len(found.padded) >= _LEAST]


def _user_counts(program: Program) -> Mapping[Var, int]:
    counts: dict[Var, int] = {}
    for step in program.statements:
        for var in operands(step):
            counts[var] = counts.get(var, 0) + 1
    for atom in program.results:
        if isinstance(atom, Var):
            counts[atom] = counts.get(atom, 0) + 1
    return counts


def _added(step: JaxprEqn, sums: Mapping[Var, tuple[JaxprEqn, _Sum]], users: Mapping[Var, int]) -> _Sum | None:
    """The terms of an addition; None if it has no part among zeros that nothing else uses."""
    padded, inside = [], []
    rests: list[Any] = []
    aval: Any = step.outvars[0].aval
    for x in step.invars:
        known = sums.get(x) if isinstance(x, Var) and users[x] == 1 else None
        if known is None:
            rests.append(x)
            continue
        padded += known[1].padded
        inside += [*known[1].inside, known[0]]
        if known[1].rest is not None:
            rests.append(known[1].rest)
    is_sum = padded and len(rests) <= 1 and all(x.aval.shape == aval.shape for x in rests)
    return _Sum(padded, rests[0] if rests else None, inside) if is_sum else None


def _is_among_zeros(step: JaxprEqn) -> bool:
    value, config = step.invars[1], step.params["padding_config"]
    return isinstance(value, Literal) and not value.val and all(low >= 0 <= high and not x for low, high, x in config)


def _joined(last: JaxprEqn, found: _Sum) -> list[JaxprEqn] | None:
    """The equations that take a sum otherwise; None if its parts are not side by side."""
    configs = [step.params["padding_config"] for step in found.padded]
    axes = [axis for axis, each in enumerate(zip(*configs, strict=True)) if len(set(each)) > 1]
    if len(axes) != 1:
        return None
    axis = axes[0]
    rows: list[dict[int, Atom]] = []
    for step, config in zip(found.padded, configs, strict=True):
        start = int(config[axis][0])
        row = next((row for row in rows if start not in row), None)
        if row is None:
            rows.append(row := {})
        row[start] = step.invars[0]
    steps: list[JaxprEqn] = []
    terms = [] if found.rest is None else [found.rest]
    for row in rows:
        term = _row(row, axis, configs[0], last.outvars[0].aval, steps)
        if term is None:
            return None
        terms.append(term)
    total = terms[0]
    for term in terms[1:]:
        var = Var(last.outvars[0].aval)
        steps.append(new_step([total, term], var, ad.add_jaxvals_p, {}))
        total = var
    return [*steps[:-1], steps[-1].replace(outvars=last.outvars)]


def _row(row: Mapping[int, Any], axis: int, config: Sequence, aval: Any, steps: list[JaxprEqn]) -> Var | None:
    """Adds the equations of the sum of parts that begin at these indices; None if the parts are not adjacent."""
    starts = sorted(row)
    parts = [row[start] for start in starts]
    sizes = [x.aval.shape[axis] for x in parts]
    at = starts[0]
    for start, size in zip(starts, sizes, strict=True):
        if start != at:
            return None
        at += size
    shape = list(parts[0].aval.shape)
    shape[axis] = sum(sizes)
    joined: Any = Var(aval.update(shape=tuple(shape)))
    steps.append(new_step(parts, joined, lax.concatenate_p, {"dimension": axis}))
    if joined.aval.shape == aval.shape:
        return joined
    margins = [*config]
    margins[axis] = starts[0], aval.shape[axis] - at, 0
    stacked = Var(aval)
    zero = Literal(aval.dtype.type(0), aval.update(shape=()))
    steps.append(new_step([joined, zero], stacked, lax.pad_p, {"padding_config": tuple(margins)}))
    return stacked
