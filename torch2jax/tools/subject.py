"""The subject of the tools: a PyTorch module or function with its inputs, and its errors."""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

__all__ = [
    "SpecError",
    "Subject",
    "TranslationError",
    "first_line",
    "read_branches",
    "read_inputs",
    "refusing_bad_inputs",
    "tensors_of_shapes",
    "told",
    "translating",
]

_IDS_BELOW = 8


class SpecError(ValueError):
    """A model, a shape or a file that the user named cannot be used; the message is one line."""


class TranslationError(RuntimeError):
    """A model cannot be translated, or its translation cannot be compiled, run or exported; see the cause."""


@dataclasses.dataclass
class Subject:
    """A PyTorch callable and its arguments.

    Args:
        name: the spec it was built from.
        target: a module, or a function of tensors.
        args: positional arguments.
        kwargs: keyword arguments.
        seconds: how long it took to build.
        branches: which branch to take on traced conditions; see `t2j`.
        note: what else the user should know about the libraries that it is built with.
    """

    name: str
    target: torch.nn.Module | Callable
    args: tuple = ()
    kwargs: dict[str, Any] = dataclasses.field(default_factory=dict)
    seconds: float = 0.0
    branches: Mapping[str, bool] = dataclasses.field(default_factory=dict)
    note: str = ""

    @property
    def module(self) -> torch.nn.Module | None:
        """The target if it is a module, else None."""
        return self.target if isinstance(self.target, torch.nn.Module) else None

    def describe_inputs(self) -> str:
        """The inputs as ``float32[1,3,224,224], mask=bool[1,7]``."""
        parts = [_describe(value) for value in self.args]
        return ", ".join(parts + [f"{name}={_describe(value)}" for name, value in self.kwargs.items()])


def first_line(error: BaseException) -> str:
    """The first line of an error's message, or what kind of error it is."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def told(error: BaseException) -> str:
    """The first line of an error, and the notes that say what helps; those on tracebacks are left out."""
    notes = [note for note in getattr(error, "__notes__", ()) if not note.startswith("---")]
    return "\n".join([first_line(error), *notes])


@contextlib.contextmanager
def translating(what: str) -> Iterator[None]:
    """Makes an error of the code within a `TranslationError` with the message that `what`."""
    try:
        yield
    except (SpecError, TranslationError):
        raise
    except Exception as error:
        raise TranslationError(f"{what}: {type(error).__name__}: {told(error)}") from error


@contextlib.contextmanager
def refusing_bad_inputs(subject: Subject) -> Iterator[None]:
    """Makes an error of PyTorch's own a `SpecError`: there is nothing to translate."""
    try:
        yield
    except Exception as error:
        raise SpecError(f"PyTorch itself fails on {subject.describe_inputs()}: {first_line(error)}") from error


def _describe(value: object) -> str:
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}".replace(" ", "")
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_describe, value))}]"
    return repr(value)


def read_branches(texts: list[str]) -> dict[str, bool]:
    """What is to be answered to conditions on traced values, by places: texts such as ``model.py:forward=False``."""
    branches = {}
    for text in texts:
        place, _, given = text.rpartition("=")
        file, _, at = place.rpartition(":")
        if not file or not at or given.lower() not in ("true", "false"):
            raise SpecError(
                f"bad answer {text!r}: wanted FILE:FUNCTION=BOOL or FILE:LINE=BOOL, as model.py:forward=False"
            )
        branches[place] = given.lower() == "true"
    return branches


def tensors_of_shapes(texts: Sequence[str]) -> tuple[torch.Tensor, ...]:
    """Random tensors for shapes such as ``1,3,224,224`` or ``1,16:int64``, the same ones in every run."""
    generator = torch.Generator().manual_seed(0)
    return tuple(_random(*_parse(text), generator) for text in texts)


def _parse(text: str) -> tuple[tuple[int, ...], torch.dtype]:
    sizes, _, name = text.partition(":")
    dtype = getattr(torch, name or "float32", None)
    if not isinstance(dtype, torch.dtype):
        raise SpecError(f"bad shape {text!r}: {name!r} is no dtype of PyTorch")
    try:
        shape = tuple(int(size) for size in sizes.split(",")) if sizes else ()
    except ValueError:
        raise SpecError(f"bad shape {text!r}: wanted sizes such as 1,3,224,224 or 1,16:int64") from None
    if any(size < 0 for size in shape):
        raise SpecError(f"bad shape {text!r}: sizes cannot be negative")
    return shape, dtype


def _random(shape: Sequence[int], dtype: torch.dtype, generator: torch.Generator) -> torch.Tensor:
    if dtype.is_floating_point or dtype.is_complex:
        wide = dtype if dtype.is_complex else torch.float32
        return torch.randn(shape, generator=generator, dtype=wide).to(dtype)
    below = 2 if dtype == torch.bool else _IDS_BELOW
    return torch.randint(below, shape, generator=generator).to(dtype)


def read_inputs(path: Path) -> tuple[tuple, dict[str, Any]]:
    """The arguments in a file: a tensor, a tuple or list of positional ones, or a dict of keyword ones."""
    try:
        value = _read(path)
    except FileNotFoundError:
        raise SpecError(f"no input file {path}") from None
    except SpecError:
        raise
    except Exception as error:
        raise SpecError(f"cannot read the inputs in {path}: {first_line(error)}") from None
    if isinstance(value, dict):
        return (), value
    return tuple(value) if isinstance(value, (list, tuple)) else (value,), {}


def _read(path: Path):
    if path.suffix == ".npy":
        return torch.from_numpy(np.load(path))
    if path.suffix == ".npz":
        with np.load(path) as arrays:
            return {name: torch.from_numpy(arrays[name]) for name in arrays.files}
    if path.suffix == ".safetensors":
        from safetensors.torch import load_file

        return load_file(path)
    if path.suffix in (".pt", ".pth"):
        return torch.load(path, weights_only=True)
    raise SpecError(f"cannot tell what {path} holds: wanted .pt, .pth, .npy, .npz or .safetensors")
