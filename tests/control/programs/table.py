"""The table of named programs: `@program(...)` puts one in."""

import importlib.util
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

__all__ = ["PROGRAMS", "Named", "drawn", "program"]


class Named(NamedTuple):
    """A program that people write.

    Args:
        build: makes it, with objects of its own.
        inputs: what it is called with, one after another.
        gradients: at how many of the inputs derivatives are compared too.
        tolerance: how much values may differ.
        file: the name of the module that has it.
    """

    build: Callable[[], Callable]
    inputs: list[tuple[torch.Tensor, ...]]
    gradients: int
    tolerance: float
    file: str


PROGRAMS: dict[str, Named] = {}


def program(
    *inputs: Any, gradients: int = 0, tolerance: float = 1e-3, makes: bool = False, library: str | None = None
) -> Callable[[Callable], Callable]:
    """Puts a function into the table.

    Args:
        inputs: tensors, or tuples of them.
        makes: it takes nothing and makes the program.
        library: what it needs; without that it is left out.
    """

    def put(function: Callable) -> Callable:
        if library is None or importlib.util.find_spec(library) is not None:
            given = [each if isinstance(each, tuple) else (each,) for each in inputs]
            build = function if makes else lambda: function
            PROGRAMS[function.__name__] = Named(build, given, gradients, tolerance, function.__module__)
        return function

    return put


def drawn(*shape: int, seed: int = 0, scale: float = 1.0) -> torch.Tensor:
    """The same normal numbers each time."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * scale
