"""PyTorch's switches and caches of the whole process: what translated code changes of them is undone after the call.

A change is noticed where it is made. So a call that makes none asks for nothing, and one that another thread makes
outside of calls stays.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import _tensor_str
from torch.backends import ContextProp
from torch.nn.utils import parametrize

from ..seams import exchange, runs_instead_of
from ..translation import current

__all__ = ["SWITCHES"]

_C: Any = torch._C
_KINDS = (
    "_algorithms",
    "_memory",
    "_precision",
    "_tf32",
    "_reduction",
    "_accumulation",
    "_benchmark",
    "_deterministic",
) + ("_enabled", "_kernel", "_backend", "_order", "_warn", "_warnAlways", "_threads", "_mode")
# A thread's own state, which contexts put back, or what can be set only once.
_NOT = ("_set_fwd_grad_enabled", "_set_dispatch_mode", "set_num_interop_threads")


def _readers() -> dict[str, Callable[[], Any]]:
    """What reads each switch, by the name of what sets it: PyTorch names both alike."""
    found = {}
    for name in dir(_C):
        if name in _NOT or "autocast" in name or not name.endswith(_KINDS):
            continue
        for read in ("_get_" + name.removeprefix("_set_"), "get_" + name.removeprefix("set_")):
            if name.startswith(("_set_", "set_")) and hasattr(_C, read):
                found[name] = getattr(_C, read)
    for kind in ("cudnn", "flash", "math", "mem_efficient", "overrideable"):
        if hasattr(_C, f"_set_sdp_use_{kind}"):
            found[f"_set_sdp_use_{kind}"] = getattr(_C, f"_get_{kind}_sdp_enabled")
    del found["_set_deterministic_algorithms"]  # it has an option besides
    found["set_anomaly_enabled"] = lambda: (_C.is_anomaly_enabled(), _C.is_anomaly_check_nan_enabled())
    found["_set_multithreading_enabled"] = _C._is_multithreading_enabled
    return found


SWITCHES = _readers()


def _undo_later(undo: Callable[[], None]) -> None:
    changes = current().settings.changes

    def undone() -> None:
        changes.remove(undone)
        undo()

    changes.append(undone)


def _set_back(change: Callable, value: Any) -> None:
    if value is not None:  # the switch of a backend that is not there
        change(*value) if isinstance(value, tuple) else change(value)


def _noticing(change: Callable, read: Callable[[], Any]) -> Callable:
    @functools.wraps(change)
    def noticed(*args, **kwargs):
        if current() is not None:
            _undo_later(functools.partial(_set_back, change, read()))
        return change(*args, **kwargs)

    return noticed


for _name, _read in SWITCHES.items():
    for _owner in (torch, _C):
        if hasattr(_owner, _name):
            exchange(_owner, _name, _noticing(getattr(_owner, _name), _read))


_set_deterministic = _C._set_deterministic_algorithms


def _deterministic(mode: bool, *, warn_only: bool = False) -> None:
    if current() is not None:
        before = _C._get_deterministic_algorithms(), _C._get_deterministic_algorithms_warn_only()
        _undo_later(lambda: _set_deterministic(before[0], warn_only=before[1]))
    _set_deterministic(mode, warn_only=warn_only)


exchange(_C, "_set_deterministic_algorithms", _deterministic)

_set_property = ContextProp.__set__


def _set_backend(self, obj, value) -> None:
    """A switch of ``torch.backends``, which keeps its setter."""
    if current() is not None:
        _undo_later(functools.partial(_set_back, self.setter, self.getter()))
    _set_property(self, obj, value)


exchange(ContextProp, "__set__", _set_backend)


@runs_instead_of(_tensor_str.set_printoptions, with_original=True)
def _set_printoptions(original, *args, **kwargs):
    options = _tensor_str.PRINT_OPTS
    before = dict(vars(options))
    _undo_later(lambda: vars(options).update(before))
    return original(*args, **kwargs)


@runs_instead_of(torch.distributions.Distribution.set_default_validate_args, with_original=True)
def _set_default_validate_args(original, value):
    kind = torch.distributions.Distribution
    _undo_later(functools.partial(setattr, kind, "_validate_args", kind._validate_args))
    original(value)


class _Parametrizations:
    """What ``parametrize.cached()`` keeps within a call: the call's own, for the tensors are its."""

    def get(self, key):
        call = current()
        return None if call is None else call.settings.parametrizations.get(key)

    def __setitem__(self, key, tensor) -> None:
        call = current()
        if call is not None:
            call.settings.parametrizations[key] = tensor


# A region around the call is none within it: what it keeps was computed from weights that the call does not have.
exchange(parametrize, "_cache", _Parametrizations())
exchange(parametrize, "_cache_enabled", 0)
