"""Deep copies of Python objects, in which what was one object stays one.

They differ from those of `copy.deepcopy` where that would tell two worlds apart badly:

- a weak reference, or a view of a NumPy array, leads to the copy of what it led to, if that is copied, too;
- a list, a dictionary or a set of a class of the user's is filled past what its own ``append`` makes of items;
- objects with one ``__dict__`` have one again;
- an object that cannot be copied, and leads to no other (a lock), is shared. One that leads to others (a generator, a
  file, the keys of a dictionary) is shared with the whole attribute of a module that it lies in: else the others would
  be copied apart from it.
"""

import copy
import copyreg
import enum
import gc
import types
import weakref
from collections import deque
from typing import Any

import numpy as np
import torch

from ..internals.dispatch import DisableTorchFunction

_SHARED = (
    *(type(None), type(Ellipsis), type(NotImplemented), bool, int, float, complex, str, bytes, range, property),
    *(types.FunctionType, types.BuiltinFunctionType, types.CodeType),
    *(torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Size),
)


class Uncopyable(Exception):
    """An object that leads to others cannot be copied."""


def take_over(memo: dict[int, Any], other: dict[int, object]) -> None:
    """Adds to the memo of a copy what another one has, with what that keeps alive for the sake of its id."""
    kept = other.pop(id(other), [])
    memo.update(other)
    memo.setdefault(id(memo), []).extend(kept)


class DeepCopy:
    """A deep copy of objects.

    Args:
        memo: what stands for objects, by their ids; what is copied is added.
        within: the ids of all that the objects lead to, if weak references and views have to lead to copies of that. A
            first copy finds it (`aliased`): mostly there are none.
    """

    def __init__(self, memo: dict[int, Any], within: frozenset[int] = frozenset()):
        self.memo, self._within = memo, within
        self.may_alias = False
        """True if there are weak references, views, or arrays in the memory of tensors. Then `aliased` and `freeze` are
        to be called."""
        self._referents: list[object] = []
        self._owners: list[int] = []  # the ids of arrays, for each view of them
        self._tensors: list[torch.Tensor] = []
        self._of_tensors: list[tuple[torch.Tensor, np.ndarray]] = []  # copies of arrays in the memory of tensors

    def aliased(self) -> frozenset[int]:
        """The ids of all that was copied, if another copy has to keep aliases in it; else none."""
        shared = {x for x in self._owners if x in self.memo or self._owners.count(x) > 1}
        if not shared and not any(id(x) in self.memo for x in self._referents):
            return frozenset()
        return frozenset(shared.union(self.memo))

    def freeze(self, tensors: list[torch.Tensor]) -> None:
        """Makes copies of arrays read-only that were in the memory of a tensor that was copied, or of one of these.

        The copy of the tensor has its memory elsewhere, so a write to the array would not be seen by it.
        """
        with DisableTorchFunction():
            memories = set(map(_memory, (*tensors, *self._tensors)))
            for tensor, made in self._of_tensors:
                if _memory(tensor) in memories:
                    made.flags.writeable = False

    def began(self, value: Any, made: Any) -> None:
        """Called with a copy that may still be empty."""
        self.memo[id(value)] = made
        # As in `copy.deepcopy`: what was made for the copy alone lives as long as its id is in the memo.
        self.memo.setdefault(id(self.memo), []).append(value)

    def of_module(self, module: torch.nn.Module) -> object:
        raise NotImplementedError

    def of_tensor(self, tensor: torch.Tensor) -> object:
        self._tensors.append(tensor)
        return self._own_copy(tensor)

    def copied(self, value: Any) -> Any:
        """The copy of an object.

        Raises:
            Uncopyable: it, or one that it leads to, has none.
        """
        kind = type(value)
        if kind in _SHARED:
            return value
        if id(value) in self.memo:
            return self.memo[id(value)]
        make = _COPIES.get(kind)
        if make is not None:
            return make(self, value)
        if isinstance(value, (type, types.ModuleType, enum.Enum)):
            return value
        if isinstance(value, torch.nn.Module):
            return self.of_module(value)
        if isinstance(value, torch.Tensor):
            return self.of_tensor(value)
        if hasattr(kind, "__deepcopy__"):
            return self._own_copy(value)
        return self.of_object(value)

    def _own_copy(self, value: object) -> object:
        """The copy that the object's own class makes."""
        try:
            return copy.deepcopy(value, self.memo)
        except Exception as error:
            return self.alone(value, error)

    def alone(self, value: object, error: Exception) -> object:
        """An object that cannot be copied, if nobody else can see that it is shared."""
        if isinstance(error, Uncopyable) or not all(isinstance(x, type) for x in gc.get_referents(value)):
            raise Uncopyable from error
        return value

    def of_object(self, value: Any) -> Any:
        """The copy of an object, of the parts that a pickle of it would have."""
        try:
            reduce = copyreg.dispatch_table.get(type(value))
            reduced: Any = value.__reduce_ex__(4) if reduce is None else reduce(value)
            return value if isinstance(reduced, str) else self._rebuilt(value, *reduced)
        except Exception as error:
            return self.alone(value, error)

    def _rebuilt(
        self, value: Any, make: Any, args: tuple, state: Any = None, items: Any = None, pairs: Any = None, _: Any = None
    ) -> Any:
        made = make(*map(self.copied, args))
        self.began(value, made)
        if state is not None:
            self._set_state(value, made, state)
        if items is not None:
            plain = next((x for x in (list, deque) if isinstance(value, x)), type(value))
            for item in items:
                plain.append(made, self.copied(item))
        if pairs is not None:
            plain = dict if isinstance(value, dict) and not hasattr(value, "move_to_end") else type(value)
            for key, item in pairs:
                plain.__setitem__(made, self.copied(key), self.copied(item))
        return made

    def _set_state(self, value: Any, made: Any, state: Any) -> None:
        if hasattr(made, "__setstate__"):
            made.__setstate__(self.copied(state))
            return
        attributes: Any
        slots: Any
        attributes, slots = state if isinstance(state, tuple) and len(state) == 2 else (state, {})
        if attributes:
            own = value.__dict__
            if id(own) in self.memo:
                made.__dict__ = self.memo[id(own)]
            else:
                self.memo[id(own)] = made.__dict__
                made.__dict__.update({name: self.copied(item) for name, item in attributes.items()})
        for name, item in slots.items():
            object.__setattr__(made, name, self.copied(item))

    # Objects of Python's and NumPy's own classes.

    def _of_list(self, value: list) -> list:
        made = []
        self.began(value, made)
        made.extend(map(self.copied, value))
        return made

    def _of_dict(self, value: dict) -> dict:
        made = {}
        self.began(value, made)
        for key, item in value.items():
            made[self.copied(key)] = self.copied(item)
        return made

    def _of_tuple(self, value: tuple) -> tuple:
        items = tuple(map(self.copied, value))
        if id(value) in self.memo:  # it is within itself
            return self.memo[id(value)]
        if all(one is other for one, other in zip(items, value, strict=True)):
            return value
        self.began(value, items)
        return items

    def _of_method(self, value: types.MethodType) -> types.MethodType:
        return types.MethodType(value.__func__, self.copied(value.__self__))

    def _of_weak(self, value: object) -> object:
        is_reference = type(value) is weakref.ref
        try:
            referent = value() if is_reference else value.__repr__.__self__
        except ReferenceError:
            return value
        self.may_alias = True
        self._referents.append(referent)
        if id(referent) not in self._within:
            return value
        made = (weakref.ref if is_reference else weakref.proxy)(self.copied(referent))
        self.began(value, made)
        return made

    def _referent(self, value: object) -> object:
        """The object that stands for one that a weak container has."""
        self.may_alias = True
        self._referents.append(value)
        return self.copied(value) if id(value) in self._within else value

    def _of_weak_set(self, value: weakref.WeakSet) -> weakref.WeakSet:
        made = weakref.WeakSet(map(self._referent, value))
        self.began(value, made)
        return made

    def _of_weak_keys(self, value: weakref.WeakKeyDictionary) -> weakref.WeakKeyDictionary:
        made = weakref.WeakKeyDictionary()
        self.began(value, made)
        for key, item in value.items():
            made[self._referent(key)] = self.copied(item)
        return made

    def _of_weak_values(self, value: weakref.WeakValueDictionary) -> weakref.WeakValueDictionary:
        made = weakref.WeakValueDictionary()
        self.began(value, made)
        for key, item in value.items():
            made[self.copied(key)] = self._referent(item)
        return made

    def _of_array(self, value: np.ndarray) -> np.ndarray:
        owner = value
        while isinstance(owner.base, np.ndarray):
            owner = owner.base
        if owner is not value and type(owner) is np.ndarray and not value.dtype.hasobject:
            self.may_alias = True
            self._owners.append(id(owner))
            if id(owner) in self._within:
                made = _viewed_alike(value, owner, self.copied(owner))
                self.began(value, made)
                return made
        made = copy.deepcopy(value, self.memo)
        self.began(value, made)
        if isinstance(owner.base, torch.Tensor):
            self.may_alias = True
            self._of_tensors.append((owner.base, made))
        return made


_COPIES: dict[type, Any] = {
    list: DeepCopy._of_list,
    dict: DeepCopy._of_dict,
    tuple: DeepCopy._of_tuple,
    types.MethodType: DeepCopy._of_method,
    weakref.ref: DeepCopy._of_weak,
    weakref.ProxyType: DeepCopy._of_weak,
    weakref.CallableProxyType: DeepCopy._of_weak,
    weakref.WeakSet: DeepCopy._of_weak_set,
    weakref.WeakKeyDictionary: DeepCopy._of_weak_keys,
    weakref.WeakValueDictionary: DeepCopy._of_weak_values,
    np.ndarray: DeepCopy._of_array,
}


def _viewed_alike(view: np.ndarray, owner: np.ndarray, made: np.ndarray) -> np.ndarray:
    """The view of `made`, a copy of `owner`, that another view is of that."""
    flat = made.reshape(-1, order="A")  # no copy: it is contiguous in one order or the other
    offset = view.__array_interface__["data"][0] - owner.__array_interface__["data"][0]
    return np.ndarray(view.shape, view.dtype, flat.view(np.uint8), offset, view.strides)


def _memory(tensor: torch.Tensor) -> int | None:
    return tensor.untyped_storage().data_ptr() if tensor.layout is torch.strided else None
