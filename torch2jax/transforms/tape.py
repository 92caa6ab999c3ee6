"""The tape: the record that `.backward()` and `torch.autograd.grad` of translated code differentiate.

A call begins without one; the first query that needs it abandons the run, by a `Restart` (`runs.py`).

A tape is a stack of levels, each a `Linearization`, one for each derivative of a derivative. The values of a level are
computed on the next one, so that a gradient taken of one is differentiated by the next. What a derivative of one level
gives ends there (`stop_levels`): whoever is led back to it has to ask the next level.

- `levels[0]` is on top: code is computed with its trace, and below each level is the trace of the next one. So the
  primal of an array at one level is the array of the next level (`Tape._parts`).
- A tensor has variables of its own at each level, though another tensor may have the same array: to PyTorch a gradient
  is with respect to a tensor, not to a value (`with_own_variable`).
- What requires grad has variables even where JAX drops its derivative as zero, as that of a rounded number. So backward
  passes, their hooks and their errors come by the same tensors as in PyTorch (`tracked`).
- One level does not do for all: a derivative can be differentiated only if it was recorded by a further level while it
  was computed, and code says with the second derivative that it wants that. The next run then has one level more.
"""

import contextlib
import itertools
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar, cast

import jax
import numpy as np
import torch
from jax.core import Trace

from ..rules.features import Feature, in_every_call
from ..runtime.errors.unwinding import Restart
from ..runtime.translation import this_call
from ..tensors.array_buffer import ArrayBuffer
from ..tensors.dtypes import canonical
from ..tensors.history import Node, Source, made_beside, next_node, sources_among, used_beside
from ..tensors.journal import Uncontained, expect_no_journal
from ..tensors.levels import Recorder
from ..tensors.tensor import Torchish
from ..tracing.primitives import LevelEnd, constant_to, stop_levels
from ..tracing.tensor_spec import TensorSpec
from ..tracing.traces import current_trace, running, unvaried
from .linearization import Linearization, Var, keep_with

T = TypeVar("T")


class HistoryEnd(NamedTuple):
    """An operand or the result of an operation, without its values."""

    tangents: tuple
    """Its tangents in the linear programs, one for each level that has it."""
    spec: TensorSpec
    shape: torch.Size
    is_nested_tensor = is_cpp_nested_tensor = False

    @property
    def dtype(self) -> torch.dtype:
        return self.spec.dtype

    @property
    def device(self) -> torch.device:
        return self.spec.device

    @property
    def variables(self) -> list[Var]:
        return [tangent.val for tangent in self.tangents]


@dataclass(eq=False)
class Hooked:
    """Hooks on the gradient of a tensor."""

    spec: TensorSpec
    history: Callable[[], Node | None]
    """Returns the tensor's history, as long as the tensor lives."""
    hooks: OrderedDict[int, Callable] = field(default_factory=OrderedDict)
    nodes: list[Node] = field(default_factory=list)
    """The operations that computed the tensor; their hooks run after its own."""


class Tape(Recorder, Feature):
    """The record of computations on tensors that require grad, while it is entered.

    Args:
        depth: the number of levels.
        outer: the tape of the code around, where a transformation has begun since.
        below: the number of levels below those, for derivatives of the code that are taken from outside. What has no
            derivative to the code, as a gradient without `create_graph`, has one there.
    """

    outer: "Tape | None"

    def __init__(self, depth: int, outer: "Tape | None" = None, below: int = 0):
        self.depth, self.outer, self._count = depth, outer, depth + below
        self.levels: list[Linearization] = []  # from the one that computes to the last
        self.hooks: weakref.WeakValueDictionary[Var, Hooked] = weakref.WeakValueDictionary()
        """They live as long as the program that leads to their variables."""
        self.retaining: weakref.WeakValueDictionary[int, Torchish] = weakref.WeakValueDictionary()
        self.sources: weakref.WeakValueDictionary[Var, Source] = weakref.WeakValueDictionary()
        """The leaves, by the variables of their arrays."""
        self.refuses = False
        """True if some `Node.refusal` may be set."""
        self.began = 0
        """The number of the first node that can be within, where leaves from outside are; see `adopt`."""
        self._captured: dict[Source, Any] = {}
        self._owned_variables: set[Var] = set()
        self._used: dict[int, weakref.ref] = {}
        self._exits = contextlib.ExitStack()

    def __enter__(self) -> "Tape":
        trace = cast(Any, current_trace())
        for _ in range(self._count):
            self.levels.insert(0, Linearization(trace))
            trace = self.levels[0].trace
        self._exits.enter_context(running(trace))
        return self

    def __exit__(self, *exc_info: object):
        self._exits.close()

    @property
    def is_current(self) -> bool:
        """True if the tape records present computations: no other transformation was entered since."""
        return current_trace() is self.levels[0].trace

    def is_above(self, trace: Trace) -> bool:
        """Returns True if the tape records present computations, directly above that trace."""
        return self.is_current and self.levels[-1].below is trace

    def is_beside(self, trace: Trace) -> bool:
        """True if the tape records present computations above that trace, for the code's own derivatives alone."""
        return self._count == self.depth and self.is_above(trace)

    def leaf(self, array: jax.Array, source: Source):
        """An array of the same values with which the history of `source` begins."""
        values = self.primal(array, self._count)
        for number, (level, part) in reversed([*enumerate(self._parts(array))]):
            is_known = number >= self.depth and level.has(part)
            values = level.with_values(part, values) if is_known else level.leaf(values)
        source.variables = tuple(self.variables(values))
        self.sources.update(dict.fromkeys(source.variables[: self.depth], source))
        return values

    def beginning(self, array: jax.Array, number: int):
        """An array of the same values as a leaf of the levels from `number` on."""
        for level in reversed(self.levels[number:]):
            array = level.leaf(array)
        return array

    def captured(self, tensor: Torchish, values: jax.Array):
        """An array of these values with which the history of a leaf from a tape around goes on here."""
        source = tensor.history
        if not isinstance(source, Source) or source.variable is not tensor:
            return values
        if self.has(tensor.buffer.array):
            return self.with_values(tensor.buffer.array, values)
        if source not in self._captured:
            array = self.primal(values)
            for level in reversed(self.levels):
                array = level.leaf(array)
            self._captured[source] = array
            variables, hooked = self.variables(array), self._hooked_around(source)
            self.sources.update(dict.fromkeys(variables, source))
            if hooked is not None:
                self.hooks.update(dict.fromkeys(variables, hooked))
        return self.with_values(self._captured[source], values)

    def _hooked_around(self, source: Source) -> Hooked | None:
        """The hooks on the gradient of a leaf from a tape around."""
        outer = self.outer
        while outer is not None:
            for variable, known in outer.sources.items():
                if known is source and variable in outer.hooks:
                    return outer.hooks[variable]
            outer = outer.outer
        return None

    def adopt(self) -> None:
        """Continues the histories of leaves from outer tapes here."""
        outer = self.outer
        while outer is not None:
            for source in dict.fromkeys(outer.sources.values()):  # in one order, which runs have in common
                variable = source.variable
                if variable is None or source in self._captured:
                    continue
                storage = variable._node.storage
                if storage.history is source:
                    array, layout = storage.buffer
                    adopted = ArrayBuffer(self.captured(variable, array), layout)
                    storage.replace(adopted, storage.known, is_written=False)
            outer = outer.outer
        self.began = next_node()

    def constant_around(self, array: jax.Array):
        """A gradient as the tapes around see it, whose code has no derivative of it.

        Raises:
            Uncontained: nobody knows a leaf of one of them.
        """
        leaves, counts, outer = [], [], self.outer
        while outer is not None:
            if outer.sources:
                leaves.append(self.primal(outer.leaf_array()))
                counts.append(outer.depth)
            outer = outer.outer
        return constant_to(array, leaves, counts) if leaves else array

    def leaf_array(self) -> jax.Array:
        """The array of some leaf."""
        for source in self.sources.values():
            variable = source.variable
            if variable is not None and variable._node.storage.history is source:
                return variable.buffer.array
        raise Uncontained("a derivative where no leaf of the code around is left")

    def leaves(self) -> int:
        """The number of leaves on this tape and the outer ones."""
        return len(set(self.sources.values())) + (0 if self.outer is None else self.outer.leaves())

    def expect_captured_alone(self, outputs: list[Torchish], tensor: Torchish) -> None:
        """Refuses a derivative with respect to a leaf that leads to the outputs in another way than by its dual.

        Raises:
            NotImplementedError: it did, and the tape around knows that part; or `tensor` is one of several duals.
        """
        history, ends = tensor.history, [x.history for x in outputs]
        if history is not None and history.name() == "MakeDualBackward0" and made_beside(ends, history):
            raise NotImplementedError(
                "got a gradient with respect to one of several duals of a tensor; wanted a single dual, or the "
                "gradient with respect to the tensor itself"
            )
        within = cast("Tape | None", this_call().tape)
        while within is not None and within is not self:
            if history in within._captured:
                return
            within = within.outer
        if self.has(tensor.buffer.array):
            return
        if history in self._captured and used_beside(ends, history, "MakeDual"):
            raise NotImplementedError(
                "got a gradient with respect to a tensor that was used beside its dual; wanted only the dual to "
                "be used within the dual level"
            )

    def primal(self, array: jax.Array, count: int | None = None):
        """The array without its history at the first `count` levels, or at all of the code's own."""
        for level in self.levels[: self.depth if count is None else count]:
            array = level.values(array)
        return unvaried(array) if self.levels and self.levels[0].axes else array

    def has(self, array: jax.Array) -> bool:
        """Returns True if the array has a history that the code knows of."""
        return any(level.has(part) for level, part in self._own_parts(array))

    def knows(self, array: jax.Array) -> bool:
        """Returns True if the array has a history on this tape or on an outer one."""
        return self.has(array) or (self.outer is not None and self.outer.knows(array))

    def _parts(self, array: jax.Array) -> Iterable[tuple[Linearization, Any]]:
        for level in self.levels:
            yield level, array
            array = level.values(array)

    def _own_parts(self, array: jax.Array) -> Iterable[tuple[Linearization, Any]]:
        return itertools.islice(self._parts(array), self.depth)

    def with_values(self, array: jax.Array, values: jax.Array):
        """Other values with the history of `array`."""
        for level, part in reversed(list(self._own_parts(array))):
            values = level.with_values(part, values)
        return values

    def tracked(self, array: jax.Array, origins: Sequence = ()):
        """The array with a variable at every level, even where it has no derivative with respect to its origins.

        What a tape around knows has its place there alone: a place here would be where its derivatives begin.
        """
        if len(self.variables(array)) == self._count or (not self.has(array) and self.knows(array)):
            return array
        values = self.primal(array, self._count)
        before = [[part for _, part in self._parts(origin)] for origin in origins]
        for variable, (level, part) in reversed([*enumerate(self._parts(array))]):
            if level.has(part):
                values = level.with_values(part, values)
            else:
                values = level.without_derivative(values, [parts[variable] for parts in before])
        return values

    def with_new_variable(self, array: jax.Array):
        """The same array with variables of its own: two tensors of equal values are distinct."""
        values = self.primal(array, self._count)
        for level, part in reversed(list(self._parts(array))):
            values = level.with_new_variable(part, values)
        return values

    def with_own_variable(self, array: jax.Array):
        """The array, with variables of its own if the present ones are another tensor's."""
        variables = self.variables(array)
        if not variables:
            return array
        if not self._owned_variables.isdisjoint(variables):
            array = self.with_new_variable(array)
            variables = self.variables(array)
        self._owned_variables.update(variables)
        return array

    def stop_levels(self, array: jax.Array, dependencies: list, count: int):
        """The result of a derivative at level `count - 1`, cut off from the levels up to that."""
        return stop_levels(array, dependencies, count) if dependencies else array

    def variables(self, array: jax.Array) -> list[Var]:
        """The places of an array in the history, one for each level that has it."""
        variables = [level.variable(part) for level, part in self._parts(array)]
        return [variable for variable in variables if variable is not None]

    def end_of(self, tensor: Torchish) -> HistoryEnd:
        """The part of a tensor that its history keeps, without values; its variables are of the innermost tape that has
        it.
        """
        buffer = tensor.buffer
        if self.outer is not None and not self.has(buffer.array) and self.outer.knows(buffer.array):
            return self.outer.end_of(tensor)
        tangents = tuple(part.tangent for level, part in self._parts(buffer.array) if level.has(part))
        return HistoryEnd(
            tangents, TensorSpec(tensor.dtype, buffer.layout, None, tensor._label, True), torch.Size(buffer.shape)
        )

    def tensor_at(self, end: HistoryEnd, history: Node) -> Torchish:
        """A tensor at an end: of its history, but not of its values."""
        tensor = end.spec._replace(wants_grad=False).tensor(np.zeros(end.tangents[-1].aval.shape, canonical(end.dtype)))
        values = tensor.buffer.array
        for level, tangent in zip(reversed(self.levels), reversed(end.tangents), strict=False):
            values = level.with_tangent(values, tangent)
        tensor.write(ArrayBuffer(values, end.spec.layout), None, keeps_derivatives=True)
        tensor._node.storage.history = history
        return tensor

    def hooked(self, end: HistoryEnd, history: Node | None) -> Hooked:
        """The hooks on the gradient at an end, which is of that history."""
        expect_no_journal("a hook on a gradient")
        if self.outer is not None and end.tangents and not any(level.gave(end.tangents[0]) for level in self.levels):
            return self.outer.hooked(end, history)
        variables = end.variables
        hooked = next((self.hooks[variable] for variable in variables if variable in self.hooks), None)
        if hooked is None:
            hooked = Hooked(end.spec, (lambda: None) if history is None else weakref.ref(history))
            self.hooks.update(dict.fromkeys(variables, hooked))
            for tangent in end.tangents:
                if not keep_with(tangent, hooked) and history is not None:
                    history.hooked = hooked
        return hooked

    def show(self, node: Node) -> None:
        """Registers a node whose hooks backward passes must call."""
        nodes = self.hooked(node.end, node).nodes
        if not any(node is other for other in nodes):
            nodes.append(node)

    def variable_of(self, tensor: Torchish, number: int) -> Var | None:
        """The place of a tensor in the history of one level."""
        history = tensor.history
        if isinstance(history, Source) and history.variable is tensor:
            variables = self.variables(self._captured[history]) if history in self._captured else history.variables
            return variables[number] if variables else None
        return self.levels[number].variable(self.primal(tensor.buffer.array, number))

    def sources_of(self, outputs: list[Torchish]) -> list[Torchish]:
        """The leaves that lead to the outputs."""
        level = self.levels[self.depth - 1]
        leaves = level.reach([self.primal(x.buffer.array, self.depth - 1) for x in outputs]).leaves
        found = [self.sources[leaf] for leaf in leaves if leaf in self.sources]
        found.extend(sources_among(x.history for x in outputs))
        return list({id(source): source.variable for source in found if source.variable is not None}.values())

    def at_first(self, differentiate: Callable[[int], T]) -> T:
        """The result of `differentiate` for the first level that has recorded all that the derivative depends on.

        Raises:
            Restart: the tape has too few.
        """
        for number in range(self.depth):
            with contextlib.suppress(LevelEnd):
                return differentiate(number)
        raise Restart(tape=self.depth + 1)

    def use(self, steps: list, keep: bool) -> None:
        """Notes that a derivative needs the residuals of steps.

        Args:
            steps: of a level.
            keep: whether they are kept for another derivative.

        Raises:
            RuntimeError: they were not kept.
        """
        for step in steps:
            if id(step) in self._used:
                raise RuntimeError(
                    "Trying to backward through the graph a second time (or directly access saved tensors after they "
                    "have already been freed). Saved intermediate values of the graph are freed when you call "
                    ".backward() or autograd.grad(). Specify retain_graph=True if you need to backward through the "
                    "graph a second time or if you need to access saved tensors after calling backward."
                )
        if not keep:
            for step in steps:
                self._used[id(step)] = weakref.ref(step, self._forgets(id(step)))

    def _forgets(self, key: int) -> Callable:
        return lambda _: self._used.pop(key, None)


@in_every_call
class _Tapes(Feature):
    """The standing feature that makes tapes for code in a trace of its own."""

    def record(self, depth: int, outer: Any, below: int) -> Tape:
        return Tape(depth, outer, below)


def recorded() -> Tape:
    """The tape of the call, for code that is reached only if there is one.

    Raises:
        Restart: there is none.
    """
    tape: Any = this_call().tape
    if tape is None:
        raise Restart(tape=1)
    return tape
