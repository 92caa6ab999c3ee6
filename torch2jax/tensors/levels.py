"""Levels of derivatives and transformations that code takes of itself, as tensors and their memory meet them.

Each method is an event: an array is read, written or made, or a tensor begins to require grad. A level acts by the
methods that it overrides; these here do nothing. What a level is for stands in its own file: a `Recorder` is the tape
of autograd, a `ForwardLevel` one of `torch.autograd.forward_ad`, any other `Level` a transformation of `torch.func`.
"""

from typing import TYPE_CHECKING, Any

import jax

if TYPE_CHECKING:
    from .history import Node, Source
    from .storage import Storage
    from .tensor import Torchish


class Level:
    """The code within a transformation that it has begun."""

    is_forward = False
    """True if it is forward-mode: ``no_grad`` within the function makes no constants then."""
    takes_gradients = False
    """True if it is reverse-mode."""
    is_functorchs = True
    """True if it treats custom functions as `torch.func` does; False where autograd batches gradients."""
    tag: object = None
    """JAX's tag of its arrays."""

    def check_write(self, tensor: "Torchish", array: jax.Array) -> None:
        """Raises on a write of an array to a tensor that the code must not do.

        Raises:
            RuntimeError: PyTorch refuses it too.
        """


class Recorder:
    """The record of computations that code takes derivatives of, backwards."""

    depth: int = 0
    """How many derivatives of derivatives it is for."""
    outer: Any = None
    """That of the code around, where a transformation has begun since."""
    refuses = False
    """True if an operation has noted that nobody may go back through it."""

    def __enter__(self) -> "Recorder":
        return self

    def __exit__(self, *exc_info: object):
        del exc_info

    @property
    def is_current(self) -> bool:
        """True if it records present computations: no other transformation was entered since."""
        return False

    def is_above(self, trace: object) -> bool:
        """Returns True if it records present computations, directly above that trace of JAX's."""
        del trace
        return False

    def is_beside(self, trace: object) -> bool:
        """Returns True if it records present computations above that trace, for the code's own derivatives alone."""
        del trace
        return False

    def has(self, array: object) -> bool:
        """Returns True if the array has a history that the code knows of."""
        del array
        return False

    def knows(self, array: jax.Array) -> bool:
        """Returns True if the array has a history here or in an outer one."""
        del array
        return False

    def primal(self, array: object) -> Any:
        """The array without its history."""
        return array

    def with_values(self, array: object, values: object) -> Any:
        """Other values with the history of `array`."""
        del array
        return values

    def with_own_variable(self, array: jax.Array) -> object:
        """The array of a tensor that is made: with variables of its own, if the present ones are another tensor's."""
        return array

    def tracked(self, array: jax.Array, origins: object = ()) -> object:
        """The array with a history, even where it has no derivative with respect to its origins."""
        del origins
        return array

    def variables(self, array: jax.Array) -> list:
        """The places of an array in the history."""
        del array
        return []

    def leaf(self, array: object, source: "Source") -> object:
        """An array of the same values with which the history of `source` begins."""
        del source
        return array

    def leaves(self) -> int:
        """The number of leaves that histories here and around begin with."""
        return 0

    def adopt(self) -> None:
        """Continues the histories of leaves from outer records here."""

    def end_of(self, tensor: "Torchish") -> Any:
        """The part of a tensor that its history keeps, without values."""
        del tensor
        return None

    def show(self, node: "Node") -> None:
        """Sees a node whose hooks backward passes must call."""


class ForwardLevel(Level):
    """The code within a level of forward mode: what is computed of dual tensors has tangents."""

    def note(self, storage: "Storage") -> None:
        """Sees a storage that may hold an array with a tangent."""

    def has(self, array: object) -> bool:
        """Returns True if an array has a tangent."""
        del array
        return False

    def has_tangent(self, tensor: "Torchish") -> bool:
        """Returns True if a tensor has a tangent."""
        del tensor
        return False

    def complete(self, result: "Torchish", operands: object) -> None:
        """Gives a result a tangent where an operand has one."""
        del result, operands

    def without_gradient(self, array: object) -> Any:
        """An array that keeps its tangent, but is a constant to derivatives backwards."""
        return array

    def with_zero_tangent(self, array: jax.Array) -> Any:
        """The array with a tangent of zero."""
        return array

    def parts(self, tensor: "Torchish") -> tuple[object, object]:
        """The values of a tensor, and its tangent if it has one."""
        return tensor, None
