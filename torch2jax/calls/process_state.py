"""Switches and caches of the whole PyTorch process: changes by translated code are undone after the call.

A change is noticed where it is made. So a call that makes none asks for nothing, and one that another thread makes
outside of calls stays.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.backends import ContextProp
from torch.nn.utils import parametrize

from ..internals.switches import PRINT_OPTS, C, deterministic, readers, tensor_str
from ..patches import exchange, runs_instead_of
from .call import current, this_call

__all__ = ["SWITCHES"]

SWITCHES = readers()


def _set_back(change: Callable, value: Any) -> None:
    if value is not None:  # the switch of a backend that is not there
        change(*value) if isinstance(value, tuple) else change(value)


def _note(change: Callable, read: Callable[[], Any]) -> None:
    """Lets a switch be set back after the call, if one is in progress, to what it is now."""
    call = current()
    if call is not None:
        call.settings.undo_later(functools.partial(_set_back, change, read()))


def _noticing(change: Callable, read: Callable[[], Any]) -> Callable:
    @functools.wraps(change)
    def noticed(*args: Any, **kwargs: Any):
        _note(change, read)
        return change(*args, **kwargs)

    return noticed


for _name, _read in SWITCHES.items():
    for _owner in (torch, C):
        if hasattr(_owner, _name):
            exchange(_owner, _name, _noticing(getattr(_owner, _name), _read))

_set_deterministic, _set_property = C._set_deterministic_algorithms, ContextProp.__set__


def _deterministic(mode: bool, *, warn_only: bool = False) -> None:
    _note(
        lambda mode, warn_only: _set_deterministic(mode, warn_only=warn_only),
        deterministic,
    )
    _set_deterministic(mode, warn_only=warn_only)


def _set_backend(self: Any, obj: object, value: Any) -> None:
    """A switch of ``torch.backends``, which keeps its setter."""
    _note(self.setter, self.getter)
    _set_property(self, obj, value)


exchange(C, "_set_deterministic_algorithms", _deterministic)
exchange(ContextProp, "__set__", _set_backend)


@runs_instead_of(tensor_str.set_printoptions, with_original=True)
def _set_printoptions(original: Callable[..., None], *args: Any, **kwargs: Any):
    options = PRINT_OPTS
    before = dict(vars(options))
    this_call().settings.undo_later(lambda: vars(options).update(before))
    return original(*args, **kwargs)


@runs_instead_of(torch.distributions.Distribution.set_default_validate_args, with_original=True)
def _set_default_validate_args(original: Callable[[bool], None], value: Any):
    kind = torch.distributions.Distribution
    this_call().settings.undo_later(functools.partial(setattr, kind, "_validate_args", kind._validate_args))
    original(value)


class _Parametrizations:
    """What ``parametrize.cached()`` keeps within a call: the call's own, for the tensors are its."""

    def get(self, key: Any):
        call = current()
        return None if call is None else call.settings.parametrizations.get(key)

    def __setitem__(self, key: Any, tensor: torch.Tensor) -> None:
        call = current()
        if call is not None:
            call.settings.parametrizations[key] = tensor


# A region around the call is none within it: what it keeps was computed from weights that the call does not have.
exchange(parametrize, "_cache", _Parametrizations())
exchange(parametrize, "_cache_enabled", 0)
