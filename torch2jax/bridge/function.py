"""A PyTorch function of flat tensors, as compiled programs name it, and the places in programs that call it.

Also here: XLA's memory as tensors, and copies of tensors into it; locks around calls of PyTorch, which a nested call
may take again; and the search for writes of a function to its inputs.
"""

import contextlib
import ctypes
import dataclasses
import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from ctypes import c_size_t
from typing import Any

import jax
import numpy as np
import torch
from torch.overrides import TorchFunctionMode

from ..internals.dispatch import TorchDispatchMode
from ..internals.tensors import tree_leaves
from ..runtime.caches import Cache
from ..tensors.dtypes import canonical, dtype_j2t
from .ffi import DATA_OFFSET, CallFrame, stream_of
from .scope import run_safely

_frombuffer = torch.frombuffer  # which translated code has something else for

_SMALL = 1 << 15  # bytes; above it, PyTorch's own copy is faster than memmove


class Buffer:
    """A converter from memory at some address to a tensor, made once for each argument or result."""

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
        """As `on_cpu`, for memory of a CUDA device: PyTorch finds the device by the address."""
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


_process_lock = threading.Lock()
_thread = threading.local()


@contextlib.contextmanager
def holding(lock: Any) -> Iterator[None]:
    """Holds a lock (True: the one of the process), unless this call was made from one that holds it."""
    lock = _process_lock if lock is True else lock
    held: tuple = getattr(_thread, "held", ())
    if any(lock is other for other in held):
        yield
        return
    with lock:
        _thread.held = (*held, lock)
        try:
            yield
        finally:
            _thread.held = held


def inheriting(job: Callable[[], None]) -> Callable[[], None]:
    """A job that holds, on whatever thread it runs, the locks that this thread holds while it waits for it."""
    held = getattr(_thread, "held", ())
    return functools.partial(_run_holding, held, job) if held else job


def _run_holding(held: tuple, job: Callable[[], None]) -> None:
    before = getattr(_thread, "held", ())
    _thread.held = held
    try:
        job()
    finally:
        _thread.held = before


_Tensor = torch.Tensor
_HANDS_MEMORY_OUT = {
    _Tensor.numpy,
    _Tensor.data_ptr,
    _Tensor.__array__,
    _Tensor.__dlpack__,
    _Tensor.untyped_storage,
    _Tensor.storage,
    _Tensor.tolist,
}
# Operators that write to running statistics without saying so in their schemas, and where these are.
_STATISTICS = ("running_mean", "running_var")
_WRITES_UNSAID = {"aten::native_batch_norm": _STATISTICS, "aten::cudnn_batch_norm": _STATISTICS}
_READS_VALUES = {"aten::_local_scalar_dense", "aten::equal", "aten::is_nonzero", "aten::nonzero"}


class WriteTracker:
    """Notes, while it is entered, which of some tensors are written to, and whether another run might do otherwise.

    A run whose Python saw a value, or that handed a tensor's memory to other code, says nothing about the next one.
    """

    def __init__(self, tensors: Sequence[torch.Tensor]):
        self._storages = [tensor.untyped_storage()._cdata for tensor in tensors]
        self._written: set[int] = set()
        self.certain = True
        self._modes = (_Functions(self), _Operators(self))

    def __enter__(self):
        for mode in self._modes:
            mode.__enter__()
        return self

    def __exit__(self, *exc_info: object) -> None:
        for mode in reversed(self._modes):
            mode.__exit__(*exc_info)

    def may_be_written(self) -> tuple[bool, ...]:
        """For each tensor, whether a run might write to it."""
        return tuple(not self.certain or storage in self._written for storage in self._storages)

    def written(self) -> tuple[bool, ...]:
        """For each tensor, whether this run wrote to it, as far as PyTorch saw."""
        return tuple(storage in self._written for storage in self._storages)

    def note_write(self, tensor: torch.Tensor) -> None:
        try:
            self._written.add(tensor.untyped_storage()._cdata)
        except Exception:  # a tensor without a storage of its own: a wrapper of any kind
            self.certain = False


class _Functions(TorchFunctionMode):
    def __init__(self, tracker: WriteTracker):
        super().__init__()
        self.tracker = tracker

    def __torch_function__(
        self,
        func: Callable[..., object],
        types: Sequence[type],
        args: tuple = (),
        kwargs: dict[str, object] | None = None,
    ):
        if func in _HANDS_MEMORY_OUT:
            self.tracker.certain = False
        return func(*args, **(kwargs or {}))


class _Operators(TorchDispatchMode):
    def __init__(self, tracker: WriteTracker):
        super().__init__()
        self.tracker = tracker

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # dynamo would be imported, which takes seconds

    def __torch_dispatch__(
        self,
        func: Callable[..., object],
        types: Sequence[type],
        args: tuple = (),
        kwargs: dict[str, object] | None = None,
    ):
        kwargs = kwargs or {}
        schema = getattr(func, "_schema", None)
        if schema is None or schema.name in _READS_VALUES:
            self.tracker.certain = False
        elif schema.is_mutable or schema.name in _WRITES_UNSAID:
            self._note_writes(schema, args, kwargs)
        return func(*args, **kwargs)

    def _note_writes(self, schema: Any, args: tuple, kwargs: dict[str, object]) -> None:
        unsaid = _WRITES_UNSAID.get(schema.name, ())
        for index, argument in enumerate(schema.arguments):
            if argument.is_write or argument.name in unsaid:
                value = args[index] if index < len(args) else kwargs.get(argument.name)
                for leaf in tree_leaves(value):
                    if isinstance(leaf, torch.Tensor):
                        self.tracker.note_write(leaf)


_Address = c_size_t.from_address


@dataclasses.dataclass(frozen=True)
class BridgeOptions:
    """The options that a user chose for a function and all its derivatives."""

    vmap_method: str = "sequential"
    use_torch_vjp: bool | None = True
    """True if `torch.func.vjp` takes gradients where it can; None not to warn where it cannot."""
    method: str = "ffi"
    lock: object = False
    programs: Callable[[], dict | None] = lambda: None
    """Returns the cache of compiled single calls. What they call does not hold it: that would keep them for ever."""


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
        self.derived: Cache[object, TorchFunction] = Cache("derivatives of PyTorch functions", 128)

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
        with WriteTracker(tensors) as tracker:
            results = self.run(*tensors)
        self.copies = tracker.may_be_written()
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
        """A key that differs for sites of other functions or shapes; None if the function has no identity."""
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
        """As `run`, for NumPy's arrays or JAX's on the CPU."""
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
