"""Identity: a tensor's memory, its offset there, and its version; PyTorch's storage objects."""

import itertools
import weakref

import torch

from ..internals.tensors import StorageBase
from ..rules.inplace import expect_writable
from ..rules.registry import implements_tensors
from ..runtime.patches import replaces
from ..runtime.translation import lift
from ..tensors.dtypes import canonical
from ..tensors.history import Source
from ..tensors.journal import Memory
from ..tensors.rebinding import become
from ..tensors.tensor import Torchish, make_region, strides_of_shape
from .mutation import set_data, set_without_derivative

aten = torch.ops.aten
Tensor = torch.Tensor

_addresses = itertools.count(1 << 48, 1 << 40)  # above those of the process, and far apart: memory may grow

_COPIES = "torch2jax"  # among what `copy.deepcopy` has copied


class _StorageIdentity(torch.UntypedStorage):
    """The identity of memory to PyTorch: a storage without bytes, which lives as long as the memory."""

    address: int
    of_tensors: "weakref.ref[TensorStorage] | None" = None  # as long as code holds it: asked again, it is the same


def _identity_of(memory: Memory) -> _StorageIdentity:
    memory.expect_all()
    if memory.identity is None:
        memory.identity = _StorageIdentity(0)
        memory.identity.address = next(_addresses)
    return memory.identity


class TensorStorage(torch.UntypedStorage):
    """The storage of tensors of a translated call: which memory they share, and how large that is.

    Its address can be compared and subtracted, and nothing is to be found there: who asks for its bytes is refused with
    a ``RuntimeError``.
    """

    _tensor: Torchish

    @classmethod
    def of(cls, tensor: Torchish) -> "TensorStorage":
        identity = _identity_of(tensor._node.storage.memory)
        storage = None if identity.of_tensors is None else identity.of_tensors()
        if storage is None:
            storage = cls(0)
            storage._tensor = tensor
            identity.of_tensors = weakref.ref(storage)
        return storage

    @property
    def _memory(self) -> Memory:
        return self._tensor._node.storage.memory

    def region(self, dtype: torch.dtype, offset: int, size, stride=None) -> Torchish:
        """A view of elements of `dtype`.

        Raises:
            RuntimeError: a size or the offset is negative, the storage has fewer elements, or the bytes of `dtype` are
                not there: JAX holds 64-bit types in 32 bits.
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
            raise RuntimeError(
                f"set_ got the size {list(size)}, strides {list(stride)} and offset {offset}, for which a storage of "
                f"{self.nbytes()} bytes has no room; wanted a part of it: make a larger tensor first"
            )
        return make_region(self._tensor, size, stride, offset, dtype)

    # Identity.

    def data_ptr(self) -> int:
        return _identity_of(self._memory).address if self.nbytes() else 0

    @property
    def _cdata(self) -> int:
        return _identity_of(self._memory)._cdata

    def _weak_ref(self) -> int:
        return _identity_of(self._memory)._weak_ref()  # pyright: ignore[reportReturnType]

    # Size.

    def nbytes(self) -> int:
        storage, dtype = self._tensor._node.storage, self._tensor.dtype
        return storage.memory.size * storage.dtype.itemsize * dtype.itemsize // canonical(dtype).itemsize

    size = __len__ = nbytes

    @property
    def device(self) -> torch.device:
        return self._tensor.device


def _refused(name: str):
    def refuse(self, *args, **kwargs):
        raise RuntimeError(
            f"UntypedStorage.{name}() needs memory with an address, which a tensor of a translated call lacks: "
            "read and write the tensor itself, or return it from the call"
        )

    return refuse


_ANSWERED_BY_PYTORCH = ("_expired", "_free_weak_ref", "_get_filename", "element_size", "is_shared", "resizable")
for _name in vars(StorageBase):
    _is_special = _name.startswith("__") and _name not in ("__getitem__", "__setitem__")
    if not _is_special and _name not in (*vars(TensorStorage), *_ANSWERED_BY_PYTORCH):
        setattr(TensorStorage, _name, _refused(_name))


def _storage_of(source) -> TensorStorage:
    """The storage of this call's tensors that is given, perhaps as a typed one.

    Raises:
        TypeError: it is one of PyTorch's own.
    """
    storage = source._untyped_storage if isinstance(source, torch.TypedStorage) else source
    if not isinstance(storage, TensorStorage):
        raise TypeError("set_ got a storage from outside of the translated call; wanted a tensor, or its storage")
    return storage


def is_copied(tensor: Torchish, memo: dict) -> bool:
    """Returns True if a deep copy has copied the memory of a tensor."""
    return id(tensor._node.storage.memory) in memo.get(_COPIES, ())


def copy_of_memory(tensor: Torchish, memo: dict) -> Torchish:
    """The deep copy of a tensor, or of the one that it is a view of: one for all that share its memory."""
    root = tensor if tensor._viewed is None else tensor._viewed
    memory, copies = root._node.storage.memory, memo.setdefault(_COPIES, {})
    if id(memory) not in copies:
        copies[id(memory)] = (memory, root.clone())
    return copies[id(memory)][1]


@implements_tensors(Tensor.untyped_storage)
def untyped_storage(self):
    return TensorStorage.of(lift(self))


@implements_tensors(Tensor.data_ptr)
def data_ptr(self):
    if not self.numel():
        return 0
    return _identity_of(lift(self)._node.storage.memory).address + self.storage_offset() * self.element_size()


@implements_tensors(Tensor.is_set_to, aten.is_set_to.default)
def is_set_to(self, tensor):
    self, tensor = lift(self), lift(tensor)
    is_same_region = self.storage_offset() == tensor.storage_offset() and self.stride() == tensor.stride()
    return self._node.storage.memory is tensor._node.storage.memory and self.shape == tensor.shape and is_same_region


@implements_tensors(Tensor._version.__get__)
def _version(self):
    return lift(self)._writes[0]


@implements_tensors(torch._C._autograd._unsafe_set_version_counter)
def _unsafe_set_version_counter(tensors, versions):
    for tensor, version in zip(tensors, versions, strict=True):
        lift(tensor)._writes[0] = version


@replaces(torch._C, "_increment_version")
def _increment_version(tensors):
    for tensor in tensors:
        lift(tensor).count_write()


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
    self = lift(self)
    if source is None:
        source = torch.empty(0, dtype=self.dtype)
    if isinstance(source, Tensor):
        source = lift(source)
        if source.dtype != self.dtype:
            raise RuntimeError(f"Could not set tensor of type {source.dtype} to a tensor of type {self.dtype}")
        region = source if size is None else TensorStorage.of(source).region(self.dtype, storage_offset, size, stride)
    else:
        storage = _storage_of(source)
        if size is None:
            size = (storage.nbytes() // self.itemsize,)
        region = storage.region(self.dtype, storage_offset, size, stride)
    if torch.is_grad_enabled():
        expect_writable(self)
        become(self, region.detach())
        if isinstance(source, Tensor) and lift(source).history is not None:
            set_without_derivative(self, source, "derivative for set_ is not implemented")
    else:  # it goes on to require grad, as another leaf
        set_data(self, region)
        if isinstance(self.history, Source) and self.history.variable is self:
            self.end_history()
            self.change("_ended", None)  # what begins is another leaf, on other memory
            self.start_history()
    self.count_write()
    return self
