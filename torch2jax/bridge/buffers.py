"""XLA's memory as tensors, and tensors copied into XLA's memory."""

import ctypes

import torch

__all__ = ["Buffer"]

_frombuffer = torch.frombuffer  # which translated code has something else for

_SMALL = 1 << 15  # bytes; above it, PyTorch's own copy is faster than memmove


class Buffer:
    """How memory at some address becomes a tensor, determined once for each argument or result."""

    __slots__ = ("bytes_type", "dtype", "nbytes", "shape", "view")

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype):
        self.shape = torch.Size(shape)
        self.dtype = dtype
        self.nbytes = self.shape.numel() * dtype.itemsize
        self.bytes_type = ctypes.c_char * self.nbytes
        self.view = len(shape) != 1

    def on_cpu(self, address: int) -> torch.Tensor:
        """The tensor over memory at `address`, which must outlive it; nothing is copied."""
        if not self.nbytes:
            return torch.empty(self.shape, dtype=self.dtype)
        tensor = _frombuffer(self.bytes_type.from_address(address), dtype=self.dtype)
        return tensor.view(self.shape) if self.view else tensor

    def on_cuda(self, address: int) -> torch.Tensor:
        """As `on_cpu`, for memory of a CUDA device, which PyTorch finds out by the address."""
        if not self.nbytes:
            return torch.empty(self.shape, dtype=self.dtype, device="cuda")
        flat = torch.as_tensor(_CudaMemory(address, self.nbytes), device="cuda")
        return flat.view(self.dtype).view(self.shape)

    def fill_on_cpu(self, address: int, tensor: torch.Tensor) -> None:
        """Copies a tensor of this shape to `address`."""
        plain = tensor.dtype is self.dtype and tensor.is_contiguous() and not (tensor.is_conj() or tensor.is_neg())
        if plain and self.nbytes <= _SMALL:
            ctypes.memmove(address, tensor.data_ptr(), self.nbytes)
        else:
            self.on_cpu(address).copy_(tensor.detach())


class _CudaMemory:
    """Device memory as bytes, because the protocol has no name for bfloat16 and float8."""

    def __init__(self, address: int, nbytes: int):
        self.__cuda_array_interface__ = {
            "shape": (nbytes,),
            "typestr": "|u1",
            "data": (address, False),
            "strides": None,
            "version": 2,  # no stream: the caller is on the right one already
        }
