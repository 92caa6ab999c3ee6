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
    *("_algorithms", "_memory", "_precision", "_tf32", "_reduction", "_accumulation", "_benchmark", "_deterministic"),
    *("_enabled", "_kernel", "_backend", "_order", "_warn", "_warnAlways", "_threads", "_mode"),
)
# A thread's own state, which contexts put back; what can be set only once; and what has an option besides.
_NOT = (
    *("_set_fwd_grad_enabled", "_set_dispatch_mode", "set_num_interop_threads"),
    "_set_deterministic_algorithms",
)


def _readers() -> dict[str, Callable[[], Any]]:
    """What reads each switch, by the name of what sets it: PyTorch names both alike."""
    found = {}
    for name in dir(_C):
        if not name.startswith(("_set_", "set_")) or not name.endswith(_KINDS) or name in _NOT or "autocast" in name:
            continue
        read = getattr(_C, name.replace("set_", "get_", 1), None)
        if read is not None:
            found[name] = read
    for kind in ("cudnn", "flash", "math", "mem_efficient", "overrideable"):
        if hasattr(_C, f"_set_sdp_use_{kind}"):
            found[f"_set_sdp_use_{kind}"] = getattr(_C, f"_get_{kind}_sdp_enabled")
    found["set_anomaly_enabled"] = lambda: (_C.is_anomaly_enabled(), _C.is_anomaly_check_nan_enabled())
    found["_set_multithreading_enabled"] = _C._is_multithreading_enabled
    return found


SWITCHES = _readers()


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
    def noticed(*args, **kwargs):
        _note(change, read)
        return change(*args, **kwargs)

    return noticed


for _name, _read in SWITCHES.items():
    for _owner in (torch, _C):
        if hasattr(_owner, _name):
            exchange(_owner, _name, _noticing(getattr(_owner, _name), _read))

_set_deterministic, _set_property = _C._set_deterministic_algorithms, ContextProp.__set__


def _deterministic(mode: bool, *, warn_only: bool = False) -> None:
    _note(
        lambda mode, warn_only: _set_deterministic(mode, warn_only=warn_only),
        lambda: (_C._get_deterministic_algorithms(), _C._get_deterministic_algorithms_warn_only()),
    )
    _set_deterministic(mode, warn_only=warn_only)


def _set_backend(self, obj, value) -> None:
    """A switch of ``torch.backends``, which keeps its setter."""
    _note(self.setter, self.getter)
    _set_property(self, obj, value)


exchange(_C, "_set_deterministic_algorithms", _deterministic)
exchange(ContextProp, "__set__", _set_backend)


@runs_instead_of(_tensor_str.set_printoptions, with_original=True)
def _set_printoptions(original, *args, **kwargs):
    options = _tensor_str.PRINT_OPTS
    before = dict(vars(options))
    current().settings.undo_later(lambda: vars(options).update(before))
    return original(*args, **kwargs)


@runs_instead_of(torch.distributions.Distribution.set_default_validate_args, with_original=True)
def _set_default_validate_args(original, value):
    kind = torch.distributions.Distribution
    current().settings.undo_later(functools.partial(setattr, kind, "_validate_args", kind._validate_args))
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
