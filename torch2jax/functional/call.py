"""The interface of a call that transformations of `torch.func` use."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol, cast

import jax

from .. import translation
from ..rules.call import RulesCall
from ..tensors.tensor import Torchish
from ..tracing.call import RandomStream, TracingCall

if TYPE_CHECKING:
    from .transformation import Transformation
    from .vmap import Mapped


class MappedStream(RandomStream, Protocol):
    """A random stream that knows which functions ``torch.vmap`` is mapping."""

    mapped: list["Mapped"]

    def within(self, mapped: "Mapped") -> AbstractContextManager[None]:
        """What is drawn within is drawn by a function that ``torch.vmap`` maps."""
        ...


class FunctionalCall(RulesCall, TracingCall, Protocol):
    """A call as transformations of `torch.func` see it."""

    @property
    def transformations(self) -> list["Transformation"]:
        """Those that its code has begun and is inside of, the innermost last."""
        ...

    @property
    def stream(self) -> MappedStream:
        """Where its random operators take their keys from."""
        ...

    def at(self, tape: Any) -> AbstractContextManager[None]:
        """A context for code of this call that runs outside of a transformation it is inside of, on the tape there."""
        ...

    def array_of(self, tensor: Torchish) -> jax.Array:
        """The array of a tensor as it leaves the code that runs `nested`."""
        ...


current = cast(Callable[[], FunctionalCall | None], translation.current)
this_call = cast(Callable[[], FunctionalCall], translation.this_call)
