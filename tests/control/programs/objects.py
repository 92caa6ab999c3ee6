"""Kinds of Python objects that code changes on one side of a condition on data, and programs made of them.

A kind is source text: how an object `o` is made, changed, and read. A program closes over the object, makes it, or
makes it and changes it in a loop; it is a function, a method of a module, or works on a global.
Classes, and globals that a kind itself names, are from outside in each of these.
"""

import ast
import functools
import re
from collections.abc import Callable
from typing import NamedTuple

import torch

from tests.control.programs.outcomes import Outcome, Program, load, outcome

__all__ = ["FORMS", "INPUTS", "KINDS", "PLACES", "Kind", "names", "run", "source"]

PLACES = "closed", "inside", "looped"
FORMS = "function", "method", "global"
INPUTS = [(torch.tensor(x),) for x in ([1.0, 2.0, 0.5], [-1.0, -2.0, 0.25], [0.1, 0.2, -0.6], [3.0, -1.0, 2.5])]
"""For two of these the condition is true; the loop runs twice, never, never and three times."""

PRELUDE = """\
import argparse, array, bisect, collections, contextlib, contextvars, copy, ctypes, dataclasses, enum, functools, heapq
import io, itertools, logging, operator, os, queue, random, sys, threading, types, typing, warnings, weakref
from unittest import mock

import numpy as np
import torch
from torch import nn


class Plain:
    pass


"""


class Kind(NamedTuple):
    """A kind of object, as source text.

    Args:
        make: statements that bind `o`.
        write: statements that change `o`, where they can by the tensor `z`.
        read: an expression of `o`: a number or a tensor.
        undo: statements that put back what belongs to the process.
    """

    make: str
    write: str
    read: str
    undo: str = "pass"


DEFINITIONS = """\
class Slots:
    __slots__ = ("v",)


@dataclasses.dataclass
class Data:
    v: typing.Any = 1.0


@dataclasses.dataclass
class DataOfList:
    v: list = dataclasses.field(default_factory=lambda: [1.0])


@dataclasses.dataclass(frozen=True)
class Frozen:
    v: typing.Any


class Config:
    v = 1.0


class Derived(Config):
    pass


class ConfigOfList:
    v = [1.0]


class One:
    def v(self):
        return 1.0


class Two:
    def v(self):
        return 2.0


class Meta(type):
    v = 1.0


class MadeByMeta(metaclass=Meta):
    pass


class Registered(type):
    made = []

    def __init__(cls, name, bases, space):
        super().__init__(name, bases, space)
        Registered.made.append(name)


LEVEL = 1.0


def set_level(v):
    global LEVEL
    LEVEL = v


COUNT = 0


def count():
    global COUNT
    COUNT += 1


def with_attribute():
    def f():
        return f.v

    f.v = 1.0
    return f


def with_default():
    def f(v=1.0):
        return v

    return f


def with_mutable_default():
    def f(v=None, kept=[1.0]):
        if v is not None:
            kept[0] = v
        return kept[0]

    return f


def cell():
    v = 1.0

    def put(new):
        nonlocal v
        v = new

    def get():
        return v

    return put, get


class Property:
    def __init__(self):
        self._v = 1.0

    @property
    def v(self):
        return self._v * 2

    @v.setter
    def v(self, new):
        self._v = new + 1


class Logged:
    def __init__(self):
        object.__setattr__(self, "log", {})

    def __setattr__(self, name, value):
        self.log[name] = value
        object.__setattr__(self, name, value * 2)


class Lazy:
    def __getattr__(self, name):
        if name != "v":
            raise AttributeError(name)
        self.v = 3.0
        return 3.0


class Proxy:
    def __init__(self, inner):
        self.__dict__["inner"] = inner

    def __getattr__(self, name):
        return getattr(self.__dict__["inner"], name)

    def __setattr__(self, name, value):
        setattr(self.inner, name, value)


class Field:
    def __get__(self, obj, owner=None):
        return self if obj is None else obj.__dict__["kept"] * 2

    def __set__(self, obj, value):
        obj.__dict__["kept"] = value


class Described:
    v = Field()


class Cached:
    base = 1.5

    @functools.cached_property
    def v(self):
        return self.base * 2


def with_cache():
    @functools.lru_cache(maxsize=None)
    def f(n):
        made[0] += 1
        return made

    made = [0]
    return f


class Level(enum.Enum):
    LOW = 1


class Calls:
    def __init__(self):
        self.n, self.last = 0, 1.0

    def __call__(self, v):
        self.n += 1
        self.last = v
        return v


class Entered:
    def __init__(self):
        self.entered, self.left, self.last = 0, 0, 1.0

    def __enter__(self):
        self.entered += 1
        return self

    def __exit__(self, *error):
        self.left += 10


class Sum:
    def __init__(self):
        self.v = 1.0

    def __iadd__(self, other):
        self.v = self.v + other
        return self


class Counted:
    asked = 0

    def __eq__(self, other):
        self.asked += 1
        return False

    def __hash__(self):
        self.asked += 1
        return 7

    def __repr__(self):
        self.asked += 1
        return ""


class Dies:
    def __init__(self, log):
        self.log = log

    def __del__(self):
        self.log[0] += 1


class NamedList(list):
    pass


class Doubles(list):
    def append(self, v):
        super().append(v * 2)


class NamedDict(dict):
    pass


class Attrs(dict):
    __getattr__ = dict.__getitem__
    __setattr__ = dict.__setitem__


class Missing(dict):
    def __missing__(self, key):
        self[key] = 3.0
        return 3.0


Point = collections.namedtuple("Point", "v w")


class Pair(ctypes.Structure):
    _fields_ = [("n", ctypes.c_int), ("v", ctypes.c_double)]


def powers():
    yield from (1.0, 2.0, 4.0, 8.0, 16.0)


def echo():
    v = 1.0
    while True:
        new = yield v
        v = v if new is None else new


class Steps:
    n = 0

    def __iter__(self):
        return self

    def __next__(self):
        self.n += 1
        return self.n


VARIABLE = contextvars.ContextVar("VARIABLE", default=1.0)


def warn_into(log):
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        warnings.warn("x")
    log.extend(found)


class CountingHandler(logging.Handler):
    n = 0

    def emit(self, record):
        self.n += 1


@contextlib.contextmanager
def deeper(o):
    o["depth"] += 1
    try:
        yield
    finally:
        o["depth"] -= 1


def raise_and_keep(kept, z):
    try:
        raise ValueError(3.0)
    except ValueError as error:
        kept[0] = error.args[0] * z


def parameters():
    return [torch.ones(1, requires_grad=True)]
"""
"""What kinds are made of; a program has those that it names."""

KINDS = {
    # Attributes
    "attribute": Kind("o = Plain()\no.v = 1.0", "o.v = z", "o.v"),
    "attribute that is new": Kind("o = Plain()", "o.v = z", "getattr(o, 'v', 1.0)"),
    "attribute that goes": Kind("o = Plain()\no.v = 1.0", "if hasattr(o, 'v'):\n    del o.v", "float(hasattr(o, 'v'))"),
    "attribute by setattr": Kind("o = Plain()\no.v = 1.0", "setattr(o, 'v', z)", "o.v"),
    "attribute by vars": Kind("o = Plain()\no.v = 1.0", "vars(o)['v'] = z", "o.v"),
    "attribute by __dict__.update": Kind("o = Plain()\no.v = 1.0", "o.__dict__.update(v=z)", "o.v"),
    "attribute of an attribute": Kind("o = Plain()\no.a = Plain()\no.a.v = 1.0", "o.a.v = z", "o.a.v"),
    "count in an attribute": Kind("o = Plain()\no.n = 0", "o.n += 1", "o.n"),
    "two names of an object": Kind("a = Plain()\na.v = 1.0\no = (a, a)", "o[0].v = z", "o[1].v"),
    "object in a cycle": Kind("o = Plain()\no.v = 1.0\no.me = o", "o.me.me.v = z", "o.v"),
    "slot": Kind("o = Slots()\no.v = 1.0", "o.v = z", "o.v"),
    "slot that is new": Kind("o = Slots()", "o.v = z", "getattr(o, 'v', 1.0)"),
    "dataclass": Kind("o = Data()", "o.v = z", "o.v"),
    "list of a dataclass": Kind("o = DataOfList()", "o.v[0] = z", "o.v[0]"),
    "frozen dataclass": Kind("o = Frozen(1.0)", "object.__setattr__(o, 'v', z)", "o.v"),
    "frozen dataclass replaced": Kind("o = Frozen(1.0)", "o = dataclasses.replace(o, v=z)", "o.v"),
    "SimpleNamespace": Kind("o = types.SimpleNamespace(v=1.0)", "o.v = z", "o.v"),
    "argparse.Namespace": Kind("o = argparse.Namespace(v=1.0)", "o.v = z", "o.v"),
    "class attribute": Kind("o = Config", "o.v = z", "o.v"),
    "class attribute by an instance": Kind("o = Config()", "type(o).v = z", "o.v"),
    "class attribute of a base": Kind("o = Derived()", "Config.v = z", "o.v"),
    "list in a class": Kind("o = ConfigOfList()", "o.v[0] = z", "o.v[0]"),
    "class made by type()": Kind("o = type('Made', (), {'v': 1.0})", "o.v = z", "o.v"),
    "class of an object": Kind("o = One()", "o.__class__ = Two", "o.v()"),
    "metaclass attribute": Kind("o = MadeByMeta", "type(o).v = z", "o.v"),
    "metaclass that registers": Kind("o = Registered", "o('New', (), {})", "len(o.made)"),
    "module global": Kind("o = set_level", "o(z)", "LEVEL * 1.0"),
    "count in a global": Kind("o = count", "o()", "COUNT"),
    "module by globals()": Kind("globals()['LEVEL'] = 1.0\no = globals()", "o['LEVEL'] = z", "o['LEVEL']"),
    "module object": Kind("o = types.ModuleType('made')\no.v = 1.0", "o.v = z", "o.v"),
    "function attribute": Kind("o = with_attribute()", "o.v = z", "o()"),
    "function default": Kind("o = with_default()", "o.__defaults__ = (z,)", "o()"),
    "mutable default": Kind("o = with_mutable_default()", "o(z)", "o()"),
    "functools.partial keywords": Kind("o = functools.partial(dict, v=1.0)", "o.keywords['v'] = z", "o()['v']"),
    "functools.partial attribute": Kind("o = functools.partial(dict)\no.v = 1.0", "o.v = z", "o.v"),
    "closure cell": Kind("o = cell()", "o[0](z)", "o[1]()"),
    "cell_contents": Kind("o = cell()", "o[1].__closure__[0].cell_contents = z", "o[1]()"),
    "property": Kind("o = Property()", "o.v = z", "o.v"),
    "__setattr__": Kind("o = Logged()\no.v = 1.0", "o.v = z", "o.v + len(o.log)"),
    "__getattr__ that keeps": Kind("o = Lazy()", "o.v", "float('v' in vars(o))"),
    "__getattr__ of a proxy": Kind("o = Proxy(Plain())\no.inner.v = 1.0", "o.v = z", "o.v"),
    "descriptor": Kind("o = Described()\no.v = 1.0", "o.v = z", "o.v"),
    "cached_property": Kind("o = Cached()", "o.v", "float('v' in vars(o))"),
    "cached_property of data": Kind("o = Cached()", "o.base = z\no.v", "o.v"),
    "lru_cache": Kind("o = functools.lru_cache(lambda n: n * 2.0)", "o(3)", "o.cache_info().currsize"),
    "lru_cache with a counter": Kind("o = with_cache()", "o(3)", "o(4)[0]"),
    "singledispatch": Kind("o = functools.singledispatch(lambda v: 1.0)", "o.register(int, lambda v: 2.0)", "o(3)"),
    "enum member's attribute": Kind("Level.LOW.v = 1.0\no = Level.LOW", "o.v = z", "o.v"),
    "__call__ with state": Kind("o = Calls()", "o(z)", "o.last + o.n"),
    "context manager's state": Kind("o = Entered()", "with o as v:\n    o.last = z", "o.last + o.entered + o.left"),
    "operator that writes": Kind("o = Sum()", "o += z", "o.v"),
    "__eq__ that counts": Kind("o = Counted()", "o == 3", "o.asked"),
    "__eq__ that `in` asks": Kind("o = Counted()", "o in [1, 2]", "o.asked"),
    "__hash__ that counts": Kind("o = Counted()", "{o: 1}", "o.asked"),
    "__repr__ that counts": Kind("o = Counted()", "f'{o}'", "o.asked"),
    "__del__ that counts": Kind("o = [0]", "Dies(o)", "o[0]"),
    # Containers
    "list element": Kind("o = [1.0, 2.0]", "o[0] = z", "o[0] + o[-1]"),
    "list element added to": Kind("o = [1.0, 2.0]", "o[1] += z", "o[0] + o[-1]"),
    "list append": Kind("o = [1.0]", "o.append(z)", "sum(o) + len(o)"),
    "list extend": Kind("o = [1.0]", "o += [z, z]", "sum(o) + len(o)"),
    "list pop": Kind("o = [1.0, 2.0, 3.0, 4.0, 5.0]", "o.pop()", "sum(o) + len(o)"),
    "list popped and appended": Kind("o = [1.0, 2.0]", "o.pop(0)\no.append(z)", "o[0] - o[1]"),
    "list sort": Kind("o = [3.0, 1.0, 2.0]", "o.sort()", "o[0]"),
    "list reverse": Kind("o = [3.0, 1.0]", "o.reverse()", "o[0]"),
    "list slice": Kind("o = [1.0, 2.0, 3.0]", "o[:2] = [z, z]", "o[0] + o[2]"),
    "list slice of another length": Kind("o = [1.0, 2.0, 3.0]", "o[1:] = [z]", "sum(o)"),
    "list clear": Kind("o = [1.0, 2.0]", "o.clear()", "len(o)"),
    "list in a list": Kind("o = [[1.0], [2.0]]", "o[0][0] = z", "o[0][0] + o[1][0]"),
    "list in two places": Kind("a = [1.0]\no = {'a': a, 'b': a}", "o['a'][0] = z", "o['b'][0]"),
    "list in a tuple": Kind("o = ([1.0], 2.0)", "o[0][0] = z", "o[0][0]"),
    "list by operator.setitem": Kind("o = [1.0]", "operator.setitem(o, 0, z)", "o[0]"),
    "list by list.append": Kind("o = [1.0]", "list.append(o, z)", "o[-1]"),
    "list by a bound method": Kind("o = [1.0]", "put = o.__setitem__\nput(0, z)", "o[0]"),
    "list by map": Kind("o = [1.0]", "list(map(lambda v: o.__setitem__(0, v), [z]))", "o[0]"),
    "list by a sort's key": Kind("o = [1.0]", "sorted([3, 1], key=lambda v: o.__setitem__(0, z) or v)", "o[0]"),
    "list by a comprehension": Kind("o = [1.0]", "[o.__setitem__(0, z * i) for i in range(3)]", "o[0]"),
    "list subclass": Kind("o = NamedList([1.0])\no.v = 1.0", "o.v = z\no[0] = z", "o.v + o[0]"),
    "list subclass with methods": Kind("o = Doubles([1.0])", "o.append(z)", "o[-1]"),
    "dict value": Kind("o = {'v': 1.0}", "o['v'] = z", "o['v']"),
    "dict key that is new": Kind("o = {'v': 1.0}", "o['w'] = z", "o.get('w', 5.0) + len(o)"),
    "dict del": Kind("o = {'v': 1.0, 'w': 2.0}", "o.pop('v', None)", "len(o) + o['w']"),
    "dict setdefault": Kind("o = {}", "o.setdefault('v', z)", "o.get('v', 5.0)"),
    "dict update": Kind("o = {'v': 1.0}", "o.update(v=z)", "o['v']"),
    "dict |=": Kind("o = {'v': 1.0}", "o |= {'v': z}", "o['v']"),
    "dict popitem": Kind("o = {'v': 1.0, 'w': 2.0, 'x': 3.0, 'y': 4.0}", "o.popitem()", "sum(o.values())"),
    "dict order": Kind("o = {'v': 1.0, 'w': 2.0}", "o['v'] = o.pop('v')", "list(o.values())[0]"),
    "dict of lists": Kind("o = {'v': [1.0]}", "o['v'][0] = z", "o['v'][0]"),
    "dict subclass": Kind("o = NamedDict(v=1.0)\no.w = 1.0", "o['v'] = z\no.w = z", "o['v'] + o.w"),
    "dict subclass with attributes": Kind("o = Attrs(v=1.0)", "o.v = z", "o.v"),
    "dict subclass with __missing__": Kind("o = Missing()", "o['v']", "len(o)"),
    "set add": Kind("o = {1, 2}", "o.add(3)", "len(o)"),
    "set discard": Kind("o = {1, 2}", "o.discard(2)", "float(2 in o)"),
    "set |=": Kind("o = {1, 2}", "o |= {5}", "sum(o)"),
    "frozenset": Kind("o = frozenset({1, 2})", "o = o | {3}", "len(o)"),
    "deque": Kind("o = collections.deque([1.0, 2.0])", "o[0] = z", "o[0] + o[1]"),
    "deque append": Kind("o = collections.deque([1.0, 2.0], maxlen=2)", "o.append(z)", "o[0] - o[1]"),
    "deque rotate": Kind("o = collections.deque([1.0, 2.0, 4.0])", "o.rotate()", "o[0]"),
    "defaultdict": Kind("o = collections.defaultdict(float)", "o['v'] += z", "o.get('v', 5.0)"),
    "defaultdict read": Kind("o = collections.defaultdict(list)", "o['v']", "len(o)"),
    "Counter": Kind("o = collections.Counter(a=1)", "o['a'] += 1", "o['a'] + o['b']"),
    "Counter update": Kind("o = collections.Counter(a=1)", "o.update('aab')", "o['a'] + o['b'] * 10"),
    "OrderedDict": Kind("o = collections.OrderedDict(v=1.0, w=2.0)", "o['v'] = z", "o['v']"),
    "OrderedDict order": Kind(
        "o = collections.OrderedDict(v=1.0, w=2.0)", "o.move_to_end('v')", "next(iter(o.values()))"
    ),
    "ChainMap": Kind("o = collections.ChainMap({'v': 1.0}, {'w': 2.0})", "o['v'] = z", "o['v']"),
    "UserDict": Kind("o = collections.UserDict(v=1.0)", "o['v'] = z", "o['v']"),
    "UserList": Kind("o = collections.UserList([1.0])", "o[0] = z", "o[0]"),
    "mappingproxy": Kind("d = {'v': 1.0}\no = (d, types.MappingProxyType(d))", "o[0]['v'] = z", "o[1]['v']"),
    "keys of a dict": Kind("d = {'v': 1.0}\no = (d, d.keys())", "o[0]['w'] = 1.0", "len(o[1])"),
    "WeakKeyDictionary": Kind(
        "key = Plain()\no = (key, weakref.WeakKeyDictionary({key: 1.0}))", "o[1][o[0]] = z", "o[1][o[0]]"
    ),
    "WeakValueDictionary": Kind(
        "one, two = Plain(), Plain()\none.v, two.v = 1.0, 2.0\no = (one, two, weakref.WeakValueDictionary(v=one))",
        "o[2]['v'] = o[1]",
        "o[2]['v'].v",
    ),
    "weakref": Kind("a = Plain()\na.v = 1.0\no = (a, weakref.ref(a))", "o[1]().v = z", "o[0].v"),
    "namedtuple": Kind("o = Point(1.0, 2.0)", "o = o._replace(v=z)", "o.v + o.w"),
    "tuple": Kind("o = (1.0, 2.0)", "o = (z, *o[1:])", "o[0] + o[1]"),
    "str": Kind("o = 'a'", "o += 'b'", "len(o)"),
    "bytes": Kind("o = b'a'", "o += b'b'", "len(o)"),
    "integer": Kind("o = 1", "o += 2", "o"),
    "float": Kind("o = 1.0", "o = z * 2", "o"),
    "None": Kind("o = None", "o = z", "1.0 if o is None else o"),
    "bool": Kind("o = False", "o = True", "2.0 if o else 3.0"),
    "function": Kind("o = lambda v: v + 1.0", "o = lambda v: v * 3.0", "o(2.0)"),
    "range": Kind("o = range(3)", "o = range(5)", "len(o)"),
    "type": Kind("o = int", "o = float", "o('3') + float(o is int)"),
    "heapq": Kind("o = [1.0, 5.0]", "heapq.heappush(o, 0.5)", "o[0]"),
    "heapq replaced": Kind("o = [1.0, 5.0, 7.0]", "heapq.heapreplace(o, 9.0)", "o[0]"),
    "bisect.insort": Kind("o = [1.0, 5.0]", "bisect.insort(o, 3.0)", "o[1]"),
    "SimpleQueue": Kind("o = queue.SimpleQueue()", "o.put(z)", "o.qsize()"),
    "Queue": Kind("o = queue.Queue()", "o.put(1.0)", "o.qsize()"),
    # Memory
    "bytearray": Kind("o = bytearray(b'abc')", "o[0] = 7", "o[0]"),
    "bytearray append": Kind("o = bytearray(b'abc')", "o.append(7)", "len(o)"),
    "array.array": Kind("o = array.array('d', [1.0, 2.0])", "o[0] = 7.0", "o[0]"),
    "array.array of data": Kind("o = array.array('d', [1.0, 2.0])", "o[0] = z", "o[0]"),
    "memoryview": Kind("a = bytearray(b'abc')\no = (a, memoryview(a))", "o[1][0] = 7", "o[0][0]"),
    "ctypes": Kind("o = ctypes.c_double(1.0)", "o.value = 7.0", "o.value"),
    "ctypes array": Kind("o = (ctypes.c_int * 3)(1, 2, 3)", "o[0] = 7", "o[0]"),
    "ctypes structure": Kind("o = Pair(1, 2.0)", "o.v = 7.0", "o.v"),
    "NumPy element": Kind("o = np.ones(3)", "o[0] = 7.0", "float(o[0])"),
    "NumPy element of data": Kind("o = np.ones(3)", "o[0] = z", "float(o[0])"),
    "NumPy in place": Kind("o = np.ones(3)", "o *= 3", "float(o.sum())"),
    "NumPy out=": Kind("o = np.ones(3)", "np.add(o, 1.0, out=o)", "float(o.sum())"),
    "NumPy fill": Kind("o = np.ones(3)", "o.fill(4.0)", "float(o.sum())"),
    "NumPy sort": Kind("o = np.array([3.0, 1.0])", "o.sort()", "float(o[0])"),
    "NumPy put": Kind("o = np.ones(3)", "np.put(o, [0], 9.0)", "float(o[0])"),
    "NumPy view": Kind("a = np.ones(3)\no = (a, a[1:])", "o[1][0] = 7.0", "float(o[0][1])"),
    "NumPy array of a tensor": Kind("t = torch.ones(3)\no = (t, t.numpy())", "o[1][0] = 7.0", "o[0][0]"),
    "NumPy object array": Kind("o = np.array([None, 1.0], dtype=object)", "o[1] = z", "o[1]"),
    "NumPy scalar": Kind("o = [np.float64(1.0)]", "o[0] = np.float64(3.0)", "float(o[0])"),
    "NumPy record": Kind("o = np.zeros(2, dtype=[('v', 'f8')])", "o['v'][0] = 3.0", "float(o['v'][0])"),
    "NumPy masked array": Kind("o = np.ma.array([1.0, 2.0])", "o[0] = np.ma.masked", "float(o.sum())"),
    "StringIO": Kind("o = io.StringIO()", "o.write('ab')", "len(o.getvalue())"),
    "BytesIO position": Kind("o = io.BytesIO(b'abc')", "o.read(1)", "o.tell()"),
    # Positions
    "itertools.count": Kind("o = itertools.count()", "next(o)", "next(o)"),
    "itertools.cycle": Kind("o = itertools.cycle([1.0, 2.0, 4.0])", "next(o)", "next(o)"),
    "iterator of a list": Kind("o = iter([1.0, 2.0, 4.0, 8.0, 16.0])", "next(o)", "next(o)"),
    "iterator of a dict": Kind("o = iter({1: 0, 2: 0, 4: 0, 8: 0})", "next(o)", "next(o)"),
    "enumerate": Kind("o = enumerate('abcde')", "next(o)", "next(o)[0]"),
    "zip": Kind("o = zip(range(9), range(9))", "next(o)", "next(o)[0]"),
    "generator": Kind("o = powers()", "next(o)", "next(o)"),
    "generator that is sent to": Kind("o = echo()\nnext(o)", "o.send(z)", "next(o)"),
    "generator expression": Kind("o = (i * 2.0 for i in range(9))", "next(o)", "next(o)"),
    "iterator of a class": Kind("o = Steps()", "next(o)", "o.n"),
    # The process
    "ContextVar": Kind("VARIABLE.set(1.0)\no = VARIABLE", "o.set(z)", "o.get()"),
    "threading.local": Kind("o = threading.local()\no.v = 1.0", "o.v = z", "o.v"),
    "Lock": Kind("o = threading.Lock()", "o.acquire(blocking=False)", "float(o.locked())"),
    "Event": Kind("o = threading.Event()", "o.set()", "float(o.is_set())"),
    "random.Random": Kind("o = random.Random(0)", "o.random()", "o.random()"),
    "random": Kind("random.seed(3)\no = random", "o.random()", "o.random()"),
    "random.shuffle": Kind("o = [1.0, 2.0, 4.0, 8.0, 16.0]", "random.Random(1).shuffle(o)", "o[0]"),
    "NumPy RandomState": Kind("o = np.random.RandomState(0)", "o.rand()", "o.rand()"),
    "NumPy Generator": Kind("o = np.random.default_rng(0)", "o.random()", "o.random()"),
    "NumPy global seed": Kind("np.random.seed(3)\no = np.random", "o.rand()", "o.rand()"),
    "os.environ": Kind(
        "os.environ['GAUGE'] = 'a'\no = os.environ",
        "o['GAUGE'] = 'bcd'",
        "len(o['GAUGE'])",
        undo="os.environ.pop('GAUGE', None)",
    ),
    "warnings filters": Kind("warnings.resetwarnings()\no = warnings", "o.simplefilter('ignore')", "len(o.filters)"),
    "warnings recorded": Kind("o = []", "warn_into(o)", "len(o)"),
    "logging level": Kind("o = logging.getLogger('gauge')\no.setLevel(10)", "o.setLevel(20)", "o.level"),
    "logging handler": Kind(
        "o = logging.Logger('gauge')\no.addHandler(CountingHandler())", "o.error('x')", "o.handlers[0].n"
    ),
    "recursion limit": Kind(
        "sys.setrecursionlimit(5000)\no = sys",
        "o.setrecursionlimit(6000)",
        "o.getrecursionlimit()",
        undo="sys.setrecursionlimit(5000)",
    ),
    "sys.modules": Kind(
        "sys.modules.pop('gauge', None)\no = sys.modules",
        "o['gauge'] = sys",
        "float('gauge' in o)",
        undo="sys.modules.pop('gauge', None)",
    ),
    "mock": Kind("o = mock.Mock(v=1.0)", "o(3)", "o.call_count"),
    "mock attribute": Kind("o = mock.Mock(v=1.0)", "o.v = z", "o.v"),
    "mock.patch": Kind(
        "o = Plain()\no.v, o.seen = 1.0, 0.0", "with mock.patch.object(o, 'v', 5.0):\n    o.seen = o.v", "o.v + o.seen"
    ),
    "ExitStack": Kind(
        "log = []\no = (log, contextlib.ExitStack())", "o[1].callback(o[0].append, 1.0)\no[1].close()", "len(o[0])"
    ),
    "contextmanager": Kind(
        "o = {'depth': 0, 'seen': 0.0}", "with deeper(o):\n    o['seen'] = z * o['depth']", "o['depth'] + o['seen']"
    ),
    "exception's args": Kind("o = ValueError(1.0)", "o.args = (z,)", "o.args[0]"),
    "exception's note": Kind("o = ValueError(1.0)", "o.add_note('x')", "len(getattr(o, '__notes__', []))"),
    "exception caught": Kind("o = [1.0]", "raise_and_keep(o, z)", "o[0]"),
    # PyTorch
    "module attribute": Kind("o = nn.Tanh()\no.v = 1.0", "o.v = z", "o.v"),
    "module's child attribute": Kind("o = nn.Sequential(nn.Tanh())\no[0].v = 1.0", "o[0].v = z", "o[0].v"),
    "module training": Kind("o = nn.Dropout(0.5)", "o.eval()", "float(o.training)"),
    "module buffer": Kind("o = nn.Module()\no.register_buffer('v', torch.ones(()))", "o.v = z", "o.v"),
    "module buffer in place": Kind("o = nn.Module()\no.register_buffer('v', torch.ones(()))", "o.v += z", "o.v"),
    "register_buffer": Kind("o = nn.Module()", "o.register_buffer('v', z)", "getattr(o, 'v', 1.0)"),
    "module child replaced": Kind("o = nn.Sequential(nn.Identity())", "o[0] = nn.Tanh()", "o(torch.ones(()))"),
    "ModuleList append": Kind("o = nn.ModuleList([nn.Tanh()])", "o.append(nn.Tanh())", "len(o)"),
    "ModuleDict": Kind("o = nn.ModuleDict({'v': nn.Identity()})", "o['v'] = nn.Tanh()", "o['v'](torch.ones(()))"),
    "ParameterDict": Kind("o = nn.ParameterDict({'v': torch.ones(())})", "o['v'] = torch.zeros(())", "o['v'] * 1.0"),
    "ParameterList": Kind("o = nn.ParameterList([torch.ones(())])", "o.append(torch.ones(()))", "len(o)"),
    "parameter replaced": Kind(
        "o = nn.Module()\no.v = nn.Parameter(torch.ones(()))", "o.v = nn.Parameter(torch.zeros(()))", "o.v * 1.0"
    ),
    "parameter in place": Kind(
        "o = nn.Module()\no.v = nn.Parameter(torch.ones(()))", "with torch.no_grad():\n    o.v.copy_(z)", "o.v * 1.0"
    ),
    "load_state_dict": Kind(
        "o = nn.Module()\no.register_buffer('v', torch.ones(()))",
        "o.load_state_dict({'v': torch.zeros(())})",
        "o.v * 1.0",
    ),
    "forward hook": Kind(
        "o = nn.Identity()", "o.register_forward_hook(lambda m, given, out: out + 1)", "o(torch.ones(()))"
    ),
    "forward hook removed": Kind(
        "a = nn.Identity()\no = (a, a.register_forward_hook(lambda m, given, out: out + 1))",
        "o[1].remove()",
        "o[0](torch.ones(()))",
    ),
    "forward replaced": Kind("o = nn.Identity()", "o.forward = lambda v: v * 3", "o(torch.ones(()))"),
    "batch norm statistics": Kind(
        "o = nn.BatchNorm1d(2)",
        "o(torch.arange(6.0).reshape(3, 2) * z)",
        "o.running_mean.sum() + o.num_batches_tracked",
    ),
    "optimizer learning rate": Kind(
        "o = torch.optim.SGD(parameters(), lr=0.5)", "o.param_groups[0]['lr'] *= 0.5", "o.param_groups[0]['lr']"
    ),
    "scheduler": Kind(
        "o = torch.optim.lr_scheduler.StepLR(torch.optim.SGD(parameters(), lr=0.5), 1)",
        "o.step()",
        "o.get_last_lr()[0] + o.last_epoch",
    ),
    "torch.Generator": Kind("o = torch.Generator().manual_seed(0)", "o.manual_seed(5)", "o.initial_seed()"),
    "default dtype": Kind(
        "torch.set_default_dtype(torch.float32)\no = torch",
        "o.set_default_dtype(torch.float16)",
        "float(o.get_default_dtype() == torch.float16)",
        undo="torch.set_default_dtype(torch.float32)",
    ),
    "grad mode": Kind(
        "torch.set_grad_enabled(True)\no = torch",
        "o.set_grad_enabled(False)",
        "float(o.is_grad_enabled())",
        undo="torch.set_grad_enabled(True)",
    ),
    "tensor element": Kind("o = torch.ones(3)", "o[0] = z", "o.sum()"),
    "tensor in place": Kind("o = torch.ones(3)", "o.add_(z)", "o.sum()"),
    "tensor by a view": Kind("a = torch.ones(3)\no = (a, a[1:])", "o[1].mul_(z)", "o[0].sum()"),
    "tensor out=": Kind("o = torch.ones(3)", "torch.mul(o, z, out=o)", "o.sum()"),
    "tensor resized": Kind("o = torch.ones(3)", "o.resize_(2)", "o.numel()"),
    "tensor.data": Kind("o = torch.ones(3)", "o.data = torch.zeros(3) + z", "o.sum()"),
    "tensor.data in place": Kind("o = torch.ones(3)", "o.data.mul_(z)", "o.sum()"),
    "tensor attribute": Kind("o = torch.ones(3)\no.v = 1.0", "o.v = z", "o.v"),
    "tensor.grad": Kind(
        "o = torch.ones(3, requires_grad=True)",
        "o.grad = torch.ones(3)",
        "torch.zeros(()) if o.grad is None else o.grad.sum()",
    ),
    "requires_grad_": Kind("o = torch.ones(3)", "o.requires_grad_()", "float(o.requires_grad)"),
    "parameter in a list": Kind("o = [nn.Parameter(torch.ones(()))]", "o[0] = z * 2", "o[0] * 1.0"),
}
"""Each kind by its name."""

_REBINDS = re.compile(r"(^|\n)\s*o\s*([-+|*&]?=)(?!=)")


@functools.cache
def _named() -> dict[str, str]:
    """Each definition by its name."""
    lines, found = DEFINITIONS.splitlines(), {}
    for node in ast.parse(DEFINITIONS).body:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)]):
                first = node.lineno
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                first = min(each.lineno for each in [node, *node.decorator_list])
            case _:
                raise TypeError(f"not a definition: {ast.unparse(node)}")
        found[name] = "\n".join(lines[first - 1 : node.end_lineno])
    return found


def _definitions(text: str) -> str:
    """The definitions that a text needs."""
    found, missing = {}, True
    while missing:
        words = set(re.findall(r"\w+", "\n".join([text, *found.values()])))
        missing = {name: each for name, each in _named().items() if name in words and name not in found}
        found.update(missing)
    return "\n\n\n".join(each for name, each in _named().items() if name in found)


def names() -> list[str]:
    """The names of all programs, as `kind / place / form`."""
    return [f"{kind} / {place} / {form}" for kind in KINDS for place in PLACES for form in FORMS]


def _indented(depth: int, text: str) -> list[str]:
    return ["    " * depth + line for line in text.split("\n")]


def _body(depth: int, place: str, write: str, read: str) -> list[str]:
    """A condition or a loop that changes the object, and the result."""
    loops = place == "looped"
    head = ["y = x", "z = y.sum()", "while z > 1:"] if loops else ["z = x.sum()", "if z > 0:"]
    lines = [*_indented(depth, "\n".join(head)), *_indented(depth + 1, write)]
    if loops:
        lines += _indented(depth + 1, "y = y * 0.5\nz = y.sum()")
    return [*lines, *_indented(depth, f"return {'y' if loops else 'x'} + {read}")]


def source(name: str) -> str:
    """The text of a program. Its `build()` gives a function, and one that reads the object from outside or None."""
    kind, place, form = name.split(" / ")
    make, write, read, undo = KINDS[kind]
    rebinds, is_closed = bool(_REBINDS.search(write)), place == "closed"
    lines = [PRELUDE + _definitions(f"{make}\n{write}\n{read}"), "", ""]
    lines += ["def make():", *_indented(1, make), "    return o", "", ""]
    lines += ["def undo():", *_indented(1, undo), "", ""]
    if form == "method":
        own = [re.sub(r"\bo\b", "self.o", text) for text in (write, read)]
        lines += ["class Model(nn.Module):", "    def __init__(self):", "        super().__init__()"]
        lines += ["        self.o = make()"] * is_closed + ["", "    def change(self, z):", *_indented(2, own[0]), ""]
        lines += ["    def forward(self, x):", *["        self.o = make()"] * (not is_closed)]
        lines += [*_body(2, place, "self.change(z)", own[1]), "", "", "def build():", "    model = Model()"]
        left = re.sub(r"\bself\.o\b", "model.o", own[1])
        return "\n".join([*lines, f"    return model.forward, {f'lambda: {left}' if is_closed else None}", ""])
    left = f"lambda: {read}" if is_closed else None
    if form == "function":
        lines += ["def build():", *["    o = make()"] * is_closed, "", "    def program(x):"]
        lines += ["        o = make()"] * (not is_closed) + ["        nonlocal o"] * (is_closed and rebinds)
        return "\n".join([*lines, *_body(2, place, write, read), "", f"    return program, {left}", ""])
    lines += ["def program(x):", *["    global o"] * (rebinds or not is_closed), *["    o = make()"] * (not is_closed)]
    lines += [*_body(1, place, write, read), "", "", "def build():", *["    global o", "    o = make()"] * is_closed]
    return "\n".join([*lines, f"    return program, {left}", ""])


def _builder(name: str) -> Callable[[], Program]:
    number = names().index(name)
    make = load(source(name), f"object_{number}")

    def build() -> Program:
        module = make()
        run, state = module.build()
        return Program(run, state, module.undo)

    return build


def run(name: str, limit: float = 8) -> Outcome:
    """How the program of a name ends."""
    return outcome(_builder(name), INPUTS, limit=limit)
