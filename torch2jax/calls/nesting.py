"""Where the code of a call is: within transformations that it has begun, on a tape, in a trace of JAX's."""

import contextlib
from typing import Any

from ..autograd.tape import Tape
from ..tensors.journal import journal
from ..tensors.tensor import Torchish
from ..tracing.scope import outside
from ..tracing.traces import current_trace, without_tangents
from ..translation import Call
from ..values.numpy_views import LENT

__all__ = ["Nesting"]

_NO_TRACE: Any = object()
_SHARED = frozenset(("host tensors", LENT))  # what calls within calls have in common


class Nesting(Call):
    """What a call knows of that.

    Args:
        outer: the call around this one, or None.
        depth: of the tapes of its code, where no call is around it.
        below: how many derivatives it takes in the place of JAX, on levels of the outermost tape below those.
    """

    attempt: Any
    constants: Any
    numpy_views: Any

    def __init__(self, outer: "Nesting | None", depth: int, below: int):
        self.features = set() if outer is None else outer.features & _SHARED
        self.tape = None if outer is None else outer.tape
        self.dual = self.scalars = None
        self._below = below if outer is None else 0
        self._depth = max(depth, min(self._below, 1)) if self.tape is None else self.tape.depth
        self._opened: list[Tape | None] = []
        self._staged: Any = _NO_TRACE  # the outermost trace, once it is known to be of a graph

    @contextlib.contextmanager
    def nested(self):
        outer = self.tape
        is_recorded = self._depth == 0 or (outer is not None and outer.is_current)
        tape = None if is_recorded else Tape(self._depth, outer, self._below if outer is None else 0)
        self._opened.append(tape)
        try:
            if tape is None:
                yield
                return
            with tape as self.tape:
                try:
                    yield
                finally:
                    self.tape = outer
        finally:
            self._opened.pop()

    @contextlib.contextmanager
    def at(self, tape: Tape | None):
        """A context for code of this call that runs outside of some `nested`, where that tape is kept."""
        before, self.tape = self.tape, tape
        self._opened.append(None)
        try:
            yield
        finally:
            self._opened.pop()
            self.tape = before

    def leaving(self, array):
        """An array as it leaves the code that runs `nested`: without what is recorded there."""
        tape = self._opened[-1]
        return array if tape is None else tape.primal(array)

    def without_tangents(self, array):
        tags = [level.tag for level in self.transformations if level.is_forward]
        if self.dual is not None:
            tags.append(self.dual.tag)
        return without_tangents(array, tags) if tags else array

    def array_of(self, tensor: Torchish):
        """The array of a tensor as it leaves the code that runs `nested`."""
        if self.numpy_views.views:
            self.numpy_views.settle()
        array = self.leaving(tensor.read())
        self.attempt.note_end(array, tensor)
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
        if trace is not self.outermost[0] or not self.constants.stages_in(trace):
            return False
        self._staged = trace
        return True

    def outside(self):
        return outside()
