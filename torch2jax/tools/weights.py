"""The weights of a model: from a checkpoint, and in another dtype."""

from pathlib import Path
from typing import Any

import torch

from ..checkpoints import tensors_of
from ..hints import nearest
from ..tensors.trees import map_arguments
from .subject import SpecError, Subject, first_line

__all__ = ["cast", "load_weights"]


def load_weights(subject: Subject, path: Path) -> None:
    """Gives a module the weights of a checkpoint, all of them.

    A folder is for the library of the model to read, where that has a ``from_pretrained``.

    Args:
        path: a file or a folder, as `torch2jax.load_state` takes it.

    Raises:
        SpecError: there is no checkpoint, or names or shapes are not those of the module.
    """
    if subject.module is None:
        raise SpecError(f"{subject.name} is a function: --weights is for modules")
    if path.is_dir() and hasattr(subject.module, "from_pretrained"):
        subject.target = _from_pretrained(subject.module, path)
        return
    try:
        state = dict(tensors_of(path))
    except Exception as error:
        raise SpecError(f"cannot read the weights in {path}: {first_line(error)}") from None
    _expect_names(subject.module, state, path)
    try:
        subject.module.load_state_dict(state, strict=False)
    except RuntimeError as error:
        raise SpecError(f"the weights in {path} do not fit: {str(error).strip().splitlines()[-1].strip()}") from None


def _from_pretrained(module: Any, path: Path) -> torch.nn.Module:
    try:
        return type(module).from_pretrained(path, local_files_only=True).train(module.training)
    except Exception as error:
        raise SpecError(f"{type(module).__name__} cannot read the weights in {path}: {first_line(error)}") from None


def _expect_names(module: torch.nn.Module, state: dict[str, torch.Tensor], path: Path) -> None:
    """The names of the module, but that one of those which share memory is enough, as in the files of safetensors."""
    wanted = module.state_dict()
    for name in state:
        if name not in wanted:
            raise SpecError(f"the weights in {path} have {name!r}, and the module has not{nearest(name, wanted)}")
    given = {_memory(tensor) for name, tensor in wanted.items() if name in state}
    for name, tensor in wanted.items():
        if name not in state and _memory(tensor) not in given:
            raise SpecError(f"the weights in {path} have no {name!r}{nearest(name, state)}")


def _memory(tensor: torch.Tensor) -> tuple:
    return tensor.data_ptr(), tensor.shape, tensor.stride()


def cast(subject: Subject, dtype: str) -> None:
    """Casts a module, and inputs, of floating point.

    Args:
        dtype: the name of a dtype of floating point, as ``bfloat16``.
    """
    found = getattr(torch, dtype, None)
    if not isinstance(found, torch.dtype) or not found.is_floating_point:
        raise SpecError(f"{dtype!r} is no dtype of floating point: wanted bfloat16, float16, float32 or float64")

    def leaf(value: Any):
        return value.to(found) if isinstance(value, torch.Tensor) and value.is_floating_point() else value

    subject.args, subject.kwargs = map_arguments(leaf, (subject.args, subject.kwargs))
    if subject.module is not None:
        try:
            subject.module.to(found)
        except Exception as error:
            raise SpecError(f"{subject.name} cannot be cast to {dtype}: {first_line(error)}") from None
