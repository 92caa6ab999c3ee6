"""Parameters and buffers of lazy modules, whose shape the first input decides."""

import contextlib
from typing import Any

import torch
from torch.nn import parameter as _pytorch
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter

from ..patches import stands_in
from ..rules.kinds import serves
from ..tensors.tensor import Torchish
from .call import ValuesCall

__all__ = ["Uninitialized"]

_Mixin: Any = vars(_pytorch)["UninitializedTensorMixin"]
_ALLOWED = frozenset(_Mixin._allowed_methods)


class Uninitialized(_Mixin, Torchish):
    """A tensor without a shape, until `materialize`."""

    cls_to_become = Torchish  # pyright: ignore[reportAssignmentType]


class _Parameter(Uninitialized, UninitializedParameter):
    cls_to_become = Torchish  # pyright: ignore[reportAssignmentType]

    def __reduce_ex__(self, proto: Any):
        return UninitializedParameter, (self.requires_grad,)


class _LazyBuffer(Uninitialized, UninitializedBuffer):
    cls_to_become = Torchish  # pyright: ignore[reportAssignmentType]

    def __reduce_ex__(self, proto: Any):
        return UninitializedBuffer, (self.requires_grad,)


@stands_in(UninitializedParameter, "__new__")
def _new_parameter(
    cls: type[Any], requires_grad: bool = True, device: torch.device | None = None, dtype: torch.dtype | None = None
):
    parameter = torch.nn.Parameter(torch.empty(0, device=device, dtype=dtype), requires_grad)
    parameter.__class__ = _Parameter
    return parameter


@stands_in(UninitializedBuffer, "__new__")
def _new_buffer(
    cls: type[Any],
    requires_grad: bool = False,
    device: torch.device | None = None,
    dtype: torch.dtype | None = None,
    persistent: bool = True,
):
    buffer = torch.nn.Buffer(
        torch.empty(0, device=device, dtype=dtype).requires_grad_(requires_grad), persistent=persistent
    )
    buffer.__class__ = _LazyBuffer
    return buffer


@contextlib.contextmanager
def _as_empty(func: Any, args: tuple):
    """A context in which arguments without a shape are empty tensors.

    Raises:
        ValueError: `func` is not one of the few that do without a shape.
    """
    if func not in _ALLOWED and type(func).__name__ != "method-wrapper":
        raise ValueError(
            f"Attempted to use an uninitialized parameter in {func}. Parameters of a lazy module have no shape until "
            "its first forward: call it with an input, or initialize it before the call that is translated."
        )
    kinds = [(x, type(x)) for x in args if isinstance(x, Uninitialized)]
    for tensor, _ in kinds:
        tensor.__class__ = Torchish  # pyright: ignore[reportAttributeAccessIssue]
    try:
        yield
    finally:
        for tensor, kind in kinds:
            tensor.__class__ = kind


@serves(Uninitialized, 2)
def _run(call: ValuesCall, function: Any, args: tuple, kwargs: dict) -> Any:
    with _as_empty(function, args):
        return call.dispatch(function, args, kwargs)
