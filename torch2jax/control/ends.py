"""What a side leaves, as trees, and the results of two paths brought into one form.

Python's numbers that differ become arrays. A tensor whose length differs is as long as data decide, whether it is plain
on both paths or padded on one: it becomes a padded array with room for the longer. What cannot be brought into one form
is an error, which says where the results first differ.

A leaf has its array, or the number of it among the arrays of the side. A leaf of a tensor also has its relations: the
older tensors that it is, or is a view of, on this side (`ties.py`).
"""

import collections
import contextlib
import itertools
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
import torch
from jax import lax
from jax.extend.core import JaxprEqn, Literal, new_jaxpr_eqn, no_effects

from ..runtime.errors import BranchError
from ..runtime.errors.locations import SourceLine
from ..runtime.translation import this_call
from ..tensors.history import Source
from ..tensors.padded import Padded
from ..tensors.storage import steps_to
from ..tensors.tensor import Torchish, wrap
from ..tensors.trees import entries, flatten, flatten_given, shown
from ..tracing.loops.program import Program
from ..tracing.tensor_spec import TensorSpec
from ..values.item import Item
from ..values.masked import Masked, leading_of
from ..values.masked_functions import rows_and_length
from ..values.traced_numbers import Number
from .programs import constant, new_var
from .state import current_run
from .ties import Relation, relations
from .writes import UNDEFINED, dict_of


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


class Leaf(NamedTuple):
    """Something that is chosen as a whole."""

    kind: str  # tensor, item, number, object, undefined
    value: Any
    spec: Any = None
    shape: tuple[int, ...] = ()
    at: Any = None
    """A tensor's number among the arrays of its side; an array of outside is itself."""
    relations: tuple[tuple[int | None, Relation], ...] = ()
    """What the tensor is, with the number of the flag among the arrays."""
    is_leaf: bool = False
    """Whether it is a tensor that requires grad by itself."""
    is_shared: bool = False
    """True for a NumPy array that may be written to elsewhere, too: an older one, or a view."""


class Node(NamedTuple):
    """Something that is made of what is chosen in it."""

    kind: str  # list, tuple, dict, deque, set, object
    value: Any
    names: tuple
    children: list
    is_older: bool
    """Whether the side has not made it."""


Tree = Leaf | Node


_TENSORS = (Torchish, Item, Number, torch.Tensor, torch.nn.Parameter)
_MOST_OBJECTS = 64  # from outside that are looked into: they may lead to all that there is


class Encoder:
    """Makes trees of values, one for each object: what has two names has one tree.

    Args:
        arrays: to which those of tensors are added; None outside of sides, where leaves have the arrays themselves.
        after: what a side has left in places, which objects outside hold no more.
    """

    def __init__(self, arrays: list | None, after: Mapping[tuple, tuple[object, "Tree"]] | None = None):
        self._arrays, self._after = arrays, after or {}
        self._known: dict[int, tuple[Tree, object]] = {}
        self._count = 0

    def __call__(self, value: object) -> Tree:
        found = self._known.get(id(value))
        if found is None:
            found = self._known[id(value)] = self._encoded(value), value
        return found[0]

    def _encoded(self, value: Any) -> Tree:
        if value is UNDEFINED:
            return Leaf("undefined", value)
        if isinstance(value, Masked):
            return self._sized(value)
        if isinstance(value, torch.Tensor):
            return self._tensor(value)
        kind = type(value)
        if kind in (bool, int, float, complex):
            return Leaf("number", value)
        if isinstance(value, (np.floating, np.integer, np.bool_)):
            return Leaf("number", value.item())
        journal = current_run().journal
        is_older = self._arrays is None or journal is None or not journal.has_made(value)
        left = self._after.get(("contents", id(value)))
        if left is not None and isinstance(left[1], Node):
            return left[1]._replace(value=value, is_older=True)
        if kind is list or kind is collections.deque:
            return Node("list" if kind is list else "deque", value, (), [*map(self, value)], is_older)
        if isinstance(value, tuple) and kind is not torch.Size:
            return Node("tuple", value, (), [*map(self, value)], False)
        if kind in (dict, collections.OrderedDict, collections.defaultdict):
            items = value.values()  # pyright: ignore[reportAttributeAccessIssue]
            return Node("dict", value, tuple(value), [*map(self, items)], is_older)
        if kind is set:
            return Node("set", value, (frozenset((type(x), x) for x in value),), [], is_older)
        if is_plain_object(kind):
            self._count += is_older
            if is_older and self._count > _MOST_OBJECTS:
                return Leaf("object", value)
            attributes = attributes_of(value)
            left = {key[2]: tree for key, (_, tree) in self._after.items() if key[:2] == ("attribute", id(value))}
            names = [x for x in {**attributes, **left} if x not in left or left[x].kind != "undefined"]
            node = Node("object", value, tuple(names), [], is_older)
            self._known[id(value)] = node, value  # which may refer to itself
            node.children.extend(left[x] if x in left else self(attributes[x]) for x in names)
            return node
        return Leaf("object", value, is_shared=isinstance(value, np.ndarray) and (is_older or value.base is not None))

    def _sized(self, value: Any) -> Tree:
        """A tensor of a length that data decide: its rows, with room for all, and how many there are."""
        axis = leading_of(value)[1]
        found = rows_and_length(value, axis)
        if found is None:
            return Leaf("object", value)
        parts = [wrap(found[0], value.dtype), wrap(found[1], torch.int64)]
        return Node("sized", value, (axis,), [*map(self._tensor, parts)], False)

    def _tensor(self, value: torch.Tensor) -> Leaf:
        call = this_call()
        if type(value) not in _TENSORS or value.layout is not torch.strided:
            return Leaf("object", value)
        tensor = call.constants.lift(value)
        if type(tensor) not in (Torchish, Item, Number):
            return Leaf("object", value)
        spec = TensorSpec.of(tensor)._replace(layout=None)
        name = "tensor" if type(tensor) is Torchish else "item"
        is_leaf = isinstance(tensor.history, Source) and tensor.history.variable is tensor
        if self._arrays is None:
            found = ((None, Relation(None, tensor._node.storage, steps_of(tensor), True)),)
            return Leaf(name, value, spec, tuple(tensor.shape), tensor.read(), found, is_leaf)
        self._arrays.append(call.array_of(tensor))
        at, found = len(self._arrays) - 1, []
        for relation in relations(tensor) if name == "tensor" else ():
            number = None
            if relation.flag is not None:
                self._arrays.append(relation.flag)
                number = len(self._arrays) - 1
            found.append((number, relation))
        return Leaf(name, value, spec, tuple(tensor.shape), at, tuple(found), is_leaf)


def steps_of(tensor: Torchish) -> list:
    return [kind for kind, _ in steps_to(tensor._node)]


def is_plain_object(kind: type) -> bool:
    """True if objects of a class hold nothing but attributes."""
    if issubclass(kind, (torch.nn.Module, type)) or kind.__module__.split(".")[0] in (
        "torch",
        "jax",
        "numpy",
        "builtins",
        "torch2jax",
    ):
        return False
    new = kind.__new__
    is_pythons = new is object.__new__ or type(new) is types.FunctionType
    return is_pythons and all(base is object or base.__flags__ & _HEAP_TYPE for base in kind.__mro__)


_HEAP_TYPE = 1 << 9


def attributes_of(value: object) -> dict[str, Any]:
    """The attributes of an object, those in slots first."""
    found = {}
    for kind in type(value).__mro__:
        for name, slot in vars(kind).items():
            if isinstance(slot, types.MemberDescriptorType):
                with contextlib.suppress(AttributeError):
                    found[name] = slot.__get__(value)
    found.update(dict_of(value) or {})
    return found
