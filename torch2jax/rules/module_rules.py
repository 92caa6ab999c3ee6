"""Rules for classes of modules: they replace ``forward`` during translated calls."""

import functools
import threading
from collections.abc import Callable
from typing import Any

import torch

from ..patches import exchange
from .call import current

__all__ = ["replace_forward"]

_replaced: set[type] = set()
_running = threading.local()


def replace_forward(cls: type, lookup: Callable) -> None:
    """Lets ``cls.forward`` ask for a rule of `cls` within translated calls, also where a subclass inherits it.

    Args:
        lookup: gives the rule of the class, or None.

    Raises:
        TypeError: `cls` is no class of modules.
    """
    if not issubclass(cls, torch.nn.Module):
        raise TypeError(f"implements_tensors got the class {cls.__name__}; wanted functions or classes of modules")
    if cls in _replaced:
        return
    _replaced.add(cls)
    original = cls.forward

    @functools.wraps(original)
    def forward(self: torch.nn.Module, *args: Any, **kwargs: Any):
        rule = None if current() is None or (cls, id(self)) in _modules() else lookup(cls)
        if rule is None:
            return original(self, *args, **kwargs)
        running = _running.modules = _modules() | {(cls, id(self))}
        try:
            return rule((self, *args), kwargs)
        finally:
            _running.modules = running - {(cls, id(self))}

    exchange(cls, "forward", forward, may_lack=True)


def _modules() -> frozenset:
    return getattr(_running, "modules", frozenset())
