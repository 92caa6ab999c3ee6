"""A JAX program as a PyTorch operation, which autograd and `torch.func` differentiate and batch.

Also here: tensors as arguments of a compiled JAX program, and its results as tensors.
"""

import contextlib
import inspect
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
import torch

from ..internals.dispatch import TorchDispatchModeKey, get_dispatch_mode, len_torch_dispatch_stack
from ..internals.modules import get_tracing_state
from ..internals.transforms import are_functorch_transforms_active, current_level, is_legacy_batchedtensor
from ..tensors.dtypes import dtype_t2j, logical
from ..tensors.interop import array_to_tensor, is_dense, to_numpy, values_of
from .program import JaxProgram

_NARROWED = {torch.int64: torch.int32, torch.uint64: torch.uint32}
_HELD = tuple(_NARROWED.values())
_REFUSED = (torch.float64, torch.complex128)


def check_dtypes(dtypes: Sequence[torch.dtype], x64: bool) -> None:
    """Refuses to compute in less precision than PyTorch code expects.

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
    """The argument of a jitted function for a tensor; on the CPU it shares the tensor's memory where the layout allows
    it.

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
    """The result tensors of a JAX program, on the memory of its arrays, to which nothing else may refer.

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


def run_program(
    program: JaxProgram, constants: tuple, tensors: Sequence[torch.Tensor], owner: object
) -> tuple[torch.Tensor, ...]:
    """The results of a program as tensors, known to whatever of PyTorch's transformations is active.

    Args:
        owner: the program may be used while this is alive.

    Raises:
        RuntimeError: PyTorch is tracing a graph, which cannot hold a JAX program.
    """
    if _is_tracing():
        raise RuntimeError(
            "a function made by j2t was called while PyTorch traces a graph (make_fx, torch.export, torch.jit.trace, "
            "fake tensors), which cannot hold a JAX program; wanted a call outside. torch.compile breaks its graph "
            "there; t2j of the code around it gives one graph of JAX's"
        )
    if _is_transformed() or (torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)):
        return _apply(program, constants, tensors, owner)
    return _ProgramCall(program, constants)(tensors)


def _apply(
    program: JaxProgram, constants: tuple, tensors: Sequence[torch.Tensor], owner: object
) -> tuple[torch.Tensor, ...]:
    active = ()
    if torch.is_grad_enabled() and not _is_transformed():
        active = tuple([index for index, tensor in enumerate(tensors) if tensor.requires_grad])
    return _JaxCall.apply(_ProgramCall(program, constants, active, owner), *tensors)  # pyright: ignore[reportReturnType]


def _is_tracing() -> bool:
    if get_tracing_state() is not None:
        return True
    modes = TorchDispatchModeKey
    return len_torch_dispatch_stack() > 0 and any(
        get_dispatch_mode(mode) is not None for mode in (modes.PROXY, modes.FAKE, modes.FUNCTIONAL)
    )


def _is_transformed() -> bool:
    return are_functorch_transforms_active() or current_level() >= 0


class _ProgramCall:
    """A program, and the arguments of one call of it beside tensors.

    Args:
        active: the tensors to keep a pullback for, if PyTorch's own autograd alone follows the call.
        owner: what the program refers to weakly, and derivatives need.
    """

    def __init__(self, program: JaxProgram, constants: tuple, active: tuple[int, ...] = (), owner: object = None):
        self.program, self.constants, self.active, self.owner = program, constants, active, owner
        self.pullback: object = None

    def __call__(self, tensors: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        with where_tensors_are(tensors):
            arrays = self._arguments(tensors)
            if not self.active:
                return results_of(self.program(self.constants, arrays))
            results, self.pullback = self.program.linearize(self.active, self.constants, arrays)
            return results_of(results)

    def _arguments(self, tensors: Sequence[torch.Tensor | None]) -> list:
        return [None if tensor is None else argument_of(tensor, self.program.x64) for tensor in tensors]

    def carry_pullback(self) -> list[torch.Tensor]:
        """An empty tensor that carries the pullback, if there is one: saved for backward, it goes with the graph."""
        if self.pullback is None:
            return []
        carrier = torch.empty(0)
        vars(carrier)["pullback"], self.pullback = self.pullback, None
        return [carrier]

    def pull(
        self, pullback: object, wanted: Sequence[int], tensors: Sequence, gradients: Sequence
    ) -> tuple[torch.Tensor, ...]:
        """The gradients of the tensors at `wanted`, given those of the differentiable results."""
        positions = tuple([self.active.index(index) for index in wanted])
        with where_tensors_are(tensors):
            arrays = self._arguments(tensors)
            cotangents = self._arguments(gradients)
            return results_of(self.program.pull(pullback, positions, self.constants, arrays, cotangents))


class _JaxCall(torch.autograd.Function):
    """The operation: every derivative of it, and its batched form, is another program that goes the same way."""

    @staticmethod
    def forward(call: _ProgramCall, *tensors: Any):
        return call(tensors)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: tuple):
        call, *tensors = inputs
        ctx.set_materialize_grads(False)
        ctx.call, ctx.count, ctx.results = call, len(tensors), len(output)
        ctx.differentiable = [position for position, result in enumerate(output) if _is_differentiable(result)]
        ctx.mark_non_differentiable(*[result for result in output if not _is_differentiable(result)])
        # All tensors are saved, also those whose values no derivative needs: JAX may still refer to their memory.
        ctx.save_for_backward(*tensors, *call.carry_pullback())
        ctx.save_for_forward(*tensors)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None):
        saved = ctx.saved_tensors  # PyTorch's error, if one of them was written to since
        wanted = [index for index, needed in enumerate(ctx.needs_input_grad[1:]) if needed]
        given = [position for position, gradient in enumerate(gradients) if gradient is not None]
        if not given:
            return (None,) * (1 + ctx.count)
        if any(is_legacy_batchedtensor(gradients[position]) for position in given):
            raise RuntimeError(
                "the backward pass of a function made by j2t got a batch of gradients (is_grads_batched=True, "
                "vectorize=True), which takes PyTorch's older vmap; wanted torch.func.vjp, vmap or jacrev of it"
            )
        pullback = vars(saved[-1]).get("pullback") if len(saved) > ctx.count else None
        if pullback is not None and not (torch.is_grad_enabled() or _is_transformed()):
            cotangents = [gradients[position] for position in ctx.differentiable]
            found = ctx.call.pull(pullback, wanted, saved[: ctx.count], cotangents)
        else:
            program = ctx.call.program.vjp(tuple(wanted), tuple(given))
            tensors = (*saved[: ctx.count], *[x for x in gradients if x is not None])
            found = _apply(program, ctx.call.constants, tensors, ctx.call.owner)
        return None, *_spread(found, wanted, ctx.count)

    @staticmethod
    def jvp(ctx: Any, _, *tangents: torch.Tensor | None):
        active = [index for index, tangent in enumerate(tangents) if tangent is not None]
        program = ctx.call.program.jvp(tuple(active))
        found = _apply(
            program, ctx.call.constants, (*ctx.saved_tensors, *[x for x in tangents if x is not None]), ctx.call.owner
        )
        return tuple(_spread(found, ctx.differentiable, ctx.results))

    @staticmethod
    def vmap(info: Any, in_dims: tuple, call: _ProgramCall, *tensors: Any):
        program = call.program.vmap(tuple(in_dims[1:]), info.batch_size)
        results = run_program(program, call.constants, tensors, call.owner)
        return results, (0,) * len(results)


# PyTorch asks for it at every call.
_JaxCall.forward.__signature__ = inspect.signature(_JaxCall.forward)  # pyright: ignore[reportFunctionMemberAccess]


def _spread(values: Sequence, positions: Sequence[int], count: int) -> list:
    spread: list = [None] * count
    for position, value in zip(positions, values, strict=True):
        spread[position] = value
    return spread


def _is_differentiable(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()
