"""`Torchish`: a `torch.Tensor` whose values are a jax array."""

from typing import Any

import torch

from .storage import Held, Storage, View, ViewKind
from .translation import current

__all__ = ["Torchish", "geometry", "make_view", "set_metadata", "strides_of_copy", "wrap"]

_CPU = torch.device("cpu")


class Torchish(torch.Tensor):
    """A tensor that reads a jax array from a storage through a chain of views.

    PyTorch holds its shape, strides, offset and *logical* dtype, which are those that PyTorch itself would report; the
    array may be narrower while ``jax_enable_x64`` is off. It lives within the translated call that made it.
    """

    _node: Storage | View
    _label: torch.device  # what the code asked for; JAX alone decides where the array lives
    _wants_grad: bool

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        del types
        return _call(func).dispatch(func, args, kwargs or {})

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        del types
        return _call(func).dispatch_aten(func, args, kwargs or {})

    def read(self):
        """The jax array of this tensor's values, of its shape."""
        return self._node.read()

    @property
    def known(self):
        """The array or `Deferred` of the values if no traced input decides them, else None."""
        return self._node.known

    @property
    def held(self) -> Held:
        """The values as they are held, perhaps with their dimensions in another order."""
        return self._node.held

    def write(self, held: Held, known=None) -> None:
        """Replaces the values, for every tensor on the same storage; they have this tensor's shape and dtype."""
        self._node.write(held, known)


def _call(func):
    call = current()
    if call is None:
        raise RuntimeError(
            f"{getattr(func, '__name__', func)} got a tensor of a translated call that has ended; "
            "return tensors from the function given to t2j instead of keeping them aside"
        )
    return call


def wrap(
    array,
    dtype: torch.dtype,
    known: Any = None,
    *,
    layout: tuple[int, ...] | None = None,
    strides: tuple[int, ...] | None = None,
    device: torch.device = _CPU,
) -> Torchish:
    """A tensor on a new storage that holds `array`, contiguous unless `strides` says otherwise.

    Args:
        array: the values, with their dimensions in the order `layout`.
        known: the array or `Deferred` of the values, with their dimensions in order, if no traced input decides them.
    """
    shape = array.shape
    if layout is not None:
        shape = tuple(size for _, size in sorted(zip(layout, shape, strict=True)))
    order = None if strides is None else _memory_order(strides)
    return _make(Storage(Held(array, layout), known, order), shape, dtype, strides, None, device)


def _memory_order(strides: tuple[int, ...]) -> tuple[int, ...] | None:
    order = tuple(sorted(range(len(strides)), key=lambda dim: -strides[dim]))
    return None if order == tuple(range(len(strides))) else order


def _make(node, shape, dtype, strides, offset, device) -> Torchish:
    tensor = torch.Tensor._make_wrapper_subclass(  # pyright: ignore[reportAttributeAccessIssue]
        Torchish, shape, strides=strides, storage_offset=offset, dtype=dtype
    )
    tensor._node = node
    tensor._label = device
    tensor._wants_grad = False
    return tensor


def geometry(view, base: torch.Tensor, *args, **kwargs) -> torch.Tensor:
    """What PyTorch says of ``view(base, ...)``: a tensor without data, to ask for shape, strides and offset.

    PyTorch's view kernels compute nothing but these, and check the arguments. `view` must be one of them.
    """
    with torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch():
        return view(base, *args, **kwargs)


def make_view(base: Torchish, kind: ViewKind, like: torch.Tensor, *, of_storage: bool = False) -> Torchish:
    """A view of `base`, or of its whole storage, with the geometry and dtype of `like`."""
    with torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch():
        shape, dtype, strides, offset = like.shape, like.dtype, like.stride(), like.storage_offset()
    parent = base._node.storage if of_storage else base._node
    tensor = _make(View(parent, kind), shape, dtype, strides, offset, base._label)
    tensor._wants_grad = base._wants_grad
    return tensor


def set_metadata(tensor: Torchish, node: Storage | View, shape, strides, offset: int = 0) -> None:
    """Makes `tensor` itself read `node`, with a new shape; PyTorch's metadata follows."""
    geometry(torch.Tensor.as_strided_, tensor, shape, strides, offset)
    tensor._node = node


def strides_of_copy(tensor: torch.Tensor, memory_format=torch.preserve_format) -> tuple[int, ...]:
    """The strides that ``clone`` or ``empty_like`` gives a copy of `tensor`."""
    with torch._C.DisableTorchFunction():
        if tensor.is_contiguous() and memory_format in (torch.preserve_format, torch.contiguous_format):
            return tensor.stride()
        return geometry(torch.empty_like, tensor, memory_format=memory_format, device="meta").stride()
