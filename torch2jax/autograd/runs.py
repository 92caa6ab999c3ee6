"""The runs of a function: each finds out something for the next one, until a run reaches the end.

A call begins without a tape, unless its code names one and no JAX program is traced (`foreseen.py`), without knowledge
of its inputs, and as plain Python. What needs one of them abandons the run, and the function runs again with it. So
code that asks for none of it pays nothing. `Runs` lives as long as the translated function: later calls begin at once
with what earlier ones have lacked.

    plain ── asks nothing ──────────────────────────────────────────────────────────────> end
      │
      └─ needs a tape, its inputs, hooks, lengths, … ──> journaled ── asks nothing ─────> end
      │                                                      │
      └─ a condition on a traced value ──> followed <── one ─┘
                                               └─ each condition a part of the graph ──> end

Each run but the first is converted (`control/driver.py`): it finds the objects from outside as the first one did
(`outer_state.py`), and what it writes to is journaled, so that a write which an earlier run has made before, and nobody
could put back, is an error.
"""

import functools
import weakref
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import numpy as np
import torch
from jax import lax

from ..errors.locations import SourceLine
from ..errors.tracebacks import add_location
from ..errors.unwinding import Restart, Unwind
from ..runtime.translation import calls_of_thread, current, this_call
from ..tensors.array_buffer import ArrayBuffer
from ..tensors.ended import end, keep, made_by_call
from ..tensors.history import Node, Source
from ..tensors.tensor import Torchish, wrap
from ..tensors.traced import is_traced
from ..tracing.conditions import BranchPolicy, Path
from ..tracing.rolling import HasLoops, Rolling
from ..tracing.traces import Bookmark, RareCollections, current_trace, is_transforming, program_of
from ..tracing.user_code import PLAIN, UserCode, converting_runs
from .foreseen import foreseen_depth
from .inputs import Inputs, NeedsInputs, Pass, RunKnowledge, run_with_inputs
from .outer_state import Kind, OuterState

T = TypeVar("T")


class Execution:
    """One of the runs of a function.

    Args:
        depth: how deep a tape it keeps.
        left: the tensors that began to require grad by themselves in the run before, which was abandoned: the code may
            have put them aside, and find them there.
        path: how conditions on traced values are answered.
        constants: copies of tensors from outside, and the arrays of these, that runs have in common.
        inputs: what it knows of its arrays from outside; None where nobody is to be told more.
        tracks_lengths: whether ``len`` and the like take data-dependent lengths from the beginning.
        number_modules: the modules in which functions of Python's take numbers that data decide from the beginning, by
            their dictionaries, and whether ``float`` and ``int`` do, too.
        code: the user's code as the run has it.
    """

    def __init__(
        self,
        depth: int = 0,
        left: Iterable[Torchish] = (),
        path: Path | None = None,
        constants: dict[int, tuple[torch.Tensor, torch.Tensor, Any]] | None = None,
        inputs: Inputs | None = None,
        tracks_lengths: bool = False,
        number_modules: list[tuple[dict[str, Any], bool]] | None = None,
        code: UserCode = PLAIN,
    ):
        self.code = code
        self.depth, self.left, self.constants, self.inputs = depth, list(left), constants, inputs
        self.tracks_lengths = tracks_lengths
        self.number_modules = [] if number_modules is None else number_modules
        self.fits: Torchish | None = None
        """True, as a tensor, if all that data decide fits. Code writes to it as to any tensor, so that loops carry it,
        and checkpoints and branches return it. None where lengths are not heeded from the beginning."""
        self.path = path or Path(BranchPolicy(max_paths=1), None)
        self.ended_by: Unwind | None = None
        """Why it is over, even if the code has caught that."""
        self.left_pytorch: SourceLine | None = None
        """The line where code first took floats out of PyTorch, as NumPy arrays or Python lists."""
        self._started: weakref.WeakSet[Source] | None = None
        self.given: list[tuple[Any, Torchish, Source]] = []
        """The inputs that its backward passes end at, if it runs some: arrays, with their tensors and nodes."""
        self.stays: list[tuple[bool, Any, Kind, Any]] = []
        """Changes that it has left in modules from outside, for other runs of the same call to undo."""
        self.ends: list[tuple[Any, Node | None]] = []
        """The outputs that these backward passes begin at: arrays that leave the call, with their nodes."""

    @property
    def started(self) -> "weakref.WeakSet[Source]":
        """The leaves that were made in this run."""
        if self._started is None:
            self._started = weakref.WeakSet()
        return self._started

    @property
    def passes(self) -> "tuple[Pass, ...]":
        """The backward passes that the run makes in place of JAX."""
        return () if self.inputs is None else self.inputs.passes

    def entering(self, array: Any) -> Any:
        """The array that the run uses in place of one from outside."""
        return array if self.inputs is None else self.inputs.entering(array)

    def is_differentiated(self, array: Any) -> bool:
        """Returns True if the run knows that JAX differentiates the array that it uses in place of one from outside."""
        return self.inputs is not None and self.inputs.is_differentiated(array)

    def expect_to_fit(self, fits: Any, text: str) -> None:
        """Makes results of the call report where a traced bool is false.

        Args:
            fits: whether what data decide fits, as an array.
            text: what is said where it does not and somebody checks that.

        Raises:
            Restart: lengths are not supported from the beginning of the run; `Runs` catches that.
        """
        if self.fits is None:
            raise Restart
        self.path.policy.check(fits, text)
        storage: Any = self.fits._node.storage
        storage.write(ArrayBuffer(lax.bitwise_and(storage.read(), fits), None), None)

    def expect_hook(self, hooks: Any, tensor: Torchish | None = None) -> None:
        """Called before hooks on the gradient of a tensor, or of a node, are registered.

        Raises:
            NeedsInputs, NeedsHooks: the gradient may be JAX's; `Runs` catches that.
            NotImplementedError: it is one of `torch.func`.
        """
        call = this_call()
        if current_trace() is not call.top_level[0] and any(level.takes_gradients for level in call.transformations):
            raise NotImplementedError(
                "got a hook on a gradient in a function that torch.func differentiates, which would not call the "
                "hook; wanted torch.autograd.grad, which calls hooks, or a torch.autograd.Function whose "
                "backward does what the hook does"
            )
        if self.inputs is not None:
            self.inputs.expect_hook(tensor, hooks)

    def note_given(self, array: Any, tensor: Torchish) -> None:
        """Notes the leaf for an array that JAX differentiates."""
        if self.passes and self.is_differentiated(array) and isinstance(tensor.history, Source):
            self.given.append((array, tensor, tensor.history))

    def note_end(self, array: Any, tensor: Torchish) -> None:
        """Notes which array of a tensor leaves the call."""
        if self.passes:
            self.ends.append((array, tensor.history))

    def begin(self) -> None:
        """Makes tensors that the abandoned run left leaves of this one."""
        if self.tracks_lengths:
            self.fits = wrap(np.array(True), torch.bool)  # pyright: ignore[reportArgumentType] - no value that JAX traces
        for tensor in self.left:
            tensor.start_history()

    def discard(self) -> None:
        """Removes derivatives, which no other run knows, from this run's tensors; traced tensors end with it."""
        tape, self.left = this_call().tape, []
        for source in self.started:
            tensor = source.variable
            if tensor is None:  # its storage lives on in others, as one that was made of it without gradients
                continue
            storage = tensor._node.storage
            if storage.is_released:  # it was made in a branch, which has ended
                continue
            array, layout = storage.buffer
            values = array if tape is None else tape.primal(array)
            if storage.history is source and not is_traced(values):
                storage.history = None
                storage.write(ArrayBuffer(values, layout), None, keeps_derivatives=True)
                tensor._gradient = None
                self.left.append(tensor)


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
        self._number_modules: list[tuple[dict[str, Any], bool]] = []
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
        given: Any,
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
        constants: dict[int, tuple[torch.Tensor, torch.Tensor, Any]] = {}

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
                runs = converting_runs()
                run = runs.converted_run if self._follows or may_ask else runs.journaled_run
                return run(execute, self._policy, outer.has, None if is_first else outer.saw_condition)
            except Restart as need:
                if 0 < need.tape <= self._depth:
                    raise
                self._depth, self._follows = max(self._depth, need.tape), self._follows or need.follows
            self._tracks_lengths = True  # which costs nothing where there are none
            bookmark.return_to()
