"""The interface of a call that code in its own traces uses."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol, cast

import jax

from .. import translation
from ..tensors.call import TensorsCall


class StreamState(NamedTuple):
    """From where a random stream goes on."""

    key: jax.Array | None
    taken: int
    """How many keys were derived from that one."""
    seed: int | None
    before: Any = 0
    """How many had been, where that number is traced."""


class RandomStream(Protocol):
    """Where random operators take their keys from."""

    @property
    def state(self) -> StreamState:
        """From where it goes on, as it may be set again."""
        ...

    @state.setter
    def state(self, state: StreamState, /) -> None: ...


class TracingCall(TensorsCall, Protocol):
    """A call as code in traces of its own sees it."""

    @property
    def stream(self) -> RandomStream:
        """Where its random operators take their keys from."""
        ...

    def inside(self) -> AbstractContextManager[None]:
        """A context in which what is called comes to this call again, where PyTorch has suspended it."""
        ...

    def nested(self) -> AbstractContextManager[None]:
        """A context for code of this call that runs under a transformation of JAX's begun within the call."""
        ...

    def leaving(self, array: jax.Array) -> jax.Array:
        """An array as it leaves the code that runs `nested`: without the derivatives recorded there."""
        ...


current = cast(Callable[[], TracingCall | None], translation.current)
this_call = cast(Callable[[], TracingCall], translation.this_call)
