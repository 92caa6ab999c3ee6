"""`load_state`: from the files of a checkpoint to arrays, each weight straight to its shards."""

import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
import torch
from jax.sharding import NamedSharding, PartitionSpec, Sharding

from .hints import how_to_install
from .tensors.dtypes import canonical, dtype_t2j
from .tensors.interop import to_numpy, values_of
from .tensors.scalars import values_in_dtype
from .tensors.ties import distinct

__all__ = ["load_state", "placed", "tensors_of"]

_PICKLES = (".bin", ".pt", ".pth")
_INDEXED = ("model.safetensors", "diffusion_pytorch_model.safetensors", "pytorch_model.bin")
_ALIGNMENT = 64  # of memory that XLA takes over
_MOST_MAPPED = 64 * 2**20
_SHARE_MAPPED = 32


def load_state(
    source: str | Path | Mapping[str, torch.Tensor], *, shardings: Any = None, dtype: Any = None
) -> dict[str, jax.Array]:
    """The weights of a checkpoint by name, each read from its file straight to the devices that are to have it.

    Beside the arrays themselves, memory holds little more than one weight at a time. Of a weight that is sharded over
    the devices of several processes, each process reads its part.

    Args:
        source: a ``.safetensors`` file; a ``.bin``, ``.pt`` or ``.pth`` file with a dictionary of tensors; the
            ``.index.json`` of a checkpoint of several files; a folder that holds one of these under the name that
            transformers or diffusers give it; or the tensors by name, as ``module.state_dict()``. Of tensors that share
            memory, as tied weights do, the first name alone is taken, as in transformers' files.
        shardings: where the arrays are to be: a `jax.sharding.Sharding` or, on the mesh of ``jax.set_mesh``, a
            `PartitionSpec`, for all of them or for each by name. What it does not name, or is left out, is on one
            device, uncommitted.
        dtype: what floating-point weights are cast to, one after another. By default each keeps its dtype; while
            ``jax_enable_x64`` is off, 64-bit types narrow to 32 bits.

    Raises:
        FileNotFoundError: there is no such file, or none with weights in the folder.
        ModuleNotFoundError: ``safetensors`` is not installed.
        TypeError: `source` is of another kind, or holds something else than tensors by name; or `dtype` is not of
            floating point.
        ValueError: the name of the file does not tell what it holds, or a `PartitionSpec` is given without a mesh.

    Example:
        >>> import torch
        >>> from torch2jax import load_state
        >>> load_state(torch.nn.Linear(3, 2, bias=False).state_dict(), dtype="bfloat16")["weight"].dtype
        dtype(bfloat16)
    """
    wanted = None if dtype is None else _floating(dtype)
    state: dict[str, jax.Array] = {}
    for name, tensor in tensors_of(source):
        state[name] = placed(tensor, _sharding_of(name, shardings), wanted)
    return state


def _floating(dtype) -> np.dtype:
    wanted = np.dtype(dtype_t2j(dtype) if isinstance(dtype, torch.dtype) else dtype)
    if not jax.numpy.issubdtype(wanted, np.floating):
        raise TypeError(f"load_state got dtype={wanted}, to which no weights can be cast; wanted one of floating point")
    return jax.dtypes.canonicalize_dtype(wanted)


def _sharding_of(name: str, shardings) -> Sharding | None:
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
        found = values[index]
        return _in_memory(to_numpy(values_of(found)) if isinstance(found, torch.Tensor) else found, wanted)

    if sharding is None:
        array = jax.device_put(part(()), may_alias=False)
    else:
        array = jax.make_array_from_callback(tuple(values.shape), sharding, part)
    return jax.block_until_ready(array)  # before the file is closed


def _in_memory(array: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """A copy that nobody else has, which JAX takes over on the CPU; a mapped file may change."""
    size = array.size * dtype.itemsize
    memory = np.empty(size + _ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT
    copied = memory[start : start + size].view(dtype).reshape(array.shape)
    copied[...] = values_in_dtype(array, dtype) if array.dtype == np.int64 else array
    return copied


def tensors_of(source) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors of a checkpoint by name, in memory only while the next one is not asked for."""
    if isinstance(source, Mapping):
        yield from distinct(_checked(source, "the mapping")).items()
        return
    if not isinstance(source, (str, os.PathLike)):
        raise TypeError(f"load_state got a {type(source).__name__}; wanted a file, a folder, or tensors by name")
    path = _found(Path(source))
    if path.name.endswith(".index.json"):
        files = json.loads(path.read_text())["weight_map"].values()
        for file in dict.fromkeys(files):
            yield from _tensors_of_file(path.parent / file)
    else:
        yield from _tensors_of_file(path)


def _found(path: Path) -> Path:
    if not path.is_dir():
        return path
    candidates = [path / name for stem in _INDEXED for name in (f"{stem}.index.json", stem)]
    for candidate in candidates:
        if candidate.is_file():
            return candidate
    names = ", ".join(candidate.name for candidate in candidates)
    raise FileNotFoundError(f"no weights in {path}: wanted one of {names}")


def _tensors_of_file(path: Path) -> Iterator[tuple[str, torch.Tensor]]:
    if path.suffix == ".safetensors":
        opened = _open_safetensors
    elif path.suffix in _PICKLES:
        opened = _open_pickle
    else:
        raise ValueError(f"cannot tell what {path} holds: wanted .safetensors, .bin, .pt, .pth or .index.json")
    if not path.is_file():
        raise FileNotFoundError(
            f"load_state got {path}, and there is no such file; wanted a .safetensors, .bin, .pt, .pth or .index.json "
            "file, or the folder that holds it. That of a model on the Hub is huggingface_hub.snapshot_download(name)"
        )
    # What was read of a mapped file counts as memory of the process until the file is closed.
    most = max(_MOST_MAPPED, path.stat().st_size // _SHARE_MAPPED)
    names, read = opened(path)
    mapped = 0
    for name in names:
        if mapped > most:
            _, read = opened(path)
            mapped = 0
        tensor = read(name)
        mapped += tensor.nbytes
        yield name, tensor
        del tensor


def _open_safetensors(path: Path) -> tuple[list[str], Callable[[str], torch.Tensor]]:
    try:
        from safetensors import safe_open
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(f"{path} needs safetensors: {how_to_install('checkpoints')}") from error
    file = safe_open(path, framework="pt")
    return list(file.keys()), file.get_tensor


def _open_pickle(path: Path) -> tuple[list[str], Callable[[str], torch.Tensor]]:
    try:
        state = torch.load(path, mmap=True, weights_only=True, map_location="cpu")
    except RuntimeError as error:
        if "mmap" not in str(error):
            raise
        state = torch.load(path, weights_only=True, map_location="cpu")  # of before PyTorch 1.6
    return list(distinct(_checked(state, str(path)))), state.__getitem__


def _checked(state, source: str) -> Mapping[str, torch.Tensor]:
    if not isinstance(state, Mapping):
        raise TypeError(f"load_state got {type(state).__name__} in {source}; wanted tensors by name")
    for name, value in state.items():
        if not isinstance(value, torch.Tensor):
            raise TypeError(
                f"load_state got {type(value).__name__} under {name!r} in {source}; wanted tensors by name. Take them "
                "out of it first: torch.load(path, mmap=True, weights_only=True)"
            )
    return state
