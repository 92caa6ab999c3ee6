"""``torch.jit.save`` and ``torch.jit.load`` of modules that hold tensors of a translated call."""

import copy
import json
import os
from pathlib import Path
from typing import Any

import torch

from ..calls.call import this_call
from ..internals.torchscript import ScriptModule, wrap_cpp_module
from ..patches import stands_in
from ..tensors.tensor import Torchish
from ..values.pickled import as_real
from .modules import tensors_in

_START = b"torch2jax:"
_save, _load = torch.jit.save, torch.jit.load


@stands_in(torch.jit, "save")
def _save_module(m: torch.nn.Module | ScriptModule, f: Any, _extra_files: dict[str, Any] | None = None):
    """Saves a module as PyTorch does if its values are known; else the call keeps it, and the file has a token."""
    if isinstance(m, ScriptModule):
        m = wrap_cpp_module(m)
    if not isinstance(m, torch.nn.Module):
        return _save(m, f, _extra_files)
    tensors = {id(tensor): (tensor, this_call().standing_for(tensor)) for tensor in tensors_in(m)}
    if not any(isinstance(stand_in, Torchish) for _, stand_in in tensors.values()):
        return _save(m, f, _extra_files)
    known = {key: as_real(stand_in) for key, (_, stand_in) in tensors.items()}
    if None not in known.values():
        return _save(copy.deepcopy(m, known), f, _extra_files)
    memo = {key: this_call().lift(stand_in).detach().clone() for key, (_, stand_in) in tensors.items()}
    token = _START + json.dumps(this_call().pickles.put(copy.deepcopy(m, memo))).encode()
    if isinstance(f, (str, os.PathLike)):
        Path(f).write_bytes(token)
    else:
        f.write(token)
    return None


@stands_in(torch.jit, "load")
def _load_module(
    f: Any, map_location: Any = None, _extra_files: dict[str, Any] | None = None, _restore_shapes: bool = False
):
    token = _token(f)
    if token is None:
        module = _load(f, map_location, _extra_files, _restore_shapes)
        own = {id(tensor): this_call().lift_own(tensor) for tensor in tensors_in(module)}
        return copy.deepcopy(module, own)
    return copy.deepcopy(this_call().pickles.take(*token))


def _token(f: Any) -> Any:
    """The token that a file holds in place of a module, or None."""
    if isinstance(f, (str, os.PathLike)):
        with open(f, "rb") as file:
            return _token(file)
    place = f.tell()
    content = f.read(len(_START))
    if content == _START:
        return json.loads(f.read())
    f.seek(place)
    return None
