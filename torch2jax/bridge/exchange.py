"""Tensors as the arguments of a compiled JAX program, and its results as tensors."""

import contextlib
from collections.abc import Sequence

import jax
import numpy as np
import torch

from ..tensors.dtypes import dtype_t2j, logical
from ..tensors.interop import array_to_tensor, is_dense, to_numpy, values_of

__all__ = ["argument_of", "check_dtypes", "results_of", "where_tensors_are", "widened"]

_NARROWED = {torch.int64: torch.int32, torch.uint64: torch.uint32}
_HELD = tuple(_NARROWED.values())
_REFUSED = (torch.float64, torch.complex128)


def check_dtypes(dtypes: Sequence[torch.dtype], x64: bool) -> None:
    """Refuses to compute in half the precision that PyTorch code asked for.

    Raises:
        TypeError: one of `dtypes` is float64 or complex128 while ``jax_enable_x64`` is off.
    """
    if x64:
        return
    for dtype in dtypes:
        if dtype in _REFUSED:
            raise TypeError(
                f"j2t's function got a {dtype} tensor while jax_enable_x64 is off, so JAX would compute in 32 bits; "
                'wanted float32 or complex64. Turn it on with jax.config.update("jax_enable_x64", True), '
                "or pass tensor.float()"
            )


def argument_of(tensor: torch.Tensor, x64: bool) -> np.ndarray | jax.Array:
    """What a jitted function takes for a tensor; on the CPU it shares the tensor's memory where the layout allows it.

    On the CPU that is a numpy array: ``jit`` reads it without a copy, and an array of JAX's takes 20 µs to make.

    Args:
        x64: whether ``jax_enable_x64`` is on in the function, if not here.

    Raises:
        OverflowError: an int64 tensor on the CPU has a value that 32 bits cannot hold, and `x64` is False.
        TypeError: the tensor is sparse, quantized, nested, or of a dtype that JAX lacks.
        ValueError: the tensor has no data (meta device).
    """
    tensor = values_of(tensor)
    if tensor.dtype in _NARROWED and not x64:
        tensor = _narrowed(tensor)
    if tensor.is_cpu:
        return to_numpy(tensor)
    with jax.enable_x64(x64):
        return jax.dlpack.from_dlpack(tensor if is_dense(tensor) else tensor.contiguous())


def _narrowed(tensor: torch.Tensor) -> torch.Tensor:
    narrow = tensor.to(_NARROWED[tensor.dtype])
    if tensor.is_cpu and not torch.equal(narrow.to(tensor.dtype), tensor):  # elsewhere the check would wait for it
        raise OverflowError(
            f"j2t's function got a {tensor.dtype} tensor with values that {narrow.dtype} cannot hold, while "
            'jax_enable_x64 is off. Turn it on with jax.config.update("jax_enable_x64", True)'
        )
    return narrow


def results_of(arrays: Sequence[jax.Array]) -> tuple[torch.Tensor, ...]:
    """The tensors of the results of a JAX program, on their memory. Nobody else may hold these arrays.

    On the CPU it waits for them, so that PyTorch may write to what the program read; on a GPU, PyTorch's stream waits.

    Raises:
        TypeError: an array is traced, or of a dtype that PyTorch lacks (a PRNG key).
        ValueError: an array is sharded over several devices.
    """
    return tuple([array_to_tensor(array) for array in arrays])


def widened(result: torch.Tensor, dtypes: Sequence[torch.dtype]) -> torch.Tensor:
    """A result of arguments of `dtypes` in the dtype that PyTorch expects: int64 where int64 was held as int32."""
    if result.dtype not in _HELD or not any(dtype in _NARROWED for dtype in dtypes):
        return result
    return result.to(logical(dtype_t2j(result.dtype), tuple(dtypes)))


def where_tensors_are(tensors: Sequence[torch.Tensor]):
    """A context in which JAX computes on the CPU if all of `tensors` are there, whatever its default device is."""
    if not tensors or jax.default_backend() == "cpu" or not all(tensor.is_cpu for tensor in tensors):
        return contextlib.nullcontext()
    return jax.default_device(jax.local_devices(backend="cpu")[0])
