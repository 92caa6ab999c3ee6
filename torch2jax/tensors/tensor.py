"""`Torchish`: a `torch.Tensor` whose values are a jax array."""

import functools
import threading
import weakref
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from jax import Array

from ..internals.dispatch import DisableTorchDispatch, DisableTorchFunction
from ..internals.jax import ArrayImpl
from ..internals.tensors import make_wrapper_subclass
from ..internals.transforms import is_fwd_grad_enabled
from ..runtime.caches import remembered
from ..runtime.errors import EndedCallError, OnMetaError, StaleGradientError
from ..runtime.translation import calls_of_thread, current, this_call
from .array_buffer import ArrayBuffer, LazyArray
from .distributed import is_split
from .dtypes import canonical
from .history import UNRECORDED, FromAfar, Node, Saved, Source
from .journal import expect_contained, journal
from .known import Geometry, Known, evaluate, in_pytorch, real
from .levels import Recorder
from .regions import region
from .storage import Storage, View
from .traced import without_gradient
from .view_kind import Gaps, all_of

CPU = torch.device("cpu")
OF_NO_SUBCLASS = (torch.Tensor, torch.nn.Parameter)
"""The classes of PyTorch's own tensors that are of no subclass: such a tensor wraps no others."""
_takes_tangents = is_fwd_grad_enabled
_as_subclass = torch.Tensor.as_subclass  # for which something else may stand in
_NOT_COPIED = frozenset(("_node", "_label", "_warned", "_viewed", "_writes", "_ended"))


class Restriction(NamedTuple):
    """The origin of a view, where PyTorch forbids to write to such a view with gradients on."""

    kind: str
    """``"no_grad"`` or ``"inference"``, ``"multiple"`` for one of several of a function's, ``"custom"``."""
    name: str = ""
    """The function's name."""
    number: int = 0
    """The index of the result."""
    writes: int = 0
    """The number of writes to the memory until then."""
    is_inherited: bool = False
    """True if it comes from the tensor that was viewed."""


class Torchish(torch.Tensor):
    """A tensor that reads a jax array from a storage through a chain of views.

    PyTorch holds its shape, strides, offset and *logical* dtype, which are those that PyTorch itself would report; the
    array may be narrower while ``jax_enable_x64`` is off. It lives within the translated call that made it.
    """

    __module__ = "torch"  # by which libraries tell whose array it is, and whose functions take it

    _node: Storage | View
    _label: torch.device  # what the code asked for; JAX alone decides where the array lives
    _viewed: torch.Tensor | None = None  # what this is a view of, as `Tensor._base` gives it
    _writes: list[int]  # how many there were, counted for all views of one tensor together: `Tensor._version`
    _restriction: Restriction | None = None
    _ended: tuple | None = None
    """The end of `requires_grad` of a leaf: the node before, the node since, and the number of writes until then."""
    _gradient: torch.Tensor | None = None  # `Tensor.grad`
    _retains_grad: bool = False
    python_type: type | None = None  # the Python type of what code takes for a number, and no tensor

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., object],
        types: Collection[type],
        args: tuple[object, ...] = (),
        kwargs: dict[str, object] | None = None,
    ):
        if is_foreign(types) or (len(types) > 1 and any(map(wraps_others, types))):
            return NotImplemented  # what wraps others knows what to do
        return _call(func).dispatch(func, args, kwargs or {})

    @classmethod
    def __torch_dispatch__(
        cls,
        func: Callable[..., Any],
        types: Collection[type],
        args: tuple[object, ...] = (),
        kwargs: dict[str, object] | None = None,
    ):
        if len(types) > 1 and not all(issubclass(kind, Torchish) for kind in types):
            return NotImplemented  # what wraps others knows what to do
        return _call(func).dispatch_past_overrides(func, args, kwargs or {})

    def as_subclass(self, cls: type):
        # PyTorch asks no override about it.
        return _call(_as_subclass).dispatch(_as_subclass, (self, cls), {})

    def __repr__(self, *, tensor_contents: object = None) -> str:
        # Not through `__torch_function__`: PyTorch's own errors print arguments while that is switched off.
        del tensor_contents
        call = current()
        return "<tensor of another call>" if call is None else call.dispatch(torch.Tensor.__repr__, (self,), {})

    def __copy__(self) -> "Torchish":
        copied = make_view(self, self._node, self)
        vars(copied).update(self.attributes)
        return copied

    @property
    def attributes(self) -> dict[str, Any]:
        """The attributes that a copy takes over: the gradient, and those that code has set."""
        return {key: value for key, value in vars(self).items() if key not in _NOT_COPIED}

    def change(self, name: str, value: object) -> None:
        """Sets an attribute, so that a journal may undo it."""
        active = journal()
        if active is not None:
            active.note_change(self._node, functools.partial(setattr, self, name, getattr(self, name)))
        setattr(self, name, value)

    def read(self):
        """The jax array of this tensor's values, of its shape."""
        return self._node.read()

    def jax(self):
        """The array, a tracer only if a traced input decides it; libraries ask this to see whether JAX is tracing."""
        return self.read() if self.known is None else evaluate(self.known)

    @property
    def known(self):
        """The values as PyTorch and Python may have them, if they depend on no traced input; else None. See `known`."""
        return self._node.known

    @property
    def real_values(self) -> torch.Tensor | None:
        """A tensor of PyTorch's own with the values, not to be written; None if a traced input decides them."""
        known = self._node.known
        if known is None:
            return None
        found = real(known)
        if found.dtype == self.dtype:
            return found
        with DisableTorchFunction(), DisableTorchDispatch():
            return found.to(self.dtype)

    @property
    def lazy(self) -> ArrayBuffer | LazyArray:
        """As `buffer`, though the graph may not have the values yet."""
        node = self._node
        if type(node) is Storage:
            return node.lazy(None, None)
        with DisableTorchFunction():
            return node.lazy(tuple(self.shape), canonical(self.dtype))

    @property
    def buffer(self) -> ArrayBuffer:
        """The values as they are held, perhaps with their dimensions in another order."""
        return self._node.buffer

    @property
    def history(self) -> Node | None:
        """The node of the autograd graph; None if the tensor requires no grad."""
        history = self._node.storage.history
        if history is None:
            return None
        with DisableTorchFunction():
            dtype = self.dtype
        return history if dtype.is_floating_point or dtype.is_complex else None

    def descend(self, operands: "Iterable[Torchish]", operation: str = "Unknown") -> None:
        """Notes the tensors that this one was computed from with gradients on: it requires grad if one of them does."""
        operands = tuple(operands)
        call = this_call()
        if call.dual is not None:
            call.dual.complete(self, operands)
        if all(x._node.storage.history is None for x in operands):
            return
        histories = [x.history for x in operands]
        if any(history is not None for history in histories):
            for history in histories:
                if type(history) is Source and history.stale is not None:
                    raise StaleGradientError(history.stale)
            tape = call.tape
            if tape is None:
                self._node.storage.history = UNRECORDED
                return
            node = Node(operation, histories)
            if not any(x is self for x in operands):  # which would be what it was before
                node.operands = [None if x.history is None else tape.end_of(x) for x in operands]
            self._begin_at(tape, node, [x.buffer.array for x in operands if x.history is not None])

    def refuse(self, message: str) -> None:
        """Makes a backward pass through the operation that gave this tensor raise an error with this message."""
        tape = this_call().tape
        if self.history is not None and tape is not None:
            self.history.refusal, tape.refuses = message, True

    def descend_from_afar(self) -> None:
        """Notes that this tensor requires grad, computed from unknown tensors."""
        self._node.storage.history = UNRECORDED if this_call().tape is None else FromAfar("Transformed")

    def descend_from_saved(self) -> None:
        """Notes that this tensor is a saved one, which required grad."""
        tape = this_call().tape
        if tape is None:
            self._node.storage.history = UNRECORDED
        else:
            self._begin_at(tape, Saved("Saved"))

    def _begin_at(self, tape: Recorder, node: Node, origins: Sequence[Array] = ()) -> None:
        """Records this tensor on the tape as the result of an operation."""
        self._node.storage.history = node
        self._node.storage.track(origins)
        node.end = tape.end_of(self)

    def start_history(self, is_given: bool = False, is_alone: bool = False) -> None:
        """Sets `requires_grad` of the tensor, as a leaf.

        Args:
            is_given: whether JAX differentiates it, which lets it be written to.
            is_alone: whether nothing else is on its storage, as on that of a new tensor.

        Raises:
            RuntimeError: it is of an integer dtype.
        """
        if not (self.dtype.is_floating_point or self.dtype.is_complex):
            raise RuntimeError("only Tensors of floating point dtype can require gradients")
        expect_contained(self._node, "a tensor begins to require grad")
        if self._ended is not None and self._ended[1:] == (self._node, self._writes[0]):
            self.change("_node", self._ended[0])
            return
        call, source = this_call(), Source(self, is_given)
        call.execution.started.add(source)
        tape = call.tape
        if is_alone and tape is None:
            self._node.storage.history = source
            return
        buffer = self.buffer
        if tape is not None:
            buffer = ArrayBuffer(tape.leaf(buffer.array, source), buffer.layout)
        self.change("_node", self._writable().rebased(buffer))
        self._node.storage.history = source
        source.end = None if tape is None else tape.end_of(self)

    def end_history(self) -> None:
        """Clears `requires_grad` of a leaf."""
        expect_contained(self._node, "a tensor ends to require grad")
        buffer, tape, before = self.buffer, this_call().tape, self._node
        array = buffer.array if tape is None else tape.primal(buffer.array)
        self.change("_node", self._writable().rebased(ArrayBuffer(without_gradient(array), buffer.layout)))
        self.change("_ended", (before, self._node, self._writes[0]))

    def _writable(self):
        """The node; as a region of memory where elements of it are the same memory."""
        if not self._node.overlaps:
            return self._node
        with DisableTorchFunction():
            return region(self._node, self.shape, self.stride(), self.storage_offset(), canonical(self.dtype))

    def write(
        self, buffer: ArrayBuffer | LazyArray, known: Known | None = None, *, keeps_derivatives: bool = False
    ) -> None:
        """Replaces the values, for every tensor on the same memory; they have this tensor's shape and dtype.

        Raises:
            RuntimeError: it was there before a transformation that JAX is at, which the values must not outlive.
        """
        levels = this_call().transformations
        if levels:
            buffer = buffer.buffer
            for level in reversed(levels):
                level.check_write(self, buffer.array)
        node = self._node
        if known is not None and (isinstance(node, View) or node.has_grown):
            with DisableTorchFunction():
                region = Geometry(tuple(self.shape), self.stride(), int(self.storage_offset()), self.dtype)
            known = node.known_after(known, region)
        node = self._writable()
        if isinstance(buffer, LazyArray) and not isinstance(known, torch.Tensor):
            buffer = buffer.buffer
        node.write(buffer, known, keeps_derivatives=keeps_derivatives)
        self.count_write()

    def count_write(self) -> None:
        """Notes that code wrote to this tensor, or changed the tensor itself."""
        self._writes[0] += 1


Torchish.__name__ = "Tensor"  # which PyTorch's and Python's messages name


def is_foreign(types: Collection[type]) -> bool:
    """True if an argument is no tensor, yet overrides PyTorch, as the proxies of `torch.fx`: the call is for that."""
    for kind in types:  # noqa: SIM110 - asked at every call, where a generator would cost more than the answer
        if kind is not Torchish and not issubclass(kind, torch.Tensor):
            return True
    return False


@remembered(1024)
def wraps_others(kind: type) -> bool:
    """Returns True if tensors of a class wrap others by PyTorch's protocol, and are none of a call's own."""
    if not issubclass(kind, torch.Tensor) or kind is torch.Tensor or issubclass(kind, Torchish):
        return False
    return hasattr(kind, "__tensor_flatten__") and hasattr(kind, "__tensor_unflatten__") and not is_split(kind)


def function_text(func: Callable[..., object]) -> str:
    """A function's name, or the attribute that it reads or sets."""
    name = getattr(func, "__name__", str(func))
    attribute = getattr(getattr(func, "__self__", None), "__name__", "")
    doing = {"__get__": "reading", "__set__": "setting", "__delete__": "deleting"}.get(name)
    return f"{doing} .{attribute}" if doing and attribute else name


def _call(func: Callable[..., object]):
    call = current()
    if call is None:
        is_elsewhere = threading.current_thread() is not threading.main_thread()
        raise EndedCallError(function_text(func), origin=_OF_THREADS if is_elsewhere else "")
    return call


_OF_THREADS = (
    "If the translated code has started this thread: a call is in progress in its own alone, so compute there. "
)


def wrap(
    array: Array,
    dtype: torch.dtype,
    known: Known | None = None,
    *,
    layout: tuple[int, ...] | None = None,
    strides: tuple[int, ...] | None = None,
    device: torch.device = CPU,
) -> Torchish:
    """A tensor on a new storage that holds `array`, contiguous unless `strides` says otherwise.

    Args:
        array: the values, with their dimensions in the order `layout`.
        known: what is known of the values, with their dimensions in order, if no traced input decides them.
    """
    if type(array) is ArrayImpl and known is None:
        if device is not CPU:
            expect_values(device, dtype)
        shape = array.shape if layout is None else ArrayBuffer(array, layout).shape
        storage = Storage.evaluated(array, layout, array.size, None if strides is None else memory_order(strides))
        return make_tensor(storage, shape, dtype, strides, None, device)
    if not _takes_tangents():
        array = this_call().without_tangents(array)
    return wrap_buffer(ArrayBuffer(array, layout), dtype, known, strides, device)


def wrap_new(
    buffer: ArrayBuffer, shape: Sequence[int], size: int, dtype: torch.dtype, strides: tuple[int, ...] | None
) -> Torchish:
    """As `wrap`, for an operator's result of `size` elements while there is no tape."""
    if not _takes_tangents():
        buffer = ArrayBuffer(this_call().without_tangents(buffer.array), buffer.layout)
    storage = Storage.computed(buffer, size, None if strides is None else memory_order(strides))
    return make_tensor(storage, shape, dtype, strides, None, CPU)


def wrap_buffer(
    buffer: ArrayBuffer | LazyArray,
    dtype: torch.dtype,
    known: Known | None,
    strides: tuple[int, ...] | None,
    device: torch.device = CPU,
) -> Torchish:
    """As `wrap`, for values that the graph may not have yet."""
    if device is not CPU:
        expect_values(device, dtype)
    order = None if strides is None else memory_order(strides)
    if known is None or not isinstance(buffer, LazyArray):
        storage = Storage(buffer, known, order)
    else:
        known = known if _has_strides(known, strides) else in_pytorch(with_strides, known, strides)
        storage = Storage.waiting(buffer, known, order)
    return make_tensor(storage, buffer.shape, dtype, strides, None, device)


def wrap_spread(
    buffer: ArrayBuffer, dtype: torch.dtype, strides: tuple[int, ...], offset: int, device: torch.device = CPU
) -> Torchish:
    """As `wrap`, for elements with gaps between or before them in memory."""
    storage = Storage(buffer, gaps=Gaps(strides, offset))
    return make_tensor(storage, buffer.shape, dtype, strides, offset, device)


def _has_strides(values: Any, strides: tuple[int, ...] | None) -> bool:
    return values.is_contiguous() if strides is None else values.stride() == strides


def with_strides(values: torch.Tensor, strides: tuple[int, ...] | None) -> torch.Tensor:
    """The values with the strides that PyTorch's tensor would have, so that results have PyTorch's strides too."""
    if strides is None:
        return values.contiguous()
    return torch.empty_strided(values.shape, strides, dtype=values.dtype).copy_(values)


def expect_values(device: torch.device, dtype: torch.dtype) -> None:
    """Refuses to make a tensor of a dtype on a device that has no memory.

    Raises:
        OnMetaError: it is meta.
    """
    if device.type == "meta":
        raise OnMetaError(dtype)


def memory_order(strides: tuple[int, ...]) -> tuple[int, ...] | None:
    """The dimensions from the outermost to the innermost in memory, None if in order."""
    order = tuple(sorted(range(len(strides)), key=lambda dim: -strides[dim]))
    return None if order == tuple(range(len(strides))) else order


def make_tensor(
    node: Storage | View,
    shape: Sequence[int],
    dtype: torch.dtype,
    strides: Sequence[int] | None,
    offset: int | torch.SymInt | None,
    device: torch.device,
) -> Torchish:
    """The tensor that reads `node`, with this geometry."""
    tensor = make_wrapper_subclass(Torchish, shape, strides=strides, storage_offset=offset, dtype=dtype)
    tensor._node = node
    tensor._label = device
    tensor._writes = [0]
    calls_of_thread.made[id(tensor)] = weakref.ref(tensor)
    return tensor


_PLAIN = frozenset(
    (int, float, bool, complex, str, type(None), slice, type(Ellipsis), torch.Size, torch.dtype, torch.device)
) | {torch.layout, torch.memory_format, np.ndarray}


def are_constant(values: Iterable[Any]) -> bool:
    """Returns True if an operator's arguments depend on no input of the call, as far as that was followed."""
    for value in values:
        kind = type(value)
        if kind is Torchish:
            node = value._node
            if not (node.memory if type(node) is Storage else node.storage.memory).is_constant:
                return False
        elif kind is tuple or kind is list:
            if not are_constant(value):
                return False
        elif kind not in _PLAIN and kind not in OF_NO_SUBCLASS:
            return False
    return True


def note_constants(values: Iterable[object], number: int = 0) -> None:
    """Marks an operator's results, and its writes, as independent of the call's inputs.

    Args:
        number: that of the last memory there was before; results on older memory are as they were.
    """
    for value in values:
        if isinstance(value, Torchish):
            memory = value._node.storage.memory
            memory.is_constant = memory.is_constant or memory.number > number
        elif isinstance(value, (list, tuple)):
            note_constants(value, number)


def geometry(view: Callable[..., Any], base: torch.Tensor, *args: object, **kwargs: object) -> torch.Tensor:
    """PyTorch's result of ``view(base, ...)``, a tensor without data, to ask for shape, strides and offset.

    PyTorch's view kernels compute nothing but these, and check the arguments. `view` must be one of them.
    """
    with DisableTorchFunction(), DisableTorchDispatch():
        return view(base, *args, **kwargs)


def make_view(base: Torchish, node: Storage | View, like: torch.Tensor) -> Torchish:
    """The tensor that reads `node`, as a view of `base`, with the geometry and dtype of `like`."""
    with DisableTorchFunction(), DisableTorchDispatch():
        shape, dtype, strides, offset = like.shape, like.dtype, like.stride(), like.storage_offset()
    return make_view_of_shape(base, node, shape, dtype, strides, offset)


def make_region(
    base: Torchish,
    shape: Sequence[int],
    strides: Sequence[int],
    offset: int | torch.SymInt,
    dtype: torch.dtype | None = None,
) -> Torchish:
    """The view of a strided region of the memory of `base`, in elements of `dtype` (that of `base`).

    Raises:
        RuntimeError: the region is not within the memory.
    """
    dtype = dtype or base.dtype
    with DisableTorchFunction():
        is_all = (base.shape, base.stride(), base.storage_offset(), base.dtype) == (shape, strides, offset, dtype)
    node = base._node if is_all else region(base._node, shape, strides, offset, canonical(dtype))
    return make_view_of_shape(base, node, shape, dtype, strides, offset)


def make_view_of_shape(
    base: Torchish,
    node: Storage | View,
    shape: Sequence[int],
    dtype: torch.dtype,
    strides: Sequence[int],
    offset: int | torch.SymInt,
) -> Torchish:
    """The tensor that reads `node`, as a view of `base`, with this geometry."""
    if node is base._node and this_call().tape is not None:  # to a tape, what shows all of another is another
        node = View(node, all_of(len(shape)))
    storage, restriction = node.storage, base._restriction
    grad, is_inference = torch.is_grad_enabled(), torch.is_inference_mode_enabled()
    is_view = not storage.memory.is_inference  # to autograd
    if not is_view:
        restriction = None
        node = node if storage.history is None or (grad and is_inference) else node.detached()
    elif not grad:
        restriction = Restriction("inference" if is_inference else "no_grad", writes=base._writes[0])
        if (storage.differentiable or storage.history is not None) and not is_inference:
            node = node.detached(without_gradient)
    elif restriction is not None and restriction.kind in ("no_grad", "inference"):
        restriction = restriction._replace(is_inherited=True)
    if isinstance(node, View) and node.region is None:
        node.region = Geometry(tuple(shape), tuple(strides), int(offset), dtype)
    tensor = make_tensor(node, shape, dtype, strides, offset, base._label)
    if is_view:
        tensor._viewed = base if base._viewed is None else base._viewed
    tensor._writes = base._writes
    if restriction is not None:
        tensor._restriction = restriction
    return tensor


def strides_of_shape(
    shape: Sequence[int], memory_format: torch.memory_format = torch.contiguous_format
) -> tuple[int, ...]:
    """The strides of a new tensor."""
    with DisableTorchFunction(), DisableTorchDispatch():
        return torch.empty(shape, device="meta", memory_format=memory_format).stride()


def strides_of_copy(
    tensor: torch.Tensor, memory_format: torch.memory_format = torch.preserve_format
) -> tuple[int, ...]:
    """The strides that ``clone`` or ``empty_like`` gives a copy of `tensor`."""
    with DisableTorchFunction():
        if memory_format is torch.preserve_format and tensor.is_contiguous():
            return tensor.stride()
        return geometry(torch.empty_like, tensor, memory_format=memory_format, device="meta").stride()
