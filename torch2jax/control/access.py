"""Attributes, items and globals in converted code, and the choice of functions that run converted."""

import collections
import contextlib
import functools
import types
from typing import Any

import numpy as np
import torch

from ..runtime.caches import Cache
from ..values.item import Item
from .convert import converted, is_converted
from .merge import expect_there, has_no_identity
from .numbers import attribute
from .purity import changes_nothing, is_to_convert, mutators_of
from .source import Unconvertible
from .state import Refused, current_run, trying
from .writes import Global, dict_of, expect_own_gradient, is_made, made, note, note_attribute, note_contents

_ABSENT = object()
_TABLES = frozenset(vars(torch.nn.Module()))
_LISTS = (str, range, collections.deque, torch.nn.ModuleList, torch.nn.Sequential, torch.nn.ParameterList)
_OF_GRADIENTS = frozenset(("requires_grad", "is_leaf", "grad_fn"))


# The choice of functions that are converted when they are called.


_OF_C = (types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType, types.MethodWrapperType)
_to_convert: Cache[int, tuple[types.CodeType, bool]] = Cache("code to convert", 2**14)
_unconverted: Cache[int, tuple[types.CodeType, Unconvertible]] = Cache("code that cannot be converted", 2**14)


class Routes:
    """The base of the operators, which are a constant of converted code."""

    def call(self, function: object, /, *args: object, **kwargs: object) -> Any:
        raise NotImplementedError

    @staticmethod
    def converts(function: types.FunctionType) -> bool:
        """True if a Python function is the user's, or as good as that."""
        code = function.__code__
        found = _to_convert.get(id(code))
        if found is None:
            found = _to_convert[id(code)] = code, is_converted(code) or is_to_convert(code)
        return found[1]

    def function(self, function: types.FunctionType) -> types.FunctionType | None:
        """A function as it is converted; None if it is not."""
        code = function.__code__
        if is_converted(code):
            return function
        if not self.converts(function) or id(code) in _unconverted:
            return None
        try:
            return converted(function, self)
        except Unconvertible as error:
            _unconverted[id(code)] = code, error
            return None

    def given(self, value: object) -> Any:
        """An argument of code that calls it and is not converted: functions are given converted."""
        if type(value) is types.FunctionType:
            return self.function(value) or value
        if type(value) is types.MethodType and type(value.__func__) is types.FunctionType:
            found = self.function(value.__func__)
            return value if found is None else types.MethodType(found, value.__self__)
        if isinstance(value, _OF_C):
            owner = getattr(value, "__self__", None)
            writes = mutators_of(owner) is not None or not changes_nothing(value, owner, value.__name__)
            return functools.partial(self.call, value) if writes else value
        if type(value) is functools.partial:
            return functools.partial(self.given(value.func), *value.args, **value.keywords)
        return value


def why_unconverted(function: types.FunctionType) -> str:
    found = _unconverted.get(id(function.__code__))
    return "it is a library's" if found is None else str(found[1])


# Attributes, items, globals.


class Access(Routes):
    """The operators of attributes, items and globals."""

    slice = staticmethod(slice)

    # Attributes.

    def getattr(self, owner: object, name: str) -> Any:
        if name in _OF_GRADIENTS and id(owner) in current_run().unsure_grad:
            raise Refused(
                f"data decide whether a tensor requires grad, or is a leaf, and its {name} is asked", other_paths=True
            )
        if name == "grad":
            expect_own_gradient(owner)
        found = self._attribute(owner, name)
        if type(found) in (dict, collections.OrderedDict, set):
            if name == "__dict__":
                current_run().dicts[id(found)] = found, owner
                if is_made(owner):
                    made(found)
            elif name in _TABLES and isinstance(owner, torch.nn.Module):
                current_run().tables[id(found)] = found
        return found

    def _attribute(self, owner: Any, name: str) -> object:
        kind = type(owner)
        if kind is Item:
            return attribute(owner, name)
        if kind is types.ModuleType or isinstance(owner, (torch.Tensor, type)):
            return getattr(owner, name)
        expect_there(owner)
        if name == "__dict__" and current_run().partial and id(dict_of(owner)) in current_run().partial:
            raise Refused("data decide which attributes an object has, and its __dict__ is read", other_paths=True)
        own: Any = kind.__getattribute__
        if type(own) is types.FunctionType and self.converts(own):
            return self.call(own, owner, name)
        found, missing = _looked_up(kind, name), getattr(kind, "__getattr__", None)
        has_other = found is not None and type(missing) is types.FunctionType and self.converts(missing)
        try:
            with trying() if has_other else contextlib.nullcontext():
                read = self._read_by(found, owner, kind, name)
        except AttributeError:
            if not has_other:
                raise
            return self.call(missing, owner, name)
        if read is not _ABSENT:
            return read
        missing = getattr(kind, "__getattr__", None)
        if found is None and type(missing) is types.FunctionType and self.converts(missing):
            attributes = dict_of(owner)
            if attributes is not None and name in attributes:
                return attributes[name]
            return self.call(missing, owner, name)
        return getattr(owner, name)

    def _read_by(self, found: object, owner: object, kind: type, name: str) -> object:
        """The value of a descriptor of the user's."""
        if found is None or type(found) is types.FunctionType:
            return _ABSENT
        if type(found) is property:
            if type(found.fget) is types.FunctionType and self.converts(found.fget):
                return self.call(found.fget, owner)
            return _ABSENT
        attributes = dict_of(owner)
        if type(found) is functools.cached_property:
            if attributes is None or name in attributes:
                return _ABSENT
            value = self.call(found.func, owner)
            note_attribute(owner, name)
            attributes[name] = value
            return value
        get = getattr(type(found), "__get__", None)
        is_in_the_way = hasattr(type(found), "__set__") or attributes is None or name not in attributes
        if type(get) is types.FunctionType and self.converts(get) and is_in_the_way:
            return self.call(get, found, owner, kind)
        return _ABSENT

    def setattr(self, value: object, owner: object, name: str) -> None:
        kind = type(owner)
        expect_there(owner)
        own = kind.__setattr__
        if type(own) is types.FunctionType or getattr(own, "__name__", "") != "__setattr__":
            self.call(own, owner, name, value)
        else:
            self.set_plainly(value, owner, name)

    def set_plainly(self, value: object, owner: object, name: str) -> None:
        """Sets an attribute as ``object.__setattr__`` does."""
        found = _looked_up(type(owner), name)
        if type(found) is property and type(found.fset) is types.FunctionType:
            self.call(found.fset, owner, value)
            return
        put = None if found is None else getattr(type(found), "__set__", None)
        if type(put) is types.FunctionType:
            self.call(put, found, owner, value)
            return
        self._expect_plain(owner, name, found, put)
        if type(type(owner).__setattr__) is types.FunctionType:
            object.__setattr__(owner, name, value)
        else:
            setattr(owner, name, value)

    def delattr(self, owner: object, name: str) -> None:
        expect_there(owner)
        own = type(owner).__delattr__
        if type(own) is types.FunctionType:
            self.call(own, owner, name)
        else:
            self.delete_plainly(owner, name)

    def delete_plainly(self, owner: object, name: str) -> None:
        """Deletes an attribute as ``object.__delattr__`` does."""
        found = _looked_up(type(owner), name)
        if type(found) is property and type(found.fdel) is types.FunctionType:
            self.call(found.fdel, owner)
            return
        self._expect_plain(owner, name, found, None if found is None else getattr(type(found), "__set__", None))
        if type(type(owner).__delattr__) is types.FunctionType:
            object.__delattr__(owner, name)
        else:
            delattr(owner, name)

    def _expect_plain(self, owner: object, name: str, found: object, put: object) -> None:
        """Notes the write of an attribute that lies in the object itself."""
        if isinstance(owner, torch.Tensor) and hasattr(torch.Tensor, name):
            return  # which the journal of tensors has
        if isinstance(owner, np.ndarray):
            note_contents(owner)
        is_slot = isinstance(found, (types.MemberDescriptorType, types.GetSetDescriptorType))
        is_elsewhere = put is not None and not is_slot and type(found) is not property
        if is_elsewhere and current_run().journal is not None and not is_made(owner):
            raise Refused(f"nobody knows where {type(owner).__name__}.{name} is kept, which is set here")
        note_attribute(owner, name)

    # Items.

    def item_at(self, owner: object, key: object) -> object:
        """The item of a list or dictionary for a tensor or a number that data may decide."""
        raise NotImplementedError

    def set_item_at(self, value: object, owner: object, key: object) -> None:
        """Sets it."""
        raise NotImplementedError

    def getitem(self, owner: Any, key: object) -> object:
        kind = type(owner)
        if kind is Item:
            raise TypeError(f"'{owner.python_type.__name__}' object is not subscriptable")
        if isinstance(owner, dict) and type(key) is not str and has_no_identity(key):
            raise Refused("data decide which of two objects a key is", other_paths=True)
        if kind is list or kind is tuple or kind is dict:
            if kind is list and type(key) is slice:
                return made(owner[key])
            expect_there(key)
            return self.item_at(owner, key) if isinstance(key, torch.Tensor) else owner[key]
        expect_there(owner, key)
        if isinstance(key, torch.Tensor) and (kind in _LISTS or _is_vector(owner)):
            return self.item_at(owner, key)
        f = getattr(kind, "__getitem__", None)
        if type(f) is types.FunctionType and self.converts(f):
            return self.call(f, owner, key)
        if isinstance(owner, collections.defaultdict) and owner.default_factory is not None and key not in owner:
            self.setitem(self.call(owner.default_factory), owner, key)
        elif isinstance(owner, dict) and key not in owner:
            missing = getattr(kind, "__missing__", None)
            if type(missing) is types.FunctionType:
                return self.call(missing, owner, key)
        return owner[key]

    def setitem(self, value: object, owner: Any, key: object) -> None:
        expect_there(owner, key)
        f = getattr(type(owner), "__setitem__", None)
        if type(f) is types.FunctionType:
            self.call(f, owner, key, value)
            return
        if isinstance(owner, dict) and type(key) is not str and has_no_identity(key):
            raise Refused("data decide which of two objects a key is", other_paths=True)
        if isinstance(key, torch.Tensor) and _has_items(owner, key):
            self.set_item_at(value, owner, key)
            return
        self._note_item(owner, key)
        owner[key] = value

    @staticmethod
    def _note_item(owner: object, key: object) -> None:
        """Is called before an item is set or deleted."""
        if type(owner) is dict and type(key) is str:
            run = current_run()
            if "__builtins__" in owner:  # the globals of a module
                note(Global(owner, key))
                return
            if id(owner) in run.dicts:  # the attributes of an object
                note_attribute(run.dicts[id(owner)][1], key)
                return
        note_contents(owner)

    def delitem(self, owner: Any, key: Any) -> None:
        expect_there(owner, key)
        f = getattr(type(owner), "__delitem__", None)
        if type(f) is types.FunctionType:
            self.call(f, owner, key)
            return
        if type(owner) is list and isinstance(key, torch.Tensor):
            self.call(owner.pop, key)
            return
        self._note_item(owner, key)
        del owner[key]

    # Globals.

    @staticmethod
    def set_global(value: object, names: dict[str, object], name: str) -> None:
        note(Global(names, name))
        names[name] = value

    @staticmethod
    def del_global(names: dict[str, object], name: str) -> None:
        note(Global(names, name))
        del names[name]

    @staticmethod
    def new(value: object) -> object:
        """The operator of what a display, a comprehension or a definition has made."""
        if type(value) is set or type(value) is dict:
            for x in value:
                if type(x) is not str and has_no_identity(x):
                    raise Refused("data decide whether two items of a set, or two keys, are one", other_paths=True)
        return made(value)


def _is_vector(owner: object) -> bool:
    return type(owner) is np.ndarray and owner.ndim == 1


def _has_items(owner: object, key: object) -> bool:
    """True if data may decide which item a key is of; a tensor in a dictionary is a key itself."""
    return type(owner) is list or (isinstance(owner, dict) and type(key) is Item)


def _looked_up(kind: type, name: str) -> object:
    """The attribute of a class, or of one that it derives from."""
    for each in kind.__mro__:
        if name in each.__dict__:
            return each.__dict__[name]
    return None
