"""What a function gives on one way through it: a tree of tensors, and which of them were there before."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch

from ..tensors.tensor import Torchish
from .loop_state import State, Unlike

__all__ = ["ResultTree", "joined", "outcome_of", "with_tensors"]

_PLAIN = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size)


class ResultLeaf(NamedTuple):
    """A tensor of an outcome."""

    existing: str | None
    """The path of the tensor, if it was there before."""
    shares: str | None
    """The path of the memory that it has in common with what was there before."""
    is_entangled: bool
    """Whether another tensor of the outcome has the same memory."""
    can_change: bool
    """Whether another tensor can take its place: it is new, or in a new list."""


class ResultTree(NamedTuple):
    """What a function gives on one path."""

    signature: Any
    """What all paths must have in common."""
    leaves: list[ResultLeaf]
    containers: list[str | None]
    """The paths of lists and dictionaries that were there before, None for new ones."""


class FoundResult(NamedTuple):
    """An outcome, and the objects in it."""

    outcome: ResultTree
    tensors: list[Any]
    containers: list[Any]


def outcome_of(result: Any, before: State) -> FoundResult:
    """Looks at what a function gives.

    Raises:
        Unlike: it is nothing that could be chosen.
    """
    looking = _Looking(before)
    signature = looking.at(result, "result", False)
    memories = [_memory(tensor) for tensor in looking.tensors]
    leaves = [
        leaf._replace(is_entangled=leaf.existing is None and sum(other is memory for other in memories) > 1)
        for leaf, memory in zip(looking.leaves, memories, strict=True)
    ]
    found = ResultTree(signature, leaves, [before.seen.get(id(x)) for x in looking.containers])
    return FoundResult(found, looking.tensors, looking.containers)


def joined(outcomes: Sequence[ResultTree]) -> tuple[list[bool], int]:
    """Which tensors differ from way to way, and the number of an outcome in which all of these can be replaced.

    Raises:
        Unlike: the outcomes have not one form.
    """
    first = outcomes[0]
    if any(outcome.signature != first.signature for outcome in outcomes):
        raise Unlike("it gives something else on each path")
    columns = zip(*[outcome.leaves for outcome in outcomes], strict=True)
    differ = [column[0].existing is None or len({leaf.existing for leaf in column}) > 1 for column in columns]
    for i, outcome in enumerate(outcomes):
        if all(leaf.can_change for leaf, differs in zip(outcome.leaves, differ, strict=True) if differs):
            return differ, i
    raise Unlike("it gives one of its arguments on each path")


def with_tensors(result: Any, tensors: Iterator[torch.Tensor | None]) -> Any:
    """Puts tensors into the new lists of a tree; None for those that stay."""
    if isinstance(result, torch.Tensor):
        new = next(tensors)
        return result if new is None else new
    kind = type(result)
    if kind in (list, dict):
        for key, item in [*(result.items() if kind is dict else enumerate(result))]:
            new = with_tensors(item, tensors)
            if new is not item:
                result[key] = new
    elif _is_tuple(kind):
        for item in result:
            with_tensors(item, tensors)
    return result


class _Looking:
    def __init__(self, before: State):
        self._seen = before.seen
        self.leaves: list[ResultLeaf] = []
        self.tensors: list[Any] = []
        self.containers: list[Any] = []

    def at(self, value: Any, path: str, is_in_new_list: bool) -> Any:
        kind = type(value)
        if isinstance(value, torch.Tensor):
            self.leaves.append(self._leaf(value, path, is_in_new_list))
            self.tensors.append(value)
            return "tensor", getattr(value, "stands_for", None)
        if kind in _PLAIN:
            return kind, repr(value)
        if kind in (list, dict) or _is_tuple(kind):
            is_new_list = kind in (list, dict) and id(value) not in self._seen
            if kind in (list, dict):
                self.containers.append(value)
            keys = tuple(map(repr, value)) if kind is dict else len(value)
            items = value.values() if kind is dict else value
            return kind, keys, *[self.at(x, f"{path}[{i}]", is_new_list) for i, x in enumerate(items)]
        if id(value) in self._seen:
            return "object", self._seen[id(value)]
        raise Unlike(f"its {path} is a {kind.__name__}")

    def _leaf(self, tensor: Any, path: str, is_in_new_list: bool) -> ResultLeaf:
        memory = _memory(tensor)
        existing, shares = self._seen.get(id(tensor)), self._seen.get(id(memory))
        if existing is not None:
            return ResultLeaf(existing, shares, False, is_in_new_list)
        if type(tensor) is not Torchish or tensor.attributes.keys() - {"_restriction"}:
            raise Unlike(f"its {path} is a {type(tensor).__name__} of its own kind")
        if tensor.history is not None:
            raise Unlike(f"its {path} requires grad")
        return ResultLeaf(None, shares, False, True)


def _memory(tensor: Any) -> Any:
    return tensor._node.storage.memory if isinstance(tensor, Torchish) else tensor


def _is_tuple(kind: type) -> bool:
    return kind is tuple or (hasattr(kind, "_fields") and kind.__mro__[1] is tuple)
