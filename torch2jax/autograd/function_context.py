"""The ``ctx`` of an autograd function."""

import functools
import inspect
import warnings
from collections.abc import Callable

import torch
from torch.autograd.function import FunctionCtx

__all__ = ["Context", "attributes_of"]

_OWN = frozenset(vars(FunctionCtx)) | {
    *("_function", "_needed", "to_save", "saved_for_forward"),
    *("dirty_tensors", "non_differentiable", "materialize_grads"),
}
"""What a context has before a function adds attributes to it."""


class Context(FunctionCtx):
    """The ``ctx`` of a function.

    Args:
        function: whose it is.
        needed: gives which of its arguments gradients are wanted for.
    """

    saved_tensors: tuple = ()

    def __init__(self, function: type[torch.autograd.Function], needed: Callable[[], tuple[bool, ...]]):
        self._function, self._needed = function, needed
        self.materialize_grads = self._materialize_non_diff_grads = True
        self.to_save: tuple = ()
        self.saved_for_forward: tuple = ()
        self.dirty_tensors: tuple = ()
        self.non_differentiable: tuple = ()

    def name(self) -> str:
        return self._function.__name__ + "Backward"

    @property
    def needs_input_grad(self) -> tuple[bool, ...]:
        return self._needed()

    @needs_input_grad.setter
    def needs_input_grad(self, needed: tuple[bool, ...]) -> None:
        self._needed = lambda: needed  # as PyTorch's own derivatives of operators say for a while

    @property
    def saved_variables(self) -> tuple:
        warnings.warn("'saved_variables' is deprecated; use 'saved_tensors'", DeprecationWarning, stacklevel=2)
        return self.saved_tensors

    def __getattr__(self, name: str):
        value = getattr(self._function, name)  # as PyTorch's contexts find the attributes of their class
        return functools.partial(value, self) if inspect.isfunction(value) else value


def attributes_of(ctx: Context) -> dict[str, object]:
    """What a function has set on its context."""
    return {key: value for key, value in vars(ctx).items() if key not in _OWN}
