"""Small tensors around compiled parts: real PyTorch tensors, with tensors of the call made for them on demand.

Python around compiled parts counts, compares, concatenates, and cuts out what it wants: small tensors, of another
shape each time. Each shape would be one more program for XLA. So these are real tensors, that a part takes as arrays:
integers and booleans, and floating-point tensors where JAX's device is the CPU too. What nobody else has may be written
to; what came from outside of the call never is. PyTorch records no gradients of them: they only tell whether they
require grad, and code that wants gradients runs again with a tape, where nothing is PyTorch's.
"""

import contextlib
from collections.abc import Sequence
from typing import Any

import jax
import torch

from ...internals.dispatch import DisableTorchDispatch, DisableTorchFunction
from ...runtime.translation import Call
from ...tensors.array_buffer import ArrayBuffer
from ...tensors.dtypes import canonical, is_integral, values_in_dtype
from ...tensors.interop import dense_strides, tensor_to_array
from ...tensors.journal import Uncontained
from ...tensors.tensor import Torchish, make_region, wrap_new
from .host_memory import NO, WANTING, YES, Memories, copied_values, replacement_for, state_of
from .reordered import DonatedArrays, Orders

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
