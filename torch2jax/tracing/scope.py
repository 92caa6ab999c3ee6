"""Code on tensors as a pure function of arrays in its own JAX trace: a checkpoint, branch or loop body.

Such code is Python: it may use any tensor around it, write to it, draw random numbers, and give or put aside anything.
Arrays that it uses are closed over, as JAX allows. What it leaves behind has arrays of the inner trace, which must not
be met outside: a scope finds all of it, gives these arrays as results, and puts what they are outside in their place.

Also here: the tensors and arrays that code closes over, or that its objects hold, found without running the code.
"""

import functools
import types
from collections.abc import Callable, Iterator
from typing import TypeVar

import jax
import torch

from ..runtime.errors import TracedValueError
from ..runtime.translation import this_call
from ..tensors.array_buffer import ArrayBuffer
from ..tensors.journal import Journal, Uncontained
from ..tensors.objects import attributes_of, has_attributes
from ..tensors.storage import Storage, View
from ..tensors.tensor import Torchish
from ..tensors.traced import is_traced
from .execution import StreamState
from .traces import current_trace, ending_with_errors

T = TypeVar("T")


def closed_over(*values: object, kind: type[T] = Torchish) -> list[T]:
    """The tensors that objects and functions among some values hold, at any depth; not those that are among them.

    Args:
        kind: what is looked for in their place.
    """
    found: dict[int, T] = {}
    seen: set[int] = set()
    left = [(value, False) for value in values]
    while left:
        value, is_within = left.pop()
        if isinstance(value, kind):
            if is_within:
                found[id(value)] = value
        elif not isinstance(value, torch.Tensor) and id(value) not in seen:
            seen.add(id(value))
            is_within = is_within or not isinstance(value, _CONTAINERS)
            left.extend((x, is_within) for x in _owned_by(value))
    return list(found.values())


_PACKAGE = __name__.partition(".")[0]
_CONTAINERS = (dict, list, tuple, set, frozenset)


def _owned_by(value: object) -> Iterator[object]:
    if isinstance(value, torch.nn.Module):
        yield from torch.nn.Module.parameters(value)  # an attribute may have that name
        yield from torch.nn.Module.buffers(value)
        yield from vars(value).values()
    elif isinstance(value, types.MethodType):
        yield value.__self__
        yield value.__func__
    elif isinstance(value, types.FunctionType):
        yield from value.__defaults__ or ()
        for cell in value.__closure__ or ():
            try:
                yield cell.cell_contents
            except ValueError:  # empty
                continue
    elif isinstance(value, functools.partial):
        yield value.func
        yield from value.args
        yield from value.keywords.values()
    elif isinstance(value, dict):
        yield from value.values()
    elif isinstance(value, _CONTAINERS):
        yield from value
    elif has_attributes(type(value)) and type(value).__module__.partition(".")[0] != _PACKAGE:
        yield from attributes_of(value).values()


UNSUITED = (Uncontained, TracedValueError, jax.errors.JAXTypeError)
"""The exceptions of `TraceScope.trace` for code that cannot run in its own trace; nothing has changed then."""


class TraceScope:
    """One run of some code in a JAX trace of its own.

    It is made outside; `trace` is called in the inner trace, at most once; what JAX makes of the arrays that it gives
    goes to `close`, outside again.
    """

    def __init__(self):
        self._call, self._around = this_call(), current_trace()
        self._result: object = None
        self._error: Exception | None = None
        self._left: list[_Left] = []
        self._stream: StreamState

    def trace(self, function: Callable, *args: object, **kwargs: object) -> list:
        """Calls `function`, and returns the arrays that it leaves: results and writes.

        An exception that it raises is raised by `close`, when all it has done before is done.

        Raises:
            UNSUITED: it needs values, or does what cannot be undone.
        """
        call, stream = self._call, self._call.stream.state
        try:
            with ending_with_errors(self._around), Journal() as journal, call.nested():
                try:
                    self._run(function, args, kwargs)
                    return self._gather(journal, stream)
                except UNSUITED:
                    journal.cancel()
                    raise
        finally:
            call.stream.state = stream

    def _run(self, function: Callable, args: tuple, kwargs: dict) -> None:
        try:
            self._result = function(*args, **kwargs)
        except UNSUITED:
            raise
        except Exception as error:
            self._error = error

    def _gather(self, journal: Journal, stream: StreamState) -> list:
        written = list(journal.written.values())
        arrays = []
        for node in journal.survivors():
            if isinstance(node, View) and node.kind.traced:
                raise Uncontained("a view at a place that is computed within")
            if isinstance(node, Storage) and id(node) not in journal.written and is_traced(node.buffer.array):
                self._left.append(_Left(node, is_written=False))
        self._left.extend(_Left(storage, is_written=True) for storage in written)
        self._left = [left for left in self._left if not left.storage.is_outgrown]
        for left in self._left:
            arrays.append(self._call.leaving(left.storage.buffer.array))
        for left in self._left:
            left.storage.empty()
        self._stream = self._call.stream.state
        if self._stream.key is not stream.key:
            arrays.append(self._stream.key)
        return arrays

    def close(self, arrays: list) -> object:
        """The result or the exception of the function, now with arrays of the trace outside.

        Args:
            arrays: those that `trace` gave, as they are outside.
        """
        for left, array in zip(self._left, arrays, strict=False):
            left.replace(array)
        for left in self._left:
            left.storage.mark_synced()
        if len(arrays) > len(self._left):
            self._stream = self._stream._replace(key=arrays[-1])
        self._call.stream.state = self._stream
        if self._error is not None:
            raise self._error
        return self._result


class _Left:
    """A storage that is left behind: made within and still in use, or older, and written."""

    def __init__(self, storage: Storage, is_written: bool):
        (_, layout), known = storage.buffer, storage.known
        self.storage, self._is_written = storage, is_written
        self._layout, self._known = layout, known
        self._history, self._differentiable = storage.history, storage.differentiable

    def replace(self, array: jax.Array) -> None:
        self.storage.replace(ArrayBuffer(array, self._layout), self._known, is_written=self._is_written)
        self.storage.history, self.storage.differentiable = self._history, self._differentiable
