"""Takes JAX's equations apart: those of both sides of a branch appear once, and those of one side move into it.

A way through some code leaves a list of equations. Two ways that part at a condition become one program: what both do
at the end, with whatever arrays, comes behind the branch and is not part of it. If that is everything, there is none.

A gradient is taken where the value is. ``r = x.sqrt(); y = x if x < 0 else r`` is right in PyTorch, whose gradient goes
back along the side that was taken. In a graph the root stands before the condition, and its derivative is nan or
infinite times zero where it is not used. So before JAX differentiates a program, each equation whose results one branch
alone uses moves into that branch.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import lax
from jax.core import ShapedArray
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var, new_jaxpr_eqn, no_effects

from ..tracing.loops.likeness import Atom as Atom, is_same_step as is_same_step, key_of
from ..tracing.loops.program import Program, evaluated, free, has_effects, pruned
from ..tracing.loops.windows import reader
from .collectives import cond_on_devices


class Branch(NamedTuple):
    """One of two programs runs."""

    predicate: Atom
    yes: Program
    no: Program
    outvars: list[Var]

    @property
    def operands(self) -> set[Var]:
        found = {self.predicate} if isinstance(self.predicate, Var) else set()
        return found | free(self.yes) | free(self.no)

    @property
    def has_effects(self) -> bool:
        return any(has_effects(x) for side in (self.yes, self.no) for x in side.statements)

    def pruned(self, needed: set[Var]) -> "Branch":
        at = [i for i, var in enumerate(self.outvars) if var in needed]
        yes, no = (pruned(side._replace(results=[side.results[i] for i in at])) for side in (self.yes, self.no))
        return Branch(self.predicate, yes, no, [self.outvars[i] for i in at])

    def evaluated(self, values: dict[Var, Any]) -> list:
        predicate = reader(values)(self.predicate)
        if jax.sharding.get_abstract_mesh().manual_axes:
            return cond_on_devices(predicate, self.yes, self.no, values)
        return lax.cond(predicate, lambda: evaluated(self.yes, values), lambda: evaluated(self.no, values))


class Assertion(NamedTuple):
    """An assertion of the code's on traced values, which is checked while the program is computed."""

    predicate: Atom
    wanted: bool
    message: str
    check: Callable[[object, str], None]
    outvars: tuple = ()

    has_effects = True

    @property
    def operands(self) -> list[Var]:
        return [self.predicate] if isinstance(self.predicate, Var) else []

    def pruned(self, needed: set[Var]) -> "Assertion":
        del needed
        return self

    def evaluated(self, values: dict[Var, Any]) -> tuple:
        predicate = reader(values)(self.predicate)
        self.check(predicate if self.wanted else lax.bitwise_not(predicate), self.message)
        return ()


def new_var(aval) -> Var:
    return Var(aval)


def constant(value, dtype) -> Literal:
    """A number as an operand."""
    array = np.asarray(value, dtype)
    return Literal(array, ShapedArray(array.shape, array.dtype))


def joined(predicate: Atom, yes: Program, no: Program) -> Program:
    """The program that gives what one of two gives, which have results of the same shapes and dtypes."""
    yes, no = pruned(yes), pruned(no)
    count = _common_end(yes, no)
    heads = [side.statements[: len(side.statements) - count] for side in (yes, no)]
    ends = [side.statements[len(side.statements) - count :] for side in (yes, no)]
    end = {var for statement in ends[0] for var in statement.outvars}
    chosen: dict[tuple, tuple[Atom, Atom, Var]] = {}

    def either(one: Atom, other: Atom) -> Atom:
        if isinstance(one, Var) and one in end:
            return one
        key = (key_of(one), key_of(other))
        if key[0] == key[1]:
            return one
        if key not in chosen:
            chosen[key] = (one, other, new_var(one.aval))
        return chosen[key][2]

    statements = [_rebuilt(one, other, either) for one, other in zip(*ends, strict=True)]
    results = [either(one, other) for one, other in zip(yes.results, no.results, strict=True)]
    if chosen or any(map(has_effects, [*heads[0], *heads[1]])):
        ones, others, outvars = (list(x) for x in zip(*chosen.values(), strict=True)) if chosen else ([], [], [])
        branch = Branch(predicate, Program(heads[0], ones), Program(heads[1], others), outvars)
        statements.insert(0, branch)
    return Program(statements, results)


def _common_end(yes: Program, no: Program) -> int:
    """The number of statements at the end of two programs that are the same, but for what comes from before them."""
    partners: dict[Var, set] = {}
    partners_of_no: dict[Var, set] = {}

    def note(pairs: Iterable[tuple[Atom, Atom]]) -> None:
        for one, other in pairs:
            if isinstance(one, Var):
                partners.setdefault(one, set()).add(key_of(other))
            if isinstance(other, Var):
                partners_of_no.setdefault(other, set()).add(key_of(one))

    note(zip(yes.results, no.results, strict=True))
    count = 0
    for one, other in zip(reversed(yes.statements), reversed(no.statements), strict=False):
        pairs = _pairs(one, other)
        if pairs is None:
            break
        if any(
            partners.get(mine, {theirs}) != {theirs} or partners_of_no.get(theirs, {mine}) != {mine}
            for mine, theirs in zip(one.outvars, other.outvars, strict=True)
        ):
            break
        note(pairs)
        count += 1
    return count


def _pairs(one, other) -> list[tuple[Atom, Atom]] | None:
    """The operands of two statements that are the same but for these; None if they are not."""
    if isinstance(one, JaxprEqn):
        if not isinstance(other, JaxprEqn) or not is_same_step(one, other):
            return None
        pairs = list(zip(one.invars, other.invars, strict=True))
        return pairs if all(_is_replaceable(*pair) for pair in pairs) else None
    if isinstance(one, Assertion):
        is_same = isinstance(other, Assertion) and one[1:4] == other[1:4]
        return [(one.predicate, other.predicate)] if is_same else None
    if not isinstance(one, Branch) or not isinstance(other, Branch) or len(one.outvars) != len(other.outvars):
        return None
    found = [(one.predicate, other.predicate)]
    for mine, theirs in ((one.yes, other.yes), (one.no, other.no)):
        pairs = _pairs_of_programs(mine, theirs)
        if pairs is None:
            return None
        found.extend(pairs)
    return found


def _is_replaceable(one: Atom, other: Atom) -> bool:
    """Whether a literal, if one is there, is the same in both: a number that is chosen would be an array."""
    return (isinstance(one, Var) and isinstance(other, Var)) or key_of(one) == key_of(other)


def _pairs_of_programs(one: Program, other: Program) -> list[tuple[Atom, Atom]] | None:
    """The operands from outside of two programs that are the same but for these; None if they are not."""
    if len(one.statements) != len(other.statements):
        return None
    inner: dict[Var, Var] = {}
    theirs: set[Var] = set()
    found = []

    def enter(pairs: list[tuple[Atom, Atom]] | None) -> bool:
        for x, y in pairs or ():
            if isinstance(x, Var) and x in inner:
                if inner[x] is not y:
                    return False
            elif isinstance(y, Var) and y in theirs:
                return False
            else:
                found.append((x, y))
        return pairs is not None

    for mine, its in zip(one.statements, other.statements, strict=True):
        if not enter(_pairs(mine, its)):
            return None
        inner.update(zip(mine.outvars, its.outvars, strict=True))
        theirs.update(its.outvars)
    results = list(zip(one.results, other.results, strict=True))
    return found if all(_is_replaceable(*pair) for pair in results) and enter(results) else None


def _rebuilt(one, other, either: Callable[[Atom, Atom], Atom]):
    """A statement with operands chosen from those of two."""
    if isinstance(one, JaxprEqn):
        return one.replace(invars=[either(x, y) for x, y in zip(one.invars, other.invars, strict=True)])
    predicate = either(one.predicate, other.predicate)
    if isinstance(one, Assertion):
        return one._replace(predicate=predicate)
    yes, no = _rebuilt_program(one.yes, other.yes, either), _rebuilt_program(one.no, other.no, either)
    return Branch(predicate, yes, no, one.outvars)


def _rebuilt_program(one: Program, other: Program, either: Callable[[Atom, Atom], Atom]) -> Program:
    inner = {var for statement in one.statements for var in statement.outvars}

    def within(x: Atom, y: Atom) -> Atom:
        return x if isinstance(x, Var) and x in inner else either(x, y)

    statements = [_rebuilt(x, y, within) for x, y in zip(one.statements, other.statements, strict=True)]
    return Program(statements, [within(x, y) for x, y in zip(one.results, other.results, strict=True)])


_EVERYBODY: object = object()


def sunk(closed: ClosedJaxpr) -> ClosedJaxpr:
    """A program like another one, with what one branch alone uses inside of that, and without what nobody uses.

    A condition whose branches compute nothing becomes a selection.
    """
    return ClosedJaxpr(_sunk(closed.jaxpr), closed.consts)


def _sunk(jaxpr: Jaxpr) -> Jaxpr:
    sunk, dead = _moves(jaxpr)
    if not dead and not any(x.primitive.name == "cond" for x in jaxpr.eqns):
        return jaxpr
    into: dict[tuple[int, int], list[JaxprEqn]] = defaultdict(list)
    for number in sorted(sunk):
        into[sunk[number]].append(jaxpr.eqns[number])
    eqns = []
    for number, step in enumerate(jaxpr.eqns):
        if number in sunk or number in dead:
            continue
        if step.primitive.name == "cond":
            count = len(step.params["branches"])
            step = _with_sunk(step, [into[number, side] for side in range(count)])
            if not any(branch.jaxpr.eqns or branch.jaxpr.constvars for branch in step.params["branches"]):
                eqns += _selections(step)
                continue
        eqns.append(step)
    return jaxpr.replace(eqns=eqns)


def _moves(jaxpr: Jaxpr) -> tuple[dict[int, tuple[int, int]], set[int]]:
    """The numbers of the equations that move, with the number of the condition and of its branch; and of unused ones.

    A condition that nobody asks any more, as that of a check that is assumed to hold, is unused.
    """
    users: dict[Var, set] = defaultdict(set)
    for x in jaxpr.outvars:
        if isinstance(x, Var):
            users[x].add(_EVERYBODY)
    sunk: dict[int, tuple[int, int]] = {}
    dead: set[int] = set()
    for number in reversed(range(len(jaxpr.eqns))):
        step = jaxpr.eqns[number]
        found = set().union(*(users[x] for x in step.outvars)) if step.outvars else set()
        if not found and not step.effects:
            dead.add(number)
            continue
        if len(found) == 1 and _EVERYBODY not in found and not step.effects:
            sunk[number] = next(iter(found))
        if step.primitive.name == "cond" and number not in sunk:
            if isinstance(step.invars[0], Var):
                users[step.invars[0]].add(_EVERYBODY)
            inputs = [_used_inputs(branch.jaxpr) for branch in step.params["branches"]]
            for position, x in enumerate(step.invars[1:]):
                if isinstance(x, Var):
                    users[x].update((number, side) for side, used in enumerate(inputs) if position in used)
        else:
            user = sunk.get(number, _EVERYBODY)
            for x in step.invars:
                if isinstance(x, Var):
                    users[x].add(user)
    return sunk, dead


def _selections(step: JaxprEqn) -> list[JaxprEqn]:
    """The selections that a condition is whose branches only name what is around it."""
    results = []
    for branch in step.params["branches"]:
        names = dict(zip(branch.jaxpr.invars, step.invars[1:], strict=True))
        results.append([x if isinstance(x, Literal) else names[x] for x in branch.jaxpr.outvars])
    return [
        new_jaxpr_eqn([step.invars[0], *cases], [outvar], lax.select_n_p, {}, no_effects)
        for outvar, *cases in zip(step.outvars, *results, strict=True)
    ]


def _used_inputs(jaxpr: Jaxpr) -> set[int]:
    """The places of the inputs that a branch uses."""
    named = (x for each in (*(step.invars for step in jaxpr.eqns), jaxpr.outvars) for x in each)
    found = {x for x in named if isinstance(x, Var)}
    return {position for position, x in enumerate(jaxpr.invars) if x in found}


def _with_sunk(step: JaxprEqn, sunk: Sequence[list[JaxprEqn]]) -> JaxprEqn:
    """A condition whose branches begin with the equations that move there, and which has what they use alone."""
    inputs = [_used_inputs(branch.jaxpr) for branch in step.params["branches"]]
    used = [x for position, x in enumerate(step.invars[1:]) if any(position in each for each in inputs)]
    if not any(sunk) and len(used) == len(step.invars) - 1:
        return step
    made = {x for steps in sunk for each in steps for x in each.outvars}
    needed = dict.fromkeys(
        x
        for x in (*used, *(x for steps in sunk for each in steps for x in each.invars))
        if isinstance(x, Var) and x not in made
    )
    operands = list(needed)
    branches = []
    for branch, steps in zip(step.params["branches"], sunk, strict=True):
        # A branch comes to know what is around it by the names that this has there.
        names = dict(zip(branch.jaxpr.invars, step.invars[1:], strict=True))

        def named(x: object, names: dict = names) -> object:
            return x if isinstance(x, Literal) else names.get(x, x)

        inner = [each.replace(invars=[*map(named, each.invars)]) for each in branch.jaxpr.eqns]
        info = branch.jaxpr.debug_info._replace(arg_names=None, result_paths=None)
        jaxpr = branch.jaxpr.replace(
            invars=operands, eqns=[*steps, *inner], outvars=[*map(named, branch.jaxpr.outvars)], debug_info=info
        )
        branches.append(ClosedJaxpr(_sunk(jaxpr), branch.consts))
    return step.replace(invars=[step.invars[0], *operands], params={**step.params, "branches": tuple(branches)})
