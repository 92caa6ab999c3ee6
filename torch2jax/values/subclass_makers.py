"""PyTorch's constructors of tensor subclasses, which check no override and are replaced.

To exchange an attribute of `torch.Tensor` costs all that is asked of it some time. So nothing stands in before code
has made such a tensor for the first time in a process, and that run of it starts anew.
"""

import functools
import importlib
import sys
import threading
from collections.abc import Callable
from typing import Any

import torch

from ..internals.dispatch import DisableTorchFunctionSubclass
from ..internals.tensors import tree_leaves, tree_map_only
from ..patches import exchange
from ..tensors.derived import NeedsClasses, as_class, in_call
from ..tensors.tensor import Torchish
from ..translation import Call, current, this_call

# What the makers call of the tensor that they are given.
MAKERS = frozenset((torch.ops.aten.alias.default, torch.ops.aten.detach.default))
_HERE = __package__.partition(".")[0] if __package__ else ""
_lock = threading.Lock()
_stand_in = False


def expect_classes() -> None:
    """Lets what makes tensors of code's own classes be exchanged.

    Raises:
        NeedsClasses: that was not so before; unless it is this package that asks for another tensor on some memory.
    """
    global _stand_in
    if _stand_in or sys._getframe(3).f_globals.get("__name__", "").partition(".")[0] == _HERE:
        return
    with _lock:
        if not _stand_in:
            # It notes PyTorch's own makers when it is first imported.
            importlib.import_module("..internals.dynamo", __package__)
            _stand_in = True
            exchange(torch.Tensor, "as_subclass", _as_subclass, may_lack=True)
            exchange(torch.Tensor, "_make_subclass", staticmethod(_make_subclass), may_lack=True)
            exchange(torch.Tensor, "__new__", staticmethod(_new), may_lack=True)
    raise NeedsClasses


_originals = {name: getattr(torch.Tensor, name) for name in ("as_subclass", "_make_subclass", "__new__")}


def run_by_classes(call: Call, function: Callable, args: tuple, kwargs: dict) -> Any:
    """Leaves a function to the classes of its arguments; tensors from outside are of theirs too."""
    given = tree_map_only(torch.Tensor, functools.partial(in_call, call), (args, kwargs))
    if all(x is y for x, y in zip(tree_leaves((args, kwargs)), tree_leaves(given), strict=True)):
        return NotImplemented  # PyTorch asks them next
    with call.inside():
        return function(*given[0], **given[1])


def run_past_classes(call: Call, function: Callable, args: tuple, kwargs: dict) -> Any:
    """Runs a function for which code has switched off what classes say."""
    call.heeds_classes = False
    try:
        return call.dispatch(function, args, kwargs)
    finally:
        call.heeds_classes = True


def _as_subclass(self: torch.Tensor, cls: type[Any]):
    if current() is None or not isinstance(self, Torchish):
        return _originals["as_subclass"](self, cls)
    return as_class(self, cls)


def _make_subclass(cls: type[Any], data: torch.Tensor, require_grad: bool = False, *args: Any, **kwargs: Any):
    if current() is None or not isinstance(data, Torchish):
        return _originals["_make_subclass"](cls, data, require_grad, *args, **kwargs)
    with DisableTorchFunctionSubclass():
        leaf: Any = this_call().lift(data.detach()).requires_grad_(require_grad)
        result = as_class(leaf, cls)  # whose properties may need what its __init__ will set
    if require_grad:
        leaf.history.variable = result
    return result


def _new(cls: type[Any], *args: Any, **kwargs: Any):
    if current() is None or cls is torch.Tensor or not (args and isinstance(args[0], Torchish)):
        return _originals["__new__"](cls, *args, **kwargs)
    return as_class(args[0], cls)
