"""Copies of a call's tensors: by ``copy.copy``, pickles and files, and as NumPy arrays that follow writes.

A traced value has no bytes. A pickle has a number in the place of a tensor, by which the call finds it again: some
classes copy themselves so, as e3nn's modules, and the call copies each module's structure. A file outlives its call,
so `torch.save` of such a tensor is an error.
"""

import copy
import itertools
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Any

import numpy as np
import torch

from ..internals.dispatch import DisableTorchDispatch, DisableTorchFunction
from ..internals.tensors import rebuilding
from ..runtime.errors import TracedValueError
from ..runtime.layers import SPARSE
from ..runtime.patches import replaces, runs_instead_of
from ..runtime.translation import current, kept, lift, lift_own, this_call
from ..tensors.tensor import OF_NO_SUBCLASS, Torchish

_reduce_tensor = torch.Tensor.__reduce_ex__
_storage_of = torch.Tensor._typed_storage
_rebuild_real = rebuilding._rebuild_tensor

_numbers = itertools.count()
_saves: ContextVar[bool] = ContextVar("saves", default=False)


class _Copies(dict[int, torch.Tensor]):
    """Copies of the tensors that pickles of a call's code refer to, by their numbers there."""


class _Held:
    """A tensor among the arguments of a copy: `copy.copy` passes it on, and a pickle has its number."""

    def __init__(self, tensor: torch.Tensor):
        self.tensor = tensor

    def __reduce_ex__(self, protocol: int):
        tensor = this_call().constants.standing_for(self.tensor)
        if _saves.get():
            raise RuntimeError(
                f"torch.save got a tensor of shape {tuple(tensor.shape)} within a translated call, where its values "
                "may not be computed yet: return it from the call, and save the result outside"
            )
        if isinstance(tensor, torch.nn.Parameter) or (isinstance(tensor, Torchish) and tensor.history is not None):
            raise RuntimeError(
                f"a tensor of shape {tuple(tensor.shape)} that requires grad was pickled within a translated call, "
                "where its copy would have no gradient: pickle tensor.detach(), or copy it by copy.deepcopy"
            )
        number = next(_numbers)
        kept(_Copies)[number] = tensor.clone()
        return _held, (number,)


def _held(number: int) -> _Held:
    """The tensor with that number in a pickle.

    Raises:
        RuntimeError: another call made the pickle, or none is in progress.
    """
    if current() is None or number not in kept(_Copies):
        raise RuntimeError(
            "a tensor that was pickled within a translated call is loaded outside of that call, where it has no "
            "values: return it from the call, and pickle the result"
        )
    return _Held(kept(_Copies)[number].clone())


@runs_instead_of(torch.save, with_original=True)
def _save(original: Callable[..., None], *args: object, **kwargs: object) -> None:
    token = _saves.set(True)
    try:
        original(*args, **kwargs)
    finally:
        _saves.reset(token)


@replaces(torch.Tensor, "__reduce_ex__")
@replaces(torch.nn.Parameter, "__reduce_ex__")
def _reduce(given: Any, protocol: object):
    if isinstance(given, (Torchish, SPARSE.classes)) or type(given) in OF_NO_SUBCLASS:
        return _copied, (_Held(given),)
    return _reduce_tensor(given, protocol)  # it wraps others, which are asked in turn


def _copied(held: _Held):
    tensor = this_call().constants.standing_for(held.tensor)
    return tensor.detach() if isinstance(tensor, SPARSE.classes) else copy.copy(lift(tensor))


# What `torch.load` reads.


class _as_pytorch:
    """Runs the code within as if no call were translated."""

    def __enter__(self):
        self._contexts = (DisableTorchFunction(), DisableTorchDispatch(), torch.enable_grad())
        for context in self._contexts:
            context.__enter__()

    def __exit__(self, *exc_info: Any):
        for context in reversed(self._contexts):
            context.__exit__(*exc_info)


@replaces(rebuilding, "_rebuild_tensor")
def _rebuild_own(storage: object, storage_offset: int, size: Sequence[int], stride: Sequence[int]):
    with _as_pytorch():
        tensor = _rebuild_real(storage, storage_offset, size, stride)
    return lift_own(tensor)


@replaces(torch.Tensor, "_typed_storage")
def _typed_storage(tensor: torch.Tensor):
    if isinstance(tensor, Torchish):
        return _storage_of(tensor)
    with _as_pytorch():  # `torch.load` reads files so
        return _storage_of(tensor)


class _Lent:
    """The memory of an array for a tensor, read-only because the tensor would not see writes.

    It lives as long as the array and its views, whose base it is.
    """

    def __init__(self, tensor: Torchish, read: Callable[[Torchish], np.ndarray]):
        self._tensor, self._read = tensor, read
        self.values = np.array(read(tensor), order="C")
        interface = self.values.__array_interface__
        self.__array_interface__ = {**interface, "data": (interface["data"][0], True)}
        tensor._node.storage.memory.follow(self._show)

    def _show(self) -> None:
        """Copies a write to the tensor into the array, if it is known and of the same size."""
        try:
            values = self._read(self._tensor)
        except TracedValueError:
            return
        if values.shape == self.values.shape:
            self.values[...] = values


def lend(tensor: Torchish, read: Callable[[Torchish], np.ndarray]) -> np.ndarray:
    """A read-only array that follows writes to a tensor.

    Args:
        read: gives a tensor's values.

    Raises:
        TracedValueError: they depend on a traced input.
    """
    lent = _Lent(tensor, read)
    return np.asarray(lent).view(lent.values.dtype)


def is_lent(array: object) -> bool:
    """Returns True if a value is an array from `lend`, or a view of one."""
    while isinstance(array, np.ndarray):
        array = array.base
    return isinstance(array, _Lent)
