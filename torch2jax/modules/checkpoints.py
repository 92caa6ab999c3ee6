"""`load_state`: from the files of a checkpoint to arrays, each weight straight to its shards."""

import json
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
import torch
from jax.sharding import NamedSharding, PartitionSpec, Sharding

from ..runtime.errors.locations import how_to_install
from ..tensors.dtypes import canonical, dtype_t2j, values_in_dtype
from ..tensors.interop import distinct, to_numpy, values_of

_PICKLES = (".bin", ".pt", ".pth")
_INDEXED = ("model.safetensors", "diffusion_pytorch_model.safetensors", "pytorch_model.bin")
_ALIGNMENT = 64  # of memory that XLA takes over
_MOST_MAPPED = 64 * 2**20
_SHARE_MAPPED = 32


def load_state(
    source: str | Path | Mapping[str, torch.Tensor],
    *,
    shardings: object = None,
    dtype: object = None,
) -> dict[str, jax.Array]:
    """Reads the weights of a checkpoint by name, each from its file straight onto the devices that need it.

    Apart from the arrays themselves, memory holds little more than one weight at a time. If a weight is sharded over
    the devices of several processes, each process reads its part.

    Args:
        source: a ``.safetensors`` file; a ``.bin``, ``.pt`` or ``.pth`` file with a dictionary of tensors; the
            ``.index.json`` of a checkpoint of several files; a folder that holds one of these under the name that
            transformers or diffusers give it; or the tensors by name, such as ``module.state_dict()``. Of tensors that
            share memory, such as tied weights, only the first name is used, as in transformers' files.
        shardings: where to put the arrays: a `jax.sharding.Sharding`, or a `PartitionSpec` on the mesh of
            ``jax.set_mesh``; one for all of them, or one for each name. Weights without a sharding go to one device,
            uncommitted.
        dtype: the dtype to cast floating-point weights to, one after another. By default each keeps its dtype; while
            ``jax_enable_x64`` is off, 64-bit types have 32 bits.

    Raises:
        FileNotFoundError: the file does not exist, or the folder contains none with weights.
        ModuleNotFoundError: ``safetensors`` is not installed.
        OverflowError: 32 bits do not hold an integer, while ``jax_enable_x64`` is off.
        TypeError: `source` is of another kind, or does not hold tensors by name; or `dtype` is not a floating-point
            dtype.
        ValueError: the name of the file does not say what it holds, or a `PartitionSpec` is given without a mesh.

    Example:
        >>> import torch
        >>> from torch2jax import load_state
        >>> load_state(torch.nn.Linear(3, 2, bias=False).state_dict(), dtype="bfloat16")["weight"].dtype
        dtype(bfloat16)
    """
    wanted = None if dtype is None else _floating(dtype)
    weights = _Weights(source)
    return {name: placed(weights.read(name), _sharding_of(name, shardings), wanted) for name in weights.names}


def _floating(dtype: Any) -> np.dtype:
    wanted = np.dtype(dtype_t2j(dtype) if isinstance(dtype, torch.dtype) else dtype)
    if not jax.numpy.issubdtype(wanted, np.floating):
        raise TypeError(f"load_state got dtype={wanted}, to which no weights can be cast; wanted one of floating point")
    return jax.dtypes.canonicalize_dtype(wanted)


def _sharding_of(name: str, shardings: Any) -> Sharding | None:
    found = shardings.get(name) if isinstance(shardings, Mapping) else shardings
    if not isinstance(found, PartitionSpec):
        return found
    mesh = jax.sharding.get_mesh()
    if mesh.empty:
        raise ValueError(
            f"load_state got {found} for {name} and no mesh; wanted a NamedSharding, or a mesh set with jax.set_mesh"
        )
    return NamedSharding(mesh, found)


def placed(values: torch.Tensor | np.ndarray, sharding: Sharding | None, floating: np.dtype | None = None) -> jax.Array:
    """A copy of values on their devices; of each shard no more is read than it holds.

    Args:
        floating: what those of floating point are cast to.
    """
    dtype = values.dtype
    wanted = canonical(dtype) if isinstance(dtype, torch.dtype) else jax.dtypes.canonicalize_dtype(dtype)
    if floating is not None and jax.numpy.issubdtype(wanted, np.floating):
        wanted = floating

    def part(index: Any) -> np.ndarray:  # slices
        found = _numpy(values[index])
        return _fill(_memory(found.shape, wanted), found)

    if sharding is None:
        array = jax.device_put(part(()), may_alias=False)
    else:
        array = jax.make_array_from_callback(tuple(values.shape), sharding, part)
    return jax.block_until_ready(array)  # before the file is closed


def _numpy(values: torch.Tensor | np.ndarray) -> np.ndarray:
    return to_numpy(values_of(values)) if isinstance(values, torch.Tensor) else values


def _memory(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Memory without other owners, which JAX takes over on the CPU; a mapped file may change."""
    size = math.prod(shape) * dtype.itemsize
    memory = np.empty(size + _ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT
    return memory[start : start + size].view(dtype).reshape(shape)


def tensors_of(source: object) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors of a checkpoint by name, each in memory until the next one is read."""
    weights = _Weights(source)
    for name in weights.names:
        yield name, weights.read(name)


def _fill(memory: np.ndarray, array: np.ndarray) -> np.ndarray:
    memory[...] = values_in_dtype(array, memory.dtype) if array.dtype == np.int64 else array
    return memory


class _Weights:
    """The tensors of a checkpoint by name, each in memory until the next one is read."""

    def __init__(self, source: object):
        self._file: Any = None
        self._mapped = self._most = 0
        self._paths: dict[str, Path] = {}
        self._opened: Path | None = None
        if isinstance(source, Mapping):
            self._file = _NamedTensors(_checked(source, "the mapping"))
            self.names = self._file.names
            return
        if not isinstance(source, (str, os.PathLike)):
            raise TypeError(f"load_state got a {type(source).__name__}; wanted a file, a folder, or tensors by name")
        path = _found(Path(source))
        paths = [path]
        if path.name.endswith(".index.json"):
            files = json.loads(path.read_text())["weight_map"].values()
            paths = [path.parent / file for file in dict.fromkeys(files)]
        for each in paths:
            self._paths.update((name, each) for name in self._open(each).names)
        self.names = list(self._paths)

    def read(self, name: str) -> torch.Tensor:
        """The tensor of that name; the one before must not be referred to any more."""
        path = self._paths.get(name)
        # What was read of a mapped file counts as memory of the process until the file is closed.
        if path is not None and (path != self._opened or self._mapped > self._most):
            self._open(path)
        tensor = self._file.read(name)
        self._mapped += tensor.nbytes
        return tensor

    def _open(self, path: Path) -> Any:
        self._file = None
        self._file, self._opened, self._mapped = _opened(path), path, 0
        self._most = max(_MOST_MAPPED, path.stat().st_size // _SHARE_MAPPED)
        return self._file


def _found(path: Path) -> Path:
    if not path.is_dir():
        return path
    candidates = [path / name for stem in _INDEXED for name in (f"{stem}.index.json", stem)]
    for candidate in candidates:
        if candidate.is_file():
            return candidate
    names = ", ".join(candidate.name for candidate in candidates)
    raise FileNotFoundError(f"no weights in {path}: wanted one of {names}")


def _opened(path: Path) -> "_NamedTensors | _Safetensors":
    if not path.is_file():
        raise FileNotFoundError(
            f"load_state got {path}, and there is no such file; wanted a .safetensors, .bin, .pt, .pth or .index.json "
            "file, or the folder that holds it. That of a model on the Hub is huggingface_hub.snapshot_download(name)"
        )
    if path.suffix not in (".safetensors", *_PICKLES):
        raise ValueError(f"cannot tell what {path} holds: wanted .safetensors, .bin, .pt, .pth or .index.json")
    return _Safetensors(path) if path.suffix == ".safetensors" else _NamedTensors(_checked(_unpickled(path), str(path)))


class _NamedTensors:
    """Tensors by name."""

    def __init__(self, state: Mapping[str, torch.Tensor]):
        self._state = state
        self.names = list(distinct(state))

    def read(self, name: str) -> torch.Tensor:
        return self._state[name]


class _Safetensors:
    """A file of safetensors."""

    def __init__(self, path: Path):
        try:
            from safetensors import safe_open
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(f"{path} needs safetensors: {how_to_install('checkpoints')}") from error
        self._file = safe_open(path, framework="pt")
        self.names = list(self._file.keys())

    def read(self, name: str) -> torch.Tensor:
        return self._file.get_tensor(name)


def _unpickled(path: Path) -> object:
    try:
        return torch.load(path, mmap=True, weights_only=True, map_location="cpu")
    except RuntimeError as error:
        if "mmap" not in str(error):
            raise
        return torch.load(path, weights_only=True, map_location="cpu")  # of before PyTorch 1.6


def _checked(state: object, source: str) -> Mapping[str, torch.Tensor]:
    if not isinstance(state, Mapping):
        raise TypeError(f"load_state got {type(state).__name__} in {source}; wanted tensors by name")
    for name, value in state.items():
        if not isinstance(value, torch.Tensor):
            raise TypeError(
                f"load_state got {type(value).__name__} under {name!r} in {source}; wanted tensors by name. Take them "
                "out of it first: torch.load(path, mmap=True, weights_only=True)"
            )
    return state
