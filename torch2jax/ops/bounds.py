"""Bounds of indices, classes and lengths, and the errors for values outside of them.

PyTorch refuses them on the CPU. A compiled program cannot, so that values which a program decides are taken at their
word. All others are asked, before a rule's body runs: those of arrays, constants of a program, and the examples of a
batch that is no part of one.

Also here: bounds, ties and lengths that differ between PyTorch releases; the installed release is asked.
"""

from collections.abc import Callable

import numpy as np
import torch

from ..internals.dispatch import DisableTorchFunction
from ..runtime.translation import lift
from ..tensors.dtypes import INTEGERS
from ..tensors.interop import to_numpy, values_of
from ..tensors.known import Deferred, in_pytorch
from ..tensors.tensor import Torchish
from ..tensors.traced import is_traced
from ..tracing.traces import values_of_examples


def _derivative(function: Callable[..., torch.Tensor], *numbers: float) -> float:
    """The derivative of a function with respect to its first argument."""
    with DisableTorchFunction(), torch.inference_mode(False), torch.enable_grad():
        x, *others = (torch.tensor(number, device="cpu", requires_grad=True) for number in numbers)
        return torch.autograd.grad(function(x, *others), x)[0].item()


IS_BOUND_INSIDE = _derivative(lambda x: torch.clamp(x, min=0.0), 0.0) == 1
"""True if `clamp` has derivative 1 at a bound that is a number: up to 2.13; in 2.15 it is 0."""

IS_TIE_SHARED = _derivative(lambda x, bound: torch.clamp(x, min=bound), 0.0, 0.0) == 0.5
"""True if a number and a bound that is a tensor share the derivative of `clamp` where they are equal: in 2.15."""

IS_FMAX_SHARED = _derivative(torch.fmax, 0.0, 0.0) == 0.5
"""True if equal numbers share the derivative of `fmax` and `fmin`: in 2.15."""


def _takes(function: Callable[[], torch.Tensor]) -> bool:
    try:
        with DisableTorchFunction():
            function()
    except RuntimeError:
        return False
    return True


ARE_BOUNDS_FITTED = _takes(lambda: torch.clamp(torch.zeros(1, dtype=torch.int8, device="cpu"), max=300))
"""True if `clamp` takes integers beyond the dtype, which then bound nothing: in 2.15."""


def _length_of_a_range() -> int:
    with DisableTorchFunction():
        return torch.arange(0, 10, 2.5, dtype=torch.int64, device="cpu").numel()


ARE_VOLUMES_BICUBIC = _takes(
    lambda: torch.grid_sampler_3d(torch.zeros(1, 1, 2, 2, 2), torch.zeros(1, 1, 1, 1, 3), 2, 0, False)
)
"""True if `grid_sample` has bicubic interpolation for volumes: in 2.15."""

ARE_RANGES_TRUNCATED = _length_of_a_range() == 5
"""True if a range of int64 is that of its truncated arguments: up to 2.13; in 2.15 it is as for other dtypes."""

DTYPES_OF_COUNTS = frozenset(
    dtype
    for dtype in INTEGERS
    if _takes(lambda: torch.repeat_interleave(torch.ones(1, dtype=dtype, device="cpu")))  # noqa: B023
)
"""The dtypes of counts that `repeat_interleave` takes: 32 and 64 bits; 16 bits as well in 2.15."""


def known_values(tensor: Torchish) -> np.ndarray | None:
    """The values of an index or mask if no traced input decides them, else None."""
    known = tensor.known
    if isinstance(known, (torch.Tensor, Deferred)):
        return in_pytorch(lambda: to_numpy(values_of(tensor.real_values)))  # pyright: ignore[reportArgumentType]
    values = tensor.read() if known is None else known
    return None if is_traced(values) else np.asarray(values)


def seen(tensor) -> np.ndarray | None:
    """The values of a tensor, stacked along a new first dimension for the examples of a batch.

    It has size one where there is no batch. None where a program decides the values.
    """
    tensor = lift(tensor)
    known = tensor.known
    if isinstance(known, (torch.Tensor, Deferred)):
        return known_values(tensor)[None]  # pyright: ignore[reportOptionalSubscript]
    return values_of_examples(tensor.read() if known is None else known)


def outside(tensor, least: int, most: int) -> int | None:
    """The first known value outside of `least` to `most`; None if there is none."""
    values = tensor if isinstance(tensor, np.ndarray) else seen(tensor)
    if values is None or values.size == 0 or (values.min() >= least and values.max() <= most):
        return None
    return values[(values < least) | (values > most)].item(0)


def expect_within(index, size: int, dim: int, *, negative: bool = False, error: type[Exception] = IndexError) -> None:
    """Raises `error` where an index is seen to leave a dimension of that size."""
    bad = outside(index, -size if negative else 0, size - 1)
    if bad is not None:
        raise error(f"index {bad} is out of bounds for dimension {dim} with size {size}")
