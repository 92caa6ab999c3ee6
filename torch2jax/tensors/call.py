"""The interface of a call that tensors and storages use."""

from __future__ import annotations

from collections.abc import Callable, Iterable, MutableSet, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol, cast

import jax
import torch

from .. import translation

if TYPE_CHECKING:
    from .history import Node, Source
    from .storage import Storage
    from .tensor import Torchish


class Recorder(Protocol):
    """A tape as tensors see it: arrays have places there, by which derivatives are taken."""

    @property
    def depth(self) -> int:
        """How many derivatives of derivatives the code may take."""
        ...

    refuses: bool
    """Whether there may be a `Node.refusal`."""

    @property
    def outer(self) -> Recorder | None:
        """The one of the code around, where a transformation has begun since."""
        ...

    def has(self, array: jax.Array) -> bool:
        """Whether an array has a place."""
        ...

    def knows(self, array: jax.Array) -> bool:
        """Whether an array has a place here or on a tape around."""
        ...

    def primal(self, array: jax.Array) -> jax.Array:
        """The array without its place."""
        ...

    def is_all_beside(self, trace: Any) -> bool:
        """Whether it alone records what is computed with that trace, for derivatives of the code's own."""
        ...

    def is_beside(self, trace: Any) -> bool:
        """As `is_all_beside`, also within another tape."""
        ...

    def beginning(self, array: jax.Array, number: int) -> jax.Array:
        """The same values, where derivatives begin at the levels from one on."""
        ...

    def leaf(self, array: jax.Array, source: Source) -> jax.Array:
        """The same values, where a history begins."""
        ...

    def tracked(self, array: jax.Array, origins: Sequence[jax.Array] = ()) -> jax.Array:
        """The same values with a place, also where no derivative leads to what they were computed from."""
        ...

    def with_own_variable(self, array: jax.Array) -> jax.Array:
        """The same values with a place of their own behind that of `array`."""
        ...

    def with_values(self, array: jax.Array, values: jax.Array) -> jax.Array:
        """Other values in the place of `array`."""
        ...

    def variables(self, array: jax.Array) -> Sequence[object]:
        """What names the place of an array, one for each level that has it."""
        ...

    def end_of(self, tensor: Torchish) -> Any:
        """A tensor without its values; see `autograd.tape.HistoryEnd`."""
        ...

    def tensor_at(self, end: Any, history: Node | None) -> torch.Tensor:
        """The tensor at a place."""
        ...

    def show(self, node: Node) -> None:
        """Calls the hooks of a node from now on."""
        ...


class Dual(Protocol):
    """A level of forward mode as tensors and rules see it."""

    def has(self, array: jax.Array) -> bool:
        """Whether an array has a tangent."""
        ...

    def has_tangent(self, tensor: Torchish) -> bool:
        """Whether a tensor has one."""
        ...

    def note(self, storage: Storage) -> None:
        """Keeps in mind a storage that may hold an array with a tangent."""
        ...

    def complete(self, tensor: Torchish, operands: Iterable[Torchish]) -> None:
        """Gives what was computed from dual tensors a tangent of zero, if it has none."""
        ...

    def with_zero_tangent(self, array: jax.Array) -> jax.Array:
        """An array with a tangent of zero."""
        ...

    def without_gradient(self, array: jax.Array) -> jax.Array:
        """An array that keeps its tangent, but is a constant to derivatives backwards."""
        ...


class Level(Protocol):
    """A transformation of JAX's as tensors see it."""

    def check_write(self, tensor: Torchish, array: jax.Array) -> None:
        """Refuses a write that the transformed function must not do."""
        ...


class TensorsRun(Protocol):
    """One run of a function, as tensors see it."""

    @property
    def begun(self) -> MutableSet[Source]:
        """Where histories began."""
        ...

    def expect_hook(self, hooks: Any, tensor: Torchish | None = None) -> None:
        """Is called before hooks on a gradient are registered."""
        ...


class _SettingsChanges(Protocol):
    changes: list[Callable[[], None]]
    """What undoes what code has changed of objects of the process."""
    default_dtype: torch.dtype | None
    """That of the call, None if it is that of the process."""


class TensorsCall(translation.CallInProgress, Protocol):
    """A call as tensors and storages see it."""

    @property
    def tape(self) -> Recorder | None:
        """What records for `.backward()`; None as long as code asks for no derivative."""
        ...

    @property
    def dual(self) -> Dual | None:
        """The tangents of forward mode, while a level of them is open."""
        ...

    @property
    def transformations(self) -> Sequence[Level]:
        """The transformations of JAX that its code has begun and is inside of, the innermost last."""
        ...

    @property
    def attempt(self) -> TensorsRun:
        """Which run of the function it is."""
        ...

    @property
    def settings(self) -> _SettingsChanges:
        """What its code has changed of the process."""
        ...

    @property
    def stages(self) -> bool:
        """Whether what JAX computes now becomes a graph, whatever it is computed from."""
        ...

    def lift(self, value: Any) -> Torchish:
        """The tensor of this call that stands for a tensor or array from outside: a constant."""
        ...

    def outside(self) -> AbstractContextManager[None]:
        """A context for what is no part of the code in transformations that has been begun within the call."""
        ...

    def without_tangents(self, array: jax.Array) -> jax.Array:
        """An array without what its code is computing of derivatives forwards."""
        ...

    def dispatch(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Runs a function of PyTorch's Python interface on JAX."""
        ...

    def dispatch_past_overrides(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Serves what PyTorch's C++ calls without asking whether an argument overrides it."""
        ...


current = cast(Callable[[], TensorsCall | None], translation.current)
this_call = cast(Callable[[], TensorsCall], translation.this_call)
