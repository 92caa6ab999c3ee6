"""Tensors that translated code sets on modules from outside of its call, which exist as long as it; lazy modules."""

import weakref
from collections.abc import Callable
from typing import Any

import torch

from ..calls.call import this_call
from ..patches import runs_instead_of, stands_in
from ..tensors.tensor import Torchish

__all__: list[str] = []

_Module = torch.nn.Module
_ABSENT = object()


@runs_instead_of(_Module.__init__, with_original=True)
def _begin(original: Callable[..., Any], self: _Module, *args: Any, **kwargs: Any):
    this_call().settings.made[id(self)] = weakref.ref(self)
    original(self, *args, **kwargs)


@runs_instead_of(_Module.__setattr__, with_original=True)
def _set(original: Callable[..., Any], self: _Module, name: str, value: Any):
    if isinstance(value, Torchish) and not _is_made_here(self):
        place = next((part for part in _parts_of(self) if name in part), vars(self))
        before = place.get(name, _ABSENT)
        if not isinstance(before, Torchish):
            _put_back_later(self, place, name, before)
    original(self, name, value)


def _is_made_here(module: _Module) -> bool:
    reference = this_call().settings.made.get(id(module))
    return reference is not None and reference() is module


def _parts_of(module: _Module) -> list[dict]:
    own = vars(module)
    return [own[part] for part in ("_parameters", "_buffers") if part in own] + [own]


def _put_back_later(module: _Module, place: dict, name: str, before: Any) -> None:
    reference = weakref.ref(module)

    def undo() -> None:
        if before is not _ABSENT:
            place[name] = before
        elif (there := reference()) is not None:
            for part in _parts_of(there):
                part.pop(name, None)

    this_call().settings.undo_later(undo)


@stands_in(torch.nn.UninitializedParameter, "__new__")
@stands_in(torch.nn.UninitializedBuffer, "__new__")
def _refuse_lazy(cls: type, *args: Any, **kwargs: Any):
    raise RuntimeError(
        f"an {cls.__name__} was made within a translated call, as lazy modules do; wanted a module of known sizes, as "
        "torch.nn.Linear(3, 2) is, or a lazy one that was made, and called once, before the call"
    )
