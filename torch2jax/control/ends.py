"""Brings the results of two paths into one form: the same leaves, with the same shapes.

Python's numbers that differ become arrays. A tensor whose length differs is as long as data decide, whether it is plain
on both paths or padded on one: it becomes a padded array with room for the longer. What cannot be brought into one form
is an error, which says where the results first differ.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import lax
from jax.extend.core import JaxprEqn, Literal, new_jaxpr_eqn, no_effects

from ..runtime.errors import BranchError
from ..runtime.errors.locations import SourceLine
from ..tensors.padded import Padded
from ..tensors.trees import entries, flatten, flatten_given, shown
from ..tracing.loops.program import Program
from .programs import constant, new_var


class StaticLeaf(NamedTuple):
    """A leaf that is no array."""

    value: Any


class End(NamedTuple):
    """The result of a path: a tree, whose arrays are the results of a program."""

    program: Program
    leaves: list[StaticLeaf | None]
    """None for each array."""
    structure: Any

    @property
    def slots(self) -> list[Any]:
        """The leaves, with the result that it is for each array."""
        results = iter(self.program.results)
        return [next(results) if leaf is None else leaf for leaf in self.leaves]

    def holding(self, slots: Iterable, structure: object, steps: Iterable[JaxprEqn] = ()) -> "End":
        """The end with other leaves, which these steps compute of what is there."""
        slots = list(slots)
        leaves = [x if isinstance(x, StaticLeaf) else None for x in slots]
        results = [x for x in slots if not isinstance(x, StaticLeaf)]
        return End(Program([*self.program.statements, *steps], results), leaves, structure)


def with_same_leaves(yes: End, no: End, location: SourceLine, *, pads: bool, may_overflow: bool) -> tuple[End, End]:
    """Two ends with the same leaves.

    Args:
        location: where the condition is.
        pads: whether a tensor that is longer on one path becomes a padded array. Not at the end of a loop's iteration.
        may_overflow: whether a length may be beyond its room, which tells of a bound that is too small.

    Raises:
        BranchError: they cannot have the same.
    """
    if pads and not _are_compatible(yes, no):
        yes, no = _padded_to_match(yes, no, may_overflow)
    is_one = yes.structure == no.structure
    found = [_matching_pair(*pair) for pair in zip(yes.slots, no.slots, strict=True)] if is_one else []
    if not is_one or None in found:
        differ = lambda one, other: _matching_pair(one, other) is None
        raise mismatch_error(location, (yes.structure, yes.slots), (no.structure, no.slots), differ)
    mine, theirs = zip(*found, strict=True) if found else ((), ())
    return yes.holding(mine, yes.structure), no.holding(theirs, no.structure)


def _matching_pair(one: Any, other: Any) -> tuple | None:
    """Two leaves of one dtype and shape, or one static leaf twice; None if they cannot become that."""
    pair = one, other
    if all(isinstance(x, StaticLeaf) for x in pair) and _is_same_value(*(x.value for x in pair)):
        return one, one
    dtype = _common_dtype(pair)
    if dtype is None:
        return None
    made = tuple([constant(x.value, dtype) if isinstance(x, StaticLeaf) else x for x in pair])
    return made if described(made[0]) == described(made[1]) else None


def _are_compatible(one: End, other: End) -> bool:
    results = zip(one.program.results, other.program.results, strict=False)
    return one.structure == other.structure and all(x.aval.shape == y.aval.shape for x, y in results)


# Lengths.


class _PaddedRows(NamedTuple):
    """An array, and how long it is along the data-dependent axes."""

    values: Any
    lengths: dict[int, Any]

    @property
    def shape(self) -> tuple[int, ...]:
        return self.values.aval.shape


def _padded_to_match(yes: End, no: End, may_overflow: bool) -> tuple[End, End]:
    """The same ends; where a tensor is longer in one than in the other, both have it with room for the longer.

    Trees hold numbers here, the places of what they stand for in a list.
    """
    (mine, structure), (theirs, other) = (flatten_given(x.structure.unflatten(range(len(x.leaves)))) for x in (yes, no))
    if structure != other:
        return yes, no
    ends, slots = (yes, no), (yes.slots, no.slots)
    steps: tuple[list[JaxprEqn], list[JaxprEqn]] = ([], [])
    for at, (one, two) in enumerate(zip(mine, theirs, strict=True)):
        pair = _rows(one, slots[0]), _rows(two, slots[1])
        if pair[0] is None or pair[1] is None or not _may_pad(pair[0], pair[1]):
            continue
        both = pair[0], pair[1]
        for which, values in enumerate((mine, theirs)):
            rows = _with_capacity(both[which], both[1 - which], steps[which], may_overflow)
            count = len(slots[which])
            slots[which].extend([rows.values, *rows.lengths.values()])
            values[at] = Padded.of(count, {axis: count + 1 + i for i, axis in enumerate(rows.lengths)})
    found = []
    for end, values, held, made in zip(ends, (mine, theirs), slots, steps, strict=True):
        numbers, wanted = flatten(structure.unflatten(values))
        found.append(end.holding([held[number] for number in numbers], wanted, made))
    return found[0], found[1]


def _rows(leaf: Any, slots: list) -> _PaddedRows | None:
    """The tensor that a leaf is; None if it is none."""
    if isinstance(leaf, Padded):
        return _PaddedRows(slots[leaf.values], {axis: slots[length] for axis, length in leaf.lengths.items()})
    return None if isinstance(slots[leaf], StaticLeaf) else _PaddedRows(slots[leaf], {})


def _may_pad(one: _PaddedRows, other: _PaddedRows) -> bool:
    """True if data decide which of two lengths a tensor has."""
    if one.values.aval.dtype != other.values.aval.dtype or len(one.shape) != len(other.shape):
        return False
    return one.shape != other.shape or one.lengths.keys() != other.lengths.keys()


def _with_capacity(rows: _PaddedRows, other: _PaddedRows, steps: list[JaxprEqn], may_overflow: bool) -> _PaddedRows:
    """A tensor as a padded array with room for another, too: zero beyond its lengths."""
    shape = tuple(map(max, rows.shape, other.shape))
    differ = [axis for axis, sizes in enumerate(zip(rows.shape, other.shape, strict=True)) if sizes[0] != sizes[1]]
    axes = sorted({*differ, *rows.lengths, *other.lengths})
    known = [length.aval.dtype for each in (rows, other) for length in each.lengths.values()]
    dtype = known[0] if known else jax.dtypes.canonicalize_dtype(np.int64)
    lengths = {}
    for axis in axes:
        capacity, length = rows.shape[axis], rows.lengths.get(axis)
        if length is None:
            length = constant(capacity, dtype)
        elif may_overflow and capacity < shape[axis]:  # what is beyond its room has to be beyond the other, too
            beyond = _added(steps, lax.gt_p, [length, constant(capacity, dtype)], np.bool_)
            length = _added(steps, lax.select_n_p, [beyond, length, constant(shape[axis] + 1, dtype)], dtype)
        lengths[axis] = length
    if rows.shape == shape:
        return _PaddedRows(rows.values, lengths)
    aval = rows.values.aval
    values = new_var(aval.update(shape=shape))
    zero = Literal(aval.dtype.type(0), aval.update(shape=()))
    config = tuple((0, size - own, 0) for size, own in zip(shape, rows.shape, strict=True))
    steps.append(new_jaxpr_eqn([rows.values, zero], [values], lax.pad_p, {"padding_config": config}, no_effects))
    return _PaddedRows(values, lengths)


def _added(steps: list[JaxprEqn], primitive: object, operands: list, dtype: object) -> Any:
    """The result of another step, a scalar."""
    made = new_var(constant(0, dtype).aval)
    steps.append(new_jaxpr_eqn(operands, [made], primitive, {}, no_effects))
    return made


# Numbers, and what cannot be.


def _is_same_value(one, other) -> bool:
    if one is other or (isinstance(one, float) and one != one and other != other):
        return True
    if type(one) is not type(other):
        return False
    if isinstance(one, (bool, int, float, complex, str, bytes)):
        return one == other
    return type(one).__eq__ is object.__eq__ or bool(one == other)


_KINDS = {"b": 0, "i": 1, "u": 1, "c": 3}  # others are floats


def _kind(dtype) -> int:
    return _KINDS.get(np.dtype(dtype).kind, 2)


def _common_dtype(pair: tuple) -> object:
    """The dtype of a number in place of which there may be an array; None if that cannot be."""
    numbers = [x.value for x in pair if isinstance(x, StaticLeaf)]
    if not all(isinstance(x, (bool, int, float, complex)) for x in numbers):
        return None
    arrays = [x.aval.dtype for x in pair if not isinstance(x, StaticLeaf)]
    if not numbers or len(arrays) > 1:
        return arrays[0]
    of_numbers = jax.dtypes.canonicalize_dtype(np.result_type(*map(type, numbers)))
    if not arrays:
        return of_numbers
    return arrays[0] if _kind(of_numbers) <= _kind(arrays[0]) else None


# The first difference between two results, in words.


_NOTHING = "nothing"
_LONGEST = 60


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
