"""Derivatives at kinks that depend on PyTorch's release, asked of the one that is installed."""

from collections.abc import Callable

import torch

__all__ = ["IS_BOUND_INSIDE", "IS_FMAX_SHARED", "IS_TIE_SHARED"]


def _derivative(function: Callable[..., torch.Tensor], *numbers: float) -> float:
    """That of a function with respect to its first argument."""
    with torch._C.DisableTorchFunction(), torch.inference_mode(False), torch.enable_grad():
        x, *others = (torch.tensor(number, device="cpu", requires_grad=True) for number in numbers)
        return torch.autograd.grad(function(x, *others), x)[0].item()


IS_BOUND_INSIDE = _derivative(lambda x: torch.clamp(x, min=0.0), 0.0) == 1
"""Whether `clamp` is the identity at a bound that is a number: up to 2.13; it is constant there in 2.15."""

IS_TIE_SHARED = _derivative(lambda x, bound: torch.clamp(x, min=bound), 0.0, 0.0) == 0.5
"""Whether a number and a bound that is a tensor share the derivative of `clamp` where they are equal: in 2.15."""

IS_FMAX_SHARED = _derivative(torch.fmax, 0.0, 0.0) == 0.5
"""Whether equal numbers share the derivative of `fmax` and `fmin`: in 2.15."""
