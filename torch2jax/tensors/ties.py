"""Tied tensors: several names of one memory, for which a state has one array."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import optree
import torch

from ..internals.guards import DisableTorchFunction
from .interop import is_dense

__all__ = ["Tie", "distinct", "region_of", "ties", "untied"]


class Tie(NamedTuple):
    """What a name is another name of."""

    first: str
    is_same: bool
    """Whether it is all of that and in the same shape, or a part or a view of it."""


def ties(tensors: Mapping[str, Any]) -> dict[str, Tie]:
    """The names of tensors that have no memory of their own, and whose they have.

    Such a tensor is another as a whole (the same object, or another object of the same memory), or lies within one that
    has no gaps. Of several that are the same the first stands for all. What is no tensor has no tie.
    """
    with DisableTorchFunction():
        memories = {name: _memory(tensor) for name, tensor in tensors.items() if isinstance(tensor, torch.Tensor)}
        if len(set(memories.values())) == len(memories):
            return {}  # as almost always
        groups: dict[int, list[str]] = {}
        for name, memory in memories.items():
            groups.setdefault(memory, []).append(name)
        found: dict[str, Tie] = {}
        for memory, names in groups.items():
            if len(names) > 1:
                found |= _ties_of_one_memory({name: tensors[name] for name in names}, memory)
    return {name: found[name] for name in memories if name in found}


def _ties_of_one_memory(tensors: Mapping[str, torch.Tensor], memory: int) -> dict[str, Tie]:
    if memory in map(id, tensors.values()):  # these are all the same object
        first, *others = tensors
        return dict.fromkeys(others, Tie(first, True))
    regions = {name: region_of(tensor) for name, tensor in tensors.items()}
    firsts: dict[tuple, str] = {}
    found, around = {}, None  # the name of what begins before and ends last
    for name in sorted(regions, key=lambda name: (regions[name].start, -regions[name].stop)):
        first = firsts.setdefault(_place(tensors[name]), name)
        if around is not None and regions[name].stop <= regions[around].stop:
            first = around
        elif is_dense(tensors[name]):
            around = name
        if first != name:
            found[name] = Tie(first, _place(tensors[name]) == _place(tensors[first]))
    return found


def region_of(tensor: torch.Tensor) -> range:
    """The bytes of its storage from the first to the last one of a tensor that has elements."""
    span = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    begin = tensor.storage_offset()
    return range(begin * tensor.element_size(), (begin + span) * tensor.element_size())


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


def _place(tensor: torch.Tensor) -> tuple:
    return tensor.storage_offset(), tuple(tensor.shape), tensor.stride(), tensor.dtype
