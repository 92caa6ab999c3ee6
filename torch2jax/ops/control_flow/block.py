"""Code on tensors that the graph runs any number of times: a branch, or the body of a loop.

A block is Python over tensors. JAX traces it in a trace of its own, as a function of arrays; tensors around it are
closed over. What it draws from the random stream, and what it writes to tensors around it, are not among its results:
they are its effects. JAX has to know them before it traces, so that blocks are traced again when one turns up.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from ...internals.tensors import tree_flatten
from ...runtime.errors.unwinding import Unwind
from ...runtime.translation import this_call
from ...tensors.array_buffer import ArrayBuffer
from ...tensors.journal import Journal, Uncontained
from ...tensors.storage import Storage, lose_traced
from ...tracing.conditions import Path
from ...tracing.tensor_spec import TensorSpec
from ...tracing.traces import current_trace, ending_with_errors, expect_unrecorded

_TRACINGS = 100  # of one block; each makes known at least one effect, most make all known


class _More(Unwind):
    """A block has an effect that was not known."""

    ends_call = False


class Given(NamedTuple):
    """All of a tensor that a block gives but its array."""

    spec: TensorSpec
    shape: torch.Size

    def differs_from(self, other: "Given") -> str | None:
        """The difference between another tensor and this one, in words."""
        if self.spec.dtype != other.spec.dtype:
            return f"dtype: {self.spec.dtype} vs {other.spec.dtype}"
        return f"shape: {list(self.shape)} vs {list(other.shape)}" if self.shape != other.shape else None

    def in_order_of(self, other: "Given") -> "Given":
        """The same with the dimensions of its array in the order that another tensor's are in."""
        return self._replace(spec=self.spec._replace(layout=other.spec.layout))

    def arranged(self, array, layout: tuple[int, ...] | None):
        """The array with its dimensions in another order."""
        return ArrayBuffer(array, self.spec.layout).arranged(layout)


class BlockEffects:
    """The effects of some blocks that belong together, apart from their results. It grows while they are traced."""

    def __init__(self):
        self.draws = False
        """Whether those that repeat draw from the random stream."""
        self._key: Any = None
        self._storages: list[Storage] = []
        self._layouts: list[tuple[int, ...] | None] = []
        self._histories: list[Any] = []

    @property
    def arrays(self) -> list:
        """The values of all that they write to."""
        return [storage.buffer.arranged(layout) for storage, layout in zip(self._storages, self._layouts, strict=True)]

    @property
    def key(self) -> Any:
        """The key that those of all repetitions are derived from; None if these draw nothing."""
        if self.draws and self._key is None:
            self._key = this_call().stream.next_common_key()
        return self._key

    def trace_again(self) -> None:
        """Ends this tracing; another begins."""
        raise _More

    def enter(self, arrays: Sequence) -> None:
        """Writes these values to all that they write to, in the current trace."""
        for storage, layout, array in zip(self._storages, self._layouts, arrays, strict=True):
            storage.replace(ArrayBuffer(array, layout), None, is_written=True)
        for storage in self._storages:
            storage.mark_synced()

    def note(self, journal: Journal, draws: bool) -> None:
        """Is called where a block ends, within its journal, with what it did.

        Args:
            draws: whether it repeats and has drawn from the random stream.

        Raises:
            Uncontained: it has changed what cannot be changed outside.
        """
        if journal.changes_older:
            raise Uncontained("a change of a tensor from outside itself, not of its values")
        found = [
            storage for storage in journal.written.values() if not any(storage is other for other in self._storages)
        ]
        if any(not storage.is_older for storage in found):
            raise Uncontained("a write to a detached part of a tensor from outside")
        for number, storage in enumerate(self._storages):
            self._histories[number] = storage.history or self._histories[number]
        if found or (draws and not self.draws):
            self._storages.extend(found)
            self.draws = self.draws or draws
            self.trace_again()

    def record_layouts(self) -> None:
        """Is called outside before blocks are traced."""
        self._layouts = [storage.buffer.layout for storage in self._storages]
        self._histories = [None] * len(self._storages)

    def leave(self, arrays: Sequence) -> None:
        """Writes what the blocks have left, outside."""
        for storage, layout, array in zip(self._storages, self._layouts, arrays, strict=True):
            storage.write(ArrayBuffer(array, layout), None)
        for storage, history in zip(self._storages, self._histories, strict=True):
            storage.mark_synced()
            storage.history = storage.history or history


class Block:
    """A function of tensors as one of arrays, to be traced by JAX.

    Args:
        function: gives a tree of tensors.
        effects: those of the blocks that belong together.
        repeats: whether it may run several times.
        may_write: whether it may write to tensors around it.
    """

    def __init__(self, function: Callable, effects: BlockEffects, *, repeats: bool = False, may_write: bool = True):
        expect_unrecorded("control flow")
        self._call = this_call()
        self._around = current_trace()
        self._function, self._effects = function, effects
        self._repeats, self._may_write = repeats, may_write
        self.given: list[Given] = []
        """The tensors among its results."""
        self.spec: Any = None
        """The structure of its results."""
        self.taken = 0
        """How many keys it has taken from the random stream."""

    @property
    def wants_grad(self) -> bool:
        return any(given.spec.wants_grad for given in self.given)

    def trace(
        self, args: Sequence, written: Sequence | None = None, key: object = None, taken: int = 0
    ) -> tuple[list, list]:
        """Runs the function in the current trace of JAX.

        Args:
            args: its arguments.
            written: the values of what blocks write to, where these come from an earlier run.
            key: where its random numbers come from, if it runs several times and draws some.
            taken: how many keys have been taken from that one.

        Returns:
            The arrays of its results, and those of all that blocks write to.

        Raises:
            RuntimeError: it does what PyTorch does not allow there.
        """
        policy = self._call.execution.path.policy
        with ending_with_errors(self._around):
            path = self._call.execution.code.path(policy, current_trace())
            return self._trace(path, args, written, key, taken)

    def _trace(
        self, path: Path, args: Sequence, written: Sequence | None, key: object, taken: int
    ) -> tuple[list, list]:
        call, stream = self._call, self._call.stream.state
        start = stream if key is None else stream._replace(key=key, taken=taken, before=0)
        journal = Journal(repeats=self._repeats)
        call.paths.append(path)
        try:
            with journal, call.nested():
                call.stream.state = start
                if written is not None:
                    self._effects.enter(written)
                writes = journal.writes
                try:
                    results = self._take(self._function(*args))
                    self._count_draws(start)
                    if journal.writes != writes and not self._may_write:
                        raise Uncontained("a write to a tensor from outside")
                    self._effects.note(journal, self._repeats and self.taken > 0)
                    return results, [call.leaving(array) for array in self._effects.arrays]
                except BaseException:
                    journal.cancel()
                    raise
        finally:
            call.paths.pop()
            path.end()
            call.stream.state = stream
            lose_traced(journal.survivors())

    def _count_draws(self, start: Any) -> None:
        end = self._call.stream.state
        if end.seed != start.seed:
            raise Uncontained("torch.manual_seed")
        self.taken = end.taken - start.taken if end.key is start.key else 1

    def _take(self, result: object) -> list:
        leaves, self.spec = tree_flatten(result)
        tensors = [self._call.constants.lift(leaf) for leaf in leaves]
        self.given = [Given(TensorSpec.of(tensor), tensor.shape) for tensor in tensors]
        return [self._call.leaving(tensor.buffer.array) for tensor in tensors]


def trace_blocks(trace: Callable[[BlockEffects], object], operator: str) -> object:
    """Traces blocks by JAX until all their effects are known.

    Args:
        trace: makes the blocks, and lets JAX trace them.
        operator: PyTorch's name of what it is.

    Returns:
        What `trace` gives in the end.

    Raises:
        RuntimeError: a block does what PyTorch does not allow there either.
    """
    effects, why = BlockEffects(), f"other effects in each of {_TRACINGS} tracings"
    for _ in range(_TRACINGS):
        effects.record_layouts()
        try:
            return trace(effects)
        except _More:
            continue
        except Uncontained as refused:
            why = str(refused)
            break
    raise uncaptured(operator, f"got {why} within; wanted a function of tensors whose results are all it does")


def uncaptured(operator: str, why: str) -> Exception:
    """The error that PyTorch raises for code that is no branch and no body of a loop."""
    from ...internals.dynamo import UncapturedHigherOrderOpError

    return UncapturedHigherOrderOpError(f"{operator}: {why}")
