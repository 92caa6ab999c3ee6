"""The choice of functions that are converted when they are called."""

import functools
import types
from typing import Any

from ..caches import Cache
from .convert import converted, is_converted
from .purity import changes_nothing, is_to_convert, mutators_of
from .source import Unconvertible

_OF_C = (types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType, types.MethodWrapperType)
_to_convert: Cache[int, tuple[types.CodeType, bool]] = Cache("code to convert", 2**14)
_unconverted: Cache[int, tuple[types.CodeType, Unconvertible]] = Cache("code that cannot be converted", 2**14)


class Routes:
    """The base of the operators, which are a constant of converted code."""

    def call(self, function: Any, /, *args: Any, **kwargs: Any) -> Any:
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

    def given(self, value: Any) -> Any:
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
