"""PyTorch settings that translated code changes: they apply to the call only.

Those of `torch.autocast` and of the default device belong to a thread, and are put back. The default dtype is that of
the whole process, which other threads share: a call keeps its own.
"""

import functools
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch.amp import autocast_mode
from torch.cuda.amp import common
from torch.nn.utils import parametrize
from torch.utils.hooks import RemovableHandle

from ..internals.dispatch import DEVICE_CONTEXT
from ..internals.modules import C, import_dotted_name
from ..internals.transforms import (
    autocast_decrement_nesting,
    autocast_increment_nesting,
    autocast_supported_devices,
    set_autocast_cache_enabled,
    set_autocast_dtype,
    set_autocast_enabled,
)
from ..rules.features import Feature, in_every_call
from ..runtime.errors.locations import user_level
from ..runtime.patches import exchange, replaces, runs_instead_of
from ..runtime.translation import Call, current, kept, this_call
from ..tensors.dtypes import default_dtype
from .nesting import Settings
from .outer_modules import Change, OuterModules, refill

_DEVICES = autocast_supported_devices()


class AutocastState(NamedTuple):
    """PyTorch's settings of autocast."""

    enabled: tuple[bool, ...]
    """For each of the devices that have it."""
    dtypes: tuple[torch.dtype, ...]
    caches: bool
    nesting: int

    @classmethod
    def current(cls) -> "AutocastState":
        """The settings as they are."""
        return cls(
            tuple(map(torch.is_autocast_enabled, _DEVICES)),
            tuple(map(torch.get_autocast_dtype, _DEVICES)),
            torch.is_autocast_cache_enabled(),
            _nesting(),
        )

    def restore(self) -> None:
        for device, is_enabled, dtype in zip(_DEVICES, self.enabled, self.dtypes, strict=True):
            set_autocast_enabled(device, is_enabled)
            set_autocast_dtype(device, dtype)
        set_autocast_cache_enabled(self.caches)
        for _ in range(_nesting() - self.nesting):
            autocast_decrement_nesting()
        for _ in range(self.nesting - _nesting()):
            autocast_increment_nesting()


class _Changed:
    """The settings outside of a call that it has changed, and their values before."""

    def __init__(self):
        self.suspended: list[list[str]] = []
        """The devices whose regions were left when others began, for each that lasts."""
        self.parametrizations: dict[object, torch.Tensor] = {}
        """The cache of ``torch.nn.utils.parametrize.cached()`` within the call."""
        self.handles: list[RemovableHandle] = []
        """The handles of hooks that the call has registered, also on objects from outside."""
        self.device = getattr(DEVICE_CONTEXT, "device_context", None)
        """What `torch.set_default_device` has entered before the call, on this thread."""
        self.autocast: AutocastState | None = None

    def keep_autocast(self) -> None:
        """Called before a setting of autocast changes."""
        if self.autocast is None:
            self.autocast = AutocastState.current()

    def put_back(self, settings: Settings, everything: bool) -> list[Change]:
        """Restores objects from outside, the last change first.

        Args:
            everything: also what may stay, as another run of the same code is to find it as this one did.

        Returns:
            What stays changed in modules.
        """
        stays: list[Change] = []
        while settings.changes:
            settings.changes[-1]()
        if settings.modules.visited:
            stays = settings.modules.put_back(everything)
        if self.handles:
            own = [found for ref in settings.modules.made.values() if (found := ref()) is not None]
            kept = {id(hooks) for module in own for hooks in vars(module).values()}
            while self.handles:
                handle = self.handles.pop()
                if id(handle.hooks_dict_ref()) not in kept:
                    handle.remove()
        return stays


@in_every_call
class _Restoring(Feature):
    """The standing feature that notes what a call may change outside of itself, and puts it back."""

    def begin(self, call: Call) -> None:
        call.kept[_Changed], call.settings.modules = _Changed(), OuterModules()

    def discard(self, call: Call) -> None:
        call.kept[_Changed].put_back(call.settings, everything=True)

    def end(self, call: Any) -> None:
        changed, settings = call.kept.get(_Changed), call.settings
        if changed is None:  # the call has not begun
            return
        if settings.changes or settings.modules.visited or changed.handles:
            call.execution.stays = changed.put_back(settings, everything=False)
        device = getattr(DEVICE_CONTEXT, "device_context", None)
        if device is not changed.device:
            torch.set_default_device(None if changed.device is None else changed.device.device)
        if changed.autocast is not None:
            changed.autocast.restore()


def _nesting() -> int:
    autocast_increment_nesting()
    return autocast_decrement_nesting()


# Hooks.

_make_handle = RemovableHandle.__init__


def _noted_handle(self: RemovableHandle, *args: object, **kwargs: object):
    _make_handle(self, *args, **kwargs)
    call = current()
    if call is not None:
        kept(_Changed).handles.append(self)


exchange(RemovableHandle, "__init__", _noted_handle)


@runs_instead_of(RemovableHandle.remove, with_original=True)
def _remove_hook(original: Callable[[object], None], self: RemovableHandle):
    """Removes a hook; one from outside of the call is there again when that ends."""
    if not any(self is handle for handle in kept(_Changed).handles):
        for reference in (self.hooks_dict_ref, *self.extra_dict_ref):
            hooks = reference()
            if hooks is not None:
                this_call().settings.undo_later(functools.partial(refill, hooks, hooks.copy()))
    original(self)


# Autocast.


def _noticing(change: Callable) -> Callable:
    @functools.wraps(change)
    def noticed(*args: object):
        call = current()
        if call is not None:
            kept(_Changed).keep_autocast()
        return change(*args)

    return noticed


for _name in dir(torch):
    if _name.startswith(("set_autocast_", "autocast_increment", "autocast_decrement")):
        exchange(torch, _name, _noticing(getattr(torch, _name)))

_enter, _exit, _cast = torch.autocast.__enter__, torch.autocast.__exit__, autocast_mode._cast


@replaces(torch.autocast, "__enter__")
def _enter_region(self: torch.autocast):
    """Enters a region, which takes the place of that around it, also where this names another device.

    Tensors are where JAX puts them: code that names ``x.device.type`` to leave a region for "cuda" says "cpu" here.
    """
    others = [device for device in _DEVICES if device != self.device and torch.is_autocast_enabled(device)]
    result = _enter(self)
    for device in others:
        torch.set_autocast_enabled(device, False)
    kept(_Changed).suspended.append(others)
    return result


@replaces(torch.autocast, "__exit__")
def _leave_region(self: torch.autocast, *exc_info: object):
    result = _exit(self, *exc_info)
    for device in kept(_Changed).suspended.pop():
        torch.set_autocast_enabled(device, True)
    return result


@replaces(autocast_mode, "_cast")
def _cast_inputs(value: object, device_type: str, dtype: torch.dtype):
    """As PyTorch's function for `custom_fwd`, which leaves tensors on other devices than it names."""
    if not isinstance(value, torch.Tensor):
        return _cast(value, device_type, dtype)
    is_eligible = value.is_floating_point() and value.dtype is not torch.float64
    return value.to(dtype) if is_eligible else value


@replaces(common, "amp_definitely_not_available")
def _is_not_available():
    return False  # code that was written for CUDA means whatever JAX runs on


@replaces(torch.cuda, "is_bf16_supported")
def _is_bf16_supported(including_emulation: bool = True):
    return True


# Parametrizations.


class _Parametrizations:
    """The cache of ``parametrize.cached()`` within a call: one for each call, because the tensors belong to it."""

    def get(self, key: object):
        return None if current() is None else kept(_Changed).parametrizations.get(key)

    def __setitem__(self, key: object, tensor: torch.Tensor) -> None:
        if current() is not None:
            kept(_Changed).parametrizations[key] = tensor


# A region around the call is none within it: what it keeps was computed from weights that the call does not have.
exchange(parametrize, "_cache", _Parametrizations())
exchange(parametrize, "_cache_enabled", 0)


# The default dtype.


@runs_instead_of(torch.set_default_dtype)
def _set_default_dtype(d: torch.dtype):
    if not isinstance(d, torch.dtype):
        raise TypeError(f"invalid dtype object: got {d!r}; wanted a floating-point dtype such as torch.float64")
    if not d.is_floating_point:
        raise TypeError(f"only floating-point types are supported as the default type, got {d}")
    this_call().settings.default_dtype = d


@runs_instead_of(torch.set_default_tensor_type)
def _set_default_tensor_type(t: type | str):
    warnings.warn(
        "torch.set_default_tensor_type() is deprecated as of PyTorch 2.1, please use torch.set_default_dtype() and "
        "torch.set_default_device() as alternatives.",
        stacklevel=user_level(),
    )
    torch.set_default_dtype((import_dotted_name(t) if isinstance(t, str) else t).dtype)


for _owner in (torch, C):
    replaces(_owner, "get_default_dtype")(default_dtype)
