"""The difference between arrays and the tensors that they should equal."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from ..tensors.interop import tensor_to_array

__all__ = ["GRADIENT_TOLERANCE", "OUTPUT_TOLERANCE", "Agreement", "compare"]

OUTPUT_TOLERANCE = 1e-4
GRADIENT_TOLERANCE = 1e-3
_HALF = {torch.float16: 5e-3, torch.bfloat16: 3e-2}
# A tensor far smaller than the largest of its group is rounding noise of the others; it is measured against this part
# of the largest one.
_FLOOR = 1e-3


@dataclasses.dataclass(frozen=True)
class Agreement:
    """How a group of arrays compares with PyTorch's tensors.

    Args:
        count: the number of arrays that were compared.
        absolute: the largest absolute error.
        relative: the largest error of a tensor, divided by the magnitude of that tensor.
        worst: the name of the tensor with the largest relative error.
        agrees: whether every tensor is within tolerance.
        problem: what is wrong apart from values (a missing result, another shape), or "".
        moved: the relative change of PyTorch's own values by rounding, if the agreement depends on it; else 0.
    """

    count: int
    absolute: float
    relative: float
    worst: str
    agrees: bool
    problem: str = ""
    moved: float = 0.0


def compare(
    actual: Mapping, expected: Mapping[str, Any], tolerance: float, nudged: Sequence[Mapping] = ()
) -> Agreement:
    """Compares arrays with tensors by name. Tensors of half precision are compared more coarsely.

    Args:
        actual: the arrays.
        expected: PyTorch's tensors, or arrays.
        tolerance: the relative error to accept.
        nudged: what PyTorch gives instead when rounding decides otherwise. An error of up to twice the largest
            distance of these is accepted: it is that of an activation at a kink, or of a tie.
    """
    if actual.keys() != expected.keys():
        return _mismatch(f"{len(actual)} tensors instead of {len(expected)}", len(expected))
    absolute = relative = moved = 0.0
    agrees, worst = True, ""
    largest = max((_magnitude(_wide(tensor)) for tensor in expected.values()), default=0.0)
    for name, tensor in expected.items():  # one by one, as wide ones are twice as large
        got, want = _wide(actual[name]), _wide(tensor)
        if got.shape != want.shape:
            return _mismatch(f"{name} has shape {list(got.shape)} instead of {list(want.shape)}", len(expected))
        error = _largest_error(got, want)
        scale = max(_magnitude(want), _FLOOR * largest) or 1.0  # all zeros: the error itself
        ratio = error / scale if error else 0.0
        absolute = max(absolute, error)
        if ratio > relative or not worst:
            relative, worst = ratio, name
        accepted = max(tolerance, _HALF.get(expected[name].dtype, 0.0))
        if ratio > accepted and nudged:
            own = max(_largest_error(_wide(other[name]), want) for other in nudged) / scale
            if np.isfinite(own):
                moved, accepted = max(moved, own), max(accepted, 2 * own)
        agrees = agrees and ratio <= accepted
    return Agreement(len(expected), absolute, relative, worst, agrees, moved=moved)


def _mismatch(problem: str, count: int) -> Agreement:
    return Agreement(count, float("inf"), float("inf"), "", False, problem)


def _wide(value: Any) -> np.ndarray:
    array = np.asarray(tensor_to_array(value.detach()) if isinstance(value, torch.Tensor) else value)
    return array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)


def _magnitude(array: np.ndarray) -> float:
    finite = np.abs(array[np.isfinite(array)])
    return float(finite.max()) if finite.size else 0.0


def _largest_error(got: np.ndarray, want: np.ndarray) -> float:
    same = (got == want) | (np.isnan(got) & np.isnan(want))
    if same.all():
        return 0.0
    error = np.abs(got[~same] - want[~same])
    return float("inf") if not np.isfinite(error).all() else float(error.max())
