"""The interface of a call that compiled parts and the tensors around them use."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol, cast

import torch

from .. import translation
from ..rules.call import RulesCall
from ..rules.features import Feature
from ..tensors.storage import Storage
from ..tensors.tensor import Torchish
from ..tracing.call import TracingCall

if TYPE_CHECKING:
    from .captured import CapturedState
    from .host_functions import HostFunctions


class CompiledConstants(Protocol):
    """What stands for tensors from outside, as compiled parts see it."""

    host: "HostFunctions | None"
    """What runs around compiled parts, None where there are none."""

    def lift(self, value: Any) -> Torchish:
        """The tensor that stands for a tensor or array from outside."""
        ...

    def storages(self) -> list[Storage]:
        """Those of all that stands for tensors from outside."""
        ...

    def noting(self) -> AbstractContextManager[dict[int, torch.Tensor]]:
        """A context that gives the tensors from outside which are used within, by their ids."""
        ...

    def lifting(self, reached: "CapturedState") -> AbstractContextManager[None]:
        """A context in which tensors stand for those of PyTorch's own that they were made for."""
        ...


class CompiledCall(RulesCall, TracingCall, Protocol):
    """A call as compiled parts, and the tensors around them, see it."""

    @property
    def constants(self) -> CompiledConstants:
        """What stands for tensors from outside."""
        ...

    @property
    def compiles(self) -> bool:
        """What ``torch.compiler.is_compiling()`` is to answer."""
        ...

    @property
    def on_result(self) -> Feature | None:
        """What sees the results of all rules."""
        ...

    def lift_own(self, tensor: torch.Tensor) -> Torchish:
        """As `lift`, for a tensor that the call may write to: nobody outside waits for the write."""
        ...

    def run_planned(
        self, call: Any, function: Any, types: tuple[type, ...], args: tuple[Any, ...], kwargs: dict[str, Any] | None
    ) -> Any:
        """What a function gives by its plan; `NOT_PLANNED` where it has none."""
        ...

    def runs_body(self, func: Any, args: tuple[Any, ...]) -> bool:
        """Whether a function without a rule is served by its own body, wherever the call is."""
        ...

    def run_body(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], *, asks_classes: bool = True) -> Any:
        """Runs the body of a Python function of PyTorch; what it calls comes back to `dispatch`."""
        ...

    def is_own_body(self, func: Any, args: tuple[Any, ...]) -> bool:
        """Whether the body of a function is running, and asks for it by another way."""
        ...


current = cast(Callable[[], CompiledCall | None], translation.current)
this_call = cast(Callable[[], CompiledCall], translation.this_call)
