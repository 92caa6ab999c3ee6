"""A JAX program as a PyTorch operation, which autograd and `torch.func` differentiate and batch."""

import inspect
from collections.abc import Sequence
from typing import Any

import torch

from ..internals.functorch import are_functorch_transforms_active, is_legacy_batchedtensor
from ..internals.gradients import current_level
from ..internals.modes import TorchDispatchModeKey, get_dispatch_mode, len_torch_dispatch_stack
from ..internals.torchscript import get_tracing_state
from .exchange import argument_of, results_of, where_tensors_are
from .program import JaxProgram

__all__ = ["run_program"]


def run_program(program: JaxProgram, constants: tuple, tensors: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """The results of a program as tensors, known to whatever of PyTorch's transformations is active.

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
        return _apply(program, constants, tensors)
    return _ProgramCall(program, constants)(tensors)


def _apply(program: JaxProgram, constants: tuple, tensors: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    active = ()
    if torch.is_grad_enabled() and not _is_transformed():
        active = tuple([index for index, tensor in enumerate(tensors) if tensor.requires_grad])
    return _JaxCall.apply(_ProgramCall(program, constants, active), *tensors)  # pyright: ignore[reportReturnType]


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
    """A program, and what one call of it takes beside tensors.

    Args:
        active: the tensors to keep a pullback for, if PyTorch's own autograd alone follows the call.
    """

    def __init__(self, program: JaxProgram, constants: tuple, active: tuple[int, ...] = ()):
        self.program, self.constants, self.active = program, constants, active
        self.pullback: Any = None

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
        self, pullback: Any, wanted: Sequence[int], tensors: Sequence, gradients: Sequence
    ) -> tuple[torch.Tensor, ...]:
        """The gradients of the tensors at `wanted` from those of the differentiable results."""
        places = tuple([self.active.index(index) for index in wanted])
        with where_tensors_are(tensors):
            arrays = self._arguments(tensors)
            cotangents = self._arguments(gradients)
            return results_of(self.program.pull(pullback, places, self.constants, arrays, cotangents))


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
        ctx.differentiable = [place for place, result in enumerate(output) if _is_differentiable(result)]
        ctx.mark_non_differentiable(*[result for result in output if not _is_differentiable(result)])
        # All tensors are saved, also those whose values no derivative needs: JAX may still refer to their memory.
        ctx.save_for_backward(*tensors, *call.carry_pullback())
        ctx.save_for_forward(*tensors)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None):
        saved = ctx.saved_tensors  # PyTorch's error, if one of them was written to since
        wanted = [index for index, needed in enumerate(ctx.needs_input_grad[1:]) if needed]
        given = [place for place, gradient in enumerate(gradients) if gradient is not None]
        if not given:
            return (None,) * (1 + ctx.count)
        if any(is_legacy_batchedtensor(gradients[place]) for place in given):
            raise RuntimeError(
                "the backward pass of a function made by j2t got a batch of gradients (is_grads_batched=True, "
                "vectorize=True), which takes PyTorch's older vmap; wanted torch.func.vjp, vmap or jacrev of it"
            )
        pullback = vars(saved[-1]).get("pullback") if len(saved) > ctx.count else None
        if pullback is not None and not (torch.is_grad_enabled() or _is_transformed()):
            cotangents = [gradients[place] for place in ctx.differentiable]
            found = ctx.call.pull(pullback, wanted, saved[: ctx.count], cotangents)
        else:
            program = ctx.call.program.vjp(tuple(wanted), tuple(given))
            tensors = (*saved[: ctx.count], *[x for x in gradients if x is not None])
            found = _apply(program, ctx.call.constants, tensors)
        return None, *_spread(found, wanted, ctx.count)

    @staticmethod
    def jvp(ctx: Any, _, *tangents: torch.Tensor | None):
        active = [index for index, tangent in enumerate(tangents) if tangent is not None]
        program = ctx.call.program.jvp(tuple(active))
        found = _apply(program, ctx.call.constants, (*ctx.saved_tensors, *[x for x in tangents if x is not None]))
        return tuple(_spread(found, ctx.differentiable, ctx.results))

    @staticmethod
    def vmap(info: Any, in_dims: tuple, call: _ProgramCall, *tensors: Any):
        program = call.program.vmap(tuple(in_dims[1:]), info.batch_size)
        results = run_program(program, call.constants, tensors)
        return results, (0,) * len(results)


# PyTorch asks for it at every call.
_JaxCall.forward.__signature__ = inspect.signature(_JaxCall.forward)  # pyright: ignore[reportFunctionMemberAccess]


def _spread(values: Sequence, places: Sequence[int], count: int) -> list:
    spread: list = [None] * count
    for place, value in zip(places, values, strict=True):
        spread[place] = value
    return spread


def _is_differentiable(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()
