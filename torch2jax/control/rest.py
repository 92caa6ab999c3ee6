"""Conditions whose two sides the whole rest of the code goes into: where what the sides leave cannot be one.

Sides that leave tensors of other shapes, lists of other lengths or other structures are refused where they meet
(`merge.py`). Then the code runs once for each of the two answers, to its end, and the two ends are brought into one
form (`ends.py`). Conditions whose sides can be one stay as they are: the code runs once for each way through those that
are split. Each run is a trace of its own. Up to an answer that differs, all do the same, so their equations appear once
in the graph; a ``lax.cond`` follows, whose branches have what remains.

A way that ends in an exception that the code itself raises is a check: it is assumed not to be taken.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.core import Tracer
from jax.extend.core import Literal, Primitive, Var

from ..runtime.errors import BranchError
from ..runtime.errors.locations import SourceLine, caller_line
from ..runtime.errors.tracebacks import is_raised_by_code
from ..tensors.traced import evaluating
from ..tensors.trees import flatten
from ..tracing.conditions import BranchPolicy
from ..tracing.loops.program import Program, evaluated, pruned
from ..tracing.traces import current_trace, ending_with_errors, running
from ..tracing.value_ranges import is_same_value
from .ends import End, StaticLeaf, with_same_leaves
from .programs import Assertion, is_same_step, joined, new_var
from .state import Refused, text_of

_SMALL = 2**18  # elements
_CHECKS, _FEW = 8, 64  # times as many ways as may be gone may end in exceptions, or as there are few

condition_p = Primitive("condition")
condition_p.multiple_results = True
condition_p.def_abstract_eval(lambda _: [])


class Split:
    """The conditions that are split. They become more while a call is traced."""

    def __init__(self):
        self.locations: set[SourceLine] = set()
        self.has_all = False
        self.reason = ""
        """Why the last one is."""

    @property
    def is_used(self) -> bool:
        return self.has_all or bool(self.locations)

    def add(self, refused: Refused) -> bool:
        """Splits the condition of a refusal; false if it is split already."""
        if self.has_all or (refused.location is not None and refused.location in self.locations):
            return False
        self.reason = self.reason or refused.reason
        if refused.location is None:
            self.has_all = True
        else:
            self.locations.add(refused.location)
        return True


class BranchDecision(NamedTuple):
    """A condition that was met, and the answer."""

    location: SourceLine
    decision: bool
    file: str
    """Where the code is that has asked: the user's, or a library's."""


class Way:
    """The answers to the conditions that are split, on one run.

    Args:
        given: to the first ones; others are true.
        most: how many there may be.
        often: how many of one line: each iteration of a loop is another way out of it.
    """

    def __init__(self, split: Split, given: tuple[bool, ...] = (), most: int = 0, often: int = 0):
        self._split, self._given, self._most, self._often = split, given, most, often
        self.trace = current_trace()
        self.decisions: list[BranchDecision] = []
        self.raised: BaseException | None = None
        """The exception that the code itself has raised, and ended with."""
        self._merges = False
        """True if it has come to a condition that is not split: a number that it chooses may end a loop."""
        self._known: list[tuple[Any, bool]] = []

    def begin(self) -> None:
        """Is called before the code runs, or runs once more."""
        self.decisions.clear()
        self._known.clear()

    @property
    def splits_all(self) -> bool:
        """True if all conditions are split, since nobody knows which one has to be."""
        return self._split.has_all

    def splits(self, location: SourceLine) -> bool:
        """True if the rest of the code goes into both sides of a condition."""
        found = self._split.has_all or location in self._split.locations
        self._merges = self._merges or not found
        return found

    def answer(self, flag: object) -> bool | None:
        """The answer that a traced bool has had; None if it has not been asked."""
        return next((found for before, found in self._known if is_same_value(flag, before)), None)

    def ask(self, flag: object, location: SourceLine, why: str = "decides how code goes on") -> bool:
        """The answer to a traced bool.

        Args:
            why: there are no sides that could become one, in words.
        """
        answer = self.answer(flag)
        if answer is not None:  # which is asked again
            return answer
        if not self._split.is_used:
            raise Refused(f"bool(tensor) at {location} {why}", other_paths=True, location=location)
        number = len(self.decisions)
        decision = self._given[number] if number < len(self._given) else True
        if number >= self._most or sum(x.location == location for x in self.decisions) >= self._often:
            # Where all conditions are split, numbers that they choose are known, and loops that count by these end.
            raise Refused(too_many(self._split, location, self._often), other_paths=self._merges)
        self.decisions.append(BranchDecision(location, decision, caller_line().file))
        self._known.append((flag, decision))
        with running(self.trace):
            condition_p.bind(flag)
        return decision


def too_many(split: Split, location: SourceLine, most: int) -> str:
    """The text of the error about more ways than may be gone."""
    return (
        f"{split.reason or 'the sides of a condition are not one'}. So the rest of the code goes into both sides, and "
        f"bool(tensor) at {location} leads to more than {most} paths through it. Make what the sides leave alike: keep "
        "a mask in place of a list that grows, choose with torch.where, or write the loop with torch.while_loop. If a "
        f"condition always has the same answer, say so: {location.always(False)}. Or allow more paths: "
        "t2j(..., max_paths=...)"
    )


class Raised(NamedTuple):
    """The end of a way that raises."""

    error: Exception
    is_check: bool


class _Ended(NamedTuple):
    leaves: list[StaticLeaf | None]
    structure: Any


class _Run(NamedTuple):
    decisions: list[BranchDecision]
    end: _Ended | Raised
    steps: list
    results: list
    consts: dict[Var, Any]


class _Node:
    """The equations up to a condition, or to the end."""

    def __init__(self):
        self.steps: list | None = None
        self.location: SourceLine | None = None
        self.flag: Any = None
        self.sides: dict[bool, _Node] = {}
        self.joined: End | Raised | None = None
        """The end that all ways from here on have together; None while some have not been gone."""
        self.end: _Ended | Raised | None = None
        self.results: list = []


class Rest:
    """All ways through some code.

    Args:
        run: gives a tree of arrays and other things, on a way.
    """

    def __init__(self, run: Callable[[Way], object], split: Split, policy: BranchPolicy):
        self._run, self._split, self._policy = run, split, policy
        self._most = _CHECKS * max(policy.max_paths, _FEW)
        self._root, self._values, self._consts = _Node(), dict[Var, Any](), dict[Any, Var]()

    def result(self) -> Any:
        """The tree that the code gives, computed in the current trace.

        Raises:
            Refused: another condition has to be split.
            BranchError: the ways do not end alike, one cannot be translated, or there are too many.
            Exception: what the code raises on all of them.
        """
        self._go()
        found: Any = self._root.joined
        if isinstance(found, Raised):
            raise found.error
        results = iter(evaluated(pruned(found.program), self._values))
        return found.structure.unflatten([next(results) if x is None else x.value for x in found.leaves])

    def _go(self) -> None:
        pending: list[tuple[bool, ...]] = [()]
        ended = raised = 0
        while pending:
            given = pending.pop()
            run = self._run_once(given)
            for node in reversed(self._insert(run)):
                self._join(node)
            is_check = isinstance(run.end, Raised) and run.end.is_check
            ended, raised = ended + (not is_check), raised + is_check
            decisions = tuple([x.decision for x in run.decisions])
            pending += [(*decisions[:i], False) for i in range(len(given), len(decisions))]
            if ended > self._policy.max_paths or raised > self._most:
                raise BranchError(too_many(self._split, run.decisions[-1].location, self._policy.max_paths))

    def _run_once(self, given: tuple[bool, ...]) -> _Run:
        around, end, way = current_trace(), None, None

        def traced() -> list:
            nonlocal end, way
            with ending_with_errors(around):
                way = Way(self._split, given, self._most, self._policy.max_paths)
                try:
                    leaves, structure = flatten(self._run(way))
                except Exception as error:
                    if not way.decisions:
                        raise
                    is_check = error is way.raised or is_raised_by_code(error, way.decisions[-1].file)
                    end = Raised(_without_frames(error), is_check)
                    return []
                is_array = [isinstance(x, (jax.Array, np.ndarray)) for x in leaves]
                end = _Ended([None if a else StaticLeaf(x) for x, a in zip(leaves, is_array, strict=True)], structure)
                return [x for x, a in zip(leaves, is_array, strict=True) if a]

        program = jax.make_jaxpr(traced)()
        consts = dict(zip(program.jaxpr.constvars, program.consts, strict=True))
        return _Run(way.decisions, end, program.jaxpr.eqns, program.jaxpr.outvars, consts)  # pyright: ignore

    def _insert(self, run: _Run) -> "list[_Node]":
        """Puts a run into the tree, in terms of the variables that the tree has already; gives its nodes."""
        names: dict[Var, Any] = {}

        def named(atom: Any) -> object:
            if isinstance(atom, Literal):
                return atom
            if atom not in names:
                names[atom] = self._const(run.consts[atom])
            return names[atom]

        node, decisions = self._root, iter(run.decisions)
        way = [node]
        steps: list = []
        for step in run.steps:
            if step.primitive is not condition_p:
                steps.append(step)
                continue
            self._enter(node, steps, names, named, run)
            condition, steps = next(decisions), []
            if node.location is None:
                node.location, node.flag = condition.location, named(step.invars[0])
            elif node.location != condition.location:
                raise _uneven(condition.location)
            node = node.sides.setdefault(condition.decision, _Node())
            way.append(node)
        self._enter(node, steps, names, named, run)
        node.end, node.results = run.end, [named(x) for x in run.results]
        return way

    def _enter(self, node: _Node, steps: list, names: dict, named: Callable, run: _Run) -> None:
        """Gives a node some equations, or compares them with those that it has."""
        if node.steps is None:
            node.steps = []
            for step in steps:
                outvars = [new_var(x.aval) for x in step.outvars]
                node.steps.append(step.replace(invars=[named(x) for x in step.invars], outvars=outvars))
                names.update(zip(step.outvars, outvars, strict=True))
            return
        if len(node.steps) != len(steps):
            raise _uneven(run.decisions[-1].location)
        for step, other in zip(node.steps, steps, strict=True):
            pairs = [(x, y) for x, y in zip(other.invars, step.invars, strict=True) if isinstance(x, Var)]
            names.update((x, y) for x, y in pairs if x not in names and self._is_constant(y, run.consts[x]))
            if not is_same_step(step, other, with_params=False) or any(names.get(x) is not y for x, y in pairs):
                raise _uneven(run.decisions[-1].location)
            names.update(zip(other.outvars, step.outvars, strict=True))

    def _const(self, value: object) -> Var:
        key = _key_of(value)
        if key not in self._consts:
            var = new_var(jax.typeof(value))
            self._consts[key], self._values[var] = var, value
        return self._consts[key]

    def _is_constant(self, var: Any, value: object) -> bool:
        """Returns True if a variable of the tree is a constant of this value."""
        known = self._values.get(var)
        if known is None or known is value or isinstance(known, Tracer) or isinstance(value, Tracer):
            return known is value
        numbers = _numbers_of(known)
        return _key_of(known) == _key_of(value) or (
            numbers.size > _SMALL and np.array_equal(numbers, _numbers_of(value))
        )

    def _join(self, node: _Node) -> None:
        """Brings the ways from a node on into one form, if all have been gone: what cannot be is an error at once."""
        if isinstance(node.end, Raised):
            node.joined = node.end
        elif node.end is not None:
            node.joined = End(Program(node.steps or [], node.results), node.end.leaves, node.end.structure)
        elif len(node.sides) == 2 and all(x.joined is not None for x in node.sides.values()):
            node.joined = self._both(node, node.sides[True].joined, node.sides[False].joined)

    def _both(self, node: _Node, yes: Any, no: Any) -> End | Raised:
        location: Any = node.location
        if isinstance(yes, Raised) and isinstance(no, Raised) and yes.is_check and no.is_check:
            return yes
        for wanted, side, other in ((True, yes, no), (False, no, yes)):
            if isinstance(other, Raised) and other.is_check and not isinstance(side, Raised):
                return self._checked(node, side, wanted, other.error)
        for decision, side in ((True, yes), (False, no)):
            if isinstance(side, Raised) and not side.is_check:
                raise _obstacle(location, decision, side.error) from side.error
        one, other = with_same_leaves(yes, no, location, pads=True, may_overflow=self._policy.bounds is not None)  # pyright: ignore
        both = joined(node.flag, one.program, other.program)
        return End(Program([*(node.steps or []), *both.statements], both.results), one.leaves, one.structure)

    def _checked(self, node: _Node, side: End, wanted: bool, error: Exception) -> End:
        check, checks = self._policy.checking, []
        if check is not None:
            checks = [Assertion(node.flag, wanted, f"{text_of(error)} (at {node.location})", check)]
        statements = [*(node.steps or []), *checks, *side.program.statements]
        return side._replace(program=Program(statements, side.program.results))


def _obstacle(location: SourceLine, given: bool, error: Exception) -> BranchError:
    text = str(error).partition("\nException raised from")[0].rstrip(".")  # what is left out is PyTorch's C++ stack
    return BranchError(
        f"bool(tensor) at {location} tests a traced value, so both branches are traced. Where it is {given}, the code "
        f"reaches something that cannot be translated: {type(error).__name__}: {text}. If the answer is never {given}, "
        f"say so: {location.always(not given)}"
    )


def _uneven(location: SourceLine) -> BranchError:
    return BranchError(
        f"bool(tensor) at {location}: to trace both branches, the code runs several times, but it did not do the same "
        "each time up to there. Wanted code that does the same for the same arguments: no caches that the first run "
        "fills"
    )


def _without_frames(error: Exception) -> Exception:
    """An exception to raise later; without its frames, which have what is traced, where JAX looks for that."""
    raised: BaseException | None = error if getattr(jax.config, "jax_check_tracer_leaks", False) else None
    while raised is not None:
        raised.__traceback__ = None
        raised = raised.__cause__ or raised.__context__
    return error


def _key_of(value: Any) -> object:
    """The key of a constant: small ones are made anew in every run, and compared by value."""
    if isinstance(value, Tracer):
        return id(value)
    numbers = _numbers_of(value)
    if jax.dtypes.issubdtype(numbers.dtype, jax.dtypes.extended) or numbers.size > _SMALL:
        return id(value)
    array = np.asarray(numbers)
    return value.dtype, array.shape, array.tobytes(), getattr(value, "weak_type", False)


def _numbers_of(value: Any) -> Any:
    """The numbers of a constant: of random keys, those that they are made of."""
    if not jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key):
        return value
    with evaluating():
        return jax.random.key_data(value)
