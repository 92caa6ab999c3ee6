"""Describes where the results of two branches first differ, and what each has there."""

import itertools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from ..errors import BranchError
from ..errors.locations import SourceLine
from ..tensors.trees import entries, shown

_NOTHING = "nothing"
_LONGEST = 60


class StaticLeaf(NamedTuple):
    """A leaf that is no array."""

    value: Any


class _Tree(NamedTuple):
    """A tree, with its leaves in order: results of a program, or static."""

    structure: Any
    leaves: list

    def children(self) -> dict[Any, "_Tree"]:
        """The parts of a container, by what reaches them."""
        leaves, parts = iter(self.leaves), self.structure.children()
        return {
            entry: _Tree(part, list(itertools.islice(leaves, part.num_leaves)))
            for entry, part in zip(entries(self.structure), parts, strict=True)
        }

    def __str__(self) -> str:
        if self.structure.type is None:
            return described(self.leaves[0])
        text = shown(self.structure, map(described, self.leaves))
        return text if len(text) <= _LONGEST else f"a {self.structure.type.__name__} of {len(self.leaves)} leaves"


def described(leaf: Any) -> str:
    """The dtype and shape of a result, or a static leaf as Python writes it."""
    if isinstance(leaf, StaticLeaf):
        return repr(leaf.value)
    return f"{leaf.aval.dtype}{list(leaf.aval.shape)}"


def mismatch_error(
    location: SourceLine, yes: tuple[Any, list], no: tuple[Any, list], differ: Callable[[Any, Any], bool]
) -> BranchError:
    """The error about branches whose results differ.

    Args:
        location: where the condition is.
        yes, no: the structure of each result, and its leaves.
        differ: whether two leaves do.
    """
    found = list(_differences("result", _Tree(*yes), _Tree(*no), differ))
    path, one, other = found[0]
    more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
    are_lists = all(isinstance(x, _Tree) and x.structure.type is list for x in (one, other))
    instead = ". Instead of a list that grows on one side, keep a mask of what it would hold" if are_lists else ""
    return BranchError(
        f"bool(tensor) at {location} tests a traced value, so both branches are traced, and their results differ in "
        f"{path}: {one} where it is True, {other} where it is False{more}; wanted the same structure, numbers of "
        f"dimensions and dtypes{instead}"
    )


def _differences(path: str, one: _Tree, other: _Tree, differ: Callable) -> Iterator[tuple[str, Any, Any]]:
    kind = one.structure.type
    if kind is None and other.structure.type is None:
        if differ(one.leaves[0], other.leaves[0]):
            yield path, one, other
        return
    mine, theirs = one.children(), other.children()
    are_named = kind is not None and issubclass(kind, dict)
    if kind is not other.structure.type or (mine.keys() != theirs.keys() and not are_named):
        yield path, one, other
        return
    have_same_parts = {x: part.structure for x, part in mine.items()} == {x: y.structure for x, y in theirs.items()}
    if one.structure != other.structure and have_same_parts:
        yield path, one, f"another {one.structure.type.__name__}"  # in what it holds beside its leaves
        return
    for entry in dict.fromkeys((*mine, *theirs)):
        below = f"{path}.{entry}" if isinstance(entry, str) and not are_named else f"{path}[{entry!r}]"
        if entry in mine and entry in theirs:
            yield from _differences(below, mine[entry], theirs[entry], differ)
        else:
            yield below, mine.get(entry, _NOTHING), theirs.get(entry, _NOTHING)
