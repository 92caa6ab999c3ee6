"""The runs of a function: each finds out something for the next one, until a run reaches the end.

A call begins without a tape, unless its code names one and no JAX program is traced (`foreseen_depth`), without
knowledge of its inputs, and as plain Python. What needs one of them abandons the run, and the function runs again with
it. So code that asks for none of it pays nothing. `Runs` lives as long as the translated function: later calls begin at
once with what earlier ones have lacked.

    plain ── asks nothing ──────────────────────────────────────────────────────────────> end
      │
      └─ needs a tape, its inputs, hooks, lengths, … ──> journaled ── asks nothing ─────> end
      │                                                      │
      └─ a condition on a traced value ──> followed <── one ─┘
                                               └─ each condition a part of the graph ──> end

Each run but the first is converted (`control/driver.py`): it finds the objects from outside as the first one did
(`outer_state.py`), and what it writes to is journaled, so that a write which an earlier run has made before, and nobody
could put back, is an error.

How deep a tape a call will need is foreseen from the names that the code looks up that it can reach. A run that turns
out to need a deeper one is given up. Functions in containers, as a table of them, are left out: most of them are not
called, and what is recorded on a tape has another graph.
"""

import dis
import functools
import types
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, TypeVar

import jax
import torch

from ..rules.features import Incoming, comes_in, handles
from ..runtime.caches import remembered
from ..runtime.errors import BranchError
from ..runtime.errors.locations import is_users
from ..runtime.errors.tracebacks import add_location
from ..runtime.errors.unwinding import Restart, Unwind
from ..runtime.layers import CONTROL
from ..runtime.translation import calls_of_thread, current
from ..tensors.ended import Ended, end, keep, made_by_call, refuse_ended
from ..tensors.objects import codec_of, has_attributes
from ..tensors.tensor import Torchish
from ..tracing.conditions import BranchPolicy, Path
from ..tracing.execution import Execution, Inputs
from ..tracing.rolling import HasLoops, Rolling
from ..tracing.traces import Bookmark, RareCollections, current_trace, is_transforming, program_of
from ..tracing.user_code import PLAIN, LaterRun, UserCode
from .inputs import NeedsInputs, RunKnowledge, run_with_inputs
from .outer_state import OuterState

_FEW = 2**9  # objects that are looked at
_LEAVES = (torch.Tensor, str, int, float, type(None))
_METHODS = ("backward", "next_functions")
_DERIVATIVES = (torch.autograd.grad.__code__, torch.autograd.backward.__code__)


class _Names(NamedTuple):
    """The names that code looks up, with those in the functions that it defines."""

    of_globals: frozenset[str] = frozenset()
    of_attributes: frozenset[str] = frozenset()
    derivatives: int = 0
    """At how many places it takes derivatives."""
    keeps_graphs: bool = False
    """True if it may take derivatives of derivatives."""


def foreseen_depth(roots: Iterable[object]) -> int:
    """The depth of tape that the code of functions and modules reachable from `roots` shows to be needed: 0, 1 or 2."""
    seen: dict[int, object] = {}
    waiting: dict[str, list[object]] = defaultdict(list)  # methods that no code has named yet
    named, pending, taken, keeps_graphs = {"forward"}, [*roots], 0, False
    while pending and len(seen) < _FEW:
        value = pending.pop()
        if isinstance(value, _LEAVES) or id(value) in seen:
            continue
        seen[id(value)] = value
        if type(value) is types.FunctionType:
            names = _names_in(value.__code__)
            taken, keeps_graphs = taken + names.derivatives, keeps_graphs or names.keeps_graphs
            for name in names.of_attributes - named:
                named.add(name)
                pending.extend(waiting.pop(name, ()))
            pending.extend(value.__globals__[name] for name in names.of_globals & value.__globals__.keys())
        if isinstance(value, type):
            for name, method in vars(value).items():
                function = getattr(method, "__func__", method)  # of a class method
                if type(function) is types.FunctionType:
                    (pending if name in named or name.startswith("__") else waiting[name]).append(function)
        pending.extend(_held_by(value))
    return min(taken, 2 if keeps_graphs else 1)


def _held_by(value: Any) -> Iterator[object]:
    kind = type(value)
    if kind is types.MethodType:
        yield from (value.__self__, value.__func__)
    elif isinstance(value, torch.nn.Module):
        yield from {type(part): None for part in value.modules()}
    elif isinstance(value, type):
        yield from (base for base in value.__bases__ if base.__module__.split(".")[0] not in ("torch", "builtins"))
    elif kind in (types.FunctionType, types.CellType, functools.partial) or has_attributes(kind):
        yield from () if kind is types.FunctionType else (kind,)
        yield from codec_of(kind).open(value)[1]  # pyright: ignore[reportOptionalMemberAccess]


@remembered(2**12)
def _names_in(code: types.CodeType) -> _Names:
    if not is_users(code.co_filename):
        return _Names(derivatives=int(code in _DERIVATIVES))
    of_globals, of_attributes, taken, before = set[str](), set[str](), 0, None
    for step in dis.get_instructions(code):
        if step.opname in ("LOAD_GLOBAL", "LOAD_ATTR", "LOAD_METHOD"):
            name = step.argval
            taken += name in _METHODS or (name == "grad" and before == "autograd")
            (of_globals if step.opname == "LOAD_GLOBAL" else of_attributes).add(name)
            before = name
    keeps = taken > 0 and any(type(x) is tuple and "create_graph" in x for x in code.co_consts)
    for inner in (_names_in(x) for x in code.co_consts if isinstance(x, types.CodeType)):
        of_globals |= inner.of_globals
        of_attributes |= inner.of_attributes
        taken, keeps = taken + inner.derivatives, keeps or inner.keeps_graphs
    return _Names(frozenset(of_globals), frozenset(of_attributes), taken, keeps)


_DEEPEST = 6
_TOO_DEEP = (
    f"got derivatives of more than order {_DEEPEST} in code with conditions on data. A loop that ends on data needs "
    "one order more in each iteration, if its derivatives lead through those of the iterations before "
    "(create_graph=True). Take as many iterations as there may be, `for _ in range(n)`, and let data choose: "
    "w = torch.where(is_over, w, w - rate * gradient); or cut what an iteration gives, w.detach().requires_grad_()"
)
T = TypeVar("T")


@handles(Ended, rank=0)
def _refuse_ended(call: object, func: Any, args: tuple, kwargs: dict):
    del call
    raise refuse_ended(func, args, kwargs)


@comes_in
class _EndedTensors(Incoming):
    """Tensors of calls that have ended, which nobody may use."""

    def takes(self, kind: type) -> bool:
        return kind is Ended

    def lift(self, call: object, tensor: object) -> Any:
        raise refuse_ended("the function", (tensor,), {})


class Runs:
    """The runs of a function. The first ones find out the depth of the tape and what the code asks.

    Args:
        policy: how conditions on traced values are answered.
        inputs: what the first runs know of the arrays from outside.
        rolling: finds the loops of what runs leave; None if they stay unrolled.
    """

    def __init__(self, policy: BranchPolicy, inputs: Inputs | None = None, rolling: Rolling | None = None):
        self._policy, self._inputs, self._rolling = policy, inputs, rolling
        self._depth = 0
        self._foreseen: int | None = None
        """The depth of the tape that eager runs begin with. A traced program begins without one that it may not use:
        its graph would differ."""
        self._follows = False
        """True if a run has met a condition on a traced value: later calls that JAX traces begin converted."""
        self._is_settled = False
        """True if the first run of a call has reached its end: outside of transformations, later ones do not look for
        state that they might have to restore.
        """
        self._queries_inputs, self._known = False, RunKnowledge()
        self._tracks_lengths = False
        self._number_modules: list[tuple[dict[str, object], bool]] = []
        self._hints_lines = policy.branches is not None or policy.bounds is not None

    def run(
        self,
        body: Callable[[Execution, Any], T],
        given: Any = (),
        has_layers: bool = False,
        reached: tuple = (),
        code: tuple = (),
    ) -> T:
        """Calls `body` with a tape of some depth, again with a deeper one if that turns out to be needed.

        Where it asks for a traced value it is called for each way that the answers lead, and where it asks which inputs
        are differentiated, for each derivative.

        Args:
            given: a tree with the arrays from outside, which `body` gets, or others in their places.
            has_layers: whether layers are stacked in the tree, which are to be a loop.
            reached: the user's objects that the code can reach: each run finds them as they were before the first.
            code: others that have some of the code.
        """
        if current() is not None:  # the whole outer call has to run again
            return body(Execution(), given)
        if self._foreseen is None and not is_transforming():
            self._foreseen = foreseen_depth((*reached, *code))
        outer = OuterState(reached if not self._is_settled or is_transforming() else None)
        run = functools.partial(self._rolled, body, has_layers, outer)
        around, calls_of_thread.made = calls_of_thread.made, {}
        try:
            if not self._queries_inputs:
                bookmark = Bookmark()
                try:
                    result = run(self._inputs, given)
                    if self._hints_lines:
                        self._policy.warn_of_misses()
                    self._is_settled = outer.runs == 1
                    return result
                except NeedsInputs:
                    self._queries_inputs = True
                bookmark.return_to()
            result = run_with_inputs(run, given, self._known)
            if self._hints_lines:
                self._policy.warn_of_misses()
            return result
        except Exception as error:
            add_location(error)
            raise
        finally:
            left = []
            for reference in calls_of_thread.made.values():  # here, for a function would be a Python call of its own
                tensor = reference()
                if tensor is not None:
                    left.append(tensor)
            calls_of_thread.made = around
            if left:
                end(left)

    def _rolled(
        self,
        body: Callable[[Execution, Any], T],
        has_layers: bool,
        outer: OuterState,
        inputs: Inputs | None,
        given: tuple[object, ...],
    ) -> T:
        run = functools.partial(self._executions, body, outer, inputs)
        if inputs is not None and inputs.is_over:
            with outer.once_more():
                return run(given)
        if not is_transforming():
            return run(given)
        with RareCollections():
            if self._rolling is None:
                return run(given)
            return self._rolling.run(run, given, inputs is self._inputs, has_layers)

    def _executions(
        self, body: Callable[[Execution, Any], T], outer: OuterState, inputs: Inputs | None, given: Any
    ) -> T:
        left: list[Torchish] = []
        constants: dict[int, tuple[torch.Tensor, torch.Tensor, jax.Array]] = {}

        def execute(path: Path, code: UserCode = PLAIN) -> T:
            nonlocal left
            copies = constants if path.is_one_of_several else None
            foreseen = 0 if is_transforming() else self._foreseen or 0
            execution = Execution(
                max(self._depth, foreseen),
                left,
                path,
                copies,
                inputs,
                self._tracks_lengths,
                self._number_modules,
                code,
            )
            if inputs is not None:
                inputs.begin()
            outer.begin()
            is_last = not path.is_one_of_several
            try:
                try:
                    return outer.run(body, execution, given)
                finally:
                    if (
                        execution.ended_by is not None
                    ):  # the code has caught that, or raised something else in its place
                        raise execution.ended_by
            except Unwind as need:
                is_last, outer.was_cut = False, not isinstance(need, HasLoops)
                outer.saw_condition = isinstance(need, Restart) and need.follows
                raise
            finally:
                left, execution.ended_by = execution.left, None
                path.end()
                outer.also(execution.stays)
                if not is_last:
                    keep(made_by_call(), set(map(id, left)))

        while True:
            bookmark = Bookmark()
            try:
                is_first = not outer.runs
                if is_first and not (self._follows and is_transforming()):
                    return execute(Path(self._policy, current_trace()))
                # Both runs are converted. A followed one has the code in a trace of its own, as a condition needs; a
                # journaled one has it where it is. Code of a program that was cut short mostly comes to a condition as
                # well, so it is followed at once. But not where a trace of its own hides what the run is to see: which
                # inputs are differentiated, and the arrays that loops put aside.
                is_seen = inputs is not self._inputs or not outer.was_cut
                may_ask = not is_seen and program_of(current_trace()) is not None
                run: LaterRun = CONTROL.converted_run if self._follows or may_ask else CONTROL.journaled_run
                return run(execute, self._policy, outer.has, None if is_first else outer.saw_condition)
            except Restart as need:
                if 0 < need.tape <= self._depth:
                    raise
                if self._follows and need.tape > _DEEPEST:
                    raise BranchError(_TOO_DEEP) from None
                self._depth, self._follows = max(self._depth, need.tape), self._follows or need.follows
            self._tracks_lengths = True  # which costs nothing where there are none
            bookmark.return_to()
