"""`torch.autograd.forward_ad`: tangents are JAX's, from the beginning of a dual level to its end."""

import contextlib
import weakref
from typing import Any

import torch
from torch._functorch import predispatch

from ..seams import stands_in
from ..tensors.storage import Held, Storage
from ..tensors.tensor import Torchish
from ..translation import current
from .form import Form
from .func import tangent_array
from .traces import Tangents, current_trace, running

__all__ = ["DualLevel"]


class DualLevel:
    """What is computed while it is entered has tangents, if it comes from a tensor that was given one."""

    def __init__(self):
        self._call: Any = current()
        self._tangents: Any = None
        self._storages: list[weakref.ref[Storage]] = []
        self._exits = contextlib.ExitStack()

    def enter(self) -> None:
        """Begins the level."""
        self._tangents = Tangents(current_trace())
        self._exits.enter_context(running(self._tangents.trace))
        self._exits.enter_context(self._call.nested())
        self._call.dual = self

    def leave(self) -> None:
        """Ends the level: what is left of it has values only."""
        kept = [storage for storage in [reference() for reference in self._storages] if storage is not None]
        arrays = [self._lowered(storage.held.array) for storage in kept]
        self._call.dual = None
        self._exits.close()
        for storage, array in zip(kept, arrays, strict=True):
            if self._tangents.has(array):
                held = Held(self._tangents.values(array), storage.held.layout)
                storage.replace(held, storage.known, is_written=True)

    def note(self, storage: Storage) -> None:
        """Keeps in mind a storage that may hold an array with a tangent."""
        self._storages.append(weakref.ref(storage))

    def _lowered(self, array):
        return self._call.leaving(array)

    def dual(self, tensor: Torchish, tangent: torch.Tensor) -> Torchish:
        """A tensor of the same values with a tangent.

        Raises:
            RuntimeError: the tensor has one already, or the tangent is of another shape.
        """
        form, array = Form.of(tensor), self._lowered(tensor.held.array)
        if self._tangents.has(array):
            raise RuntimeError("Expected primal to be a tensor without a tangent at this level; got a dual tensor")
        moved = self._tangents.dual(array, self._lowered(tangent_array(tangent, tensor, form)))
        if form.wants_grad and self._call.tape is not None:
            moved = self._call.tape.adopted(tensor, moved)
        result = form._replace(wants_grad=False).tensor(moved)
        result.descend((tensor,), "MakeDual")
        return result

    def parts(self, tensor: Torchish) -> tuple[torch.Tensor, torch.Tensor | None]:
        """The values of a tensor, and its tangent if it has one."""
        form, array = Form.of(tensor), self._lowered(tensor.held.array)
        if not self._tangents.has(array):
            return tensor, None
        tangent = self._tangents.tangent(array)
        if tangent is None:
            return form.result(self._tangents.values(array)), None
        return form.result(self._tangents.values(array)), form.result(tangent)


@stands_in(predispatch, "_enter_dual_level")
def _enter() -> int:
    call: Any = current()
    if call.dual is not None:
        raise RuntimeError(
            "Nested forward mode AD is not supported at the moment: a dual level is open; wanted torch.func.jvp for "
            "derivatives of derivatives"
        )
    DualLevel().enter()
    return 0


@stands_in(predispatch, "_exit_dual_level")
def _exit(level) -> None:
    del level
    call: Any = current()
    if call.dual is None:
        raise RuntimeError("Trying to exit a forward AD level, but none was entered in this call")
    call.dual.leave()


@stands_in(predispatch, "_make_dual")
def _make_dual(tensor, tangent, *, level):
    del level
    call: Any = current()
    return call.dual.dual(call.lift(tensor), tangent)


@stands_in(predispatch, "_unpack_dual")
def _unpack_dual(tensor, *, level):
    del level
    call: Any = current()
    return call.dual.parts(call.lift(tensor))
