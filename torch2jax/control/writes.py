"""The journal of writes to Python objects: what was there before the first write to each place, on one side.

A place is an attribute, the contents of a container, a variable, a global or a context variable. A side's writes are
undone when it ends, and what both sides have left is merged. Objects that a side has made itself are not journaled:
nobody else has them.

Invariants:

- Each write of converted code to an object that may be older than the side comes here first.
- `made` holds only what was made since the side began, and keeps it, so that no other object gets its id.
"""

import array
import collections
import sys
import threading
import types
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch

from ..runtime.translation import this_call
from ..tensors.journal import Journal, journal
from ..tensors.tensor import Torchish
from .state import Refused, Run, current_run, name_of


class Undefined:
    """The value of a variable, an attribute or an item that is not there."""

    def __repr__(self) -> str:
        return "undefined"


UNDEFINED: Any = Undefined()

SEQUENCES = (list, collections.deque, bytearray, array.array)
CONTAINERS = (*SEQUENCES, dict, set, np.ndarray)


class JournaledSlot:
    """Somewhere that code writes to.

    Args:
        owner: what it is a part of.
        key: tells it from other places; places of one owner have one key each.
        name: for errors.
    """

    is_variable = False
    """Whether it is a variable of a function."""
    is_contents = False

    def __init__(self, owner: Any, key: tuple, name: str):
        self.owner, self.key, self.name = owner, key, name

    def read(self) -> Any:
        raise NotImplementedError

    def write(self, value: object) -> None:
        raise NotImplementedError


class Variable(JournaledSlot):
    """A variable of a function, by its cell."""

    is_variable = True

    def __init__(self, cell: types.CellType, name: str):
        super().__init__(cell, ("variable", id(cell)), name)

    def read(self) -> Any:
        try:
            return self.owner.cell_contents
        except ValueError:
            return UNDEFINED

    def write(self, value: object) -> None:
        if value is not UNDEFINED:
            self.owner.cell_contents = value
        elif self.read() is not UNDEFINED:
            del self.owner.cell_contents


class Global(JournaledSlot):
    """A variable of a module."""

    def __init__(self, names: dict[str, object], name: str):
        super().__init__(names, ("global", id(names), name), f"the global {name}")
        self._name = name

    def read(self) -> Any:
        return self.owner.get(self._name, UNDEFINED)

    def write(self, value: object) -> None:
        if value is UNDEFINED:
            self.owner.pop(self._name, None)
        else:
            self.owner[self._name] = value


class Attribute(JournaledSlot):
    """An attribute of an object, of a class or of a module."""

    def __init__(self, owner: Any, name: str):
        kind = owner.__name__ if isinstance(owner, (type, types.ModuleType)) else type(owner).__name__
        super().__init__(owner, ("attribute", id(owner), name), f"{kind}.{name}")
        self._name = name
        self._slot = None if isinstance(owner, type) else _slot_of(owner, name)

    @property
    def is_of_c(self) -> bool:
        """True if what it holds is C's, which may refuse other values."""
        return isinstance(self._slot, types.GetSetDescriptorType)

    def read(self) -> Any:
        if isinstance(self.owner, type):
            return vars(self.owner).get(self._name, UNDEFINED)
        if self._slot is not None:
            try:
                return self._slot.__get__(self.owner)
            except AttributeError:
                return UNDEFINED
        return (dict_of(self.owner) or {}).get(self._name, UNDEFINED)

    def write(self, value: object) -> None:
        if isinstance(self.owner, type):
            if value is not UNDEFINED:
                type.__setattr__(self.owner, self._name, value)
            elif self._name in vars(self.owner):
                type.__delattr__(self.owner, self._name)
        elif self._slot is not None:
            if value is not UNDEFINED:
                self._slot.__set__(self.owner, value)
            elif self.read() is not UNDEFINED:
                self._slot.__delete__(self.owner)
        else:
            attributes: Any = dict_of(self.owner)
            if value is UNDEFINED:
                attributes.pop(self._name, None)
            else:
                attributes[self._name] = value


def dict_of(owner: object) -> dict[str, Any] | None:
    """The attributes of an object; None if it has slots alone."""
    if isinstance(owner, threading.local):
        return owner.__dict__
    try:
        return object.__getattribute__(owner, "__dict__")
    except AttributeError:
        return None


def _slot_of(owner: object, name: str) -> Any:
    for kind in type(owner).__mro__:
        found = vars(kind).get(name)
        if isinstance(found, (types.MemberDescriptorType, types.GetSetDescriptorType)):
            return found
    return None


class Contents(JournaledSlot):
    """All that a container holds; what is read is a copy of the plain kind."""

    is_contents = True

    def __init__(self, owner: Any):
        super().__init__(owner, ("contents", id(owner)), name_of(owner))

    def read(self) -> Any:
        owner = self.owner
        if isinstance(owner, np.ndarray):
            return np.array(owner)
        if isinstance(owner, dict):
            return dict(_kind_of(owner).items(owner))
        return set(owner) if isinstance(owner, set) else list(owner)

    def write(self, value: Any) -> None:
        owner = self.owner
        if isinstance(owner, (bytearray, array.array)) and any(isinstance(x, torch.Tensor) for x in value):
            raise Refused(f"{self.name} cannot hold numbers that depend on data")
        if isinstance(owner, np.ndarray):
            owner[...] = value
        elif isinstance(owner, dict):
            _kind_of(owner).clear(owner)
            for key, item in value.items():
                _kind_of(owner).__setitem__(owner, key, item)
        elif isinstance(owner, set):
            set.clear(owner)
            set.update(owner, value)
        elif isinstance(owner, list):
            list.__setitem__(owner, slice(None), value)
        elif isinstance(owner, collections.deque):
            collections.deque.clear(owner)
            collections.deque.extend(owner, value)
        else:
            del owner[:]
            owner.extend(value)


def _kind_of(owner: dict) -> Any:
    """The class whose methods see all that a dictionary holds, past what the user's own class makes of them."""
    return collections.OrderedDict if isinstance(owner, collections.OrderedDict) else dict


class ContextVariable(JournaledSlot):
    """A `contextvars.ContextVar`."""

    def __init__(self, owner: Any):
        super().__init__(owner, ("context", id(owner)), f"the context variable {owner.name}")

    def read(self) -> Any:
        return self.owner.get(UNDEFINED)

    def write(self, value: object) -> None:
        if value is not UNDEFINED:  # which it had outside of sides: each run has its own
            self.owner.set(value)


class Gradient(JournaledSlot):
    """`Tensor.grad`."""

    def __init__(self, owner: Any):
        super().__init__(owner, ("gradient", id(owner)), "the .grad of a tensor")

    def read(self) -> Any:
        return self.owner._gradient

    def write(self, value: Any) -> None:
        if not isinstance(self.owner, Torchish):  # the run that has made it has ended
            return
        kept = current_run().journal
        if kept is None or kept.tensors is not journal():  # a checkpoint's, which has to know
            self.owner.change("_gradient", value)
        else:
            self.owner._gradient = value


class ObjectJournal:
    """Is kept while it is entered, by the code of one side.

    Args:
        tensors: the undo log of tensors that is kept with it; None outside of sides.
    """

    def __init__(self, tensors: Journal | None = None):
        self.tensors = tensors
        self.slots: dict[tuple, JournaledSlot] = {}
        self.before: dict[tuple, Any] = {}
        self.made: dict[int, Any] = {}
        """What was made since the side began, by ids. Of generators weak references: they end when nobody has them."""

    def has_made(self, value: object) -> bool:
        found = self.made.get(id(value), self)
        return (found() if type(found) is weakref.ref else found) is value

    def __enter__(self) -> "ObjectJournal":
        run = current_run()
        self.outer, run.journal = run.journal, self
        return self

    def __exit__(self, *exc_info: object) -> None:
        current_run().journal = self.outer

    def note(self, slot: JournaledSlot) -> None:
        if slot.key not in self.slots and not self.has_made(slot.owner):
            self.slots[slot.key], self.before[slot.key] = slot, slot.read()
            if not slot.is_variable:
                current_run().owners[id(slot.owner)] = slot.owner

    def undo(self) -> None:
        """Puts back what all slots held before."""
        for key, slot in reversed(self.slots.items()):
            slot.write(self.before[key])


def references_of_sides(value: object) -> int:
    """The number of times that the sides that the code is on keep an object, to put it back where they end."""
    kept, objects = [x for each in current_run().started for x in each.values()], current_run().journal
    while objects is not None:
        for key, before in objects.before.items():
            is_copy = objects.slots[key].is_contents
            kept += (before.values() if isinstance(before, dict) else before) if is_copy else (before,)
        objects = objects.outer
    return sum(x is value for x in kept)


def can_be_put_back(run: Run, restored: Callable[[object], bool]) -> bool:
    """True if another run of the code finds all that sides have written to as it was."""
    if any(isinstance(x, _UNSEEN) for x in run.owners.values()):
        return False
    return not _from_outside(run, (*run.owners.values(), *run.consumed), restored)


_UNSEEN = (bytearray, array.array, np.ndarray, collections.OrderedDict)
"""Containers of which other paths do not see what changes, or not the order."""


class Doubted(Refused):
    """Objects are written to that may be from outside: code that is not converted may have made them.

    Where the next run finds all as this one did and writes to them, too, they are; else they were made in the run.
    """

    def __init__(self, owners: list[object]):
        super().__init__("nobody knows what is from outside")
        self.owners = owners


def _from_outside(run: Run, owners: Iterable[object], restored: Callable[[object], bool]) -> list[Any]:
    """Those of some objects that the code has from outside, and nobody puts back."""
    return [x for x in owners if not restored(x) and is_from_outside(run, x, restored)]


def is_from_outside(run: Run, owner: object, restored: Callable[[object], bool]) -> bool:
    """True if somebody has an object when the call is over, and the call itself does not put it back.

    Raises:
        Doubted: nobody knows.
    """
    outside: Any = run.outside
    if isinstance(owner, Torchish) or outside.has_made(owner) or id(owner) in run.tables:
        return False
    if restored(owner):
        return True
    if run.doubted is None:
        raise Doubted([*run.owners.values(), *run.consumed])
    return id(owner) in run.doubted


def expect_restored() -> None:
    """Is called where the run asks for a traced value.

    Raises:
        BaseException: to `Runs`, it is one that asks for none.
        Refused: earlier runs came as far, and have written to an object that nobody has put back since.
    """
    run = current_run()
    if run.is_journaled:
        this_call().paths[-1].discard()
    if run.ended_at_condition:
        _expect_restored(run, "before a condition on data is met", "nobody knew of the condition")


def expect_restored_at_end() -> None:
    """Is called where the code has ended, as `expect_restored`."""
    _expect_restored(current_run(), "in the call", "nobody knew what it needs: derivatives, or loops")


def expect_not_consumed(run: Run, restored: Callable[[object], bool], why: str) -> None:
    """Refuses to have moved on what nobody puts back: an iterator from outside, a file."""
    for value in _from_outside(run, run.consumed, restored):
        kind, name = f"a {type(value).__name__}", name_of(value)
        raise Refused(
            f"{kind if name == kind else f'{name} ({type(value).__name__})'} from outside is read or written to {why}. "
            "Make it in the function, or read it before the call"
        )


def _expect_restored(run: Run, when: str, why: str) -> None:
    restored, run.was_restored = run.was_restored, None
    if restored is None or run.outside is None:
        return
    twice = f"The code has run before, as {why}, and what that run has left there cannot be put back"
    expect_not_consumed(run, restored, f"{when}. {twice}")
    slots = [x for x in run.outside.slots.values() if not x.is_variable]
    found = _from_outside(run, [x.owner for x in slots], restored)
    for slot in slots:
        if any(slot.owner is x for x in found):
            raise Refused(
                f"{slot.name} is written to {when}. {twice}. Write to it after the condition, or give it to the "
                "function as an argument"
            )


def note(slot: JournaledSlot) -> None:
    """Is called before a place is written to."""
    run = current_run()
    if run.pairs:
        _expect_single(run.pairs, slot.owner)
    kept = run.kept
    if kept is not None:
        kept.note(slot)


def note_attribute(owner: object, name: str) -> None:
    """Is called before an attribute is set or deleted."""
    run = current_run()
    if isinstance(owner, weakref.ProxyTypes):
        owner = owner.__repr__.__self__  # what it stands for, to which it hands all on
    if run.pairs:
        _expect_single(run.pairs, owner)
    kept = run.kept
    if kept is not None and not kept.has_made(owner):
        kept.note(Attribute(owner, name))


def note_gradient(tensor: Any) -> bool:
    """Is called before `Tensor.grad` changes; true if that is a side's, which undoes it."""
    expect_own_gradient(tensor)
    kept = current_run().journal
    if kept is None or kept.tensors is not journal() or not tensor._node.is_older:
        return False
    note(Gradient(tensor))
    return True


def expect_own_gradient(tensor: object) -> None:
    """Refuses `Tensor.grad` of a tensor that is another one in each iteration of a loop."""
    if id(tensor) in current_run().other_leaves:
        raise Refused(
            "a tensor with a .grad is another one in each iteration of a loop, and data decide which that is. Write to "
            "the tensor in place, under torch.no_grad(), or take the gradient by torch.autograd.grad",
            other_paths=True,
        )


def note_contents(owner: object) -> None:
    """Is called before something is written to what an object holds.

    Raises:
        Refused: it is of a kind of which nobody knows what it holds.
    """
    run = current_run()
    if run.pairs:
        _expect_single(run.pairs, owner)
    kept = run.kept
    if kept is None or kept.has_made(owner):
        return
    if run.journal is not None and type(owner) is dict and (id(owner) in run.dicts or "__builtins__" in owner):
        raise Refused("the attributes of an object, or globals, are changed as a dictionary", other_paths=True)
    if isinstance(owner, np.ndarray):
        if owner.dtype.hasobject and run.journal is not None:
            raise Refused("an array of objects is written to on one side of a condition or in a loop")
        while isinstance(owner.base, np.ndarray):  # a view is written where its memory is
            owner = owner.base
    if isinstance(owner, CONTAINERS):
        if ("contents", id(owner)) not in kept.slots:  # whose name is looked for on the stack
            kept.note(Contents(owner))
    elif not isinstance(owner, torch.Tensor):
        if run.journal is not None:
            raise Refused(f"nobody knows what a write to a {type(owner).__name__} changes")
        run.consumed.append(owner)


def _expect_single(pairs: dict[int, tuple[object, str]], owner: object) -> None:
    found = pairs.get(id(owner))
    if found is not None:
        raise Refused(
            f"{found[1]}: whether the {type(owner).__name__} that is written to here is another one depends on data",
            other_paths=True,
        )


def pair(one: object, other: object, why: str) -> None:
    """Notes that data decide whether two objects are one: neither may be written to from now on."""
    pairs = current_run().pairs
    for value in (one, other):
        pairs.setdefault(id(value), (value, why))
        attributes = None if isinstance(value, CONTAINERS) else dict_of(value)
        if attributes is not None:  # which code may write to as to any dictionary
            pairs.setdefault(id(attributes), (attributes, why))


def is_paired(value: object) -> bool:
    return id(value) in current_run().pairs


def made(value: object) -> Any:
    """The value, which nobody has that is older than the side."""
    kept = current_run().kept
    if kept is not None:
        # Who holds a random generator besides the code has it from outside (`calls/rng.py`).
        is_weak = isinstance(value, (torch.Generator, types.GeneratorType))
        kept.made[id(value)] = weakref.ref(value) if is_weak else value
    return value


def forget(value: object) -> None:
    """Lets an iterator go that a loop has left and nobody else has: what it reads, a generator, then ends."""
    kept = current_run().kept
    if kept is not None and sys.getrefcount(value) <= _REFERENCES_OF_LEFT and kept.has_made(value):
        del kept.made[id(value)]


_REFERENCES_OF_LEFT = 4  # of the loop, of `forget` with its call of `getrefcount`, and of `made`


def is_made(value: object) -> bool:
    """True if nobody outside of the side can have a value; where the code is on no side, outside of the run."""
    kept = current_run().kept
    return kept is None or kept.has_made(value)
