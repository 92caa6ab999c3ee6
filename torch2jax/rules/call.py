"""The interface of a call that rules use."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol, cast

import jax
import torch

from .. import translation
from ..tensors.call import TensorsCall

if TYPE_CHECKING:
    from .inline import Scalars


class RulesCall(TensorsCall, Protocol):
    """A call as rules see it, and what runs around their bodies."""

    casts: dict[Any, tuple[jax.Array, torch.Tensor, torch.Tensor]]
    """The weights that `autocast` has cast."""
    is_backward: bool
    """Whether it runs the backward of a custom function, in which PyTorch records nothing as a rule."""

    @property
    def scalars(self) -> "Scalars | None":
        """What `inline` has computed of scalars, while that serves again."""
        ...

    @property
    def is_lazy(self) -> bool:
        """Whether known values may stay out of the graph until something there asks for them."""
        ...

    def inside(self) -> AbstractContextManager[None]:
        """A context in which what is called comes to this call again, where PyTorch has suspended it."""
        ...

    def run_rule(self, func: Any, rule: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Runs a rule; PyTorch computes what `func`, which it stands for, gives for known values."""
        ...

    def standing_for(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor of this call that stands for one from outside, if there is one already, or else that one."""
        ...

    def next_key(self, generator: torch.Generator | None = None) -> jax.Array:
        """The next JAX key of this call's stream, or of a generator's."""
        ...


current = cast(Callable[[], RulesCall | None], translation.current)
this_call = cast(Callable[[], RulesCall], translation.this_call)
