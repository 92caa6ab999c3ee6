"""Tensors and arrays from outside a call, as tensors of the call.

Each tensor from outside has one tensor of the call, by its id; it is kept, so that the id stays its own.

- Tensors that share memory outside share it here. A storage is brought in as a whole, once, and other tensors on it are
  views of that. Where a state has an array for a part of a storage, tensors within that part are views of the array.
- Values are copied: JAX may still compute when the call has ended, or keep them in a graph or for a derivative, and
  PyTorch may write to the original by then. The runs of one call share the copies (`Execution.constants`).
- The memory of a constant is marked as `foreign`, with the number 0: nobody outside sees what is written to it. It is
  marked as independent of the call's inputs too, unless the tensor is an argument.
"""

import contextlib
from typing import Any

import jax
import numpy as np
import torch
from jax import lax

from ..internals.dispatch import DisableTorchDispatch, DisableTorchFunction
from ..rules.features import NEXT, HasSparse, Incoming, incoming_of
from ..runtime.errors import OnMetaError, QuantizedError, StridedNestedError, WrapsOthersError
from ..runtime.translation import this_call
from ..tensors.array_buffer import ArrayBuffer, LazyArray
from ..tensors.dtypes import DOUBLES, SPARSE_LAYOUTS, canonical, dtype_j2t, tell_of_narrowing
from ..tensors.history import Source
from ..tensors.interop import array_of_values, dense_strides, is_dense, region_of, values_of
from ..tensors.journal import next_number
from ..tensors.known import LazyConstant, is_small
from ..tensors.regions import CONJUGATE, NEGATIVE
from ..tensors.storage import Storage, View
from ..tensors.tensor import OF_NO_SUBCLASS, Torchish, make_region, make_view, wrap, wrap_buffer
from ..tensors.traced import evaluating, is_traced
from ..tracing.traces import current_trace, is_transforming


class Constants:
    """The call's tensors for tensors from outside, on memory that is shared as theirs is."""

    def __init__(self):
        self._tensors: dict[int, tuple[torch.Tensor, Torchish]] = {}  # by id, with those from outside to keep these
        self._storages: dict[int, tuple[torch.dtype, Torchish]] = {}  # by their addresses, with the dtype outside
        self._parts: dict[int, list[tuple[torch.Tensor, Torchish]]] = {}  # what is bound to a part of a storage
        self._noted: dict[int, torch.Tensor] | None = None
        self._is_graph: tuple[object, bool] | None = None  # and of which trace

    def bind(self, tensor: torch.Tensor, array: jax.Array) -> Torchish:
        """Binds an array to a real tensor (a parameter, a buffer) for this call; code may write to it."""
        execution = this_call().execution
        incoming = incoming_of(type(tensor))
        array = execution.entering(incoming.array(tensor, array))
        with DisableTorchFunction():
            dtype = tensor.dtype if array.dtype == canonical(tensor.dtype) else dtype_j2t(array.dtype)
            covers = _covers_storage(tensor)
            is_filling = covers or is_dense(tensor)
            strides = tensor.stride() if is_filling and tensor.shape == array.shape else None
            lifted = wrap(array, dtype, strides=strides)
            self._remember(tensor, lifted, is_alone=True, covers=covers)
            if is_filling and not covers:
                self._parts.setdefault(tensor.untyped_storage()._cdata, []).append((tensor, lifted))
            if lifted.history is None and execution.is_differentiated(array):
                lifted.start_history(is_given=True)
            execution.note_given(array, lifted)
            return self._made(tensor, lifted, incoming)

    def bind_alias(self, tensor: torch.Tensor, bound: Torchish) -> Torchish:
        """Binds a tensor to the call's tensor for another one with the same memory, offset and shape."""
        with DisableTorchFunction(), DisableTorchDispatch(), torch.enable_grad():
            lifted = make_region(bound, tuple(bound.shape), bound.stride(), bound.storage_offset())
            return self._remember(tensor, _without_history(lifted, tensor))

    def bind_missing(self, tensor: torch.Tensor, error: Exception) -> Torchish:
        """Binds a tensor on the meta device to one without values, which raises `error` when its values are needed."""

        def refuse() -> ArrayBuffer:
            raise error

        with DisableTorchFunction(), DisableTorchDispatch():
            values = LazyArray(refuse, tuple(tensor.shape), canonical(tensor.dtype))
            lifted = wrap_buffer(values, tensor.dtype, None, tensor.stride() if is_dense(tensor) else None)
            self._remember(tensor, lifted, requires_grad=False)  # there is nothing to take a gradient of
        return self._made(tensor, lifted, incoming_of(type(tensor)))

    def _made(self, tensor: torch.Tensor, lifted: Torchish, incoming: Incoming) -> Torchish:
        made = incoming.made(tensor, lifted)
        if made is not lifted:
            self._tensors[id(tensor)] = (tensor, made)
        return made

    def bind_copy(self, tensor: torch.Tensor, values: torch.Tensor) -> Torchish:
        """Binds an array of a copy of `values` to a tensor from outside: a constant."""
        return self.bind(tensor, self._copied(values)[1])

    def lift_own(self, tensor: torch.Tensor) -> Torchish:
        """As `lift`, for a tensor that the call may write to, since nothing outside refers to it."""
        lifted = self.lift(tensor)
        memory = lifted._node.storage.memory
        memory.foreign, memory.number = False, next_number()
        return lifted

    @contextlib.contextmanager
    def noting(self):
        """A context that returns the tensors from outside which are used within, by id."""
        before, self._noted = self._noted, {}
        try:
            yield self._noted
        finally:
            self._noted = before

    def _known(self, tensor: torch.Tensor) -> Torchish | None:
        """The call's tensor for a tensor from outside, if there is one."""
        entry = self._tensors.get(id(tensor))
        if entry is None:
            return None
        if self._noted is not None and entry[1]._node.storage.memory.number == 0:
            self._noted[id(tensor)] = tensor
        return entry[1]

    def refers_to(self, tensor: torch.Tensor) -> bool:
        """Returns True if the memory of the call's tensor keeps a reference to the tensor from outside."""
        entry = self._tensors.get(id(tensor))
        return entry is not None and entry[1]._node.storage.memory.given is tensor

    def storages(self) -> list[Storage]:
        """The storages of all tensors from outside."""
        return [lifted._node.storage for _, lifted in self._tensors.values()]

    def standing_for(self, tensor: torch.Tensor) -> torch.Tensor:
        """The call's tensor for one from outside, if there is one already; else the tensor itself."""
        known = self._known(tensor)
        return tensor if known is None else known

    def lift(self, value: Any) -> Torchish:
        """The call's tensor for a tensor or array from outside: a constant."""
        if isinstance(value, Torchish):
            return value
        if isinstance(value, torch.Tensor):
            known = self._known(value)
            if known is not None:
                return known
            call = this_call()
            for feature in call.features.bringing:
                brought = feature.bring_in(call, value)
                if brought is not NEXT:
                    return brought
            with call.outside():
                lifted = self._lift_constant(value)
            self._known(value)
            return lifted
        if not isinstance(value, jax.Array):
            with contextlib.suppress(TypeError), DisableTorchFunction():  # dtypes that PyTorch lacks
                return self.lift_own(torch.from_numpy(np.array(value)))
            with evaluating():  # a known value, also while JAX traces
                value = jax.numpy.array(value)
        return self._given(value)

    def lift_argument(self, value: torch.Tensor | np.ndarray) -> Torchish:
        """As `lift`, of an argument: an input of the call, unless the call is within another."""
        lifted = self.lift(value)
        if this_call().is_top_level and not isinstance(value, Torchish):
            storage = lifted._node.storage
            storage.memory.is_constant = False
            if type(storage.history) is Source:
                storage.history.stale = None  # nobody but the caller has computed it
        return lifted

    def given(self, array: jax.Array | np.ndarray, dtype: torch.dtype) -> Torchish:
        """As `lift_argument`, for an array of a narrower dtype than `dtype`."""
        if isinstance(array, jax.Array):
            return self._given(array, dtype)
        with DisableTorchFunction():
            tensor = torch.from_numpy(np.array(array)).to(dtype)
            self.lift_own(tensor)
            return self.lift_argument(tensor)

    def _given(self, array: jax.Array, dtype: torch.dtype | None = None) -> Torchish:
        """The call's tensor for an array from outside; its dtype is that of the array by default."""
        execution = this_call().execution
        array = execution.entering(array)
        lifted = wrap(array, dtype or dtype_j2t(array.dtype))
        if execution.is_differentiated(array):
            tape = this_call().tape
            if tape is None or not tape.knows(array):
                lifted.start_history(is_given=True, is_alone=True)
                execution.note_given(array, lifted)
            else:  # a JAX function within the call has computed it
                lifted.descend_from_afar()
        return lifted

    def _lift_constant(self, tensor: torch.Tensor) -> Torchish:
        if type(tensor) not in OF_NO_SUBCLASS:
            brought = incoming_of(type(tensor)).lift(this_call(), tensor)
            if brought is not NEXT:
                return brought
        with DisableTorchFunction(), DisableTorchDispatch(), torch.enable_grad():
            _expect_data(tensor)
            if tensor.dtype in DOUBLES:
                tell_of_narrowing(tensor.dtype)
            view = self._view(tensor) if tensor.layout is torch.strided else None
            lifted = self._constant(tensor) if view is None else view
            is_leaf = tensor.is_leaf
            gradient = tensor.grad if is_leaf else None
        if gradient is not None:
            lifted._gradient = self.lift_own(gradient)
        self._remember(tensor, lifted, is_alone=view is None)
        history = lifted._node.storage.history
        if not is_leaf and type(history) is Source and lifted._node.storage.memory.foreign:
            history.stale = tensor
        return lifted

    def _view(self, tensor: torch.Tensor) -> Torchish | None:
        """The call's tensor for a tensor, as a view of that for its memory; None if the tensor is all of its memory."""
        if tensor.is_conj() or tensor.is_neg():
            kind, plain = (CONJUGATE, tensor.conj()) if tensor.is_conj() else (NEGATIVE, torch._neg_view(tensor))
            base = self.lift(plain)
            return make_view(base, View(base._node, kind), base)
        key = tensor.untyped_storage()._cdata
        for around, bound in self._parts.get(key, ()):
            if _is_within(tensor, around):
                offset = tensor.storage_offset() - around.storage_offset()
                lifted = make_region(bound, tuple(tensor.shape), tensor.stride(), offset, bound.dtype)
                return _without_history(lifted, tensor)
        if key not in self._storages:
            if _covers_storage(tensor):
                return None
            memory = tensor.detach().new_empty(0).set_(tensor.untyped_storage())
            self._remember(memory, self._constant(memory))
        lifted = _region_of(*self._storages[key], tensor)
        return None if lifted is None else _without_history(lifted, tensor)

    @property
    def stages(self) -> bool:
        """True if JAX is tracing a graph, which may outlive the tensors' values."""
        return self.stages_in(current_trace())

    def stages_in(self, trace: object) -> bool:
        """As `stages`, for JAX's current trace."""
        if self._is_graph is None or self._is_graph[0] is not trace:
            self._is_graph = (trace, is_transforming() and is_traced(lax.full((), 0.0)))
        return self._is_graph[1]

    def _constant(self, tensor: torch.Tensor) -> Torchish:
        strides = tensor.stride() if is_dense(tensor) else None
        if this_call().is_lazy and is_small(tensor.numel()) and tensor.layout is torch.strided:
            canonical(tensor.dtype)  # says that JAX lacks it
            values = values_of(tensor).clone()
            strides = strides or dense_strides(values)
            lifted = wrap_buffer(LazyConstant(values), values.dtype, values, strides, tensor.device)
        else:
            values, array = self._copied(tensor)
            known = values if self.stages else None
            lifted = wrap(array, tensor.dtype, known, strides=strides, device=tensor.device)
        memory = lifted._node.storage.memory
        memory.foreign, memory.number, memory.is_inference = True, 0, tensor.is_inference()
        memory.is_constant, memory.given = True, tensor
        return lifted

    def _copied(self, tensor: torch.Tensor) -> tuple[torch.Tensor, jax.Array]:
        """A copy of a tensor, which PyTorch's writes after the call do not change, and the array of the copy.

        JAX may still be computing then, or keep the values in a graph or for a derivative.
        """
        copies = this_call().execution.constants
        if copies is not None and id(tensor) in copies:
            return copies[id(tensor)][1:]
        # What a graph holds is on no device in particular.
        values = values_of(tensor.cpu() if self.stages else tensor).clone()
        array = array_of_values(values, copy=False)
        if copies is not None:
            copies[id(tensor)] = tensor, values, array
        return values, array

    def _remember(
        self,
        tensor: torch.Tensor,
        lifted: Torchish,
        requires_grad: bool | None = None,
        is_alone: bool = False,
        covers: bool | None = None,
    ) -> Torchish:
        with DisableTorchFunction(), DisableTorchDispatch():
            vars(lifted).update(vars(tensor))
            if isinstance(tensor, torch.nn.Parameter):
                lifted._is_param = True
            if tensor.requires_grad if requires_grad is None else requires_grad:
                lifted.start_history(is_alone=is_alone)
                if tensor._backward_hooks or tensor._post_accumulate_grad_hooks:
                    for feature in this_call().features.hooking:
                        feature.take_hooks(tensor, lifted)
            if _covers_storage(tensor) if covers is None else covers:
                self._storages.setdefault(tensor.untyped_storage()._cdata, (tensor.dtype, lifted))
            self._tensors[id(tensor)] = (tensor, lifted)
        return lifted


def _expect_data(tensor: torch.Tensor) -> None:
    """Refuses a tensor without memory of its own, from which anything might be read.

    Raises:
        OnMetaError: it is on the meta device, or a fake one.
        HasSparse: it is sparse.
        StridedNestedError: it is nested, in PyTorch's older layout.
        QuantizedError: it is of one of PyTorch's quantized dtypes.
        WrapsOthersError: it wraps other tensors.
    """
    is_plain = type(tensor) in OF_NO_SUBCLASS
    if tensor.layout in SPARSE_LAYOUTS:
        raise HasSparse
    if tensor.is_nested:
        raise StridedNestedError
    if tensor.is_meta:
        raise OnMetaError
    if tensor.is_quantized:
        raise QuantizedError(tensor.dtype)
    if is_plain or tensor.layout is not torch.strided:
        return
    storage = tensor.untyped_storage()
    if storage.device.type == "meta":  # that of a fake tensor, which warns of the check below
        raise OnMetaError
    try:
        storage.data_ptr()
    except RuntimeError:
        raise WrapsOthersError(type(tensor)) from None


def _covers_storage(tensor: torch.Tensor) -> bool:
    """Returns True if a tensor is all of its storage, as most are, so that its array can serve as that memory."""
    if not is_dense(tensor) or tensor.is_conj() or tensor.is_neg():
        return False
    return tensor.numel() * tensor.element_size() == tensor.untyped_storage().nbytes()


def _is_within(tensor: torch.Tensor, around: torch.Tensor) -> bool:
    """Returns True if all elements of a tensor are among those of another on the same storage."""
    if tensor.dtype != around.dtype or not tensor.numel():
        return False
    own, other = region_of(tensor), region_of(around)
    return other.start <= own.start and own.stop <= other.stop


def _without_history(view: Torchish, tensor: torch.Tensor) -> Torchish:
    """A view for a tensor: without a history if the tensor has none, as after ``weight.detach()``."""
    if view.history is not None and not tensor.requires_grad:
        view._node = view._node.detached()
    return view


def _region_of(dtype: torch.dtype, base: Torchish, tensor: torch.Tensor) -> Torchish | None:
    """A view of the call's tensor for the storage of `tensor`; None if the bytes are laid out otherwise than in
    PyTorch.

    Args:
        dtype: that of the tensor which `base` stands for; `base` may have been given another.
    """
    if tensor.dtype == dtype:
        return make_region(base, tuple(tensor.shape), tensor.stride(), tensor.storage_offset(), base.dtype)
    storage = base._node.storage
    size = storage.memory.size * storage.dtype.itemsize
    if base.dtype != tensor.dtype and size != tensor.untyped_storage().nbytes():
        return None
    return make_region(base, tuple(tensor.shape), tensor.stride(), tensor.storage_offset(), tensor.dtype)
