"""What a function gives on one way through it: a tree of tensors, and which of them were there before."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from ..internals.dispatch import DisableTorchDispatch, DisableTorchFunction
from ..tensors.history import UNRECORDED
from ..tensors.tensor import Torchish
from ..translation import this_call
from .loop_state import State, Unlike

_PLAIN = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size)


TRACED = "traced"
_SAME = "the same"


class ResultLeaf(NamedTuple):
    """A tensor of an outcome."""

    existing: str | None
    """The path of the tensor, if it was there before."""
    shares: str | None
    """The path of the memory that it has in common with what was there before."""
    is_entangled: bool
    """Whether another tensor of the outcome has the same memory."""
    can_be_replaced: bool
    """Whether another tensor can be put there: it is in a new list, or in a variable."""
    same_as: int = 0
    """The number of the first tensor of the outcome that is the same object."""
    number: str | None = None
    """Of a Python int in a variable, that one; `TRACED` of a number that was taken out of a tensor."""


class ResultTree(NamedTuple):
    """What a function gives on one path."""

    signature: Any
    """What all paths must have in common."""
    leaves: list[ResultLeaf]
    containers: list[str | None]
    """The paths of lists and dictionaries that were there before, None for new ones."""


class FoundResult(NamedTuple):
    """An outcome, and the objects in it."""

    result: Any
    outcome: ResultTree
    tensors: list[Any]
    containers: list[Any]


def outcome_of(result: Any, before: State) -> FoundResult:
    """Looks at what a function gives.

    Raises:
        Unlike: it is nothing that could be chosen.
    """
    looking = _Looking(before)
    return looking.found(result, looking.at(result, "its result", False))


def outcome_of_variables(variables: Mapping[str, Any], before: State, assigned: Collection[str] = ()) -> FoundResult:
    """Looks at what code has in its variables; that which is no tree of tensors was there before.

    Args:
        assigned: the paths of what is in objects among `variables`.

    Raises:
        Unlike: it is nothing that could be chosen.
    """
    looking = _Looking(before)
    signature = {
        name: looking.variable(name, value, any(_is_within(path, name) for path in assigned))
        for name, value in sorted(variables.items())
    }
    result = {name: variables[name] for name in signature if signature[name] is not _SAME}
    return looking.found({**result, **looking.numbers}, signature)


def joined(outcomes: Sequence[ResultTree]) -> tuple[list[bool], int]:
    """Which tensors differ from way to way, and the number of an outcome in which all of these can be replaced.

    Raises:
        Unlike: the outcomes have not one form.
    """
    first = outcomes[0]
    if any(outcome.signature != first.signature for outcome in outcomes):
        raise Unlike("it gives something else on each path")
    columns = zip(*[outcome.leaves for outcome in outcomes], strict=True)
    differ = [_differs(column) for column in columns]
    for i, outcome in enumerate(outcomes):
        changing = [at for at, differs in enumerate(differ) if differs]
        if all(_can_change(at, outcome.leaves[at], outcomes) for at in changing):
            return differ, i
    raise Unlike("it gives one of its arguments on each path")


def _can_change(at: int, leaf: ResultLeaf, outcomes: Sequence[ResultTree]) -> bool:
    """Whether a tensor can get the values of all paths; a new one can itself, unless it is two on another path."""
    is_one = all(outcome.leaves[at].same_as == leaf.same_as for outcome in outcomes)
    return leaf.can_be_replaced or (leaf.existing is None and is_one)


def _differs(leaves: Sequence[ResultLeaf]) -> bool:
    """Whether a tensor or number is not the same on all paths."""
    numbers = {leaf.number for leaf in leaves}
    if numbers != {None}:
        return len(numbers) > 1 or TRACED in numbers
    return leaves[0].existing is None or len({leaf.existing for leaf in leaves}) > 1


def with_tensors(result: Any, tensors: Iterator[torch.Tensor | None]) -> Any:
    """A tree with other tensors, which are put into the lists that it has; None for those that stay."""
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
        items = [with_tensors(item, tensors) for item in result]
        if any(x is not y for x, y in zip(items, result, strict=True)):
            return kind(items) if kind is tuple else kind(*items)  # pyright: ignore[reportCallIssue]
    return result


def _is_within(path: str, name: str) -> bool:
    return path != name and path.startswith(name) and path[len(name)] in ".["


class _Looking:
    def __init__(self, before: State):
        self._seen, self._roots = before.seen, before.roots
        self.leaves: list[ResultLeaf] = []
        self.tensors: list[Any] = []
        self.containers: list[Any] = []
        self.numbers: dict[str, Any] = {}
        """The numbers in variables, as tensors."""

    def found(self, result: Any, signature: Any) -> FoundResult:
        memories = [_memory(tensor) for tensor in self.tensors]
        leaves = [
            leaf._replace(
                is_entangled=leaf.existing is None and sum(other is memory for other in memories) > 1,
                same_as=next(i for i, other in enumerate(self.tensors) if other is tensor),
            )
            for leaf, memory, tensor in zip(self.leaves, memories, self.tensors, strict=True)
        ]
        outcome = ResultTree(signature, leaves, [self._seen.get(id(x)) for x in self.containers])
        return FoundResult(result, outcome, self.tensors, self.containers)

    def variable(self, name: str, value: Any, is_assigned_to: bool) -> Any:
        """What must be the same on all paths of what is in a variable.

        Args:
            is_assigned_to: whether items of it are variables as well.
        """
        if is_assigned_to:
            if self._roots.get(name) is not value:
                raise Unlike(f"{name} is another object on some paths, and is assigned to on others")
            return _SAME
        kind = getattr(value, "stands_for", None)
        if type(value) is int or (kind is not None and getattr(value, "computed", None) is None):
            self.leaves.append(ResultLeaf(None, None, False, True, 0, TRACED if kind else repr(value)))
            self.numbers[name] = value if kind else torch.tensor(value)
            self.tensors.append(self.numbers[name])
            return kind or int
        is_same, counts = self._roots.get(name) is value, (len(self.leaves), len(self.containers))
        try:
            return self.at(value, name, True)
        except Unlike:
            if not is_same or (isinstance(value, torch.Tensor) and _is_plain(value)):
                raise
        del self.leaves[counts[0] :], self.tensors[counts[0] :], self.containers[counts[1] :]
        return _SAME

    def at(self, value: Any, path: str, can_be_replaced: bool) -> Any:
        """What must be the same on all paths.

        Args:
            can_be_replaced: whether another tensor can be put there.
        """
        kind = type(value)
        if isinstance(value, torch.Tensor):
            self.leaves.append(self._leaf(value, path, can_be_replaced))
            self.tensors.append(value)
            return "tensor", getattr(value, "stands_for", None)
        if kind in _PLAIN:
            return kind, repr(value)
        if kind in (list, dict) or _is_tuple(kind):
            if kind in (list, dict):
                can_be_replaced = id(value) not in self._seen
                self.containers.append(value)
            keys = tuple(map(repr, value)) if kind is dict else len(value)
            items = value.values() if kind is dict else value
            return kind, keys, *[self.at(x, f"{path}[{i}]", can_be_replaced) for i, x in enumerate(items)]
        if id(value) in self._seen:
            return "object", self._seen[id(value)]
        raise Unlike(f"{path} is a {kind.__name__}")

    def _leaf(self, tensor: Any, path: str, can_be_replaced: bool) -> ResultLeaf:
        existing = self._seen.get(id(tensor))
        if not _is_plain(tensor) or (existing is None and tensor.attributes.keys() - {"_restriction"}):
            raise Unlike(f"{path} is a {type(tensor).__name__} of its own kind")
        shares = self._seen.get(id(_memory(tensor)))
        if existing is not None:
            return ResultLeaf(existing, shares, False, can_be_replaced)
        if tensor.history is not None and (tensor.history is not UNRECORDED or this_call().tape is not None):
            raise Unlike(f"{path} requires grad")
        return ResultLeaf(None, shares, False, can_be_replaced)


def _is_plain(tensor: Any) -> bool:
    """Whether it is a strided tensor and none of a class of its own, as a selection or a number is."""
    if isinstance(tensor, Torchish):
        return type(tensor) is Torchish
    with DisableTorchFunction(), DisableTorchDispatch():
        return (
            type(tensor) in (torch.Tensor, torch.nn.Parameter)
            and tensor.layout is torch.strided
            and not tensor.is_nested
        )


def _memory(tensor: Any) -> Any:
    return tensor._node.storage.memory if isinstance(tensor, Torchish) else tensor


def _is_tuple(kind: type) -> bool:
    return kind is tuple or (hasattr(kind, "_fields") and kind.__mro__[1] is tuple)
