"""Tables of what functions that are not converted change, by the kinds of callables, and the watch on the others.

On a side of a condition nothing may be written that nobody sees. So a callable of C's is called there if it is known to
change nothing, or nothing but what is journaled first, or if it is a method of an object that the side has made itself.

Python code that C calls on a side, without having been converted, is refused: what it writes is in no journal.
"""

import array
import bisect
import builtins
import collections
import contextvars
import datetime
import decimal
import fractions
import functools
import gc
import heapq
import inspect
import itertools
import linecache
import operator
import os
import re
import sys
import sysconfig
import types
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import jax
import jaxlib
import ml_dtypes
import numpy as np
import optree
import torch

from ..internals.frames import KEEP_ALIVE
from ..runtime.caches import Cache
from ..runtime.errors.locations import folders_of, is_library
from .convert import is_converted
from .state import Refused, current_run

# Python files.


_TORCH, _NUMPY, *_OTHERS = (
    folders_of(Path(str(module.__file__)).parent) for module in (torch, np, jax, jaxlib, ml_dtypes, optree)
)
_OWN = folders_of(Path(__file__).parents[1])
_TENSORS = tuple(folder for folders in (_TORCH, _OWN, *_OTHERS) for folder in folders)
_STANDARD = folders_of(sysconfig.get_paths()["stdlib"])

_FOLLOWED = tuple(
    folder + name
    for folder in _TORCH
    for name in (
        "nn/modules/",
        "nn/utils/",
        "utils/_contextlib.py",
        "utils/hooks.py",
        "optim/",
        "_functorch/functional_call.py",
        "distributions/",
    )
)
"""Files of PyTorch's that are converted as the user's are: they keep state, or ask."""

_READING = frozenset(
    ("_py_abc", "abc", "ast", "dis", "enum", "fractions", "importlib", "inspect", "linecache", "logging")
    + ("numbers", "operator", "re", "string", "textwrap", "tokenize", "traceback", "typing", "unittest")
)
"""Modules of the standard library that change nothing which code could read back, but what is theirs."""


def is_to_convert(code: types.CodeType) -> bool:
    """True if code is the user's, or is followed as if it was."""
    file = code.co_filename
    if file.startswith(_OWN) or code is KEEP_ALIVE:
        return False
    if file.startswith("<"):  # the user's if its lines are known, as those of a cell of IPython's or of the prompt
        return not file.startswith("<frozen") and bool(linecache.getlines(file))
    if file.startswith(_TORCH):
        return file.startswith(_FOLLOWED)
    if file.startswith((*_TENSORS, *_NUMPY)):
        return False
    return not is_library(file) or _module_of_standard(file) not in _READING


def _module_of_standard(file: str) -> str:
    """The name of a module of the standard library; empty for other files."""
    folder = next((x for x in _STANDARD if file.startswith(x)), file)
    return file.removeprefix(folder).split(os.sep)[0].removesuffix(".py")


def reads_only(function: types.FunctionType, args: tuple) -> bool:
    """True if a Python function that is not converted writes to nothing but tensors."""
    file = function.__code__.co_filename
    if function.__code__ is KEEP_ALIVE:
        return True
    if file.startswith(_TENSORS):
        kept = _STATEFUL if not file.startswith(_OWN) else _STATEFUL_FOR_REPLACEMENTS
        return not any(isinstance(x, kept) for x in args)
    if file.startswith(_NUMPY):
        return "." not in function.__qualname__  # methods may write to their objects
    module = _module_of_standard(file)
    return module in _READING and not file.endswith(_MOCK) and (module != "logging" or function.__name__ in _LOGGING)


_MOCK = os.path.join("unittest", "mock.py")
"""Its objects note how they are called: on a side nobody would see that. The rest of the package reads."""

_STATEFUL = (torch.nn.Module, torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler, torch.amp.GradScaler)
"""Classes of PyTorch's whose objects keep state."""
_STATEFUL_FOR_REPLACEMENTS = (torch.nn.Module, torch.amp.GradScaler)
"""Those of them whose stand-ins do not call PyTorch's own methods converted."""


_LOGGING = frozenset(
    ("debug", "info", "warning", "error", "exception", "critical", "log", "isEnabledFor", "getEffectiveLevel")
    + ("getLogger", "hasHandlers", "getLevelName")
)
"""What logging offers that changes nothing but what is shown."""


def is_wrapped_for_compilers(code: types.CodeType) -> bool:
    """True if code calls what it wraps, and keeps PyTorch's compilers away from that."""
    return code.co_filename in _FOR_COMPILERS


_FOR_COMPILERS = frozenset(folder + name for folder in _TORCH for name in ("_compile.py", "_dynamo/eval_frame.py"))


def is_watched(code: types.CodeType) -> bool:
    """True if code may change what nobody journals, if it runs without having been converted."""
    file = code.co_filename
    if file.startswith((*_TENSORS, *_NUMPY, "<")) or _package_of(file) in _BENEATH or code is KEEP_ALIVE:
        return False
    return not is_library(file) or _module_of_standard(file) in _KEEPING or file.endswith(_MOCK)


def _package_of(file: str) -> str:
    """The name of an installed package that a file belongs to; empty for others."""
    _, found, path = file.replace("\\", "/").rpartition("/site-packages/")
    return path.split("/")[0].removesuffix(".py") if found else ""


_BENEATH = frozenset(
    ("absl", "etils", "filelock", "fsspec", "jinja2", "mpmath", "networkx", "opt_einsum", "packaging", "scipy", "sympy")
    + ("tensorstore", "typing_extensions")
)
"""Packages that JAX and PyTorch use."""

_KEEPING = frozenset(
    (
        "_collections_abc",
        "argparse",
        "collections",
        "configparser",
        "copy",
        "os",
        "queue",
        "random",
        "threading",
        "types",
    )
)
"""Modules of the standard library with classes that keep something, and whose methods C may call."""


# Callables of C's.

_LIST = "append extend insert pop remove clear sort reverse __setitem__ __delitem__ __iadd__ __imul__ __init__"
_DICT = "update pop popitem clear setdefault __setitem__ __delitem__ __ior__ move_to_end __init__ __missing__"
_SET = (
    "add discard remove pop clear update difference_update intersection_update symmetric_difference_update "
    "__ior__ __iand__ __isub__ __ixor__ __init__"
)
_DEQUE = f"{_LIST} appendleft extendleft popleft rotate"
_BYTES = "append extend insert pop remove clear reverse __setitem__ __delitem__ __iadd__ __imul__ __init__"
_ARRAY = f"{_BYTES} byteswap fromlist frombytes fromfile fromunicode"
_NDARRAY = (
    "fill sort partition put resize itemset setfield setflags byteswap __setitem__ __iadd__ __isub__ __imul__ "
    "__imatmul__ __itruediv__ __ifloordiv__ __imod__ __ipow__ __ilshift__ __irshift__ __iand__ __ior__ __ixor__"
)
MUTATORS: dict[type, frozenset[str]] = {
    list: frozenset(_LIST.split()),
    dict: frozenset(_DICT.split()),
    set: frozenset(_SET.split()),
    collections.deque: frozenset(_DEQUE.split()),
    bytearray: frozenset(_BYTES.split()),
    array.array: frozenset(_ARRAY.split()),
    np.ndarray: frozenset(_NDARRAY.split()),
}
"""The methods of containers that write to them."""


_WRITING = frozenset[str]().union(*MUTATORS.values()) - {"__init__"}


def is_mutator(function: types.FunctionType) -> bool:
    """True of a method that has the name of one that writes to a container, as those of `os.environ` have."""
    return function.__name__ in _WRITING and "." in function.__qualname__


def mutators_of(value: object) -> frozenset[str] | None:
    """The methods that write to a container; None if the value is none."""
    return next((names for kind, names in MUTATORS.items() if isinstance(value, kind)), None)


FIRST_IS_WRITTEN = frozenset(
    (bisect.insort, bisect.insort_left, bisect.insort_right, operator.setitem, operator.delitem)
    + (heapq.heappush, heapq.heappop, heapq.heapify, heapq.heapreplace, heapq.heappushpop)
    + tuple(
        getattr(heapq, name) for name in ("_heappop_max", "_heapreplace_max", "_heapify_max") if hasattr(heapq, name)
    )
    + tuple(
        getattr(operator, name)
        for name in dir(operator)
        if name in ("iadd", "iconcat", "imul", "ior", "iand", "isub", "ixor")
    )
    + (np.put, np.copyto, np.place, np.putmask, np.fill_diagonal, np.put_along_axis)
)
"""Functions that write to what their first argument holds."""

_BUILTINS = frozenset(
    getattr(builtins, name)
    for name in (
        *(
            "abs",
            "all",
            "any",
            "ascii",
            "bin",
            "callable",
            "chr",
            "divmod",
            "format",
            "getattr",
            "hasattr",
            "hash",
            "hex",
        ),
        *("id", "isinstance", "issubclass", "iter", "len", "max", "min", "next", "oct", "ord", "pow", "print", "repr"),
        *("round", "sorted", "sum"),
    )
)
_MODULES = frozenset(
    ("math", "cmath", "_operator", "operator", "itertools", "time", "torch", "numpy", "_bisect", "_heapq", "_warnings")
    + (
        "_functools",
        "functools",
        "_stat",
        "_locale",
        "_thread",
        "jaxlib",
        "jax",
        "copyreg",
        "_abc",
        "_typing",
        "unicodedata",
    )
)
_IMMUTABLE = (
    *(str, bytes, int, float, complex, tuple, frozenset, range, slice, type, types.MappingProxyType, types.NoneType),
    *(types.ModuleType, types.CodeType, types.GenericAlias, property, classmethod, staticmethod),
    *(type({}.keys()), type({}.values()), type({}.items()), re.Pattern, re.Match, inspect.Signature, weakref.ref),
    *(datetime.date, datetime.time, datetime.timedelta, datetime.tzinfo, decimal.Decimal, fractions.Fraction),
    *(torch.Tensor, torch.Size, torch.dtype, torch.device, torch.layout, torch.memory_format, np.generic, np.dtype),
    *(np.ufunc, jax.Array, contextvars.ContextVar, contextvars.Token),
)
_ANY_MAY_CALL = frozenset(
    ("__getattribute__", "__init_subclass__", "__eq__", "__ne__", "__hash__", "__repr__", "__str__", "__format__")
    + (
        "__len__",
        "__contains__",
        "__reduce__",
        "__reduce_ex__",
        "__sizeof__",
        "__dir__",
        "__class_getitem__",
        "__new__",
    )
    + (
        "__get__",
        "__subclasshook__",
        "__subclasscheck__",
        "__instancecheck__",
        "__lt__",
        "__le__",
        "__gt__",
        "__ge__",
        "mro",
    )
)


def changes_nothing(function: object, owner: Any, name: str) -> bool:
    """True if a callable of C's writes to nothing but tensors, whatever it is called with.

    Args:
        owner: what it is a method of; None if it is none.
    """
    if any(function is x for x in _BUILTINS) or isinstance(function, (np.ufunc, weakref.ref)) or name in _ANY_MAY_CALL:
        return True
    if isinstance(owner, torch.Generator):
        return False
    if not isinstance(function, _FUNCTIONS) and type(function) not in _CALLABLES:
        return _is_of_tensors(type(function)) or type(function).__module__.split(".")[0] == "numpy"
    is_bound = owner is not None and not isinstance(owner, types.ModuleType)
    if is_bound and type(owner).__module__ != "pybind11_builtins":  # which is what its functions are of
        return isinstance(owner, _IMMUTABLE) or mutators_of(owner) is not None or _is_of_tensors(type(owner))
    module = getattr(function, "__module__", None) or (owner.__name__ if owner is not None else None)
    if not isinstance(module, str):
        return _is_of_tensors(type(function))
    return module.split(".")[0] in _MODULES and not module.startswith("numpy.random")


_FUNCTIONS = (
    *(types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType, types.MethodWrapperType),
    *(types.ClassMethodDescriptorType, types.GetSetDescriptorType, types.MemberDescriptorType),
)
_CALLABLES = (operator.itemgetter, operator.attrgetter, np.ufunc, weakref.ref)


def _is_of_tensors(kind: type) -> bool:
    return kind.__module__.split(".")[0] in ("torch", "jax", "jaxlib", "torch2jax")


CALLERS: frozenset[Callable] = frozenset((builtins.sorted, builtins.min, builtins.max, builtins.iter, functools.reduce))
"""Functions of C's that call what they are given; others are given functions of the user's to keep."""
CALLING_TYPES = (map, filter, *(x for x in vars(itertools).values() if isinstance(x, type)))


def calls_its_arguments(function: object, name: str) -> bool:
    """True if a callable calls functions among its arguments."""
    module = (getattr(function, "__module__", None) or "").split(".")[0]
    is_listed = any(function is x for x in (*CALLERS, *CALLING_TYPES))
    return is_listed or name == "sort" or module in ("torch", "jax", "jaxlib")


def is_iterator(value: object) -> bool:
    """True if reading from a value changes it."""
    return hasattr(type(value), "__next__") and isinstance(value, Iterator)


_unwatched: Cache[int, CodeType] = Cache("unwatched code", 2**14)


class watching:
    """A context for code of one side. Where somebody else watches, as a profiler does, nobody is in its way."""

    def __enter__(self) -> None:
        self._is_first = sys.getprofile() is None
        if self._is_first:
            sys.setprofile(_profile)

    def __exit__(self, *exc_info: object) -> None:
        if self._is_first:
            sys.setprofile(None)


def _profile(frame: FrameType, event: str, arg: object) -> None:
    if event != "call":
        return
    code = frame.f_code
    if id(code) in _unwatched:
        return
    if is_converted(code) or not is_watched(code):
        _unwatched[id(code)] = code
    elif current_run().journal is not None and not _is_called_by_library(frame):
        sys.setprofile(None)
        raise Refused(
            f"{code.co_qualname} runs on one side of a condition without being converted, since C calls it: nobody "
            "knows what it changes"
        )


def _is_called_by_library(frame: FrameType) -> bool:
    """True if code of the standard library is called by code that is known to change nothing, or by nobody's wish."""
    caller = frame.f_back
    if _is_imported(frame) or _is_of_collector(frame):
        return True
    if caller is None or not is_library(frame.f_code.co_filename):
        return False
    file = caller.f_code.co_filename
    return is_library(file) and not file.startswith(_OPERATORS)


def _is_imported(frame: FrameType | None) -> bool:
    """True if an import has begun the code, which it does once."""
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False


def _is_of_collector(frame: FrameType | None) -> bool:
    """True if the garbage collector has called the code, which it may do anywhere: it is no part of the side."""
    codes = {getattr(x, "__code__", None) for x in gc.callbacks}
    while codes and frame is not None:
        if frame.f_code in codes:
            return True
        frame = frame.f_back
    return False


_FILES = ("access.py", "asking.py", "calls.py", "expressions.py", "operators.py")
_HERE = os.path.dirname(os.path.abspath(__file__))
_OPERATORS = tuple(os.path.join(_HERE, name) for name in _FILES)
