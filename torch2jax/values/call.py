"""The interface of a call that special tensors use."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol, cast

import torch

from .. import translation
from ..branches.call import BranchesCall, BranchesRun
from ..rules.features import Features
from ..tensors.tensor import Torchish

if TYPE_CHECKING:
    from .both_answers import Answers
    from .valueless import StandIns


class _ValuesAttempt(BranchesRun, Protocol):
    heeds_lengths: bool
    """Whether ``len`` and the like take data-dependent lengths from the beginning."""


class ValuesCall(BranchesCall, Protocol):
    """A call as known values, selections, and tensors without values see it."""

    features: Features
    """What code uses that acts on each operator."""
    answers: "Answers | None"
    """What is answered to conditions on traced values, where both answers are followed."""
    memo: dict[Any, tuple[Any, list[Any]]] | None
    """What has been computed from numbers meanwhile, and from which arrays."""
    heeds_classes: bool
    """Whether tensors of code's own classes are asked what becomes of a function."""

    @property
    def attempt(self) -> "_ValuesAttempt":
        """Which run of the function it is."""
        ...

    @property
    def stand_ins(self) -> "StandIns":
        """What PyTorch has seen in place of tensors, where it asks for no values."""
        ...

    @property
    def constants(self) -> Any:
        """What stands for tensors from outside, also for sparse ones."""
        ...

    @property
    def keys(self) -> Any:
        """PyTorch's keys of dispatch that are excluded around the call."""
        ...

    @property
    def aten_mode(self) -> AbstractContextManager[Any]:
        """A context in which ATen operators come to the call."""
        ...

    @property
    def is_plain(self) -> bool:
        """Whether nobody looks at what is run, runs it elsewhere, or casts its operands."""
        ...

    @property
    def ends(self) -> "list[Callable[[], None]]":
        """What is to be called at the end of the outermost call."""
        ...

    def at(self, tape: Any) -> AbstractContextManager[None]:
        """A context for code of this call that runs outside of a transformation it is inside of, on the tape there."""
        ...

    def lift_own(self, tensor: torch.Tensor) -> Torchish:
        """As `lift`, for a tensor that the call may write to: nobody outside waits for the write."""
        ...

    def run_body(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], *, asks_classes: bool = True) -> Any:
        """Runs the body of a Python function of PyTorch; what it calls comes back to `dispatch`."""
        ...

    def is_own_body(self, func: Any, args: tuple[Any, ...]) -> bool:
        """Whether the body of a function is running, and asks for it by another way."""
        ...


current = cast(Callable[[], ValuesCall | None], translation.current)
this_call = cast(Callable[[], ValuesCall], translation.this_call)
