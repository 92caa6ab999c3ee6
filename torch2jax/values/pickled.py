"""Copies of a call's tensors by ``copy.copy``, what pickles of them raise, and the tensors that files give."""

import copy
from collections.abc import Sequence
from typing import Any

import torch

from ..internals.dispatch import DisableTorchDispatch, DisableTorchFunction
from ..internals.tensors import rebuilding
from ..patches import stands_in
from ..tensors.tensor import OF_NO_SUBCLASS, Torchish
from ..translation import this_call
from .sparse import Sparse

_reduce_tensor = torch.Tensor.__reduce_ex__
_storage_of = torch.Tensor._typed_storage
_rebuild_real = rebuilding._rebuild_tensor


class _Held:
    """A tensor among the arguments of what copies it: `copy.copy` hands it on, and a pickle cannot hold it."""

    def __init__(self, tensor: torch.Tensor):
        self.tensor = tensor

    def __reduce_ex__(self, protocol: Any):
        raise RuntimeError(
            f"a tensor of shape {tuple(self.tensor.shape)} was pickled or saved within a translated call, where its "
            "values may not be computed yet: return it from the call, and pickle or save the result outside"
        )


@stands_in(torch.Tensor, "__reduce_ex__")
@stands_in(torch.nn.Parameter, "__reduce_ex__")
def _reduce(given: Any, protocol: Any):
    if isinstance(given, (Torchish, Sparse)) or type(given) in OF_NO_SUBCLASS:
        return _copied, (_Held(given),)
    return _reduce_tensor(given, protocol)  # it wraps others, which are asked in turn


def _copied(held: _Held):
    tensor = this_call().standing_for(held.tensor)
    return tensor.detach() if isinstance(tensor, Sparse) else copy.copy(this_call().lift(tensor))


# What `torch.load` reads.


class _as_pytorch:
    """Runs what is within as if no call were translated."""

    def __enter__(self):
        self._contexts = (DisableTorchFunction(), DisableTorchDispatch(), torch.enable_grad())
        for context in self._contexts:
            context.__enter__()

    def __exit__(self, *exc_info: Any):
        for context in reversed(self._contexts):
            context.__exit__(*exc_info)


@stands_in(rebuilding, "_rebuild_tensor")
def _rebuild_own(storage: Any, storage_offset: int, size: Sequence[int], stride: Sequence[int]):
    with _as_pytorch():
        tensor = _rebuild_real(storage, storage_offset, size, stride)
    return this_call().lift_own(tensor)


@stands_in(torch.Tensor, "_typed_storage")
def _typed_storage(tensor: torch.Tensor):
    if isinstance(tensor, Torchish):
        return _storage_of(tensor)
    with _as_pytorch():  # `torch.load` reads files so
        return _storage_of(tensor)
