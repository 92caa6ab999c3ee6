"""A gradient is taken where the value is: what only one side of a condition uses moves into that side.

``r = x.sqrt(); y = x if x < 0 else r`` is right in PyTorch, whose gradient goes back along the side that was taken.
In a graph the root stands before the condition, and its derivative is nan or infinite times zero where it is not
used. So before JAX differentiates a program, each equation whose results one branch alone uses moves into that branch.
"""

from collections import defaultdict
from collections.abc import Sequence

from jax import lax
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var, new_jaxpr_eqn, no_effects

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
