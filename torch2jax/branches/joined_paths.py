"""Merges the paths through some code: a tree that branches at each condition becomes one program.

Each condition becomes a ``lax.cond``, whose branches have the equations after it on each side. Equations that both
sides end with move behind it. A side on which the code raises its own exception becomes a check, not a branch.
"""

import os
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from jax.extend.core import JaxprEqn, Var

from ..errors import BranchError, TracedValueError
from ..loops.program import Program, free, pruned
from ..tracing.traces import is_float
from .ends import End, StaticLeaf, alike
from .joins import Join
from .loop_bounds import IterationPath
from .loop_facts import Facts, Loops
from .loop_room import expect_room, iterations_back
from .path import Condition
from .policy import BranchPolicy
from .programs import (
    Assertion,
    Branch,
    constant,
    joined,
)
from .while_loops import Same, While


class Ended(NamedTuple):
    """The end of a path: a tree of arrays and other things."""

    leaves: list
    structure: Any
    note: Any


class Raised(NamedTuple):
    error: Exception
    is_check: bool


class Again(NamedTuple):
    """The end of an iteration."""

    loop: Facts


class Met(NamedTuple):
    """The end of a path where others join it."""

    join: Join


class Side(NamedTuple):
    """Where an answer leads to."""

    program: Program
    leaves: list[StaticLeaf | None]
    structure: Any
    notes: list
    """Of all paths."""

    @property
    def end(self) -> End:
        return End(self.program, self.leaves, self.structure)

    def behind(self, statements: list) -> "Side":
        """The same with something before it."""
        return self._replace(program=self.program._replace(statements=[*statements, *self.program.statements]))


class PathNode:
    """What is computed up to a condition, or to the end."""

    def __init__(self):
        self.steps: list | None = None
        self.flag: Any = None
        self.condition: Any = None
        self.sides: dict[bool, PathNode] = {}
        self.end: Ended | Raised | Again | Met | None = None
        self.results: list = []
        self.loop: Facts | None = None
        """The loop that begins there."""
        self.first: list = []
        """What its first iteration begins with."""
        self.carried: list[Var] = []
        """The same, of every iteration."""
        self.iteration: PathNode | None = None
        self.joined: PathNode | None = None
        """Where the paths from a condition go on as one."""
        self.chosen: list[Var] = []
        """What they have computed."""
        self.read_again: list[JaxprEqn] = []
        """What the path that goes on has read of older tensors before, and reads again since others have not."""
        self.found_again: dict[Var, Var] = {}
        """The results of the latter, by those of the former."""

    @property
    def next(self) -> "Iterable[PathNode]":
        if self.joined is not None:
            return [*self.sides.values(), self.joined]
        return self.sides.values() if self.iteration is None else [self.iteration]

    @property
    def nodes(self) -> "Iterable[PathNode]":
        """Itself, and all from there on."""
        yield self
        for node in self.next:
            yield from node.nodes

    @cached_property
    def ends(self) -> list["Ended | Raised | Again | Met"]:
        """Those of all paths from there on; where these go on as one, those behind."""
        if self.joined is not None:
            own = [end for side in self.sides.values() for end in side.ends]
            return [*(end for end in own if not isinstance(end, Met)), *self.joined.ends]
        return [self.end] if self.end is not None else [end for node in self.next for end in node.ends]

    @property
    def parted(self) -> dict[Var, JaxprEqn | None]:
        """All that is computed before the paths from a condition join; None stands for what no equation gives."""
        found: dict[Var, JaxprEqn | None] = {}
        for side in self.sides.values():
            for node in side.nodes:
                found.update((var, step) for step in (*(node.steps or ()), *node.read_again) for var in step.outvars)
                found.update(dict.fromkeys((*node.carried, *node.chosen)))
        return found

    def paths(self, loop: Facts | None) -> "Iterable[IterationPath]":
        """Those from there on that are iterations of a loop."""
        steps = self.steps or []
        if isinstance(self.end, Again) and self.end.loop is loop:
            yield IterationPath(steps, [], self.results)
        for side in self.next if self.joined is None else [self.joined]:
            answers = [(self.flag, answer) for answer, other in self.sides.items() if other is side]
            for path in side.paths(loop):
                yield IterationPath([*steps, *path.steps], [*answers, *path.answers], path.results)

    def forget(self, answers: tuple[bool, ...]) -> None:
        """Lets it be as if nobody had been behind some answers."""
        node: PathNode | None = self
        for answer in answers:
            while node is not None and node.iteration is not None:
                node = node.iteration
            node = None if node is None else node.sides.get(answer)
        if node is not None:
            vars(node).update(vars(PathNode()))

    def comes_back(self, loop: Facts | None) -> bool:
        """Whether a path is an iteration of a loop."""
        return any(isinstance(end, Again) and end.loop is loop for end in self.ends)

    @property
    def is_check(self) -> bool:
        """Whether all paths raise exceptions of the code's."""
        return all(isinstance(end, Raised) and end.is_check for end in self.ends)


class _LoopContext(NamedTuple):
    """Which paths are of interest."""

    iteration: "PathNode | None" = None
    """Where the loop begins of which these are the iterations; None for the ends of the code."""
    cut: tuple[Facts, ...] = ()
    """The loops that have ended: nothing comes back to them."""


def program_of(root: PathNode, values: dict[Var, Any], policy: BranchPolicy, loops: Loops, pads: bool) -> Side | Raised:
    """What all paths compute together, or the exception in which all of them end.

    Args:
        root: of the tree of paths.
        values: those of the constants in it.
        loops: what is known of them.
        pads: whether an array that is longer on one path than on another becomes a padded one.

    Raises:
        BranchError: the paths do not end alike, or one of them cannot be translated.
        Learned: there has to be more or less room for what a loop makes longer.
    """
    side = _Joining(values, policy, loops, pads).side(root, _LoopContext())
    assert side is not None
    return side


class _Joining:
    def __init__(self, values: dict[Var, Any], policy: BranchPolicy, loops: Loops, pads: bool):
        self._values, self._policy, self._loops, self._pads = values, policy, loops, pads

    def side(self, node: PathNode, view: _LoopContext) -> Side | Raised | None:
        """What the paths from a node on compute; None if none of them is gone."""
        if view.iteration is not None and not node.comes_back(view.iteration.loop) and not node.is_check:
            return _end_of_iteration(view.iteration.carried, goes_on=False)
        if isinstance(node.end, Raised):
            return node.end
        if isinstance(node.end, Again):
            if node.end.loop in view.cut:
                return None
            side = _end_of_iteration(node.results, goes_on=True)
            return side._replace(program=Program(node.steps or [], side.program.results))
        if isinstance(node.end, Met):
            return Side(Program(node.steps or [], node.results), [None] * len(node.results), None, [])
        if node.end is not None:
            program = Program(node.steps or [], node.results)
            return Side(program, node.end.leaves, node.end.structure, [node.end.note])
        if node.iteration is not None:
            return self._looped(node, node.iteration, view)
        if node.joined is not None:
            rest = self.side(node.joined, view)
            if not isinstance(rest, Side):
                return rest
            found = self._parted(node, _LoopContext())
            if not isinstance(found, Side):
                return found
            return rest.behind([*found.program.statements, Same(node.chosen, found.program.results), *node.read_again])
        return self._parted(node, view)

    def _parted(self, node: PathNode, view: _LoopContext) -> Side | Raised | None:
        """What the paths compute that part at a condition."""
        condition = node.condition
        sides = {given: self.side(side, view) for given, side in node.sides.items()}
        if len(sides) == 1:
            ((wanted, side),) = sides.items()
            message = f"t2j was told that the answer is {wanted}, at {condition.place}"
            return side if not isinstance(side, Side) else self._checked(node, side, wanted, message)
        yes, no = sides[True], sides[False]
        if yes is None or no is None:
            side = no if yes is None else yes
            return side if not isinstance(side, Side) else side.behind(node.steps or [])
        for wanted, side, other in ((True, yes, no), (False, no, yes)):
            if isinstance(other, Raised) and other.is_check:
                if isinstance(side, Raised):
                    return side
                found = None if isinstance(other.error, TracedValueError) else _message(other.error)
                text = "an exception with traced values in its message"
                if found is not None:
                    text = f"{type(other.error).__name__}: {found}"
                return self._checked(node, side, wanted, f"{text} (at {condition.place})")
        if isinstance(yes, Raised) and isinstance(no, Raised) and _is_same_error(yes.error, no.error):
            return yes
        if isinstance(yes, Raised):
            raise _obstacle(condition, True, yes.error, self._loops) from yes.error
        if isinstance(no, Raised):
            raise _obstacle(condition, False, no.error, self._loops) from no.error
        pads = self._pads and view.iteration is None
        end, other = alike(yes.end, no.end, condition.place, pads=pads, may_overflow=self._policy.bounds is not None)
        rest = joined(node.flag, end.program, other.program)
        program = Program([*(node.steps or []), *rest.statements], rest.results)
        return Side(program, end.leaves, end.structure, [*yes.notes, *no.notes])

    def _looped(self, node: PathNode, iteration: PathNode, view: _LoopContext) -> Side | Raised | None:
        """What the paths compute from a node on where a loop begins."""
        loop: Any = node.loop
        is_loop = iteration.comes_back(loop)
        if is_loop and loop.grows and loop.iterations is None:
            expect_room(self._loops, loop, iterations_back(node, self._values), self._policy)
        after = _LoopContext(view.iteration, (*view.cut, loop))
        wanted = next((given for given, side in iteration.sides.items() if not side.comes_back(loop)), None)
        body = None if wanted is None else iteration.sides.get(not wanted)
        has_test = body is not None and all(isinstance(x, Raised) or x == Again(loop) for x in body.ends)
        rest = self.side(iteration.sides[wanted] if has_test and is_loop else iteration, after)  # pyright: ignore[reportArgumentType]
        if rest is None and view == _LoopContext():
            raise BranchError(
                f"the loop at {loop.place} never ends: every path through an iteration leads to the next one"
            )
        if not isinstance(rest, Side):
            return rest
        if not is_loop:
            return rest.behind([*(node.steps or []), Same(node.carried, node.first)])
        found: Any = self.side(body if has_test else iteration, _LoopContext(node))  # pyright: ignore[reportArgumentType]
        test, kept = None, []
        if has_test:
            found = found._replace(program=Program(found.program.statements, found.program.results[:-1]))
            used = free(found.program) | free(rest.program)
            kept = [var for step in iteration.steps or () for var in step.outvars if var in used]
            test = pruned(Program(iteration.steps or [], [iteration.flag, *kept]))
        else:
            rest, kept = _without_last_iteration(rest, iteration.steps or [])
            results = _results_of_iteration(found.program, node.carried, free(rest.program))
            found = found._replace(program=Program(found.program.statements, [*results, *kept]))
        bound = self._bound(node)
        statement = While(
            *(node.carried, node.first, test, kept, not wanted, pruned(found.program), bound, str(loop.place)),
            is_detached=loop.is_detached,
        )
        return rest.behind([*(node.steps or []), statement])

    def _bound(self, node: PathNode) -> int | None:
        """How many iterations a loop has at most, the last included that does not come back."""
        loop: Any = node.loop
        if loop.iterations is not None:
            return loop.iterations - loop.at + 1
        if loop.most is not None:
            return loop.most + 1
        said, found = self._policy.max_steps, iterations_back(node, self._values)
        return said if found is None or (said is not None and said <= found) else found + 1

    def _checked(self, node: PathNode, side: Side, wanted: bool, message: str) -> Side:
        check = self._policy.checking
        checks = [] if check is None else [Assertion(node.flag, wanted, message, check)]
        statements = [*(node.steps or []), *checks, *side.program.statements]
        return side._replace(program=Program(statements, side.program.results))


def _without_last_iteration(rest: Side, steps: list) -> tuple[Side, list[Var]]:
    """What follows on a loop without the steps of the last iteration, and what it uses of their results.

    Where derivatives may go back through these results, they are computed again: those that go through the last
    iteration alone need no bound then, as all do of what a loop gives.
    """
    behind = rest.program.statements[len(steps) :]
    used = free(Program(behind, rest.program.results))
    kept = [var for step in steps for var in step.outvars if var in used]
    if any(is_float(var.aval) for var in kept):
        return rest, []
    return rest._replace(program=Program(behind, rest.program.results)), kept


def _results_of_iteration(iteration: Program, carried: Sequence[Var], used: set[Var]) -> list:
    """What an iteration gives, where code behind the loop has no use for what the last one began with.

    Both ways out of it then give the same, if it is computed before they part: no array is chosen, and none is copied.
    """
    branches = {var: (x, i) for x in iteration.statements if isinstance(x, Branch) for i, var in enumerate(x.outvars)}
    found = list(iteration.results)
    for i, var in enumerate(carried):
        while var not in used and isinstance(found[i], Var) and found[i] in branches:
            branch, at = branches[found[i]]
            sides = [side for side in (branch.yes, branch.no) if side.results[at] is not var]
            inner = {made for side in sides for statement in side.statements for made in statement.outvars}
            if len(sides) != 1 or sides[0].results[at] in inner:
                break
            found[i] = sides[0].results[at]
    return found


def _end_of_iteration(results: Sequence, goes_on: bool) -> Side:
    results = [*results, constant(goes_on, np.bool_)]
    return Side(Program([], results), [None] * len(results), None, [])


def _message(error: Exception) -> str | None:
    """The message of an exception; None if that is of values which are traced."""
    try:
        return str(error)
    except TracedValueError:
        return None


def _is_same_error(one: Exception, other: Exception) -> bool:
    return type(one) is type(other) and _message(one) is not None and _message(one) == _message(other)


def _obstacle(condition: Condition, given: bool, error: Exception, loops: Loops) -> BranchError:
    name = f"{os.path.basename(condition.place.file)}:{condition.place.line}"
    text = str(error).partition("\nException raised from")[0].rstrip(".")  # what is left out is PyTorch's C++ stack
    return BranchError(
        f"bool(tensor) at {condition.place} tests a traced value, so both branches are traced. Where it is {given}, "
        f"the code reaches something that cannot be translated: {type(error).__name__}: {text}{loops.refused}. "
        f"If the answer is never {given}, say so: t2j(..., branches={{{name!r}: {not given}}})"
    )
