"""`torch.autograd.Function.apply` within translated calls, also if it was bound earlier: ``f = MyFunction.apply``.

Up to PyTorch 2.13 it is a Python method, whose code is exchanged. From 2.14 on it is a method of C's, and one that was
bound before cannot be reached. But it looks up three attributes of the function's class, in this order: `_backward_cls`
(then it turns gradients off), `forward`, which it calls, and `setup_context` if the class has its own, which it calls
too. The class of these classes answers such a series with `_BoundForward` and `_Marks`. What C does with the results is
harmless: they are marked as not differentiable to it, so that it returns them as they are.
"""

import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.autograd.function import FunctionCtx, FunctionMeta

from ..internals.gradients import is_fwd_grad_enabled, set_fwd_grad_enabled
from ..patches import exchange, runs_instead_of
from .call import current

__all__ = ["TAKES_KEYWORDS", "run_instead_of_apply"]

_ORIGINAL = vars(torch.autograd.Function)["apply"]

TAKES_KEYWORDS = not isinstance(_ORIGINAL, classmethod)
"""Whether `apply` takes the arguments of a forward by keyword where that gets the context as well."""


def run_instead_of_apply(apply: Callable) -> None:
    """Declares ``apply(cls, *args, **kwargs)`` to run in place of ``cls.apply(*args, **kwargs)``."""
    if isinstance(_ORIGINAL, classmethod):
        runs_instead_of(_ORIGINAL.__func__)(apply)
        return

    def of_class(cls: type[torch.autograd.Function], *args: Any, **kwargs: Any):
        chosen = _ORIGINAL.__get__(None, cls) if current() is None else apply.__get__(cls)
        return chosen(*args, **kwargs)

    exchange(torch.autograd.Function, "apply", classmethod(of_class))
    exchange(FunctionMeta, "__getattribute__", _attributes(apply), may_lack=True)


class _Series(threading.local):
    """What C has looked up on this thread, while nothing else ran."""

    cls: Any = None
    modes: tuple[bool, bool] = (True, True)
    """Whether gradients were recorded, backwards and forwards, when `_backward_cls` was looked up."""
    has_run: bool = False


_series = _Series()


def _attributes(apply: Callable) -> Callable[[Any, str], Any]:
    """What looks up the attributes of functions' classes."""

    def __getattribute__(cls: type[torch.autograd.Function], name: str):
        value = type.__getattribute__(cls, name)
        if name == "_backward_cls" and current() is not None:
            _series.cls, _series.has_run = cls, False
            _series.modes = torch.is_grad_enabled(), is_fwd_grad_enabled()
        elif name == "forward" and _series.cls is cls and not _series.has_run:
            _series.cls = None
            return _BoundForward(cls, apply, value, _series.modes)
        elif name == "setup_context" and _series.cls is cls and _series.has_run:
            _series.cls = None
            return _mark
        return value

    return __getattribute__


class _BoundForward:
    """A function's forward as C calls it: all of `apply`."""

    def __init__(
        self, cls: type[torch.autograd.Function], apply: Callable, forward: Callable, modes: tuple[bool, bool]
    ):
        self._cls, self._apply, self._forward, self._modes = cls, apply, forward, modes

    def __call__(self, *args: Any, **kwargs: Any):
        cls = self._cls
        has_context_of_its_own = cls.setup_context is not torch.autograd.Function.setup_context
        if not has_context_of_its_own:
            if not args or type(args[0]) is not vars(cls)["_backward_cls"]:  # somebody else looked it up
                return self._forward(*args, **kwargs)
            context, args = args[0], args[1:]
        backward, forward = self._modes
        with torch.set_grad_enabled(backward), set_fwd_grad_enabled(forward):
            output = self._apply(cls, *args, **kwargs)
        if has_context_of_its_own:
            _series.cls, _series.has_run = cls, True
        else:
            _mark(context, args, output)
        return output


def _mark(context: FunctionCtx, inputs: Sequence[object], output: object) -> None:
    """Makes C return what `apply` gave as it is."""
    results = [x for x in (output if isinstance(output, tuple) else (output,)) if isinstance(x, torch.Tensor)]
    context.mark_non_differentiable(*results)
    context.mark_dirty(*(x for x in results if any(x is given for given in inputs)))
