"""Leaf rules of operators that no torch-level rule serves: of ATen, and of ``torch.ops.prims`` at the bottom.

PyTorch says of nearly every prim which functions of its own it stands for (``prim.impl_aten``): its rule calls these,
which have rules of their own. Views come to the view rules that way, and writes to the writing ones.

Also here: copied views, ``permute_copy`` and the like, each as its view; and single operators of optimizers and
gradient scalers: fused steps, and the arithmetic of loss scales.
"""

import math
import threading
from collections.abc import Callable

import numpy as np
import torch
from jax import lax
from torch import Tensor

from ..internals.dispatch import OpOverload
from ..internals.prims import prims_module, torch_block_diag
from ..rules.inplace import write_out
from ..rules.promotion import Promotion
from ..rules.registry import implements, implements_tensors
from ..runtime.translation import current
from ..tensors.dtypes import has_doubles
from ..tensors.known import in_pytorch
from .arrays import is_complex

aten = torch.ops.aten


@implements(torch.conj_physical, aten._conj_physical, torch._conj_physical, promote=Promotion.NO_OPMATH)
def conj_physical(input):
    return lax.conj(input) if is_complex(input) else input


@implements_tensors(torch.conj_physical, torch.Tensor.conj_physical, aten.conj_physical.default)
def conj_physical_of(input, *, out=None):
    result = torch._conj_physical(input) if input.is_complex() else input  # itself, as in PyTorch
    return result if out is None else write_out(result, out, (input,))


@implements_tensors(aten.copy.default)
def copy(self, src, non_blocking=False):
    return self.clone().copy_(src)


@implements_tensors(aten.meshgrid.default)
def meshgrid(tensors):
    in_pytorch(aten.meshgrid.default, [torch.empty(0, device="meta")])  # warns, once, that it will need an indexing
    return aten.meshgrid.indexing(tensors, indexing="ij")  # for which PyTorch's decomposition has no default


@implements_tensors(aten.block_diag.default)
def block_diag(tensors):
    return torch_block_diag(*tensors) if tensors else torch.empty(1, 0)


prims = torch.ops.prims


_running = threading.local()


def _implement_by_functions(prim: OpOverload) -> None:
    def rule(*args, **kwargs):
        outer = getattr(_running, "prims", frozenset())
        if prim in outer:  # its function has no rule, and its decomposition is this prim
            return current().run_missing(prim, args, kwargs)
        _running.prims = outer | {prim}
        try:
            return prim.impl_aten(*args, **kwargs)
        finally:
            _running.prims = outer

    implements_tensors(prim.overloadpacket)(rule)


for _prim in vars(prims_module).values():
    if isinstance(_prim, OpOverload):
        _implement_by_functions(_prim)


# Those whose functions would come back to the prim, or would write into new memory.


@implements(prims.cbrt, promote=Promotion.NO_OPMATH)
def cbrt(self):
    return lax.cbrt(self)


@implements(prims.xor_sum)
def xor_sum(inp, dims=None, *, output_dtype=None):
    axes = range(inp.ndim) if dims is None else sorted(dim % inp.ndim for dim in dims)
    return lax.reduce(inp, np.zeros((), inp.dtype), lax.bitwise_xor, tuple(axes))


@implements_tensors(prims.collapse)
def collapse(a, start, end):
    shape = (*a.shape[:start], math.prod(a.shape[start : end + 1]), *a.shape[end + 1 :])
    return a.reshape(shape).clone(memory_format=torch.contiguous_format)


@implements_tensors(prims.as_strided_scatter, torch.as_strided_scatter, torch.Tensor.as_strided_scatter)
def as_strided_scatter(input, src, size, stride, storage_offset=None):
    result = input.clone()
    result.as_strided(size, stride, storage_offset).copy_(src)
    return result


@implements_tensors(prims.item)
def item(a):
    return torch.ops.aten.item(a)


_VIEWS = (
    *(aten.alias.default, aten.as_strided.default, aten.detach.default, aten.diagonal.default, aten.expand.default),
    *(aten.permute.default, aten.select.int, aten.slice.Tensor, aten.split.Tensor, aten.split_with_sizes.default),
    *(aten.squeeze.default, aten.squeeze.dim, aten.squeeze.dims, aten.t.default, aten.transpose.int, aten.unbind.int),
    *(aten.unfold.default, aten.unsqueeze.default, aten.view.default, aten.view.dtype),
    *(aten.view_as_complex.default, aten.view_as_real.default),
)


def _copied(view: torch.Tensor) -> torch.Tensor:
    return view.clone(memory_format=torch.contiguous_format)


def _rule_of_copy(view) -> None:
    def rule(*args, **kwargs):
        views = view(*args, **kwargs)
        return _copied(views) if isinstance(views, torch.Tensor) else [_copied(part) for part in views]

    packet = getattr(aten, view.overloadpacket.__name__ + "_copy")
    implements_tensors(getattr(packet, view._overloadname))(rule)


for _view in _VIEWS:
    _rule_of_copy(_view)


def _overloads(name: str) -> tuple:
    packet = getattr(aten, name)
    return getattr(torch, name), *(getattr(packet, x) for x in packet.overloads() if not x.endswith("out"))


def _fused(name: str) -> Callable:
    """A fused step as the plain one of each parameter: unscaled first, and undone where a gradient was not finite."""

    def register(step: Callable) -> Callable:
        def run(self, grads, *state, grad_scale=None, found_inf=None, maximize=False, **options):
            with torch.no_grad():
                if has_doubles():  # PyTorch takes the numbers out of tensors
                    options = {name: x.item() if isinstance(x, Tensor) else x for name, x in options.items()}
                written = [x for tensors in (self, *state) for x in tensors]
                before = [x.clone() for x in written] if found_inf is not None else []
                for i, (parameter, gradient) in enumerate(zip(self, grads, strict=True)):
                    if grad_scale is not None:
                        gradient.div_(grad_scale)
                    one = [tensors[i] if tensors else None for tensors in state]
                    step(parameter, -gradient if maximize else gradient, *one, **options)
                for tensor, value in zip(written, before, strict=found_inf is not None):
                    tensor.copy_(torch.where(found_inf != 0, value, tensor))

        implements_tensors(*_overloads(name))(run)
        return step

    return register


@_fused("_fused_sgd_")
def _sgd(parameter, gradient, buffer, *, weight_decay, momentum, lr, dampening, nesterov, is_first_step):
    if _is_used(weight_decay):
        gradient = gradient.add(parameter, alpha=weight_decay)
    if _is_used(momentum):
        buffer.copy_(gradient if is_first_step else buffer * momentum + gradient * (1 - dampening))
        gradient = gradient.add(buffer, alpha=momentum) if nesterov else buffer
    parameter.sub_(gradient * lr)


@_fused("_fused_adagrad_")
def _adagrad(parameter, gradient, state_sum, state_step, *, lr, lr_decay, weight_decay, eps):
    if _is_used(weight_decay):
        gradient = gradient.add(parameter, alpha=weight_decay)
    rate = lr / (1 + (_counted(state_step) - 1) * lr_decay)
    state_sum.addcmul_(gradient, gradient)
    parameter.sub_(rate * (gradient / (state_sum.sqrt() + eps)))


@_fused("_fused_adam_")
def _adam(parameter, gradient, *state, weight_decay, **options):
    if _is_used(weight_decay):
        gradient = gradient.add(parameter, alpha=weight_decay)
    _adam_step(parameter, gradient, *state, **options)


@_fused("_fused_adamw_")
def _adamw(parameter, gradient, *state, weight_decay, lr, **options):
    if _is_used(weight_decay):
        parameter.mul_(1 - lr * weight_decay)
    _adam_step(parameter, gradient, *state, lr=lr, **options)


def _adam_step(parameter, gradient, average, square, largest, state_step, *, lr, beta1, beta2, eps, amsgrad):
    average.lerp_(gradient, 1 - beta1)
    square.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
    if amsgrad:
        largest.copy_(torch.maximum(largest, square))
        square = largest
    step = _counted(state_step)
    step_size, correction = lr / (1 - beta1**step), (1 - beta2**step) ** 0.5
    parameter.sub_(step_size * (average / (square.sqrt() / correction + eps)))


def _counted(step):
    """A counter as a Python number, with which PyTorch computes in double precision, if JAX has that."""
    return step.item() if has_doubles() else step


def _is_used(factor) -> bool:
    return isinstance(factor, Tensor) or factor != 0


@implements_tensors(*_overloads("_amp_foreach_non_finite_check_and_unscale_"))
def non_finite_check_and_unscale_(self, found_inf, inv_scale):
    with torch.no_grad():
        finite = [gradient.isfinite().all() for gradient in self]
        if finite:
            found_inf.copy_(torch.where(torch.stack(finite).all(), found_inf, torch.ones_like(found_inf)))
        for gradient in self:
            gradient.mul_(inv_scale)


@implements_tensors(*_overloads("_amp_update_scale_"))
def update_scale_(self, growth_tracker, found_inf, scale_growth_factor, scale_backoff_factor, growth_interval):
    with torch.no_grad():
        found, successes = found_inf != 0, growth_tracker + 1
        grown = self * scale_growth_factor
        grows = (successes == growth_interval) & ~found
        kept = torch.where(grows & grown.isfinite(), grown, self)
        self.copy_(torch.where(found, self * scale_backoff_factor, kept))
        growth_tracker.copy_(torch.where(found | grows, torch.zeros_like(successes), successes))
        return self
