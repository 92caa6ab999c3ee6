"""Bounds of indices, classes and lengths, and the errors for values outside of them.

PyTorch refuses them on the CPU. A compiled program cannot, so that values which a program decides are taken at their
word. All others are asked, before a rule's body runs: those of arrays, constants of a program, and the examples of a
batch that is no part of one.
"""

import numpy as np
import torch

from ..tensors.interop import to_numpy, values_of
from ..tensors.known import Deferred, in_pytorch
from ..tensors.tensor import Torchish
from ..tensors.traced import is_traced
from ..tracing.traces import values_of_examples
from ..translation import current


def known_values(tensor: Torchish) -> np.ndarray | None:
    """The values of an index or mask if no traced input decides them, else None."""
    known = tensor.known
    if isinstance(known, (torch.Tensor, Deferred)):
        return in_pytorch(lambda: to_numpy(values_of(tensor.real_values)))  # pyright: ignore[reportArgumentType]
    values = tensor.read() if known is None else known
    return None if is_traced(values) else np.asarray(values)


def seen(tensor) -> np.ndarray | None:
    """The values of a tensor, or of what stands for one, in a first dimension that a batch has its examples in.

    It has size one where there is no batch. None where a program decides the values.
    """
    tensor = current().lift(tensor)
    known = tensor.known
    if isinstance(known, (torch.Tensor, Deferred)):
        return known_values(tensor)[None]  # pyright: ignore[reportOptionalSubscript]
    return values_of_examples(tensor.read() if known is None else known)


def outside(tensor, least: int, most: int) -> int | None:
    """The first value, of a tensor or known, that is seen not to be from `least` to `most`; None if there is none."""
    values = tensor if isinstance(tensor, np.ndarray) else seen(tensor)
    if values is None or values.size == 0 or (values.min() >= least and values.max() <= most):
        return None
    return values[(values < least) | (values > most)].item(0)


def expect_within(index, size: int, dim: int, *, negative: bool = False, error: type[Exception] = IndexError) -> None:
    """Raises `error` where an index is seen to leave a dimension of that size."""
    bad = outside(index, -size if negative else 0, size - 1)
    if bad is not None:
        raise error(f"index {bad} is out of bounds for dimension {dim} with size {size}")
