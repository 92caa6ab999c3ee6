"""One compiled form of a part: its trace for one signature, as a program of arrays, and its effects.

A trace finds out all that a run must repeat: the storages that were written, whose arrays are results of the program;
how many random numbers were drawn; and what objects hold since (`effects.py`). It leaves no change behind: a journal
undoes the writes, a `Restoration` the rest. Each run then does all of it to the objects and storages of its own call.

- A tensor that the code uses from elsewhere is found by the trace only, which then begins again with it as an argument.
- An array of a tensor that is none of these would be a constant of the program. It need not be the same in the next
  call, so it is refused (`_check_constants`).
- An input that is written, and has the same type afterwards, is donated; or a copy, if it may be needed elsewhere.
"""

import contextlib
import gc
import itertools
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.core
import numpy as np
import torch
from jax.core import eval_jaxpr

from ...runtime.translation import Call, this_call
from ...tensors.array_buffer import ArrayBuffer
from ...tensors.history import UNRECORDED
from ...tensors.journal import Journal, Uncontained
from ...tensors.rebinding import alias_of, set_geometry
from ...tensors.storage import Storage, lose_traced
from ...tensors.tensor import Torchish, make_tensor
from ...tracing.execution import StreamState
from ...tracing.traces import current_trace, ending_with_errors
from .captured import CapturedState
from .effects import Effects, Rebuilt, Restoration
from .host_functions import HostFunctions
from .reordered import Reordered, RowOrder, buffer_of, references_alone, shown

_MANY = 4  # ways to put what is given in order


def _held_elsewhere(tensors: list, constants: Any) -> list:
    """The tensors to which something beside this list and `constants` refers; the others were made just now."""
    made: list[object] = [object()]
    remembered = (made[0],)
    alone = sys.getrefcount(made[0])
    del remembered
    counts = [alone + constants.refers_to(tensor) for tensor in tensors]
    return [tensors[i] for i, count in enumerate(counts) if sys.getrefcount(tensors[i]) > count]


class _WrittenStorage(NamedTuple):
    """A storage that was there before, and is written."""

    position: int
    layout: tuple[int, ...] | None
    has_history: bool


def _standing(tensor: Torchish, storage: Storage) -> Torchish:
    """Puts a view on a storage of its own; returns a tensor from which to restore it."""
    before = alias_of(tensor)
    set_geometry(tensor, make_tensor(storage, tensor.shape, tensor.dtype, tensor.stride(), 0, tensor._label))
    tensor._node = storage
    return before


def _lifting(call: Call, reached: CapturedState) -> contextlib.AbstractContextManager:
    """A context in which PyTorch's own tensors (`HostTensors`) are the call's tensors that were made for them."""
    host = call.kept.get(HostFunctions)
    if host is None:
        return contextlib.nullcontext()
    pairs = zip(reached.all_originals, reached.all_tensors, strict=True)
    return host.lifting({id(x): (x, tensor) for x, tensor in pairs if x is not tensor})


class PartProgram:
    """The program that a part was traced to, for one signature.

    Args:
        name: the part's.
        function: it takes `args` and `kwargs`, tensors of the current call in objects of any kind.
        captured: what is reached from the part's module, and from the arguments besides.

    Raises:
        Uncontained: it does what cannot be done again by running a program; nothing has been changed then.
        Exception: what the function raises; nothing has been changed then.
    """

    def __init__(self, name: str, function: Callable, args: tuple, kwargs: dict, captured: CapturedState):
        self._call: Any = this_call()
        self._written: list[_WrittenStorage] = []
        self._writes: list[tuple[int, int]] = []
        self._draws = 0
        self._stream: StreamState | None = None
        self._outer: list[torch.Tensor] = []
        self._left: Any = None
        self._program: Any = None
        self._made_within: set[int] = set()
        self._orders: set[tuple[int | None, ...]] = set()
        while not self._trace(function, args, kwargs, captured):
            pass
        self._finish(name, captured)
        self._call = None

    # Tracing.

    def _trace(self, function: Callable, args: tuple, kwargs: dict, captured: CapturedState) -> bool:
        """Traces; returns False if the code uses tensors from elsewhere, which must be arguments too."""
        call = self._call
        captured = CapturedState(self._outer, captured, shares=True, located=captured.located)
        stream, constants = call.stream.state, call.constants
        restoration, tensors = Restoration(captured.all_objects), captured.all_tensors
        writes = [tensor._writes[0] for tensor in tensors]
        storages = captured.all_storages
        casts, call.casts = call.casts, {}
        around = current_trace()

        def run(arrays: Sequence, key: jax.Array | None, before: object) -> list:
            journal = Journal(repeats=True)
            try:
                with ending_with_errors(around), journal, call.nested():
                    self._enter(storages, arrays)
                    journal.written.clear()
                    if key is not None:
                        call.stream.state = stream._replace(key=key, taken=0, before=before)
                    with call.inside(), _lifting(call, captured):
                        result = function(*args, **kwargs)
                    if journal.changes_older:
                        raise Uncontained("a change of a tensor from outside itself, not of its values")
                    self._note(storages, arrays, tensors, writes, key, stream)
                    self._left = Effects(captured, restoration.changed(), result)
                    found = [storages[x.position].buffer.arranged(x.layout) for x in self._written] + self._left.arrays
                    return found if self._stream is None else [*found, self._stream.key]
            except BaseException:
                journal.cancel()
                raise
            finally:
                call.stream.state = stream
                made = journal.survivors()
                self._made_within = {id(node) for node in made}
                lose_traced(made)

        stood = [(tensor, _standing(tensor, storages[position])) for position, tensor in captured.all_separated.items()]
        refused: Uncontained | None = None
        try:
            arrays = [*map(shown, storages)]
            key = stream.key if stream.key is not None else None
            with constants.noting() as used:
                self._program = jax.make_jaxpr(run)(arrays, key, np.uint32(0))
        except Uncontained as error:
            refused = error.with_traceback(None)  # whose frames hold what was made within
        finally:
            restoration.restore()
            for tensor, before in stood:
                set_geometry(tensor, before)
                tensor._node = before._node
            for tensor, count in zip(tensors, writes, strict=True):
                tensor._writes[0] = count
            call.casts = casts
        outer = [*used.values()]
        used.clear()
        found = [x for x in _held_elsewhere(outer, constants) if captured.position_of(x) is None]
        if refused is not None and (self._outer or not found):
            raise refused
        self._outer.extend(found)
        if found:
            self._written, self._writes, self._stream = [], [], None
        return not found

    def _enter(self, storages: Sequence[Storage], arrays: Sequence) -> None:
        if any(storage.is_outgrown for storage in storages):
            raise Uncontained("memory that has grown")
        for storage, array in zip(storages, arrays, strict=True):
            storage.replace(ArrayBuffer(array, buffer_of(storage).layout), None, is_written=True)
        for storage in storages:
            storage.mark_synced()

    def _note(
        self,
        storages: Sequence[Storage],
        arrays: Sequence[object],
        tensors: list[Torchish],
        writes: list[int],
        key: jax.Array | None,
        stream: StreamState,
    ) -> None:
        """Notes the written storages, and the number of random numbers drawn."""
        self._written = []
        for position, (storage, entered) in enumerate(zip(storages, arrays, strict=True)):
            array, layout = storage.buffer
            if array is not entered:
                self._written.append(_WrittenStorage(position, layout, storage.history is not None))
        counts: dict[int, tuple[int, int]] = {}
        for position, (tensor, before) in enumerate(zip(tensors, writes, strict=True)):
            if tensor._writes[0] != before:
                counts.setdefault(id(tensor._writes), (position, tensor._writes[0] - before))
        self._writes = list(counts.values())
        end = self._call.stream.state
        if end.key is not key:
            self._stream = end
        elif end.seed != stream.seed:
            raise Uncontained("torch.manual_seed")
        self._draws = end.taken

    # Running.

    def _finish(self, name: str, captured: CapturedState) -> None:
        closed = self._program
        self._check_constants(closed.consts, captured)
        jaxpr, has_key = closed.jaxpr, self._call.stream.state.key is not None
        inputs = len(jaxpr.invars) - 1 - has_key
        before, after = closed.in_avals, closed.out_avals
        given = [
            x.position for i, x in enumerate(self._written) if before[x.position].str_short() == after[i].str_short()
        ]
        kept = [i for i in range(inputs) if i not in given]
        storages = captured.all_storages
        layouts = {x.position: x.layout for x in self._written}
        self._same_layout = frozenset(
            position
            for position in given
            if position < len(storages) and buffer_of(storages[position]).layout == layouts[position]
        )
        self._uses_stream = self._draws > 0 or self._stream is not None

        def evaluate(
            spare: list, orders: Sequence[RowOrder | None], others: list, constants: list, stream: tuple
        ) -> list:
            arrays: list[object] = [None] * inputs
            for position, array, order in itertools.zip_longest(given, spare, orders):
                arrays[position] = array if order is None else order.of(array)
            for position, array in zip(kept, others, strict=True):
                arrays[position] = array
            if has_key:
                key, before = stream
                arrays.append(key)
            else:
                before = np.uint32(0)
            return eval_jaxpr(jaxpr, constants, *arrays, before)

        evaluate.__name__ = evaluate.__qualname__ = name
        self._kept, self._given, self._constants = kept, given, list(closed.consts)
        self._run = jax.jit(evaluate, donate_argnums=0)
        self._program = None

    def _check_constants(self, constants: Sequence, captured: CapturedState) -> None:
        """Refuses a trace that has taken values of tensors for constants, which need not be so the next time."""
        arrays = [array for array in constants if isinstance(array, jax.Array)]
        if not arrays:
            return
        known = {*map(id, self._call.constants.storages()), *self._made_within, *captured.ids}
        for holder in gc.get_referrers(*arrays):
            if isinstance(holder, Storage) and id(holder) not in known:
                raise Uncontained("a tensor that is in neither its module nor its arguments")

    def run(self, call: Call, captured: CapturedState) -> Any:
        """Runs the program, and applies the effects of the function."""
        if self._outer:
            captured = CapturedState(self._outer, captured, shares=True, located=captured.located)
        around: Any = call.kept.get(HostFunctions)  # which is there wherever parts are compiled
        storages: list[Any] = list(captured.all_storages)
        arrays: list[object] = list(captured.all_arrays)
        given, orders, alone = [], self._taken(storages, arrays), references_alone()
        for position in self._given:
            captured.lend(position)
            array, arrays[position] = arrays[position], None
            array = array.array if type(array) is Reordered else array
            given.append(around.donated.given(storages[position], array, alone))
            del array
        stream, pytorchs, separated = call.stream.state, captured.all_host, captured.all_separated
        results = self._run(given, orders, [arrays[i] for i in self._kept], self._constants, self._rng(stream))
        del given
        if self._stream is not None:
            call.stream.state = self._stream._replace(key=results.pop())
        elif self._draws:
            call.stream.state = stream._replace(taken=stream.taken + self._draws)
        for (position, layout, has_history), array in zip(self._written, results, strict=False):
            storage = storages[position]
            if position in separated:
                separated[position].write(ArrayBuffer(array, layout))
                continue
            storage.receive(ArrayBuffer(array, layout))
            if position in pytorchs:
                around.memories.receive(pytorchs[position], storage, has_history)
            if has_history and storage.history is None:
                storage.history = UNRECORDED
            elif position in self._same_layout:
                captured.note_written(position, storage, array)
            around.donated.add(array)
        objects, tensors = captured.all_objects if self._left.needs_objects else (), captured.all_tensors
        for position, count in self._writes:
            tensors[position]._writes[0] += count
        for position, tensor in separated.items():
            storages[position] = tensor._node
        return self._left.make(Rebuilt(captured, objects, storages, results[len(self._written) :]))

    def _taken(self, storages: Sequence[Storage], arrays: list) -> tuple[RowOrder | None, ...]:
        """The orders in which the program puts the rows of its inputs; other waiting inputs are put in order here.

        For each combination of dimensions the program is compiled once more: it takes a few.
        """
        waiting = [position for position, array in enumerate(arrays) if type(array) is Reordered]
        if not waiting:
            return ()
        orders = tuple([arrays[i].order if type(arrays[i]) is Reordered else None for i in self._given])
        dims = tuple([order and order.dim for order in orders])
        if len(self._orders) < _MANY:
            self._orders.add(dims)
        is_taken = dims in self._orders
        for position in waiting:
            if not is_taken or position in self._kept:
                arrays[position] = storages[position].buffer.array
        return orders if is_taken else ()

    def _rng(self, stream: StreamState) -> tuple:
        if not self._uses_stream:
            return (stream.key, np.uint32(0)) if stream.key is not None else ()
        return stream.key, np.uint32(stream.taken)
