"""Tensors of a translated call in ``pickle`` and ``torch.save``, and reading them back.

A tensor whose values are known goes into a file as PyTorch's own do, and can be loaded anywhere. One that is traced has
no values yet: the call keeps its memory, and the file has only where that is. What ``torch.load`` gives shares
memory with what was in the same file, as in PyTorch, and with nothing else.
"""

import functools
import secrets
from collections.abc import Sequence
from typing import Any

import torch

from ..internals.guards import DisableTorchDispatch, DisableTorchFunction
from ..internals.pickling import rebuilding, weights_only_unpickler
from ..patches import stands_in
from ..tensors.tensor import Torchish, make_region
from .call import current, this_call
from .sparse import Sparse, size_of

__all__ = ["Pickles"]

_reduce_tensor, _reduce_parameter = torch.Tensor.__reduce_ex__, torch.nn.Parameter.__reduce_ex__
_storage_of = torch.Tensor._typed_storage
_rebuild_real = rebuilding._rebuild_tensor


class Pickles:
    """The tensors of a call that pickles refer to: a traced value has no bytes of its own."""

    def __init__(self):
        self._things: list[Any] = []
        self._memories: dict[int, _PickledMemory] = {}
        self.saves = False
        """Whether ``torch.save`` is writing, which keeps what shares memory together; ``pickle`` by itself does not."""

    @functools.cached_property
    def _mark(self) -> str:
        return secrets.token_hex(8)

    def put(self, thing: Any) -> tuple[str, int]:
        """Keeps a thing for a file, which has the token of it that is given."""
        self._things.append(thing)
        return self._mark, len(self._things) - 1

    def take(self, mark: str, number: int) -> Any:
        """What a token is of.

        Raises:
            RuntimeError: another call gave it.
        """
        if mark != self._mark:
            raise RuntimeError(_ENDED)
        return self._things[number]

    def memory_of(self, tensor: Torchish) -> "_PickledMemory":
        """The memory that a tensor views; while ``torch.save`` writes, the same object for all that share it."""
        root = tensor if tensor._viewed is None else tensor._viewed
        memory = root._node.storage.memory  # pyright: ignore[reportAttributeAccessIssue]
        found = self._memories.get(id(memory))
        if not self.saves:
            return _PickledMemory(root, memory)
        if found is None or found.version != memory.version:
            found = self._memories[id(memory)] = _PickledMemory(root, memory)
        return found


_ENDED = (
    "a tensor that was traced was pickled within a translated call, and is loaded outside of that call, where it has "
    "no values: return it from the call and pickle the array"
)


class _PickledMemory:
    """The memory of tensors on its way into a file."""

    def __init__(self, root: Any, memory: Any):
        self.memory, self.version = memory, memory.version
        self.tensor = root.detach().clone()
        self.real = _real(root)

    def __reduce_ex__(self, protocol: Any):
        return _take, this_call().pickles.put(self.tensor)


def _real(tensor: Torchish) -> torch.Tensor | None:
    """A tensor of PyTorch's own with the values of one, if they are known."""
    values = tensor.real_values
    if values is None:
        return None
    with _as_pytorch():
        return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype).copy_(values)


def as_real(tensor: torch.Tensor) -> torch.Tensor | None:
    """A tensor of PyTorch's own with the values of one, on memory that is shared as the call's is; None if unknown."""
    if not isinstance(tensor, Torchish):
        return tensor
    memory = this_call().pickles.memory_of(tensor)
    if memory.real is None:
        return None
    shape, strides, offset = tensor.shape, tensor.stride(), tensor.storage_offset()
    requires_grad = tensor.history is not None
    with _as_pytorch():
        base = memory.real if memory.real.dtype == tensor.dtype else memory.real.view(tensor.dtype)
        real = base.as_strided(shape, strides, offset)
        if isinstance(tensor, torch.nn.Parameter):
            return torch.nn.Parameter(real, requires_grad)
        return real.requires_grad_(requires_grad)


class _as_pytorch:
    """Runs what is within as if no call were translated."""

    def __enter__(self):
        self._contexts = (DisableTorchFunction(), DisableTorchDispatch(), torch.enable_grad())
        for context in self._contexts:
            context.__enter__()

    def __exit__(self, *exc_info: Any):
        for context in reversed(self._contexts):
            context.__exit__(*exc_info)


@stands_in(rebuilding, "_rebuild_sparse_tensor")
def _rebuild_sparse(layout: torch.layout, data: tuple):
    """Without PyTorch's list of tensors to check, which only `torch.load` ends."""
    if layout is not torch.sparse_coo:
        return torch.sparse_compressed_tensor(*data, layout=layout, check_invariants=False)
    indices, values, size, *is_coalesced = data
    return torch.sparse_coo_tensor(
        indices, values, size, check_invariants=False, is_coalesced=any(is_coalesced) or None
    )


@stands_in(torch.Tensor, "__reduce_ex__")
def _reduce(given: Any, protocol: Any):
    if isinstance(given, Sparse):
        facts = (given.coalesced,) if given.kind is torch.sparse_coo else ()
        return rebuilding._rebuild_sparse_tensor, (given.kind, (*given.index, given.elements, size_of(given), *facts))
    tensor: Any = this_call().standing_for(given)
    real = as_real(tensor)
    if real is not None:
        with _as_pytorch():
            vars(real).update(_attributes(tensor))
            if isinstance(real, torch.nn.Parameter):
                return _reduce_parameter(real, protocol)
            return _reduce_tensor(real, protocol)
    memory = this_call().pickles.memory_of(tensor)
    geometry = tuple(tensor.shape), tensor.stride(), tensor.storage_offset(), tensor.dtype
    kind = tensor.history is not None, isinstance(tensor, torch.nn.Parameter)
    return _rebuild, (memory, *geometry, *kind, _attributes(tensor))


stands_in(torch.nn.Parameter, "__reduce_ex__")(_reduce)


def _attributes(tensor: torch.Tensor) -> dict[str, Any]:
    """What a user has set on a tensor."""
    own = vars(Torchish).keys() | Torchish.__annotations__.keys() | {"_is_param", "_warned"}
    return {key: value for key, value in vars(tensor).items() if key not in own}


def _take(mark: str, number: int):
    call = current()
    if call is None:
        raise RuntimeError(_ENDED)
    return call.pickles.take(mark, number).clone()


def _rebuild(
    memory: Any,
    shape: Sequence[int],
    strides: tuple[int, ...],
    offset: int,
    dtype: torch.dtype,
    requires_grad: bool,
    is_parameter: bool,
    attributes: dict[str, Any],
):
    if isinstance(memory, _PickledMemory):  # nothing was written and read between: copy.copy
        memory = memory.tensor
    tensor = make_region(memory, torch.Size(shape), strides, offset, dtype)
    if is_parameter:
        tensor = torch.nn.Parameter(tensor, requires_grad)
    elif requires_grad:
        tensor.start_history()
    vars(tensor).update(attributes)
    return tensor


@stands_in(rebuilding, "_rebuild_tensor")
def _rebuild_own(storage: Any, storage_offset: int, size: Sequence[int], stride: Sequence[int]):
    with _as_pytorch():
        tensor = _rebuild_real(storage, storage_offset, size, stride)
    return this_call().lift_own(tensor)


_save = torch.save


@stands_in(torch, "save")
@stands_in(torch.serialization, "save")
def _save_together(*args: Any, **kwargs: Any):
    kept = this_call().pickles
    before, kept.saves = kept.saves, True
    try:
        return _save(*args, **kwargs)
    finally:
        kept.saves = before


@stands_in(torch.Tensor, "_typed_storage")
def _typed_storage(tensor: torch.Tensor):
    if isinstance(tensor, Torchish):
        return _storage_of(tensor)
    with _as_pytorch():  # `torch.load` reads files so
        return _storage_of(tensor)


@stands_in(weights_only_unpickler, "_get_user_allowed_globals")
def _allowed_globals():
    return {**_allowed_by_user(), **{f"{function.__module__}.{function.__name__}": function for function in _SAFE}}


_SAFE, _allowed_by_user = (_take, _rebuild), weights_only_unpickler._get_user_allowed_globals
