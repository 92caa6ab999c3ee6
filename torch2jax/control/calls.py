"""Calls of converted code: Python functions run converted, C's callables where it is known what they change."""

import builtins
import contextvars
import functools
import inspect
import sys
import types
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from jax.core import Tracer

from ..runtime.errors.locations import user_line
from ..runtime.patches import replacement_around
from ..runtime.translation import current
from ..tensors.tensor import Torchish
from ..tracing.conditions import deciding_array
from ..values.item import Item
from ..values.lengths import TracedRange, largest, length, smallest, track_lengths
from ..values.python_functions import MATH, TensorMath, as_int
from ..values.traced_numbers import as_float
from .access import Access, why_unconverted
from .merge import expect_there, has_no_identity, is_one_of_two
from .numbers import as_integer, as_real, divided, of_math, raised_to, refused, rounded, text
from .purity import (
    CALLING_TYPES,
    FIRST_IS_WRITTEN,
    calls_its_arguments,
    changes_nothing,
    is_iterator,
    is_mutator,
    is_wrapped_for_compilers,
    mutators_of,
    reads_only,
)
from .state import Refused, asking_way, current_run, name_of, trying
from .writes import (
    CONTAINERS,
    UNDEFINED,
    ContextVariable,
    ObjectJournal,
    is_made,
    is_paired,
    made,
    note,
    note_attribute,
    note_contents,
)

_REPLACEMENTS: dict[Any, Any] = {
    **{replacement: function for function, replacement in MATH.values() if replacement is not None},
    smallest: builtins.min,
    largest: builtins.max,
    as_int: int,
    as_float: float,
}
RANGE = range  # for which something else may stand in while lengths depend on data
_LIBRARIES = ("torch", "jax", "jaxlib", "numpy", "torch2jax")
_CACHED = type(functools.lru_cache(len))
_MODULE_CALL = torch.nn.Module.__call__


class Calls(Access):
    """The operator of calls."""

    def call(self, function: Any, /, *args: Any, **kwargs: object) -> Any:
        kind = type(function)
        if kind is types.FunctionType:
            found = self.function(function)
            if found is None:
                return self._unconverted(function, args, kwargs)
            result = found(*args, **kwargs)
            return made(result) if found.__code__.co_flags & inspect.CO_GENERATOR else result
        if kind is types.MethodType:
            if function.__self__ is self:  # what `given` has made of a callable
                return function(*args, **kwargs)
            return self.call(function.__func__, function.__self__, *args, **kwargs)
        if kind is types.BuiltinFunctionType:
            return self._builtin(function, args, kwargs)
        expect_there(function)
        if function is range or function is RANGE:
            found = SPECIAL[RANGE](self, *args)
            return function(*args) if found is NotImplemented else found
        if isinstance(function, type):
            return self._construct(function, args, kwargs)
        if kind is functools.partial:
            return self.call(function.func, *function.args, *args, **{**function.keywords, **kwargs})
        if isinstance(function, _CACHED):
            return self._cached(function, args, kwargs)
        own = getattr(kind, "__call__", None)  # noqa: B004 - it is to be called
        if isinstance(function, torch.nn.Module) and own is _MODULE_CALL:
            return function(*args, **kwargs)  # which comes back, converted (`modules/skeleton.py`)
        if type(own) is types.FunctionType:
            return self.call(own, function, *args, **kwargs)
        return self._builtin(function, args, kwargs)

    # Python functions that are not converted.

    def _unconverted(self, function: types.FunctionType, args: tuple, kwargs: dict) -> object:
        if function is length and not getattr(type(args[0]), "len_depends_on_values", False):
            return self._builtin(length.__wrapped__, args, kwargs)
        if is_wrapped_for_compilers(function.__code__) and self._is_followed(getattr(function, "__wrapped__", None)):
            return self.call(function.__wrapped__, *args, **kwargs)  # pyright: ignore[reportFunctionMemberAccess]
        if function in _REPLACEMENTS:
            found = SPECIAL[_REPLACEMENTS[function]](self, *args, **kwargs)
            if found is not NotImplemented:
                return found
        around = replacement_around(function.__code__)
        if around is not None and current() is not None:
            original, body = around
            return body(functools.partial(self.call, original), *args, **kwargs)
        run = current_run()
        for x in (*args, *kwargs.values()):
            expect_there(*(x if type(x) in (list, tuple) else x.values() if type(x) is dict else (x,)))
        if run.journal is not None:
            if not reads_only(function, args) and not (args and is_made(args[0])):  # as __init__ of a dataclass
                raise Refused(
                    f"nobody knows what {function.__qualname__} changes, which is called on one side of a condition "
                    f"and is not converted: {why_unconverted(function)}"
                )
            expect_fresh(args)
        elif args and is_mutator(function) and not reads_only(function, args) and not is_made(args[0]):
            run.consumed.append(args[0])
        if run.pairs:
            _expect_unpaired(args, function.__qualname__)
        if function in FIRST_IS_WRITTEN:
            note_contents(args[0])
        if isinstance(kwargs.get("out"), np.ndarray):
            note_contents(kwargs["out"])
        if kwargs.get("copy") is False and args and isinstance(args[0], np.ndarray):
            note_contents(args[0])
        found = function(*map(self.given, args), **{name: self.given(x) for name, x in kwargs.items()})
        if run.journal is None and not isinstance(found, torch.Tensor) and not any(found is x for x in args):
            made(found)  # as far as anybody knows
        return found

    def _cached(self, function: Callable, args: tuple, kwargs: dict) -> object:
        """The cache holds nothing of one side, and nothing that depends on tensors."""
        run = current_run()
        if run.journal is None:
            if any(isinstance(x, torch.Tensor) for x in (*args, *kwargs.values())):
                return self.call(function.__wrapped__, *args, **kwargs)
            if run.was_restored is not None and not run.was_restored(function):  # which an earlier run has filled
                return self.call(function.__wrapped__, *args, **kwargs)
            return function(*args, **kwargs)
        side, own = run.journal, ObjectJournal()
        with own:
            result = self.call(function.__wrapped__, *args, **kwargs)
        side.made.update(own.made)
        if own.slots:
            name = getattr(function, "__name__", "a function")
            raise Refused(
                f"{name} has a cache, and writes to something: on one side of a condition nobody knows whether"
            )
        run.caches[id(function)] = function
        return result

    # Classes.

    def _construct(self, cls: type, args: tuple, kwargs: dict) -> object:
        if type(getattr(cls, "__del__", None)) is types.FunctionType and self.converts(cls.__del__):
            raise Refused(f"an object of {cls.__name__} is made, and nobody knows when its __del__ is called")
        metacall = getattr(type(cls), "__call__", None)  # noqa: B004 - it is to be called
        if type(metacall) is types.FunctionType:
            return self.call(metacall, cls, *args, **kwargs)
        cls = _REPLACEMENTS.get(cls, cls)
        if len(args) == 1 and not kwargs and cls in _CONVERSIONS:
            expect_there(args[0])
            return _CONVERSIONS[cls](self, args[0])
        if cls is super or (cls.__module__.split(".")[0] in _LIBRARIES and not self._is_followed(cls.__init__)):
            expect_fresh(args)
            found = cls(*map(self.given, args), **{name: self.given(x) for name, x in kwargs.items()})
            return found if isinstance(found, torch.Tensor) else made(found)
        new, init = cls.__new__, getattr(cls, "__init__")  # noqa: B009 - of any type
        if hasattr(cls, "__dataclass_fields__") and type(init) is types.FunctionType and not self.converts(init):
            return self._dataclass(cls, args, kwargs)
        is_new_pythons, is_init_pythons = type(new) is types.FunctionType, type(init) is types.FunctionType
        if not is_new_pythons and not is_init_pythons:
            for x in (*args, *kwargs.values()):
                expect_there(x)
            expect_fresh(args)
            give: Callable = self._given_to_iterator if cls in CALLING_TYPES else _itself
            return made(cls(*map(give, args), **{name: give(x) for name, x in kwargs.items()}))
        if is_new_pythons and issubclass(cls, tuple) and not self.converts(new):
            return cls(*args, **kwargs)  # a named tuple
        if is_new_pythons:
            found = self.call(new, cls, *args, **kwargs)
        else:
            found = made(new(cls) if new is object.__new__ else new(cls, *args, **kwargs))  # pyright: ignore[reportCallIssue]
        if isinstance(found, cls):
            self.call(type(found).__init__, found, *args, **kwargs)
        return found

    def _is_followed(self, method: object) -> bool:
        """True if a method is a Python function that is converted."""
        return type(method) is types.FunctionType and self.converts(method)

    def _given_to_iterator(self, value: object) -> object:
        is_conversion = isinstance(value, type) and value in _CONVERSIONS
        return functools.partial(self.call, value) if is_conversion else self.given(value)

    def _dataclass(self, cls: Any, args: tuple, kwargs: dict) -> object:
        """An object of a dataclass, whose `__init__` has no source, and calls the user's `__post_init__`."""
        after = getattr(cls, "__post_init__", None)
        found = made(cls.__new__(cls))
        if type(after) is not types.FunctionType or not hasattr(found, "__dict__"):
            cls.__init__(found, *args, **kwargs)
            return found
        given: list[tuple] = []
        found.__dict__["__post_init__"] = lambda *args: given.append(args)
        try:
            cls.__init__(found, *args, **kwargs)
        finally:
            del found.__dict__["__post_init__"]
        self.call(after, found, *given[0])
        return found

    # Callables of C's.

    def _builtin(self, function: Callable, args: tuple, kwargs: dict) -> object:
        special = SPECIAL.get(function) if kind_is_hashable(function) else None
        if special is not None:
            found = special(self, *args, **kwargs)
            if found is not NotImplemented:
                return found
        run = current_run()
        for x in args:
            expect_there(*(x if type(x) in (list, tuple) else (x,)))
            if run.partial and id(x) in run.partial:
                raise Refused("data decide which attributes an object has, which is asked here", other_paths=True)
        name, owner, rest = getattr(function, "__name__", ""), getattr(function, "__self__", None), args
        if owner is None and args and getattr(function, "__objclass__", None) is not None:
            owner, rest = args[0], args[1:]
        if (
            rest
            and (function in (builtins.id, builtins.hash) or _tells_apart(owner, name))
            and (is_one_of_two if function is builtins.id else has_no_identity)(rest[0])
        ):
            raise Refused("data decide which of two objects something is, which is asked here", other_paths=True)
        if name in _OF_MEMORY and isinstance(owner, torch.Tensor) and is_one_of_two(owner):
            raise Refused(f"data decide which memory a tensor has, which {name} asks", other_paths=True)
        if isinstance(owner, type) and name == "__new__":
            return (
                made(function(*args, **kwargs)) if args and args[0].__new__ is function else function(*args, **kwargs)
            )
        if type(owner) is Item and getattr(function, "__objclass__", None) in (int, float, bool):
            refused(f"{function.__objclass__.__name__}.{name}()")
        predicate = self.call_predicate(name, owner, args, kwargs)
        if predicate is not NotImplemented:
            return predicate
        if run.caches and id(owner) in run.caches:
            raise Refused(f"the cache of {owner!r} holds nothing of one side of a condition, and {name} looks into it")
        if run.journal is None:
            expect_fresh(args)
        if run.journal is not None or run.outside is not None:
            self._expect_journaled(function, name, owner, args, rest, kwargs)
        if calls_its_arguments(function, name):
            args, kwargs = tuple(map(self.given, args)), {key: self.given(x) for key, x in kwargs.items()}
        result = function(*args, **kwargs)
        is_new = isinstance(result, CONTAINERS) and name in _FRESH
        if is_iterator(result):  # what a function of a module opens, as a file, is nobody else's outside of sides
            is_opened = run.journal is None and isinstance(owner, types.ModuleType) and name not in ("next", "getattr")
            is_new = name in _ITERATING or is_opened
        if is_new and result is not owner and not any(result is x for x in args):
            made(result)
        if name in _WITH_ITERATORS:
            for x in filter(is_iterator, result):
                made(x)
        return result

    def _expect_journaled(
        self, function: object, name: str, owner: object, args: tuple, rest: tuple, kwargs: dict
    ) -> None:
        """Notes what a callable writes to.

        Raises:
            Refused: nobody knows.
        """
        expect_fresh(args)
        if isinstance(owner, contextvars.ContextVar) and name in ("set", "reset"):
            slot = ContextVariable(owner)
            if current_run().journal is not None and slot.read() is UNDEFINED:
                raise Refused(f"{slot.name} has no value yet, and is set on one side of a condition or in a loop")
            note(slot)
        elif name in ("__setattr__", "__delattr__"):
            if not (isinstance(owner, torch.Tensor) and hasattr(torch.Tensor, rest[0])):
                note_attribute(owner, rest[0])
        elif isinstance(kwargs.get("out"), np.ndarray):
            note_contents(kwargs["out"])
        elif isinstance(function, np.ufunc):
            for x in args[function.nin :]:
                note_contents(x)
        elif (
            (kwargs.get("copy") is False and args and isinstance(args[0], np.ndarray))
            or (isinstance(owner, np.ufunc) and name == "at")
            or any(function is x for x in FIRST_IS_WRITTEN)
        ):
            note_contents(args[0])
        elif name in (mutators_of(owner) or ()):
            run = current_run()
            is_split = run.way is not None and bool(run.way.decisions)  # what each side leaves is compared
            if run.journal is not None or run.pairs or run.was_restored is not None or is_split:
                if name == "pop" and isinstance(owner, set) and len(owner) > 1 and not is_made(owner):
                    raise Refused(
                        "set.pop() removes an arbitrary item, and another one once the set is put back: take "
                        "min(items), and items.remove() it"
                    )
                note_contents(owner)
        elif changes_nothing(function, owner, name) or (owner is not None and is_made(owner)):
            return
        elif current_run().journal is None:
            is_bound = owner is not None and not isinstance(owner, (types.ModuleType, type))
            for x in (owner,) if is_bound else rest:
                if not is_made(x) and (isinstance(x, CONTAINERS) if not is_bound else not _is_shown(x)):
                    current_run().consumed.append(x)
        else:
            of = "" if owner is None or isinstance(owner, types.ModuleType) else f" of a {type(owner).__name__}"
            raise Refused(
                f"nobody knows what {name or function}(){of} changes, which is called on one side of a condition"
            )

    def call_predicate(self, name: str, owner: object, args: tuple, kwargs: dict) -> object:
        """The result of a function that asks tensors for a bool; NotImplemented if it is none."""
        raise NotImplementedError

    def truth(self, value: object) -> Any:
        raise NotImplementedError

    def binary(self, kind: str, a: object, b: object) -> object:
        raise NotImplementedError

    def iterated(self, items: object) -> Any:
        raise NotImplementedError


def _is_shown(owner: object) -> bool:
    """True if what is written to an object is read by people, not by code."""
    return owner in (sys.stdout, sys.stderr)


def _tells_apart(owner: object, name: str) -> bool:
    """True if a method of a container tells its first argument apart from other objects."""
    return isinstance(owner, (dict, set, frozenset)) or (
        isinstance(owner, (list, tuple)) and name in ("index", "count", "remove")
    )


def kind_is_hashable(function: object) -> bool:
    return type(function) in _PLAIN_CALLABLES


_PLAIN_CALLABLES = (types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType, type, np.ufunc)
_FRESH = frozenset(
    ("copy", "fromkeys", "sorted", "split", "rsplit", "tolist", "array", "zeros", "ones", "empty", "keys")
)

_OF_MEMORY = frozenset(("data_ptr", "untyped_storage", "storage", "typed_storage", "is_set_to"))
_ITERATING = frozenset(("iter", "__iter__", "__reversed__", "finditer"))
_WITH_ITERATORS = frozenset(("__reduce__", "__reduce_ex__", "tee"))
"""What gives a tuple that has new ones."""


def _itself(value: object) -> object:
    return value


def expect_fresh(args: Iterable[object]) -> None:
    """Refuses iterators from outside of a side: to read from one is to change it."""
    run = current_run()
    for x in args:
        if run.half_read and isinstance(x, types.GeneratorType) and x in run.half_read:
            why = "any() or all() asks data how far a generator is read, and it is read on"
            raise Refused(why, other_paths=True, location=run.half_read[x])
        if not is_iterator(x) or is_made(x):
            continue
        if run.journal is None:
            run.consumed.append(x)
        else:
            raise Refused(
                f"{name_of(x)} ({type(x).__name__}) from outside is read on one side of a condition, which moves it "
                "on. Make it on that side, or take the element before"
            )


def _expect_unpaired(args: Iterable[object], name: str) -> None:
    for x in args:
        if is_paired(x):
            raise Refused(f"{name} gets a {type(x).__name__}, and data decide which one that is", other_paths=True)


def is_data(value: object) -> bool:
    """True if a value is a tensor whose values a traced input decides."""
    call = current()
    return (
        call is not None
        and isinstance(value, Torchish)
        and value.known is None
        and call.paths[-1].can_decide(value)
        and isinstance(deciding_array(value), Tracer)
    )


def of_flag(flag: Any) -> object:
    """A bool of Python's: one that is traced stays so, unless all conditions are split."""
    if isinstance(flag, bool):
        return flag
    way = asking_way()
    if way is not None and way.splits_all:
        return way.ask(deciding_array(flag), user_line())
    return Item.of(flag)


def _integer(operators: Calls, value: Any) -> Any:
    number = _number(value)
    if number is None:
        return int(value)
    track_lengths()  # it may become a size
    return as_integer(number, TensorMath().trunc)


def _real(operators: Calls, value: Any) -> float | Item:
    number = _number(value)
    return float(value) if number is None else as_real(number)


def _number(value: Any) -> Item | None:
    """The number that a value is, or a tensor has, if data decide it."""
    return value if type(value) is Item else Item.out_of(value) if _gives_number(value) else None


def _gives_number(value: Any) -> bool:
    return is_data(value) and value.numel() == 1 and not value.is_complex()


_CONVERSIONS: dict[type, Callable[[Calls, object], object]] = {
    bool: lambda operators, value: of_flag(operators.truth(value)),
    int: _integer,
    float: _real,
    type: lambda operators, value: value.python_type if type(value) is Item else type(value),
}


def _getattr(operators: Calls, owner: object, name: str, *default: object) -> object:
    if not default:
        return operators.getattr(owner, name)
    try:
        with trying():
            return operators.getattr(owner, name)
    except AttributeError:
        return default[0]


def _hasattr(operators: Calls, owner: object, name: str) -> bool:
    try:
        with trying():
            expect_there(operators.getattr(owner, name))
    except AttributeError:
        return False
    return True


def _next(operators: Calls, iterator: Any, *default: object) -> object:
    own = getattr(type(iterator), "__next__", None)
    if type(own) is not types.FunctionType or not operators.converts(own):
        expect_fresh((iterator,))
        return next(iterator, *default)
    if not default:
        return operators.call(own, iterator)
    try:
        with trying():
            return operators.call(own, iterator)
    except StopIteration:
        return default[0]


def _vars(operators: Calls, *owner: object) -> object:
    return operators.getattr(owner[0], "__dict__") if owner else NotImplemented


def _of_numbers(function: Callable[..., object]) -> Callable:
    """A function of Python's that gets a number, or more, as converted code calls it."""

    def compute(operators: Calls, *args: Any, **kwargs: object) -> object:
        given = [x for each in args for x in (each if type(each) in (list, tuple) else (each,))]
        if not any(type(x) is Item for x in given):
            return NotImplemented
        return function(operators, *args, **kwargs)

    return compute


def _math(name: str) -> Callable:
    def compute(operators: Calls, *args: Any, **kwargs: object) -> object:
        numbers = [x if (found := _number(x)) is None else found for x in args]
        listed = [x for each in args if type(each) in (list, tuple) for x in each]
        if not any(type(x) is Item for x in (*numbers, *listed)):
            return NotImplemented
        return of_math(operators, name, numbers, kwargs)

    return compute


def _len(operators: Calls, value: object) -> Any:
    if type(value) is Item:
        raise TypeError(f"object of type '{value.python_type.__name__}' has no len()")
    return value.number if type(value) is TracedRange else NotImplemented


def _sum(operators: Calls, items: object, /, start: object = 0) -> object:
    if isinstance(items, torch.Tensor):
        return NotImplemented
    for x in operators.iterated(items):
        start = operators.binary("Add", start, x) if Item in (type(start), type(x)) else start + x
    return start


SPECIAL: dict[object, Callable] = {
    **{function: _math(name) for name, (function, _) in MATH.items()},
    **{x: _of_numbers(functools.partial(refused, f"{x.__name__}()")) for x in (hex, oct, bin, chr)},
    **{x: _of_numbers(text) for x in (repr, ascii)},
    builtins.len: _len,
    builtins.sum: _sum,
    builtins.round: _of_numbers(rounded),
    builtins.divmod: _of_numbers(divided),
    builtins.pow: _of_numbers(raised_to),
    builtins.vars: _vars,
    builtins.getattr: _getattr,
    builtins.hasattr: _hasattr,
    builtins.next: _next,
    builtins.setattr: lambda operators, owner, name, value: operators.setattr(value, owner, name),
    builtins.delattr: lambda operators, owner, name: operators.delattr(owner, name),
    object.__setattr__: lambda operators, owner, name, value: operators.set_plainly(value, owner, name),
    object.__delattr__: lambda operators, owner, name: operators.delete_plainly(owner, name),
}
