"""Single operators of optimizers and gradient scalers: fused steps, and the arithmetic of loss scales."""

from collections.abc import Callable

import torch
from torch import Tensor

from ..rules.registry import implements_tensors

aten = torch.ops.aten


def _overloads(name: str) -> tuple:
    packet = getattr(aten, name)
    return getattr(torch, name), *(getattr(packet, x) for x in packet.overloads() if not x.endswith("out"))


def _fused(name: str) -> Callable:
    """A fused step as the plain one of each parameter: unscaled first, and undone where a gradient was not finite."""

    def register(step: Callable) -> Callable:
        def run(self, grads, *state, grad_scale=None, found_inf=None, maximize=False, **options):
            with torch.no_grad():
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
    rate = lr / (1 + (state_step - 1) * lr_decay)
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
    step_size, correction = lr / (1 - beta1**state_step), (1 - beta2**state_step).sqrt()
    parameter.sub_(step_size * (average / (square.sqrt() / correction + eps)))


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
