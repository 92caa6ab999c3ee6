"""PyTorch's own tensors around compiled parts: their memory, which parts write to, and how it becomes JAX's.

An attribute says which tensors around compiled parts are PyTorch's own, and whether they require grad.

Also here: JAX values as PyTorch tensors and back, without compilation.

Python around compiled parts counts, compares, concatenates, and cuts out what it wants: small tensors, of another
shape each time. Each shape would be one more program for XLA. So these are real tensors, that a part takes as arrays:
integers and booleans, and floating-point tensors where JAX's device is the CPU too. What nobody else has may be written
to; what came from outside of the call never is. PyTorch records no gradients of them: they only tell whether they
require grad, and code that wants gradients runs again with a tape, where nothing is PyTorch's.
"""

import contextlib
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
import torch

from ...internals.dispatch import DisableTorchDispatch, DisableTorchFunction
from ...internals.tensors import storage_use_count, to_dlpack_versioned
from ...runtime.translation import Call
from ...tensors.array_buffer import ArrayBuffer, LazyArray
from ...tensors.dtypes import canonical, is_integral, values_in_dtype
from ...tensors.interop import dense_strides, tensor_to_array
from ...tensors.journal import Uncontained
from ...tensors.known import in_pytorch, real
from ...tensors.rebinding import alias_of, swap_objects
from ...tensors.storage import Storage, View
from ...tensors.tensor import CPU, Torchish, make_region, make_tensor, with_strides, wrap, wrap_new
from .reordered import DonatedArrays, Orders

NO, YES, WANTING = 0, 1, 2
"""The states of a tensor: not PyTorch's own; PyTorch's own; PyTorch's own that requires grad."""


def state_of(value: object) -> int:
    return getattr(value, "_is_host", NO)


_to_dlpack = to_dlpack_versioned  # which translated code has something else for


def replacement_for(value: torch.Tensor, array: jax.Array) -> Torchish:
    """An array of the values of one of PyTorch's own as a tensor of the call, which requires grad if that does."""
    tensor = wrap(array, value.dtype, strides=dense_strides(value))
    if state_of(value) == WANTING:
        tensor.descend_from_afar()
    return tensor


def copied_values(tensor: Torchish) -> torch.Tensor:
    """A new tensor of PyTorch's own with the values of a tensor of the call, for which nothing is compiled."""
    with DisableTorchFunction(), DisableTorchDispatch():
        node, dtype = tensor._node, tensor.dtype
        root = node.storage.root
        known: Any = root.known
        waits = known is not None and isinstance(root.lazy(None, None), LazyArray)
        if isinstance(node, View) and node.region is not None and not node.is_chosen:
            region = node.region._replace(bits=node.bits, dtype=node.region.dtype or dtype)
            if waits or (isinstance(known, jax.Array) and known.is_fully_addressable):
                return _in_order_of(tensor, in_pytorch(_read, region, known, root.frame).to(dtype))
        elif node is root and known is not None and waits:
            return _in_order_of(tensor, real(known).clone())
        return _in_order_of(tensor, _copied(tensor.read(), dtype))


def _in_order_of(tensor: Torchish, values: torch.Tensor) -> torch.Tensor:
    """The values with the strides that PyTorch's tensor would have, so that results have PyTorch's strides too."""
    strides = dense_strides(tensor)
    return values if strides is None else with_strides(values, strides)


def _read(region: Any, known: jax.Array, frame: object) -> torch.Tensor:
    return region.read(real(known), frame).clone().resolve_conj().resolve_neg()


def _copied(array: jax.Array, dtype: torch.dtype) -> torch.Tensor:
    """An array as a tensor of PyTorch's own."""
    copied = torch.empty(array.shape, dtype=dtype)
    write(copied, array)
    return copied


def write(tensor: torch.Tensor, array: jax.Array) -> None:
    """Writes an array to a tensor of PyTorch's own, in one copy that leaves it resizable: `Tensor.numpy` would not."""
    np.copyto(np.from_dlpack(_Lent(tensor)), np.asarray(array), casting="unsafe")


class _Lent:
    """A tensor of PyTorch's own, lent to numpy to be written to."""

    __slots__ = ("_tensor",)

    def __init__(self, tensor: torch.Tensor):
        self._tensor = tensor

    def __dlpack__(self, **_):
        return _to_dlpack(self._tensor)

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0  # a CPU


_ALONE = 2  # what memory counts of those that use it, where that is one tensor: the other is who asks


class Memories:
    """The memory of PyTorch's own tensors in one call."""

    def __init__(self):
        self.shown: dict[int, torch.Tensor] = {}
        """The tensors that have memory which views on JAX show, by that memory."""
        self.is_blurred = False
        """True if memory of a tensor that is said not to require grad may do so."""

    def write_back(self, value: torch.Tensor, array: jax.Array, wants: bool) -> None:
        """Copies writes to the call's tensor back to the tensor of PyTorch's own for which it was made.

        Args:
            wants: whether that requires grad.

        Raises:
            NotImplementedError: a view on JAX shares its memory.
        """
        if self.shown:
            self.expect_writable(value)
        if wants and state_of(value) == YES and not is_integral(value.dtype):
            value._is_host = WANTING  # pyright: ignore[reportAttributeAccessIssue]
            self.is_blurred = True
        with DisableTorchFunction(), DisableTorchDispatch():
            if array.shape != value.shape:
                value.resize_(array.shape)
            write(value, array)

    def receive(self, value: torch.Tensor, storage: Storage, wants: bool) -> None:
        """Writes to one of PyTorch's own tensors what a part has written to the storage that stood for its memory.

        Floating-point values, as a cache has, are JAX's from then on, if nobody else has that memory.
        """
        may_be_replaced = not is_integral(value.dtype) and not storage.memory.is_part
        if not may_be_replaced or not self._replace(value, lambda: _at_storage(value, storage)):
            self.write_back(value, storage.read(), wants)

    def give_up_all(self, values: tuple) -> None:
        """Turns PyTorch's own among some values into tensors of JAX's, where one must share the memory of another.

        Raises:
            NotImplementedError: the memory of one is that of others too.
        """
        for value in values:
            if state_of(value) == NO:
                continue
            self._give_up(value)
            if state_of(value) != NO:
                raise _shared_already()

    def share(self, value: torch.Tensor, tensor: Torchish) -> None:
        """Turns one of PyTorch's own into the tensor of JAX's that stood for it, because another one shares its memory
        now.

        Where others have the memory of the first too, neither may be written to as long as they all are there.
        """
        with DisableTorchFunction(), DisableTorchDispatch():
            if self._replace(value, lambda: alias_of(tensor)):
                return
            number = value.untyped_storage()._cdata
        memory = tensor._node.storage.memory
        self.shown[number] = value
        weakref.finalize(memory, self.shown.pop, number, None).atexit = False
        memory.follow(self._refuse)

    def _give_up(self, value: torch.Tensor) -> None:
        """Turns one of PyTorch's own into a tensor of JAX's, unless others share its memory."""
        self._replace(value, lambda: replacement_for(value, tensor_to_array(value, copy=False)))

    def _replace(self, value: torch.Tensor, make: Callable[[], Torchish]) -> bool:
        """Replaces one of PyTorch's own tensors by one of JAX's; returns False if others share its memory."""
        with DisableTorchFunction(), DisableTorchDispatch():
            if storage_use_count(value.untyped_storage()._cdata) > _ALONE:
                return False
            try:
                swap_objects(value, make())
            except RuntimeError:
                return False
        return True

    def _refuse(self) -> None:
        raise _shared_already()

    def expect_writable(self, value: torch.Tensor) -> None:
        """
        Raises:
            NotImplementedError: a tensor's memory is to be written to, and is shared with a view on JAX.
        """
        if state_of(value) != NO:
            with DisableTorchFunction():
                if value.untyped_storage()._cdata in self.shown:
                    raise _shared_already()


def _shared_already() -> NotImplementedError:
    return NotImplementedError(
        "a tensor around compiled parts (compile=...) would share memory with another, but has views of its own; "
        "wanted one without views, such as a clone()"
    )


def _at_storage(value: torch.Tensor, storage: Storage) -> Torchish:
    """A tensor of the call like one of PyTorch's own, with the contents of a storage."""
    shape = storage.buffer.shape
    return make_tensor(storage, shape, value.dtype, dense_strides(value) if shape == value.shape else None, None, CPU)


_FEW, _MANY = 64, 256  # elements of what may recur, and how many tensors of that kind are kept
_FLOATS = frozenset((torch.float32, torch.float64))
_INTEGERS = frozenset(x for x in vars(torch).values() if isinstance(x, torch.dtype) and is_integral(x))


class HostTensors:
    """The tensors around compiled parts that are PyTorch's own, on the host.

    Args:
        call: the call.
    """

    def __init__(self, call: Call):
        self._call = call
        self._lifted: list[dict[int, tuple[torch.Tensor, Torchish]]] = []
        self._is_closed = False
        self._has_floats = jax.default_backend() == "cpu"
        self._dtypes = _INTEGERS | _FLOATS if self._has_floats else _INTEGERS
        self._kept: set[int] = set()  # the memories of what stands for constants
        self._constants: dict[int, tuple[Torchish, tuple, torch.Tensor]] = {}
        self.memories = Memories()
        self.donated = DonatedArrays()
        self._orders = Orders(self.donated.has, self.owns)

    def owns(self, value: object) -> bool:
        """Returns True if a tensor is one of PyTorch's own that code around parts has made."""
        return state_of(value) != NO

    def _taken(self, result: object, wants: bool = False) -> Any:
        if isinstance(result, torch.Tensor):
            dtype = result.dtype
            if self._kept and result.untyped_storage()._cdata in self._kept:
                result = result.clone()
            if is_integral(dtype):
                result._is_host = YES  # pyright: ignore[reportAttributeAccessIssue]
                return result
            if dtype in self._dtypes:
                state = WANTING if wants else state_of(result) or YES
                result._is_host = state  # pyright: ignore[reportAttributeAccessIssue]
                return result
            return self._call.constants.lift_own(result)
        if isinstance(result, (tuple, list)) and any(isinstance(x, torch.Tensor) for x in result):
            items = [self._taken(x, wants) for x in result]
            return type(result)(items)
        return result

    def _copy_of(self, tensor: Torchish) -> torch.Tensor:
        """A copy of a tensor's values, as PyTorch's own tensor.

        One that may well be asked for again, since it is from outside, or of few elements as the end token is, has the
        same copy each time, until it is written to.
        """
        memory = tensor._node.storage.memory
        with DisableTorchFunction():
            if not memory.foreign and tensor.numel() > _FEW:
                return copied_values(tensor)
        state = tensor._node, memory.version  # a tensor that changes itself is at another node
        entry = self._constants.get(id(tensor))
        if entry is None or entry[0] is not tensor or entry[1] != state:
            if len(self._constants) == _MANY:
                self._constants.clear()
                self._kept.clear()  # no other tensor has that memory
            entry = self._constants[id(tensor)] = tensor, state, copied_values(tensor)
            with DisableTorchFunction():
                self._kept.add(entry[2].untyped_storage()._cdata)
        return entry[2]

    def lift(self, value: torch.Tensor) -> Torchish:
        """The call's tensor for one of PyTorch's own, while a function runs.

        Raises:
            Uncontained: it runs in a trace that does not take the tensor for an argument.
        """
        lifted = self._lifted[-1] if self._lifted else {}
        if id(value) not in lifted:
            if self._is_closed:
                raise Uncontained("a tensor that is in neither its module nor its arguments")
            with self._call.outside(), DisableTorchFunction(), DisableTorchDispatch():
                tensor = replacement_for(value, tensor_to_array(value))
            tensor._node.storage.memory.foreign = not self._lifted
            lifted[id(value)] = value, tensor
        return lifted[id(value)][1]

    @contextlib.contextmanager
    def lifting(self, lifted: dict[int, tuple[torch.Tensor, Torchish]]):
        """A context in which PyTorch's own tensors with these ids have tensors of the call, and no others."""
        before, self._is_closed = self._is_closed, True
        self._lifted.append(lifted)
        try:
            yield
        finally:
            self._lifted.pop()
            self._is_closed = before

    def standing_for(self, value: torch.Tensor) -> Torchish:
        """A new tensor of the call with the same values, in a NumPy array: for a program.

        PyTorch's overrides must be off, as they are where a part looks for what it reaches.
        """
        copied = value.clone(memory_format=torch.contiguous_format)  # PyTorch cannot resize what numpy has
        array = values_in_dtype(copied.numpy(), canonical(value.dtype))
        tensor = wrap_new(ArrayBuffer(array, None), value.shape, array.size, value.dtype, dense_strides(value))
        if state_of(value) == WANTING:
            tensor.descend_from_afar()
        return tensor

    def memory_of(self, value: torch.Tensor) -> torch.Tensor:
        """The whole memory of one of PyTorch's own tensors, as one dimension."""
        with DisableTorchFunction(), DisableTorchDispatch():
            size = value.untyped_storage().nbytes() // value.element_size()
            return self._taken(value.as_strided((size,), (1,), 0), state_of(value) == WANTING)

    def view(
        self, value: torch.Tensor, shape: Sequence[int], strides: Sequence[int], offset: int, dtype: torch.dtype
    ) -> torch.Tensor:
        """A view of a contiguous PyTorch tensor, at an offset in elements of a dtype."""
        with DisableTorchFunction(), DisableTorchDispatch():
            if state_of(value) != NO and dtype in self._dtypes:
                begin = int(value.storage_offset()) * value.itemsize // dtype.itemsize
                view = torch.empty(0, dtype=dtype).set_(value.untyped_storage(), begin + offset, shape, strides)
                return self._taken(view, state_of(value) == WANTING)
            self.memories.give_up_all((value,))
        given_up: Any = value  # which is all of its memory now
        return make_region(given_up, shape, strides, offset, dtype)
