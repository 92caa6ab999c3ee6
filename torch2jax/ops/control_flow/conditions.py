"""PyTorch's conditional operators, as JAX's: `torch.cond` and `torch.switch`, and the blocks that they run.

Where the value is known, the branch itself runs.

Also here: results of branches and bodies that are no ordinary tensors (Python integers, None, and selections); and
operators that only PyTorch's compilers use, or that compile once, whose code runs as it is.

A block is Python over tensors. JAX traces it in a trace of its own, as a function of arrays; tensors around it are
closed over. What it draws from the random stream, and what it writes to tensors around it, are not among its results:
they are its effects. JAX has to know them before it traces, so that blocks are traced again when one turns up.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from jax import lax

from ...internals.modules import utils
from ...internals.tensors import tree_any, tree_flatten, tree_unflatten
from ...rules.registry import implements_tensors
from ...runtime.errors.unwinding import Unwind
from ...runtime.patches import replaces, runs_instead_of
from ...runtime.translation import current, lift, this_call
from ...tensors.array_buffer import ArrayBuffer
from ...tensors.journal import Journal, Uncontained
from ...tensors.known import evaluate
from ...tensors.storage import Storage, lose_traced
from ...tensors.view_kind import reshape
from ...tracing.conditions import Path
from ...tracing.tensor_spec import TensorSpec
from ...tracing.traces import current_trace, ending_with_errors, expect_unrecorded
from ...values.masked import Mask, Masked, in_compact_order, masked, unnested
from ...values.traced_numbers import Number, number_of

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


class _PaddedDims(NamedTuple):
    """The kind of a result with data-dependent dimensions: an array with room for the bound, and the lengths."""

    dims: tuple[int, ...]


class Capacities:
    """The bounds of selections among the results of branches: one for all branches, so that their shapes agree."""

    def __init__(self):
        self._capacities: dict[int, dict[int, int]] = {}
        self.has_grown = False
        """True if a branch has needed a larger bound than was known."""

    def opened(self, position: int, result: Any) -> tuple[_PaddedDims | None, list]:
        """A result as tensors that have the room of all branches: it, and a length for each such dimension."""
        known = self._capacities.get(position, {})
        if not isinstance(result, Masked) and not known:
            return None, [result]
        tensor, masks = unnested(in_compact_order(result))
        capacities = {dim: max(known.get(dim, 0), tensor.shape[dim]) for dim in sorted({*known, *masks})}
        self.has_grown, self._capacities[position] = self.has_grown or capacities != known, capacities
        lengths = [masks[dim].length if dim in masks else torch.tensor(tensor.shape[dim]) for dim in capacities]
        pads = [capacities.get(dim, size) - size for dim, size in enumerate(tensor.shape)]
        padded = torch.nn.functional.pad(tensor, [x for size in reversed(pads) for x in (0, size)])
        return _PaddedDims(tuple(capacities)), [padded, *lengths]


def _closed(kind: _PaddedDims, tensors: list) -> object:
    tensor, *lengths = tensors
    return masked(tensor, {dim: Mask.first(tensor.shape[dim], x) for dim, x in zip(kind.dims, lengths, strict=True)})


class Tensors:
    """A function with results that may be integers, None and selections, as one that returns tensors.

    Args:
        function: any.
        operator: PyTorch's name of what it is a part of.
        integers: whether it may give integers.
        capacities: for the selections that it may give, which others give as well.
    """

    def __init__(self, function: Callable, operator: str, *, integers: bool, capacities: Capacities | None = None):
        self._function, self._operator, self._capacities = function, operator, capacities
        self._allowed = (torch.Tensor, int) if integers else torch.Tensor
        self._kinds: list[object] = []
        self.spec: Any = None
        """The structure of its results."""

    def __call__(self, *args) -> list[torch.Tensor]:
        leaves, self.spec = tree_flatten(self._function(*args))
        for leaf in leaves:
            if not (leaf is None or isinstance(leaf, self._allowed)):
                wanted = "tensors" if self._allowed is torch.Tensor else "tensors and integers"
                raise uncaptured(self._operator, f"got {leaf!r} among the results; wanted {wanted}")
        self._kinds, tensors = [], []
        for position, leaf in enumerate(leaves):
            kind, found = None if leaf is None else isinstance(leaf, (int, Number)), [leaf]
            if kind is None:
                found = []
            elif kind:
                found = [number_of(leaf)]
            elif self._capacities is not None:
                lengths, found = self._capacities.opened(position, leaf)
                kind = kind if lengths is None else lengths
            self._kinds.append(kind)
            tensors += found
        return tensors

    @property
    def signature(self) -> tuple:
        """The properties that two functions must share to have results of one structure."""
        return self.spec, [
            kind if isinstance(kind, _PaddedDims) or kind is None else bool(kind) for kind in self._kinds
        ]

    def restored(self, tensors: list) -> object:
        """The function's results, where these are its tensors."""
        found = iter(tensors)
        leaves = []
        for kind in self._kinds:
            if isinstance(kind, _PaddedDims):
                leaves.append(_closed(kind, [next(found) for _ in range(1 + len(kind.dims))]))
            else:
                leaves.append(None if kind is None else Number.of(next(found)) if kind else next(found))
        return tree_unflatten(leaves, self.spec)


def known_number(choice) -> Any:
    """The number that a tensor of one element holds, None if a traced input decides it; numbers are themselves."""
    if not isinstance(choice, torch.Tensor):
        return choice
    known = lift(choice).known
    return None if known is None else evaluate(known).item()


def one_of(choose: Callable[..., tuple], branches: Sequence[Callable], operands: Sequence, operator: str) -> object:
    """The result of the branch that is chosen.

    Args:
        choose: takes as many functions without arguments as there are branches, and lets JAX trace each in turn.
        branches: functions of `operands`.
        operator: PyTorch's name of what they are branches of.
    """
    if tree_any(lambda x: isinstance(x, Masked), operands):  # a branch may as well see them around it
        branches, operands = [functools.partial(branch, *operands) for branch in branches], ()
    capacities = Capacities()
    return trace_blocks(
        lambda effects: _follow_all(effects, choose, branches, operands, operator, capacities), operator
    )


def _follow_all(
    effects: BlockEffects,
    choose: Callable[..., tuple],
    branches: Sequence[Callable],
    operands: Sequence,
    operator: str,
    capacities: Capacities,
):
    call: Any = current()
    functions = [Tensors(branch, operator, integers=True, capacities=capacities) for branch in branches]
    blocks = [Block(function, effects) for function in functions]
    first = blocks[0]

    def run(number: int):
        capacities.has_grown = False
        arrays, written = blocks[number].trace(operands)
        if number == 0:
            return arrays, written
        if capacities.has_grown:  # the branches before have to have as much
            effects.trace_again()
        _check_compatible(functions[0], functions[number], first, blocks[number], operator)
        pairs = zip(first.given, blocks[number].given, arrays, strict=True)
        return [other.arranged(array, one.spec.layout) for one, other, array in pairs], written

    arrays, written = choose(*[lambda number=number: run(number) for number in range(len(blocks))])
    effects.leave(written)
    state = call.stream.state
    call.stream.state = state._replace(taken=state.taken + max(block.taken for block in blocks))
    results = []
    for position, array in enumerate(arrays):
        wants_grad = any(block.given[position].spec.wants_grad for block in blocks)
        results.append(first.given[position].spec._replace(wants_grad=wants_grad).result(array))
    return functions[0].restored(results)


def _check_compatible(one: Tensors, other: Tensors, first: Block, second: Block, operator: str) -> None:
    if one.signature != other.signature:
        raise uncaptured(
            operator,
            "expected all branches to give results of the same structure, "
            f"but got {one.signature[0]} and {other.signature[0]}",
        )
    for number, (mine, others) in enumerate(zip(first.given, second.given, strict=True)):
        difference = mine.differs_from(others)
        if difference:
            raise uncaptured(
                operator, f"expected all branches to give tensors alike, but result {number} differs in {difference}"
            )


@runs_instead_of(torch.cond)
def _cond(pred, true_fn, false_fn, operands=()):
    if isinstance(pred, (bool, int, float)):
        return true_fn(*operands) if pred else false_fn(*operands)
    if not isinstance(pred, torch.Tensor):
        raise RuntimeError(f"Expected pred to be bool or tensor, but got {pred}.")
    if pred.numel() != 1:
        raise RuntimeError(f"Expected pred to be bool or single-element tensor, but got {pred}.")
    if not callable(true_fn) or not callable(false_fn):
        raise RuntimeError("Expect both branches to be callable.")
    if not isinstance(operands, (tuple, list)) or tree_any(lambda x: not isinstance(x, torch.Tensor), operands):
        raise RuntimeError(
            "Expect operands to be a tuple of possibly nested dict/list/tuple that only consists of tensor leaves, "
            f"but got {operands}."
        )
    return cond(pred, true_fn, false_fn, operands)


@implements_tensors(torch.ops.higher_order.cond)
def cond(pred, true_fn: Callable, false_fn: Callable, operands=()):
    choice = known_number(pred)
    if choice is not None:
        return (true_fn if choice else false_fn)(*operands)
    flag = reshape(pred.read(), ())
    flag = flag if flag.dtype == bool else lax.ne(flag, flag.dtype.type(0))
    return one_of(functools.partial(lax.cond, flag), (true_fn, false_fn), operands, "torch.cond")


def switch(index, branches, operands=()):
    """PyTorch's own code checks the arguments, and brings the index within the branches."""
    number = known_number(index)
    if number is not None:
        return branches[int(number)](*operands)
    return one_of(functools.partial(_switch, reshape(index.read(), ())), branches, operands, "torch.switch")


def _switch(index, *branches):
    return lax.switch(index, branches)


if hasattr(torch.ops.higher_order, "switch"):
    implements_tensors(torch.ops.higher_order.switch)(switch)


@replaces(utils, "_hop_compile_and_call", may_lack=True)  # 2.11 calls torch.compile in its place
def _call(fn, args, kwargs=None):
    """Operators of control flow compile themselves where they are called."""
    return fn(*args, **(kwargs or {}))


@implements_tensors(torch.ops.higher_order.invoke_subgraph)
def invoke_subgraph(subgraph, identifier, *operands):
    del identifier
    return subgraph(*operands)


@implements_tensors(torch.ops.higher_order.hints_wrapper)
def hints_wrapper(body_fn, args, kwargs, hints):
    del hints
    return body_fn(*args, **kwargs)


@implements_tensors(torch.ops.higher_order.strict_mode)
def strict_mode(callable, operands):
    return callable(*operands)


def flex_gemm(gemm_op, body_fn, gemm_args, gemm_kwargs, kernel_options):
    """A product and its epilogue, in one kernel of PyTorch's; XLA fuses what it can."""
    del gemm_op, gemm_kwargs, kernel_options  # which the body knows, and which are for the kernel
    return body_fn(*gemm_args)


if hasattr(torch.ops.higher_order, "flex_gemm"):
    implements_tensors(torch.ops.higher_order.flex_gemm)(flex_gemm)
