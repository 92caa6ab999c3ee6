"""Tied tensors: several names of one memory, to which a state gives one array."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import optree
import torch

from .interop import is_dense

__all__ = ["Tie", "distinct", "ties", "untied"]


class Tie(NamedTuple):
    """What a name is another name of."""

    first: str
    is_same: bool
    """Whether it is all of that and in the same shape, or a part or a view of it."""


def ties(tensors: Mapping[str, Any]) -> dict[str, Tie]:
    """The names of tensors that have no memory of their own, and whose they have.

    Such a tensor is another as a whole (the same object, or another object of the same memory), or within one that is
    all of its storage. Of several that are the same the first stands for all. What is no tensor has no tie.
    """
    with torch._C.DisableTorchFunction():
        memories = {name: _memory(tensor) for name, tensor in tensors.items() if isinstance(tensor, torch.Tensor)}
        if len(set(memories.values())) == len(memories):
            return {}  # as almost always
        places = {name: (memory, *_place(tensors[name], memory)) for name, memory in memories.items()}
        firsts: dict[tuple, str] = {}
        wholes: dict[int, str] = {}
        for name, place in places.items():
            firsts.setdefault(place, name)
            if _is_whole(tensors[name]):
                wholes.setdefault(place[0], name)
    found = {name: wholes.get(place[0], firsts[place]) for name, place in places.items()}
    return {name: Tie(first, places[name] == places[first]) for name, first in found.items() if name != first}


def distinct(tensors: Mapping[str, Any]) -> Mapping[str, Any]:
    """Tensors by names, each under one name."""
    tied = ties(tensors)
    if not tied:
        return tensors
    kept = [(name, tensor) for name, tensor in tensors.items() if name not in tied]
    return type(tensors)(kept) if isinstance(tensors, dict) else dict(kept)  # pyright: ignore[reportCallIssue]


def untied(tree: Any) -> Any:
    """A tree, in which each ``module.state_dict()`` has one name for each tensor."""
    return optree.tree_map(lambda x: distinct(x) if _is_state(x) else x, tree, is_leaf=_is_state, none_is_leaf=True)


def _is_state(thing: Any) -> bool:
    return isinstance(thing, dict) and hasattr(thing, "_metadata")  # which PyTorch puts there


def _memory(tensor: torch.Tensor) -> int:
    """What tells the memories of tensors apart; of one that has none that could be another's too, the tensor itself."""
    try:
        return tensor.untyped_storage()._cdata if tensor.numel() else id(tensor)
    except (RuntimeError, NotImplementedError):  # it is sparse, or wraps others
        return id(tensor)


def _place(tensor: torch.Tensor, memory: int) -> tuple:
    if memory == id(tensor):
        return ()
    return tensor.storage_offset(), tuple(tensor.shape), tensor.stride(), tensor.dtype


def _is_whole(tensor: torch.Tensor) -> bool:
    return is_dense(tensor) and tensor.nbytes == tensor.untyped_storage().nbytes()
