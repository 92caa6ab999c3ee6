"""The interface of a call that autograd uses."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, cast

import torch

from .. import translation
from ..branches.call import BranchesCall
from ..functional.call import FunctionalCall, MappedStream
from ..tensors.history import NeedsTape
from ..tracing.call import RandomStream

if TYPE_CHECKING:
    from .engine import BackwardPass
    from .forward_ad import DualLevel
    from .runs import Attempt
    from .tape import Tape


class _AsksConstants(Protocol):
    def standing_for(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor of the call that stands for one from outside, if there is one already, or else that one."""
        ...


class _MappedRandomStream(MappedStream, RandomStream, Protocol):
    def next_common_key(self, generator: torch.Generator | None = None) -> Any:
        """The next key, for all examples at once."""
        ...


class AutogradCall(BranchesCall, FunctionalCall, Protocol):
    """A call as autograd sees it."""

    dual: "DualLevel | None"
    """The tangents of forward mode, while a level of them is open."""
    outermost: "tuple[Any, Tape | None]"
    """What JAX traces with, and the tape, where the code is within no transformation that it has begun."""
    passes: "list[BackwardPass]"
    """The backward passes under way, the innermost last."""
    contexts: list[Any]
    """Those of custom functions, whose backward may run in it: what they hold is traced, and ends with it."""

    @property
    def tape(self) -> "Tape | None":
        """What its own derivatives are taken from; None as long as the code asks for none."""
        ...

    @property
    def attempt(self) -> "Attempt":
        """Which run of the function it is."""
        ...

    @property
    def stream(self) -> _MappedRandomStream:
        """Where its random operators take their keys from."""
        ...

    @property
    def constants(self) -> _AsksConstants:
        """What stands for tensors from outside."""
        ...


current = cast(Callable[[], AutogradCall | None], translation.current)
this_call = cast(Callable[[], AutogradCall], translation.this_call)


def recorded() -> "Tape":
    """The tape of the call, for code that is only there where one is kept.

    Raises:
        NeedsTape: there is none.
    """
    tape = this_call().tape
    if tape is None:
        raise NeedsTape(1)
    return tape
