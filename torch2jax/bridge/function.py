"""A PyTorch function of flat tensors, as compiled programs name it, and the places in programs that call it."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from ctypes import c_size_t
from typing import Any

import jax
import numpy as np
import torch

from ..tensors.dtypes import canonical, dtype_j2t
from .buffers import Buffer
from .ffi import DATA_OFFSET, CallFrame, stream_of
from .locks import holding, inheriting
from .scope import run_safely
from .watch import WriteWatch

__all__ = ["BridgeOptions", "CudaSite", "Site", "TorchFunction"]

_Address = c_size_t.from_address


@dataclasses.dataclass(frozen=True)
class BridgeOptions:
    """What a user chose once for a function and all its derivatives."""

    vmap_method: str = "sequential"
    use_torch_vjp: bool | None = True
    """Whether `torch.func.vjp` takes gradients where it can; None to say nothing where it cannot."""
    method: str = "ffi"
    lock: Any = False
    programs: Callable[[], dict | None] = lambda: None
    """Where compiled programs of single calls are kept. Not in what they call, which they would keep alive for ever."""


class TorchFunction:
    """A function from tensors to a list of tensors. Two are equal only if they are the same object.

    Attributes:
        run: the function itself.
        name: what a jaxpr and an error message call it.
        dtypes: the dtype that each input has for PyTorch, or None for that of the array (they differ for int64 while
            ``jax_enable_x64`` is off).
        inputs, results: which inputs and results have gradients.
        depth: how often it may be differentiated.
        is_gradient: whether it is the gradient of another.
        identity: what tells it from others, in another process too; None if nothing does.
        copies: which inputs `run` gets a copy of since it may write to them; None until a run has shown it.
    """

    def __init__(
        self,
        run: Callable[..., list[torch.Tensor]],
        name: str,
        dtypes: tuple[torch.dtype | None, ...],
        *,
        inputs: tuple[int, ...],
        results: tuple[int, ...],
        depth: int,
        settings: BridgeOptions,
        copies: tuple[bool, ...] | None = None,
        is_gradient: bool = False,
        identity: str | None = None,
    ):
        self.run = run
        self.name = name
        self.dtypes = dtypes
        self.inputs = inputs
        self.results = results
        self.depth = depth
        self.settings = settings
        self.copies = copies
        self.is_gradient = is_gradient
        self.identity = identity
        self.derived: dict[Any, Any] = {}

    def __repr__(self) -> str:
        return self.name

    def __call__(self, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        """Runs on tensors over memory that must not change."""
        copies = self.copies
        for index, dtype in enumerate(self.dtypes):
            if dtype is not None and tensors[index].dtype is not dtype:
                tensors[index] = tensors[index].to(dtype)
            elif copies is None or copies[index]:
                tensors[index] = tensors[index].clone()
        if self.settings.lock:
            with holding(self.settings.lock):
                return self._run(tensors)
        return self.run(*tensors) if copies is not None else self._run(tensors)

    def _run(self, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        if self.copies is not None:
            return self.run(*tensors)
        with WriteWatch(tensors) as watch:
            results = self.run(*tensors)
        self.copies = watch.may_be_written()
        return results


class Site:
    """One place in compiled programs that calls a function on arrays of known shapes; kept alive by these programs."""

    def __init__(self, function: TorchFunction, operands: Sequence, results: Sequence):
        self.function = function
        self.operands = [Buffer(aval.shape, dtype_j2t(aval.dtype)) for aval in operands]
        self.results = [Buffer(aval.shape, dtype_j2t(aval.dtype)) for aval in results]
        self._pointers = c_size_t * len(self.operands), c_size_t * len(self.results)

    def __call__(self, frame: CallFrame) -> None:
        sources, targets = self.addresses(frame)
        job = inheriting(functools.partial(self.run, sources, targets))
        run_safely(job, protect=bool(self.function.settings.lock))

    @property
    def identity(self) -> str | None:
        """What tells the site from those of other functions, or of other shapes; None if nothing does."""
        function = self.function
        if function.identity is None:
            return None
        types = [(buffer.shape, buffer.dtype) for buffer in (*self.operands, *self.results)]
        return f"{function.identity} {function.dtypes} {function.inputs} {function.results} {types}"

    def addresses(self, frame: CallFrame) -> tuple[list[int], list[int]]:
        operand_pointers, result_pointers = self._pointers
        sources = [_Address(at + DATA_OFFSET).value for at in operand_pointers.from_address(frame.args or 0)]
        targets = [_Address(at + DATA_OFFSET).value for at in result_pointers.from_address(frame.rets or 0)]
        return sources, targets

    def run(self, sources: list[int], targets: list[int]) -> None:
        """Runs the function on the memory at `sources` and writes its results to `targets`."""
        tensors = [buffer.on_cpu(at) for buffer, at in zip(self.operands, sources, strict=True)]
        results = self.function(tensors)
        self.check(results)
        for buffer, at, result in zip(self.results, targets, results, strict=True):
            buffer.fill_on_cpu(at, result)

    def on_arrays(self, *arrays: np.ndarray | jax.Array) -> list[np.ndarray]:
        """As `run`, for arrays of numpy's or of a CPU's."""
        given = [np.ascontiguousarray(array) for array in arrays]
        results = [np.empty(buffer.shape, jax.numpy.dtype(canonical(buffer.dtype))) for buffer in self.results]
        self.run([array.ctypes.data for array in given], [result.ctypes.data for result in results])
        return results

    def check(self, results: list[torch.Tensor]) -> None:
        """Raises unless the results are as declared."""
        if len(results) != len(self.results):
            raise ValueError(f"{self.function} returned {len(results)} tensors; wanted {len(self.results)}")
        for index, (result, buffer) in enumerate(zip(results, self.results, strict=True)):
            if result.shape != buffer.shape:
                raise ValueError(
                    f"result {index} of {self.function} has shape {tuple(result.shape)}; wanted {tuple(buffer.shape)}, "
                    "as declared by output_shapes or found when its shapes were inferred"
                )
            if result.dtype is not buffer.dtype and canonical(result.dtype) != canonical(buffer.dtype):
                raise TypeError(
                    f"result {index} of {self.function} has dtype {result.dtype}; wanted {buffer.dtype}, "
                    "as declared by output_shapes or found when its shapes were inferred"
                )


class CudaSite(Site):
    """A site whose memory is on a CUDA device: everything runs on XLA's stream, ordered with PyTorch's own."""

    def __call__(self, frame: CallFrame) -> None:
        sources, targets = self.addresses(frame)
        job = functools.partial(self.run_on_stream, stream_of(frame), sources, targets)
        run_safely(inheriting(job), from_pool=False)

    def run_on_stream(self, address: int, sources: list[int], targets: list[int]) -> None:
        tensors = [buffer.on_cuda(at) for buffer, at in zip(self.operands, sources, strict=True)]
        outputs = [buffer.on_cuda(at) for buffer, at in zip(self.results, targets, strict=True)]
        device = next((tensor.device for tensor in tensors + outputs if tensor.numel()), torch.device("cuda", 0))
        with torch.cuda.device(device):
            torchs = torch.cuda.current_stream(device)
            stream = torch.cuda.ExternalStream(address, device=device)
            stream.wait_stream(torchs)
            with torch.cuda.stream(stream):
                results = self.function(tensors)
                self.check(results)
                for output, result in zip(outputs, results, strict=True):
                    output.copy_(result.detach())
            torchs.wait_stream(stream)
