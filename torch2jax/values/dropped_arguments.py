"""Arguments that PyTorch's Python functions drop when they pass a call on to an override."""

import inspect
import types

import torch
import torch.nn.functional as F

DROPPED: dict[types.FunctionType, str] = {
    F.l1_loss: "weight",
    torch.Tensor.dim_order: "ambiguity_check",
    torch.chain_matmul: "out",
}


def with_dropped(func: types.FunctionType, kwargs: dict) -> dict:
    """The keywords of a call with the argument that is missing among them, which the frame of `func` still has."""
    name = DROPPED[func]
    frame = inspect.currentframe()
    while frame is not None and frame.f_code is not func.__code__:
        frame = frame.f_back
    value = None if frame is None else frame.f_locals[name]
    return kwargs if value is None or name in kwargs else {**kwargs, name: value}
