"""What a side leaves in one slot, as a tree: tensors and numbers are leaves, of containers and objects what is in them.

A leaf has its array, or the number of it among the arrays of the side. A leaf of a tensor also has its relations: the
older tensors that it is, or is a view of, on this side (`ties.py`).
"""

import collections
import contextlib
import types
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch

from ..runtime.translation import this_call
from ..tensors.history import Source
from ..tensors.storage import steps_to
from ..tensors.tensor import Torchish, wrap
from ..tracing.tensor_spec import TensorSpec
from ..values.item import Item
from ..values.masked import Masked, leading_of
from ..values.masked_functions import rows_and_length
from ..values.traced_numbers import Number
from .state import current_run
from .ties import Relation, relations
from .writes import UNDEFINED, dict_of


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
