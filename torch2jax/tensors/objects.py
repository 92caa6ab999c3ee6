"""The objects that Python objects can reach, in an order that is the same for objects of equal structure.

A compiled part of a program is a function of tensors that lie anywhere in its arguments and its module, and it may put
others there. So objects are taken apart into what they hold, and put together again from it.
"""

# What it takes apart is of any type.
# pyright: reportMissingParameterType=false

import functools
import types
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from typing import Any, NamedTuple

import numpy as np
import torch

from ..runtime.caches import remembered
from .trees import attributes_of, slots_of

_HIDDEN = frozenset(("_call_impl", "_compiled_call_impl"))
"""Attributes of modules that calls are intercepted by."""


class Hidden:
    """Marks an attribute of a module that is not part of the module."""


class ObjectCodec(NamedTuple):
    """The functions that take the objects of a type apart and put them together."""

    open: Callable[[Any], tuple[Any, Sequence]]
    """Returns the static part of an object, to compare, and its items."""
    make: Callable[[type, Any, Sequence], Any]
    """A new object of a type, empty if it can be filled."""
    fill: Callable[[Any, Any, Sequence], None] | None = None
    """Replaces all that an object holds; None if it cannot change."""
    views: Callable[[Any], tuple[Iterable, ...]] | None = None
    """Live views of what the object holds: its items; or its keys and its values, which are as many."""


class Identity:
    """A key that compares an object by identity."""

    __slots__ = ("value",)

    def __init__(self, value):
        self.value = value

    def __eq__(self, other):
        return isinstance(other, Identity) and self.value is other.value

    def __hash__(self):
        return id(self.value)

    def __repr__(self):
        return f"<{type(self.value).__name__} at {id(self.value):#x}>"


def _key(key):
    return key if type(key) is str else (type(key), key if isinstance(key, (int, tuple, bytes)) else Identity(key))


def _keys(mapping) -> tuple:
    return tuple([key if type(key) is str else _key(key) for key in mapping])


def _plain_key(key):
    if type(key) is str:
        return key
    return key[1].value if isinstance(key[1], Identity) else key[1]


# Lists, tuples, sets.


def _fill_list(value: list, _head, items) -> None:
    list.__init__(value, items)


def _make_tuple(kind, _head, items):
    return kind(items) if hasattr(kind, "n_sequence_fields") else tuple.__new__(kind, items)


def _fill_set(value: set, _head, items) -> None:
    set.clear(value)
    set.update(value, items)


_LIST = ObjectCodec(lambda x: (len(x), x), lambda kind, *_: list.__new__(kind), _fill_list, lambda x: (x,))
_TUPLE = ObjectCodec(lambda x: (len(x), x), _make_tuple)
_SET = ObjectCodec(lambda x: (len(x), tuple(x)), lambda kind, *_: set.__new__(kind), _fill_set, lambda x: (x,))
_FROZEN = ObjectCodec(lambda x: (len(x), tuple(x)), lambda kind, _head, items: frozenset.__new__(kind, items))


def _fill_deque(value: deque, _head, items) -> None:
    value.clear()
    value.extend(items)


_DEQUE = ObjectCodec(
    lambda x: ((len(x), x.maxlen), tuple(x)), lambda kind, head, _: kind([], head[1]), _fill_deque, lambda x: (x,)
)

# Dictionaries.


def _fill_dict(value: dict, keys, items) -> None:
    kind: Any = OrderedDict if isinstance(value, OrderedDict) else dict  # not what a subclass makes of it
    kind.clear(value)
    for key, item in zip(keys, items, strict=True):
        kind.__setitem__(value, _plain_key(key), item)


_DICT = ObjectCodec(
    lambda x: (_keys(x), tuple(x.values())),
    lambda kind, *_: kind.__new__(kind),
    _fill_dict,
    lambda x: (x, x.values()),
)


def _open_dict_with_attributes(value) -> tuple:
    attributes = vars(value)
    if not attributes and not dict.__len__(value):  # as most are that modules have for hooks
        return ((), ()), ()
    kind: object = OrderedDict if isinstance(value, OrderedDict) else dict  # each has an order of its own
    return (_keys(kind.keys(value)), tuple(attributes)), (*kind.values(value), *attributes.values())


def _fill_dict_with_attributes(value, head, items) -> None:
    keys, names = head
    _fill_dict(value, keys, items[: len(keys)])
    _fill_attributes(value, names, items[len(keys) :])


_DICT_WITH_ATTRIBUTES = ObjectCodec(
    _open_dict_with_attributes,
    lambda kind, *_: kind.__new__(kind),
    _fill_dict_with_attributes,
    lambda x: (dict.keys(x), dict.values(x), vars(x), vars(x).values()),
)
# Of which attributes are not looked at: it is given none meanwhile.
_ORDERED_DICT = _DICT_WITH_ATTRIBUTES._replace(views=lambda x: (x, OrderedDict.values(x)))


def _fill_default_dict(value: defaultdict, keys, items) -> None:
    *items, value.default_factory = items
    _fill_dict(value, keys, items)


_DEFAULT_DICT = _DICT._replace(open=lambda x: (_keys(x), (*x.values(), x.default_factory)), fill=_fill_default_dict)

# Objects.


def _fill_attributes(value, names, items) -> None:
    attributes = vars(value)
    attributes.clear()
    attributes.update(zip(names, items, strict=True))


_OBJECT = ObjectCodec(
    lambda x: (tuple(vars(x)), tuple(vars(x).values())),
    lambda kind, *_: object.__new__(kind),
    _fill_attributes,
    lambda x: (vars(x), vars(x).values()),
)


def _open_module(module) -> tuple:
    attributes = vars(module)
    shown = [name for name, value in attributes.items() if name not in _HIDDEN and not isinstance(value, Hidden)]
    return tuple(shown), [attributes[name] for name in shown]


def _fill_module(module, names, items) -> None:
    attributes = vars(module)
    hidden = {name: x for name, x in attributes.items() if name in _HIDDEN or isinstance(x, Hidden)}
    _fill_attributes(module, names, items)
    attributes.update(hidden)


_MODULE = _OBJECT._replace(open=_open_module, fill=_fill_module)


def _open_slotted(value) -> tuple:
    attributes = attributes_of(value)
    return tuple(attributes), tuple(attributes.values())


def _fill_slotted(value, names, items) -> None:
    for name in attributes_of(value):
        object.__delattr__(value, name)
    for name, item in zip(names, items, strict=True):
        object.__setattr__(value, name, item)


_SLOTTED = _OBJECT._replace(open=_open_slotted, fill=_fill_slotted, views=lambda x: (_Shown(x, attributes_of),))


class _Shown:
    """A live view of an object's attributes, for objects that have none of their own."""

    def __init__(self, owner, attributes: Callable[[Any], dict]):
        self._owner, self._attributes = owner, attributes

    def __iter__(self):
        return iter(self._attributes(self._owner).values())

    def __len__(self):
        return len(self._attributes(self._owner))


# Functions.


class _FunctionCode(NamedTuple):
    """A function without the values that it closes over."""

    code: types.CodeType
    globals: Identity
    name: str


def _open_function(function: types.FunctionType) -> tuple:
    head = _FunctionCode(function.__code__, Identity(function.__globals__), function.__name__)
    return head, (function.__defaults__, function.__kwdefaults__, function.__dict__, *(function.__closure__ or ()))


def _make_function(_kind, head: _FunctionCode, items) -> types.FunctionType:
    defaults, keyword_defaults, attributes, *cells = items
    function = types.FunctionType(head.code, head.globals.value, head.name, defaults, tuple(cells) or None)
    function.__kwdefaults__ = keyword_defaults
    function.__dict__.update(attributes)
    return function


def _open_cell(cell: types.CellType) -> tuple:
    try:
        return True, (cell.cell_contents,)
    except ValueError:  # nothing is assigned yet
        return False, ()


def _fill_cell(cell: types.CellType, _head, items) -> None:
    if items:
        cell.cell_contents = items[0]
    else:
        del cell.cell_contents


def _contents(cell: types.CellType) -> dict:
    return dict(enumerate(_open_cell(cell)[1]))


_FUNCTION = ObjectCodec(_open_function, _make_function)
_CELL = ObjectCodec(_open_cell, lambda *_: types.CellType(), _fill_cell, lambda x: (_Shown(x, _contents),))
_METHOD = ObjectCodec(
    lambda x: (None, (x.__func__, x.__self__)), lambda _kind, _head, items: types.MethodType(items[0], items[1])
)
_PARTIAL = ObjectCodec(
    lambda x: (None, (x.func, x.args, x.keywords)),
    lambda kind, _head, items: kind(items[0], *items[1], **items[2]),
)

# Leaves.

_VALUES = (str, bytes, type(None), type(Ellipsis), range, torch.dtype, torch.device, torch.layout, torch.memory_format)
_NUMBERS = (bool, int, complex)


def _value(value) -> Any:
    return value


def _typed(value) -> tuple[object, ...]:
    return type(value), value


def _float(value) -> tuple[object, ...]:
    return float, value if value == value and value else repr(value)  # -0.0 is not 0.0, and nan equals none


def _numpy(value) -> Any:
    return np.ndarray, value.dtype, value.shape, value.tobytes() if value.dtype != object else Identity(value)


def _slice(value) -> tuple[object, ...]:
    return slice, *(leaf_of(type(x))(x) for x in (value.start, value.stop, value.step))


_FOREIGN = frozenset(("asyncio", "concurrent", "io", "jax", "jaxlib", "logging", "queue", "re", "threading", "weakref"))


@remembered(1024)
def codec_of(kind: type) -> ObjectCodec | None:
    """The codec of a type's objects; None if they are leaves."""
    if issubclass(kind, torch.Tensor):
        return None
    for base, codec in (
        (list, _LIST),
        (torch.Size, None),
        (tuple, _TUPLE),
        (set, _SET),
        (frozenset, _FROZEN),
        (deque, _DEQUE),
        (defaultdict, _DEFAULT_DICT),
        (types.FunctionType, _FUNCTION),
        (types.CellType, _CELL),
        (types.MethodType, _METHOD),
        (functools.partial, _PARTIAL),
        (torch.jit.ScriptModule, None),
        (torch.nn.Module, _MODULE),
        ((type, types.ModuleType, Enum, torch.Generator, str, int, float, bytes), None),
    ):
        if issubclass(kind, base):
            return codec
    if kind is OrderedDict:
        return _ORDERED_DICT
    if issubclass(kind, dict):
        return _DICT_WITH_ATTRIBUTES if kind.__dictoffset__ else _DICT
    if kind.__module__.partition(".")[0] in _FOREIGN or issubclass(kind, (BaseException, np.generic)):
        return None
    if any(not base.__flags__ & _IS_HEAP_TYPE for base in kind.__mro__ if base is not object):
        return None  # some of it is C++'s, as of an array
    return _SLOTTED if slots_of(kind) else _OBJECT if kind.__dictoffset__ else None


@remembered(1024)
def has_attributes(kind: type) -> bool:
    """Returns True if objects of a type are taken apart into attributes: those of classes written in Python."""
    return any(codec_of(kind) is codec for codec in (_OBJECT, _SLOTTED, _MODULE))


_IS_HEAP_TYPE = 1 << 9  # made by a class statement


@remembered(1024)
def leaf_of(kind: type) -> Callable[[object], object]:
    """Returns the function from a leaf of a type to the key that it is compared by."""
    if kind in _VALUES:
        return _value
    if kind in _NUMBERS or issubclass(kind, (torch.Size, np.generic)):
        return _typed
    if kind is float:
        return _float
    if kind is slice:
        return _slice
    if issubclass(kind, np.ndarray):
        return _numpy
    return Identity


def named_by(code: types.CodeType) -> Iterable[str]:
    """The names that code has, and functions that it makes."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from named_by(constant)


def item_names(value: object, count: int) -> list[str]:
    """The expressions that lead from an object to its items, such as ``[0]`` or ``.name``."""
    if isinstance(value, dict):
        names = [f"[{key!r:.40}]" if isinstance(key, (str, int)) else f"[key {i}]" for i, key in enumerate(value)]
    elif isinstance(value, types.FunctionType):
        cells = [f" closing over {name}" for name in value.__code__.co_freevars]
        names = [".__defaults__", ".__kwdefaults__", ".__dict__", *cells]
    elif isinstance(value, types.CellType):
        names = [".cell_contents"]
    elif has_attributes(type(value)):
        names = [f".{name}" for name in codec_of(type(value)).open(value)[0]]  # pyright: ignore[reportOptionalMemberAccess]
    else:
        names = [f"[{i}]" for i in range(count)]
    return [*names[:count], *(f"({i})" for i in range(len(names), count))]


class Slot:
    """A place that code can assign to: an item of a dictionary or list, or an attribute.

    Args:
        owner: a dictionary, a list, or the attributes of an object.
        key: what it is there.
        path: its name.
    """

    __slots__ = ("key", "owner", "path")

    def __init__(self, owner: Any, key: Any, path: str):
        self.owner, self.key, self.path = owner, key, path

    def get(self):
        return self.owner[self.key]

    def set(self, value: Any) -> None:
        self.owner[self.key] = value
