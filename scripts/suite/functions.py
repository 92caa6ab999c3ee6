"""Tests that are functions, as pytest finds them: a case of ``unittest`` with a method for each of their parameters."""

import functools
import inspect
import itertools
import unittest
from collections.abc import Callable, Iterator
from types import FunctionType, ModuleType

import pytest

__all__ = ["case_of"]


def case_of(module: ModuleType) -> type[unittest.TestCase]:
    """A case of a module's test functions, ``test_name[0-2]`` with the numbers of the parameters' values."""
    methods: dict[str, Callable] = {}
    for name, function in vars(module).items():
        if name.startswith("test_") and isinstance(function, FunctionType) and function.__module__ == module.__name__:
            for numbers, arguments, why in _parametrized(function):
                method = _method(function, arguments)
                methods[name + (f"[{numbers}]" if numbers else "")] = unittest.skip(why)(method) if why else method
    return type("Functions", (unittest.TestCase,), methods)


def _parametrized(function: FunctionType) -> Iterator[tuple[str, dict, str | None]]:
    """The arguments of each test that a function is, with the reason why it is skipped."""
    marks = getattr(function, "pytestmark", [])
    choices = [list(enumerate(mark.args[1])) for mark in marks if mark.name == "parametrize"]
    names = [_names(mark.args[0]) for mark in marks if mark.name == "parametrize"]
    for chosen in itertools.product(*choices):
        arguments, conditions = {}, [mark for mark in marks if mark.name == "skipif"]
        for keys, (_, value) in zip(names, chosen, strict=True):
            if isinstance(value, type(pytest.param())):
                conditions += [mark for mark in value.marks if mark.name == "skipif"]
                values = value.values
            else:
                values = (value,) if len(keys) == 1 else value
            arguments |= zip(keys, values, strict=True)
        why = next((mark.kwargs.get("reason", "skipif") for mark in conditions if any(mark.args)), None)
        yield "-".join(str(number) for number, _ in chosen), arguments, why


def _names(names: str | list[str] | tuple[str, ...]) -> list[str]:
    return [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)


def _method(function: FunctionType, arguments: dict) -> Callable[[unittest.TestCase], None]:
    taken = {name: value for name, value in arguments.items() if name in inspect.signature(function).parameters}

    @functools.wraps(function)
    def method(self):
        try:
            function(**taken)
        except pytest.skip.Exception as e:
            raise unittest.SkipTest(str(e)) from None

    return method
