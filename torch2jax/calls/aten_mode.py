"""The mode through which operators that PyTorch's C++ calls come back to a call."""

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

import torch

from ..internals.modes import TorchDispatchMode, pop_torch_dispatch_stack, push_on_torch_dispatch_stack
from ..internals.operators import OpOverload
from ..rules import autocast
from ..translation import CallMode

if TYPE_CHECKING:
    from .dispatch import Call

__all__ = ["AtenMode"]


class AtenMode(TorchDispatchMode, CallMode):
    """Brings operators to the `dispatch_aten` of a call, also those with no `Torchish` among their arguments."""

    def __init__(self, call: "Call"):
        super().__init__()
        self._call = call
        self._regions: list[str | None] = []

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # dynamo would be imported, to leave alone what it never sees

    def __enter__(self):
        # The base class also sets flags of the whole process, which threads would leave behind.
        push_on_torch_dispatch_stack(self)
        self._regions.append(autocast.region())
        return self

    def __exit__(self, *exc_info: object):
        self._regions.pop()
        pop_torch_dispatch_stack(None)

    def __torch_dispatch__(
        self,
        func: OpOverload,
        types: Collection[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ):
        del types
        device = self._regions[-1]
        if device is None:
            return self._call.dispatch_aten(func, args, kwargs or {})
        torch.set_autocast_enabled(device, True)  # PyTorch has left the region on the way here
        try:
            return self._call.dispatch_aten(func, args, kwargs or {})
        finally:
            torch.set_autocast_enabled(device, False)
