"""`torch.autograd.forward_ad`: JAX's tangents, from the start of a dual level to its end."""

import contextlib
import weakref
from collections.abc import Iterable
from typing import Any, cast

import jax
import jax.numpy as jnp
import torch
from jax import lax

from ..internals.dispatch import DisableTorchFunction
from ..internals.transforms import forward_mode_module, is_fwd_grad_enabled
from ..rules.features import Feature
from ..rules.inplace import write_in_place
from ..runtime.patches import replaces
from ..runtime.translation import Call, this_call
from ..tensors.array_buffer import ArrayBuffer
from ..tensors.levels import ForwardLevel
from ..tensors.storage import Storage
from ..tensors.tensor import Torchish, make_view
from ..tracing.tensor_spec import TensorSpec
from ..tracing.traces import Tangents, current_trace, running
from .func import tangent_array
from .tape import Tape


class DualLevel(ForwardLevel, Feature):
    """A level of forward-mode AD: while it is entered, results computed from dual tensors have tangents."""

    def __init__(self):
        self._call = this_call()
        self._tangents: Any = None
        self._storages: list[weakref.ref[Storage]] = []
        self.is_open = False
        self._exits = contextlib.ExitStack()

    def enter(self) -> None:
        """Begins the level."""
        self._tangents = Tangents(current_trace())
        self._exits.enter_context(running(self._tangents.trace))
        self._exits.enter_context(self._call.nested())
        self._call.dual = self
        self.is_open = True
        if self._call.tape is not None:
            self._call.tape.adopt()

    def leave(self) -> None:
        """Ends the level: its tensors keep their values, without tangents."""
        self.is_open = False
        kept = [storage for storage in [reference() for reference in self._storages] if storage is not None]
        kept = [storage for storage in kept if not storage.is_released]
        values = [(storage.buffer, storage.known) for storage in kept]
        lowered = [self._lowered(buffer.array) for buffer, _ in values]
        self._call.dual = None
        self._exits.close()
        for storage, ((before, layout), known), array in zip(kept, values, lowered, strict=True):
            if self._tangents.has(array) or array is not before:
                # Nothing may read what was there again: others may share the memory.
                storage.replace(ArrayBuffer(self._tangents.values(array), layout), known, is_written=True)

    def note(self, storage: Storage) -> None:
        """Keeps in mind a storage that may hold an array with a tangent."""
        self._storages.append(weakref.ref(storage))

    @property
    def tag(self):
        """JAX's tag of this level's tangents."""
        return self._tangents.tag

    def has(self, array: jax.Array) -> bool:
        """Returns True if an array has a tangent."""
        return self._tangents.has(self._lowered(array))

    def _lowered(self, array: jax.Array):
        return self._call.leaving(array)

    def without_gradient(self, array: jax.Array):
        """An array that keeps its tangent, but is a constant to derivatives backwards."""
        lowered = self._lowered(array)
        if not self._tangents.has(lowered):
            return lax.stop_gradient(array)
        tangent = self._tangents.tangent(lowered)
        with running(self._tangents.below):
            values = lax.stop_gradient(self._tangents.values(lowered))
            return values if tangent is None else self._tangents.dual(values, lax.stop_gradient(tangent))

    def dual(self, tensor: Torchish, tangent: torch.Tensor) -> Torchish:
        """A tensor on the same memory with a tangent; writes to either keep both up to date.

        Raises:
            RuntimeError: one of them has a tangent already, or the tangent is of another shape.
        """
        spec, given = TensorSpec.of(tensor), self._call.constants.lift(tangent)
        if self.has_tangent(tensor):
            raise RuntimeError(
                "Making a dual Tensor based on a Tensor that already has a forward gradient at the same level is not "
                "supported."
            )
        if self.has_tangent(given):
            raise RuntimeError(
                "Trying to set a forward gradient that has a forward gradient at the same level, this is not supported."
            )
        if not _have_same_geometry(tensor, given):
            given = _like(given, spec)
        array = self._tangents.dual(
            self._lowered(tensor.buffer.array), self._lowered(tangent_array(given, tensor, spec))
        )
        tape = cast("Tape | None", self._call.tape)
        if spec.wants_grad and tape is not None:
            array = tape.captured(tensor, array)
        result = _alias(tensor, array)
        result._node.storage.differentiable = True
        result.descend((tensor,), "MakeDual")
        _Pair(self, result, given)
        return result

    def parts(self, tensor: Torchish) -> tuple[torch.Tensor, torch.Tensor | None]:
        """The values of a tensor, and its tangent if it has one."""
        if not self.has_tangent(tensor):
            return tensor, None
        spec, array, tape = TensorSpec.of(tensor), self._lowered(tensor.buffer.array), self._call.tape
        values = self._tangents.values(array)
        primal = _alias(tensor, values if tape is None else tape.with_values(tensor.buffer.array, values))
        primal._node.storage.history = tensor.history
        pair, tangent = vars(tensor).get("_pair"), self._tangents.tangent(array)
        if pair is not None and pair.level is self:
            return primal, pair.tangent
        if tangent is None:
            return primal, None
        return primal, _Pair(self, tensor, spec.result(tangent)).tangent

    def has_tangent(self, tensor: Torchish) -> bool:
        """Returns True if a tensor is dual."""
        return self.has(tensor.buffer.array)

    def tangent_of(self, tensor: Torchish) -> Any:
        """The array of the tangent, with writes until now; None for zero."""
        return self._tangents.tangent(self._lowered(tensor.buffer.array))

    def complete(self, tensor: Torchish, operands: Iterable[Torchish]) -> None:
        """Sets the tangent of a tensor that depends on dual ones to zero, if it has none."""
        if not is_fwd_grad_enabled():
            return
        if any(map(self.has_tangent, operands)) and not self.has_tangent(tensor):
            array, layout = tensor.buffer
            if array.dtype.kind in "fcV":  # of numbers that have derivatives
                tensor._node.write(ArrayBuffer(self.with_zero_tangent(array), layout), None)

    def with_zero_tangent(self, array: jax.Array):
        """An array that has no tangent with one of zero."""
        lowered, tape = self._lowered(array), self._call.tape
        dual = self._tangents.dual(lowered, jnp.zeros_like(lowered))
        return dual if tape is None else tape.with_values(array, dual)

    def move(self, tensor: Torchish, tangent: Torchish) -> None:
        """Gives a dual tensor another tangent."""
        (array, layout), tape = tensor.buffer, self._call.tape
        new_tangent = tangent_array(tangent, tensor, TensorSpec.of(tensor))
        dual = self._tangents.dual(self._tangents.values(self._lowered(array)), self._lowered(new_tangent))
        dual = dual if tape is None else tape.with_values(array, dual)  # gradients backwards go on as before
        tensor._node.write(ArrayBuffer(dual, layout), None)


class _Pair:
    """A dual tensor and its tangent, which follow each other's writes."""

    def __init__(self, level: DualLevel, dual: Torchish, tangent: Torchish):
        self.level, self.tangent = level, tangent
        self._dual = weakref.ref(dual)
        self._is_following = False
        dual._pair = self  # pyright: ignore[reportAttributeAccessIssue]
        dual._node.storage.memory.follow(self._follow_dual)
        tangent._node.storage.memory.follow(self._follow_tangent)

    def _follow_dual(self) -> None:
        dual = self._dual()
        if dual is None or self._is_following or not self.level.is_open:
            return
        found = self.level.tangent_of(dual)
        if found is not self.tangent.buffer.array:
            with self._following(), torch.no_grad():
                new_tangent: Any = (
                    torch.zeros_like(self.tangent) if found is None else TensorSpec.of(dual).tensor(found)
                )
                write_in_place(self.tangent, new_tangent)

    def _follow_tangent(self) -> None:
        dual = self._dual()
        if dual is not None and self.level.is_open and not self._is_following:
            with self._following():
                self.level.move(dual, self.tangent)

    @contextlib.contextmanager
    def _following(self):
        self._is_following = True
        try:
            yield
        finally:
            self._is_following = False


def _have_same_geometry(tensor: Torchish, tangent: Torchish) -> bool:
    """True if a tangent may serve a tensor directly: both have one geometry, so their views agree."""
    if tangent.shape != tensor.shape or not tensor.numel():
        return True  # an error that others tell of, or nothing to view
    node, other = tensor._node, tangent._node
    with DisableTorchFunction():
        if (tensor.stride(), tensor.storage_offset()) != (tangent.stride(), tangent.storage_offset()):
            return False
    memories = node.storage.memory, other.storage.memory
    return node.bits == other.bits and (bool(this_call().transformations) or memories[0].size == memories[1].size)


def _like(tangent: Torchish, spec: TensorSpec) -> Torchish:
    """A copy of a tangent that lies in memory as a tensor of that form."""
    copied: Any = torch.empty(tangent.shape, dtype=tangent.dtype)
    if spec.strides is not None:
        copied = torch.empty_strided(tangent.shape, spec.strides, dtype=tangent.dtype)
    return copied.copy_(tangent)


def _alias(tensor: Torchish, array: jax.Array) -> Torchish:
    """Another tensor on the memory of one, whose history begins with an array of the same values.

    Where elements of it are one in memory, it is of memory of its own: nothing can be written to it.
    """
    buffer = ArrayBuffer(array, tensor.buffer.layout)
    node = Storage(buffer) if tensor._node.overlaps else tensor._node.rebased(buffer)
    with torch.enable_grad():
        return make_view(tensor, node, tensor)


@replaces(forward_mode_module("_enter_dual_level"), "_enter_dual_level")
def _enter() -> int:
    call = this_call()
    if call.dual is not None:
        raise RuntimeError(
            "Nested forward mode AD is not supported at the moment: a dual level is open; wanted torch.func.jvp for "
            "derivatives of derivatives"
        )
    DualLevel().enter()
    return 0


@replaces(forward_mode_module("_exit_dual_level"), "_exit_dual_level")
def _exit(level: object) -> None:
    del level
    dual = cast("DualLevel | None", this_call().dual)
    if dual is None:
        raise RuntimeError("Trying to exit a forward AD level, but none was entered in this call")
    dual.leave()


def _open(call: Call) -> DualLevel:
    """The level of a call.

    Raises:
        RuntimeError: none is open, as where one was that PyTorch counts outside of the call.
    """
    dual = cast("DualLevel | None", call.dual)
    if dual is None:
        raise RuntimeError(
            "got make_dual or unpack_dual without an open level in this call; wanted them inside dual_level()"
        )
    return dual


@replaces(forward_mode_module("_make_dual"), "_make_dual")
def _make_dual(tensor: torch.Tensor, tangent: torch.Tensor, *, level: object):
    del level
    call = this_call()
    return _open(call).dual(call.constants.lift(tensor), tangent)


@replaces(forward_mode_module("_unpack_dual"), "_unpack_dual")
def _unpack_dual(tensor: torch.Tensor, *, level: object):
    del level
    return _open(this_call()).parts(tensor) if isinstance(tensor, Torchish) else (tensor, None)
