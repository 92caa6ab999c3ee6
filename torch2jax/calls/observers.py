"""Observers, which see the functions that translated calls dispatch."""

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

from ..rules.features import NEXT, Feature

__all__ = ["observer", "observing"]

_observer: ContextVar["_Observer | None"] = ContextVar("observer", default=None)


class _Observer(Feature):
    rank = 40

    def __init__(self, observer: Callable[[Any], None]):
        self._observer = observer

    def run_operator(self, call: Any, function: Any, args: tuple, kwargs: dict) -> Any:
        del call, args, kwargs
        self._observer(function)
        return NEXT


observer: Callable[[], Feature | None] = _observer.get
"""What a call that begins now is seen by."""


@contextlib.contextmanager
def observing(observer: Callable[[Any], None]) -> Iterator[None]:
    """Calls `observer` with every function that translated calls begun within dispatch, at either level."""
    token = _observer.set(_Observer(observer))
    try:
        yield
    finally:
        _observer.reset(token)
