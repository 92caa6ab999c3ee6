"""The interface of a call that conditions on traced values use."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, cast

import jax
import torch

from .. import translation
from ..rules.call import RulesCall
from ..tensors.call import TensorsRun
from ..tensors.tensor import Torchish
from ..tracing.call import RandomStream, TracingCall

if TYPE_CHECKING:
    from .path import Path


class _KeyStream(RandomStream, Protocol):
    def next_common_key(self, generator: torch.Generator | None = None) -> jax.Array:
        """The next key, for all examples at once."""
        ...


class BranchesRun(TensorsRun, Protocol):
    """A run of a function whose conditions have answers."""

    fits: Torchish | None
    """Whether all that data decide fits, where lengths are heeded from the beginning."""

    def expect_to_fit(self, fits: Any, text: str) -> None:
        """Lets results of the call tell where a traced bool is false."""
        ...

    @property
    def path(self) -> "Path":
        """How conditions on traced values are answered."""
        ...


class BranchesCall(RulesCall, TracingCall, Protocol):
    """A call as conditions on traced values see it."""

    @property
    def paths(self) -> list["Path"]:
        """The paths through code that runs again for each answer to a condition, the innermost last."""
        ...

    @property
    def attempt(self) -> BranchesRun:
        """Which run of the function it is."""
        ...

    @property
    def stream(self) -> _KeyStream:
        """Where its random operators take their keys from."""
        ...

    def with_length(self, array: Any, length: Any, axis: int, dtype: torch.dtype) -> torch.Tensor:
        """A tensor whose dimension `axis` is as long as a traced number says; see `values.sized`."""
        ...

    def rows_and_length(self, tensor: torch.Tensor, axis: int) -> tuple[Any, Any] | None:
        """The array of a tensor with the dimension `axis` in front, and how long that is; see `values.sized`."""
        ...

    def array_of(self, tensor: Torchish) -> jax.Array:
        """The array of a tensor as it leaves the code that runs `nested`."""
        ...


current = cast(Callable[[], BranchesCall | None], translation.current)
this_call = cast(Callable[[], BranchesCall], translation.this_call)
