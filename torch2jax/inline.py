"""Traces a rule's body once for each combination of shapes and options, and pastes it in wherever it recurs.

A network calls the same rules on the same shapes again and again. JAX can trace, differentiate and batch such a body
once and reuse what it found, without leaving a nested call in the graph: ``jax.jit(..., inline=True)``.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import torch

from .storage import is_traced

__all__ = ["call_inlined"]


class _Slot(NamedTuple):
    """The place of an array among the arguments."""

    index: int


class _Constant(NamedTuple):
    """An argument that is no array. Equal ones have equal types and signs too: 1 is not True, 0.0 is not -0.0."""

    value: Any
    kind: type
    text: str | None


class _Sequence(NamedTuple):
    """A list, tuple or dictionary of arguments."""

    kind: type
    keys: tuple | None
    items: tuple


class _Partial(NamedTuple):
    """A body with some of its arguments bound."""

    function: Callable
    args: _Sequence
    keywords: _Sequence


def call_inlined(body: Callable, args, kwargs: dict):
    """``body(*args, **kwargs)``, from the cache if all its arrays are traced and everything else can be hashed.

    `body` must be pure, and decide nothing by the values of arrays.
    """
    arrays: list[Any] = []
    try:
        template = _template(body, arrays), _template(tuple(args), arrays), _template(kwargs, arrays)
        run = _inlined(template, torch.get_default_dtype())
    except TypeError:  # a constant that cannot be hashed, or an array with values
        return body(*args, **kwargs)
    return run(*arrays)


def _template(value, arrays: list) -> Any:
    if isinstance(value, jax.Array):
        if not is_traced(value):
            raise TypeError("the values of an array may decide what the body does")
        arrays.append(value)
        return _Slot(len(arrays) - 1)
    kind = type(value)
    if kind is functools.partial:
        return _Partial(value.func, _template(value.args, arrays), _template(value.keywords, arrays))
    if kind is list or kind is tuple:
        return _Sequence(kind, None, tuple([_template(item, arrays) for item in value]))
    if kind is dict:
        return _Sequence(kind, tuple(value), tuple([_template(item, arrays) for item in value.values()]))
    return _Constant(value, kind, repr(value) if kind is float or kind is complex else None)


def _fill(template, arrays) -> Any:
    if isinstance(template, _Slot):
        return arrays[template.index]
    if isinstance(template, _Constant):
        return template.value
    if isinstance(template, _Partial):
        return functools.partial(template.function, *_fill(template.args, arrays), **_fill(template.keywords, arrays))
    items = [_fill(item, arrays) for item in template.items]
    return dict(zip(template.keys, items, strict=True)) if template.kind is dict else template.kind(items)


@functools.lru_cache(maxsize=4096)
def _inlined(template, default_dtype: torch.dtype) -> Callable:
    del default_dtype  # part of the key: bodies may ask for it
    body, args, kwargs = template

    def run(*arrays):
        return _fill(body, arrays)(*_fill(args, arrays), **_fill(kwargs, arrays))

    return jax.jit(run, inline=True)
