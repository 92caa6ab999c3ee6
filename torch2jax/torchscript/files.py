"""``torch.jit.save`` and ``torch.jit.load`` within a translated call, and what stands for traces and frozen modules."""

import copy
from typing import Any

import torch

from ..calls.call import this_call
from ..internals.torchscript import ScriptModule, wrap_cpp_module
from ..patches import stands_in
from ..tensors.tensor import Torchish
from .modules import tensors_in

_save, _load = torch.jit.save, torch.jit.load


@stands_in(torch.jit, "save")
def _save_module(m: torch.nn.Module | ScriptModule, f: Any, _extra_files: dict[str, Any] | None = None):
    held = wrap_cpp_module(m) if isinstance(m, ScriptModule) else m
    tensors = tensors_in(held) if isinstance(held, torch.nn.Module) else []
    if any(isinstance(this_call().standing_for(tensor), Torchish) for tensor in tensors):
        raise RuntimeError(
            "torch.jit.save got a module with tensors of the translated call that it runs in: return its "
            "state_dict() from the call, load that into a module outside, and save this one"
        )
    return _save(m, f, _extra_files)


@stands_in(torch.jit, "load")
def _load_module(
    f: Any, map_location: Any = None, _extra_files: dict[str, Any] | None = None, _restore_shapes: bool = False
):
    module = _load(f, map_location, _extra_files, _restore_shapes)
    own = {id(tensor): this_call().lift_own(tensor) for tensor in tensors_in(module)}
    return copy.deepcopy(module, own)


# A function does for all inputs what a trace of it does for those of its examples, and JAX optimizes what is constant.


@stands_in(torch.jit, "trace")
def _traced(func: Any, *args: Any, **kwargs: Any):
    return func


@stands_in(torch.jit, "trace_module")
def _traced_module(mod: Any, *args: Any, **kwargs: Any):
    return mod


@stands_in(torch.jit, "freeze")
def _frozen(mod: torch.nn.Module, *args: Any, **kwargs: Any):
    return mod


@stands_in(torch.jit, "optimize_for_inference")
def _optimized(mod: torch.nn.Module, *args: Any, **kwargs: Any):
    return mod
