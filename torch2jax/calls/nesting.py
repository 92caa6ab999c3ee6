"""Calls within calls: what they share, and where the code of a call runs.

It may be within transformations that it has begun, on a tape, and in a trace of JAX's.
"""

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax
import torch

from ..rules.features import Feature, Features
from ..rules.inline import Scalars
from ..runtime.errors import StaleGradientError
from ..tensors.history import Source
from ..tensors.journal import journal, suspended
from ..tensors.levels import ForwardLevel, Level, Recorder
from ..tensors.storage import Storage
from ..tensors.tensor import Torchish
from ..tracing.execution import Execution
from ..tracing.traces import current_trace, running, without_tangents
from .constants import Constants

_NO_TRACE: object = object()
_NOTHING = contextlib.nullcontext()


class Settings:
    """The settings that hold for the time of a call, and what undoes its changes when it ends."""

    modules: Any
    """The modules from outside that the call has met, which are put back: `outer_modules.OuterModules`."""

    def __init__(self):
        self.default_dtype: torch.dtype | None = None
        """The default dtype that the call has set; None for that of the process."""
        self.changes: list[Callable[[], None]] = []
        """Functions that each undo a change of an object from outside the call, and leave this list."""

    def undo_later(self, undo: Callable[[], None]) -> None:
        """Registers a function that undoes a change of an object from outside when the call ends."""

        def undone() -> None:
            self.changes.remove(undone)
            undo()

        self.changes.append(undone)


class Session:
    """The state that an outermost call shares with the calls that its code makes; it lives as long as the outermost
    call.

    Args:
        execution: which run of its function it is.
    """

    def __init__(self, execution: Execution):
        self.execution = execution
        self.constants, self.settings = Constants(), Settings()
        self.ends: list[Callable[[], None]] = []
        """Functions to call at the end."""
        self.transformations: list[Level] = []
        self.paths: list = [execution.path]
        self.passes: list = []
        self.kept: dict[type, Any] = {}
        """The objects that features keep as long as it lasts, one of each class: see `translation.kept`."""
        self.registered: dict[int, object] = {}
        """The optimizers, schedulers and scalers that the call made or copied; others are not its to change."""
        self.top_level: Any = None
        """The trace and the tape outside of all transformations that the code has entered."""

    def begin(self, trace: object, tape: Recorder | None) -> None:
        self.top_level = trace, tape
        self.execution.begin()


class FeatureSlot:
    """An attribute of a call for a feature that is there once at most: None as long as code does not use it.

    It only takes what is assigned. What has no `__get__` costs a reader nothing.
    """

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __set__(self, call: "Nesting", value: Feature | None) -> None:
        before = vars(call).get(self._name)
        if value is before:
            return
        vars(call)[self._name] = value
        if before is not None:
            call.features.pop(before)
        if value is not None:
            call.features.push(value)


class _WithoutTape(contextlib.AbstractContextManager):
    """The context of `Nesting.nested` where there is no tape; a class, since each call enters one."""

    __slots__ = ("_opened",)

    def __init__(self, opened: list[Recorder | None]):
        self._opened = opened

    def __enter__(self) -> None:
        self._opened.append(None)

    def __exit__(self, *exc_info: object) -> None:
        self._opened.pop()


class Nesting:
    """The place of a call among the calls around it.

    Args:
        outer: the call around this one, or None.
        depth: of the tapes of its code, where no call is around it.
        below: how many derivatives it takes in the place of JAX, on levels of the outermost tape below those.
    """

    features: Features
    """The features that code has entered, which act on each operator: without any, an operator's plan says all."""
    execution: Execution
    """The run of the function."""
    constants: Constants
    """The call's tensors for tensors from outside."""
    kept: dict[type, Any]
    """The objects that features keep for this call and those around it, by their classes."""
    transformations: list[Level]
    """The transformations that its code is inside of, the innermost last."""
    top_level: tuple[Any, Recorder | None]
    """The trace and the tape outside of all transformations that the code has entered."""
    is_backward = False
    """True if it runs the backward of a custom function, in which PyTorch records nothing by default."""
    if TYPE_CHECKING:
        tape: Recorder | None
        """What its own derivatives are taken from; None as long as the code asks for none."""
        dual: ForwardLevel | None
        """The tangents of forward mode, while a level of them is open."""
        scalars: Scalars | None
        """What has been computed of scalars, while that serves again."""
        on_result: Feature | None
        """What sees the results of all rules; see `ops.checkpoint`."""
    else:
        tape, dual, scalars, on_result = (FeatureSlot() for _ in range(4))

    def __init__(self, outer: "Nesting | None", depth: int, below: int):
        self.features = Features() if outer is None else outer.features.shared()
        vars(self).update(tape=None, dual=None, scalars=None, on_result=None)
        if outer is not None:
            self.tape, self.on_result = outer.tape, outer.on_result
        self._below = below if outer is None else 0
        self._depth = max(depth, min(self._below, 1)) if self.tape is None else self.tape.depth
        self._opened: list[Recorder | None] = []
        self._staged: object = _NO_TRACE  # the outermost trace, once it is known to be of a graph

    def nested(self) -> contextlib.AbstractContextManager[None]:
        """A context for code in a trace of its own, on a tape of its own if it needs one."""
        outer = self.tape
        if self._depth == 0 or (outer is not None and outer.is_current):
            return _WithoutTape(self._opened)
        below = self._below if outer is None else 0
        return self._recorded(self.features.recording[0].record(self._depth, outer, below))

    @contextlib.contextmanager
    def _recorded(self, tape: Recorder):
        outer = self.tape
        self._opened.append(tape)
        try:
            with tape as self.tape:
                try:
                    yield
                finally:
                    self.tape = outer
        finally:
            self._opened.pop()

    @contextlib.contextmanager
    def at(self, tape: Recorder | None):
        """A context for code of this call that runs outside of some `nested`, on the tape of that place."""
        before, self.tape = self.tape, tape
        self._opened.append(None)
        try:
            yield
        finally:
            self._opened.pop()
            self.tape = before

    def leaving(self, array: jax.Array):
        """An array as it leaves the code that runs `nested`: without derivatives recorded there."""
        tape = self._opened[-1]
        return array if tape is None else tape.primal(array)

    def without_tangents(self, array: jax.Array):
        tags = [level.tag for level in self.transformations if level.is_forward]
        if self.dual is not None:
            tags.append(self.dual.tag)
        return without_tangents(array, tags) if tags else array

    def array_of(self, tensor: Torchish):
        """The array of a tensor as it leaves the code that runs `nested`.

        Raises:
            StaleGradientError: its gradients would be lost.
        """
        node = tensor._node
        history = (node if type(node) is Storage else node.storage).history
        if type(history) is Source and history.stale is not None and torch.is_grad_enabled():
            raise StaleGradientError(history.stale)
        array = self.leaving(tensor.read())
        self.execution.note_end(array, tensor)
        return array

    @property
    def stages(self) -> bool:
        trace = current_trace()
        return trace is self._staged or self.constants.stages_in(trace)

    @property
    def is_lazy(self) -> bool:
        if self.tape is not None or self.dual is not None or self.transformations or journal() is not None:
            return False
        trace = current_trace()
        if trace is self._staged:
            return True
        if trace is not self.top_level[0] or not self.constants.stages_in(trace):
            return False
        self._staged = trace
        return True

    def outside(self) -> contextlib.AbstractContextManager[None]:
        """A context outside of the code's transformations, for what is no part of them, such as a constant."""
        trace, tape = self.top_level
        is_there = self.tape is tape and journal() is None and current_trace() is trace
        return _NOTHING if is_there else self._outside()

    @contextlib.contextmanager
    def _outside(self):
        tape = self.tape
        trace, self.tape = self.top_level
        try:
            with suspended(), running(trace):
                yield
        finally:
            self.tape = tape
