"""Identity: a tensor's memory, its offset there, and its version; PyTorch's storage objects."""

import itertools
import weakref

import torch

from ..calls.call import current
from ..internals.guards import DisableTorchDispatch, DisableTorchFunction
from ..internals.memory import StorageBase
from ..patches import stands_in
from ..rules.inplace import expect_writable
from ..rules.registry import implements_tensors
from ..tensors.dtypes import canonical
from ..tensors.history import Source
from ..tensors.memory import Memory
from ..tensors.rebinding import become, resize
from ..tensors.tensor import Torchish, make_region, strides_of_shape
from .mutation import set_data, set_without_derivative

aten = torch.ops.aten
Tensor = torch.Tensor

_addresses = itertools.count(1 << 48, 1 << 40)  # above those of the process, and far apart: memory may grow

_COPIES = "torch2jax"  # among what `copy.deepcopy` has copied


class _StorageIdentity(torch.UntypedStorage):
    """The identity of memory to PyTorch: a storage without bytes, which lives as long as the memory."""

    address: int
    array: object = None  # the memory at that address, if code has an array that stands for the tensor's
    of_tensors: "weakref.ref[TensorStorage] | None" = None  # as long as code holds it: asked again, it is the same


def _place_of(memory: Memory) -> _StorageIdentity:
    memory.expect_all()
    if memory.place is None:
        memory.place = _StorageIdentity(0)
        lent = current().numpy_views.place_of(memory)
        memory.place.address, memory.place.array = (next(_addresses), None) if lent is None else lent
    return memory.place


class TensorStorage(torch.UntypedStorage):
    """The storage of tensors of a translated call: reads and writes the bytes that they are views of.

    What needs an address of memory (files, processes, devices) is refused with a ``RuntimeError``. Addresses of data
    can be compared and subtracted; nothing is to be found there, unless an array of NumPy's stands for the memory.
    """

    _tensor: Torchish

    @classmethod
    def of(cls, tensor: Torchish) -> "TensorStorage":
        place = _place_of(tensor._node.storage.memory)
        storage = None if place.of_tensors is None else place.of_tensors()
        if storage is None:
            storage = cls(0)
            storage._tensor = tensor
            place.of_tensors = weakref.ref(storage)
        return storage

    @property
    def _memory(self) -> Memory:
        return self._tensor._node.storage.memory

    @property
    def _bytes(self) -> Tensor:
        return self.region(torch.uint8, 0, (self.nbytes(),))

    def region(self, dtype: torch.dtype, offset: int, size, stride=None) -> Torchish:
        """A view of elements of `dtype`; the memory grows as needed.

        Raises:
            RuntimeError: a size or the offset is negative, or the bytes of `dtype` are not there: JAX holds 64-bit
                types in 32 bits.
        """
        size = tuple(size)
        stride = strides_of_shape(size) if stride is None else tuple(stride)
        if any(n < 0 for n in size) or offset < 0:
            raise RuntimeError(f"set_ got the size {list(size)} and the offset {offset}; wanted none that is negative")
        if dtype.itemsize * canonical(self._tensor.dtype).itemsize != canonical(dtype).itemsize * self._tensor.itemsize:
            raise RuntimeError(
                f"the bytes of a storage of {self._tensor.dtype} are those of a 32-bit type; "
                f"to read them as {dtype}, set jax_enable_x64"
            )
        last = offset + sum((n - 1) * step for n, step in zip(size, stride, strict=True)) + 1
        if 0 not in size and last * dtype.itemsize > self.nbytes():
            self.resize_(last * dtype.itemsize)
        return make_region(self._tensor, size, stride, offset, dtype)

    # Identity.

    def data_ptr(self) -> int:
        return _place_of(self._memory).address if self.nbytes() else 0

    @property
    def _cdata(self) -> int:
        return _place_of(self._memory)._cdata

    def _weak_ref(self) -> int:
        return _place_of(self._memory)._weak_ref()  # pyright: ignore[reportReturnType]

    # Size and contents.

    def nbytes(self) -> int:
        storage, dtype = self._tensor._node.storage, self._tensor.dtype
        return storage.memory.size * storage.dtype.itemsize * dtype.itemsize // canonical(dtype).itemsize

    size = __len__ = nbytes

    @property
    def device(self) -> torch.device:
        return self._tensor.device

    def resizable(self) -> bool:
        return True

    def resize_(self, size: int) -> "TensorStorage":
        """Makes room for `size` bytes.

        Raises:
            RuntimeError: that are fewer than before, which tensors may still read.
        """
        if size < self.nbytes():
            raise RuntimeError(
                f"resize_ got {size} bytes for a storage of {self.nbytes()}; wanted no fewer: while it is traced, "
                "memory is never given back. Make a new tensor instead"
            )
        grown = make_region(self._tensor, (0,), (1,), 0)
        resize(grown, (-(-size // grown.itemsize),), (1,))
        return self

    def __getitem__(self, index):
        if isinstance(index, slice):
            return TensorStorage.of(self._bytes[index].clone())
        return self._bytes[index].item()

    def __setitem__(self, index, value):
        self._bytes[index] = value

    def __iter__(self):
        return iter(self.tolist())

    def tolist(self) -> list[int]:
        return self._bytes.tolist()

    def fill_(self, value) -> "TensorStorage":
        self._bytes.fill_(value)
        return self

    def copy_(self, source, non_blocking=None) -> "TensorStorage":
        self._bytes.copy_(storage_of(source)._bytes)
        return self

    def clone(self) -> "TensorStorage":
        return TensorStorage.of(self.region(self._tensor.dtype, 0, (self.nbytes() // self._tensor.itemsize,)).clone())

    def _byteswap(self, size: int) -> None:
        self._bytes.copy_(self._bytes.view(-1, size).flip(1).view(-1))

    def __deepcopy__(self, memo) -> "TensorStorage":
        return TensorStorage.of(copy_of_memory(self._tensor, memo))

    def cpu(self) -> "TensorStorage":
        return self

    def is_shared(self) -> bool:
        return False

    @property
    def filename(self) -> None:
        return None

    def is_pinned(self, device=None) -> bool:
        return False

    def pin_memory(self, device=None) -> "TensorStorage":
        return self

    share_memory_ = cpu


def _refused(name: str):
    def refuse(self, *args, **kwargs):
        raise RuntimeError(
            f"UntypedStorage.{name}() needs the address of memory, which the storage of a tensor of a translated call "
            "lacks; return the tensor from the call, or call PyTorch itself with torch2jax"
        )

    return refuse


_ANSWERED_BY_PYTORCH = ("_free_weak_ref", "_expired", "element_size")
for _name in vars(StorageBase):
    if not _name.startswith("__") and _name not in (*vars(TensorStorage), *_ANSWERED_BY_PYTORCH):
        setattr(TensorStorage, _name, _refused(_name))


_wrap = torch.TypedStorage._new_wrapped_storage


@stands_in(torch.TypedStorage, "_new_wrapped_storage")
def _new_wrapped_storage(self, untyped_storage):
    if isinstance(untyped_storage, TensorStorage):
        return torch.TypedStorage(wrap_storage=untyped_storage, dtype=self.dtype, _internal=True)
    return _wrap(self, untyped_storage)


def storage_of(source) -> TensorStorage:
    """The storage of this call's tensors for a storage of PyTorch's, perhaps a typed one."""
    if isinstance(source, torch.TypedStorage):
        source = source._untyped_storage
    if isinstance(source, TensorStorage):
        return source
    if source.device.type == "meta":
        raise NotImplementedError("Cannot copy out of meta tensor; no data!")
    with DisableTorchFunction(), DisableTorchDispatch():
        real = torch.empty(0, dtype=torch.uint8, device=source.device).set_(source)
    return TensorStorage.of(current().lift_own(real))


def is_copied(tensor: Torchish, memo: dict) -> bool:
    """Whether a deep copy has copied the memory of a tensor."""
    return id(tensor._node.storage.memory) in memo.get(_COPIES, ())


def copy_of_memory(tensor: Torchish, memo: dict) -> Torchish:
    """What a tensor, or the one that it is a view of, becomes in a deep copy: one for all that share its memory."""
    root = tensor if tensor._viewed is None else tensor._viewed
    memory, copies = root._node.storage.memory, memo.setdefault(_COPIES, {})
    if id(memory) not in copies:
        copies[id(memory)] = (memory, root.clone())
    return copies[id(memory)][1]


@implements_tensors(Tensor.untyped_storage)
def untyped_storage(self):
    return TensorStorage.of(current().lift(self))


@implements_tensors(Tensor.data_ptr)
def data_ptr(self):
    if not self.numel():
        return 0
    return _place_of(current().lift(self)._node.storage.memory).address + self.storage_offset() * self.element_size()


@implements_tensors(Tensor.is_set_to, aten.is_set_to.default)
def is_set_to(self, tensor):
    self, tensor = current().lift(self), current().lift(tensor)
    same_place = self.storage_offset() == tensor.storage_offset() and self.stride() == tensor.stride()
    return self._node.storage.memory is tensor._node.storage.memory and self.shape == tensor.shape and same_place


@implements_tensors(Tensor._version.__get__)
def _version(self):
    return current().lift(self)._writes[0]


@implements_tensors(torch._C._autograd._unsafe_set_version_counter)
def _unsafe_set_version_counter(tensors, versions):
    for tensor, version in zip(tensors, versions, strict=True):
        current().lift(tensor)._writes[0] = version


@stands_in(torch._C, "_increment_version")
def _increment_version(tensors):
    for tensor in tensors:
        current().lift(tensor).count_write()


@implements_tensors(aten._version.default)
def _aten_version(self):
    return self._version


@implements_tensors(
    Tensor.set_,
    aten.set_.default,
    aten.set_.source_Tensor,
    aten.set_.source_Storage,
    aten.set_.source_Storage_storage_offset,
    aten.set_.source_Tensor_storage_offset,
)
def set_(self, source=None, storage_offset=0, size=None, stride=None):
    self = current().lift(self)
    if source is None:
        source = torch.empty(0, dtype=self.dtype)
    if isinstance(source, Tensor):
        source = current().lift(source)
        if source.dtype != self.dtype:
            raise RuntimeError(f"Could not set tensor of type {source.dtype} to a tensor of type {self.dtype}")
        place = source if size is None else TensorStorage.of(source).region(self.dtype, storage_offset, size, stride)
    else:
        storage = storage_of(source)
        if size is None:
            size = (storage.nbytes() // self.itemsize,)
        place = storage.region(self.dtype, storage_offset, size, stride)
    if torch.is_grad_enabled():
        expect_writable(self)
        become(self, place.detach())
        if isinstance(source, Tensor) and current().lift(source).history is not None:
            set_without_derivative(self, source, "derivative for set_ is not implemented")
    else:  # it goes on to require grad, as another leaf
        set_data(self, place)
        if isinstance(self.history, Source) and self.history.variable is self:
            self.end_history()
            self.change("_ended", None)  # what begins is another leaf, on other memory
            self.start_history()
    self.count_write()
    return self
