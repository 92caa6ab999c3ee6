"""Derivatives at special points: ties, zeros, kinks, bounds, infinities and equal arguments, against PyTorch's.

The floating tensors of a sample get other values. First derivatives are PyTorch's reverse mode, second ones those of
the gradients' product with random numbers; `jax.jvp` is compared with PyTorch's gradients as well, since JAX has one
linear map for both.
"""

import itertools
from collections.abc import Callable, Iterator
from typing import NamedTuple

import jax
import numpy as np
import torch
from torch.utils import _pytree as pytree

from .derivatives import Derivatives
from .outcome import quiet
from .samples import Case

__all__ = ["Found", "Point", "compared", "points"]

ALIKE = {
    "zeros": [0.0],
    "negative zeros": [-0.0],
    "ones": [1.0],
    "minus ones": [-1.0],
    "halves": [0.5],
    "signs": [0.0, -0.0, 1.0, -1.0, 2.0],
    "infinities": [np.inf, -np.inf, 1.0, 0.0],
}


# Relative and absolute ones.
TOLERANCES = {"float64": (1e-5, 1e-7), "float32": (1e-3, 1e-5)}


class Point(NamedTuple):
    """Values for the tensors of a function."""

    name: str
    tensors: list[torch.Tensor]


class Found(NamedTuple):
    """How a derivative compares: `order` is "first", "second" or "forward", `kind` "agrees", "better" or "differs"."""

    order: str
    kind: str
    got: str = ""
    wanted: str = ""
    at: tuple[int, ...] = ()
    """Which elements differ, of the first tensor where any does."""


def _filled(like: torch.Tensor, values: list[float]) -> torch.Tensor:
    flat = list(itertools.islice(itertools.cycle(values), like.numel()))
    return torch.tensor(flat, dtype=like.dtype).reshape(like.shape)


def _constants(case: Case) -> list[float]:
    """The numbers among the arguments, which may be bounds or kinks."""
    leaves = pytree.tree_leaves((case.sample.args, case.sample.kwargs))
    numbers = {float(x) for x in leaves if type(x) in (int, float) and abs(x) < 1e4}
    return sorted(numbers)


def points(case: Case) -> Iterator[Point]:
    """Special values for a sample's floating tensors: for all alike, and for all but the first."""
    at = [i for i, x in enumerate(case.tensors) if x.is_floating_point()]
    if not at:
        return
    kinks = _constants(case)
    kinds = {**ALIKE, **({"constants": [k for x in kinks for k in (x, -x)]} if kinks else {})}
    for name, values in kinds.items():
        tensors = list(case.tensors)
        for i in at:
            tensors[i] = _filled(tensors[i], values)
        yield Point(name, tensors)
    if len(at) > 1:
        first = case.tensors[at[0]]
        tensors = list(case.tensors)
        for i in at[1:]:
            if tensors[i].shape == first.shape:
                tensors[i] = first.detach().clone()
        yield Point("equal arguments", tensors)


class _Code:
    """A function at some tensors, as `Derivatives` takes a case."""

    name, sample = "", None

    def __init__(self, function: Callable, tensors: list[torch.Tensor]):
        self._function = function
        self.tensors = [x.detach().clone().requires_grad_(x.is_floating_point() and x.numel() > 0) for x in tensors]

    def differentiable(self, *tensors) -> list[torch.Tensor]:
        leaves = pytree.tree_leaves(self._function(*tensors))
        return [x for x in leaves if isinstance(x, torch.Tensor) and x.is_floating_point()]


def compared(function: Callable, tensors: list[torch.Tensor]) -> list[Found]:
    """The derivatives of a function of tensors, in eager JAX and in PyTorch.

    Raises:
        Refused: PyTorch does not differentiate it there.
    """
    with quiet():
        torch.manual_seed(0)
        derivatives = Derivatives(_Code(function, tensors))
        torch.manual_seed(0)  # away from zero, which hides what is not
        derivatives.cotangents = [torch.rand_like(x) + 0.5 for x in derivatives.outputs]
        derivatives.tangents = [torch.rand_like(derivatives.case.tensors[i]) + 0.5 for i in derivatives.wanted]
        return _compared(derivatives)


def _compared(derivatives: Derivatives) -> list[Found]:
    inputs, tangents = derivatives.inputs, [x.numpy() for x in derivatives.tangents]
    expected = [_values(x) for x in derivatives.expected]
    found = [_found("first", derivatives.pull(*inputs), expected)]
    second = _second_in_pytorch(derivatives)
    if second is not None and found[0].kind != "differs":
        _, pull_second = jax.vjp(derivatives.pull, *inputs)
        found.append(_found("second", pull_second([*map(jax.numpy.asarray, tangents)]), second))
    cotangents = [x.numpy() for x in derivatives.cotangents]
    pushed = sum(float(np.vdot(c, x)) for c, x in zip(cotangents, derivatives.push(*inputs), strict=True))
    pulled = sum(float(np.vdot(t, x)) for t, x in zip(tangents, expected, strict=True))
    dtype = expected[0].dtype
    found.append(_found("forward", [np.asarray(pushed, dtype)], [np.asarray(pulled, dtype)]))
    return found


def _values(gradient: torch.Tensor) -> np.ndarray:
    return gradient.detach().to_dense().numpy(force=True)


def _second_in_pytorch(derivatives: Derivatives) -> list[np.ndarray] | None:
    """The derivatives of the gradients, those of constant ones too; None where PyTorch has none."""
    of = [derivatives.case.tensors[i] for i in derivatives.wanted]
    pairs = [(g, t) for g, t in zip(derivatives.expected, derivatives.tangents, strict=True) if g.requires_grad]
    if not pairs:
        return [np.zeros(x.shape) for x in of]
    try:
        grads = torch.autograd.grad([g for g, _ in pairs], of, [t for _, t in pairs], allow_unused=True)
    except Exception:
        return None
    zeros = map(torch.zeros_like, of)  # PyTorch may give zeros without memory
    return [_values(zero if g is None else g + zero) for zero, g in zip(zeros, grads, strict=True)]


def _found(order: str, got: list, wanted: list) -> Found:
    pairs = [(np.asarray(a), np.asarray(b)) for a, b in zip(got, wanted, strict=True)]
    kind = "agrees"
    for a, b in pairs:
        is_better = np.isnan(b) & ~np.isnan(a)
        agrees = is_better | np.isclose(a, b, *TOLERANCES[b.dtype.name], equal_nan=True)
        if not agrees.all():
            return Found(
                order, "differs", _shown(a, agrees), _shown(b, agrees), tuple(np.flatnonzero(~agrees).tolist())
            )
        kind = "better" if is_better.any() else kind
    return Found(order, kind)


def _shown(array: np.ndarray, agrees: np.ndarray) -> str:
    return str(np.round(array[~agrees][:5].astype(float), 4).tolist())
