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

from torch2jax import t2j

from .outcome import Refused, quiet
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


def compared(function: Callable, tensors: list[torch.Tensor]) -> list[Found]:
    """The derivatives of a function of tensors, in eager JAX and in PyTorch.

    Raises:
        Refused: PyTorch does not differentiate it there.
    """
    with quiet():
        return _compared(function, tensors)


def _compared(function: Callable, tensors: list[torch.Tensor]) -> list[Found]:
    torch.manual_seed(0)
    at = [i for i, x in enumerate(tensors) if x.is_floating_point() and x.numel()]
    theirs = _InPyTorch(function, tensors, at)
    ours = _InJax(function, tensors, at, theirs)
    first = ours.pull(*ours.arrays)
    found = [_found("first", first, theirs.first)]
    if theirs.second is not None and found[0].kind != "differs":
        found.append(_found("second", ours.second(), theirs.second))
    pushed = sum(float(np.vdot(c, x)) for c, x in zip(ours.cotangents, ours.push(), strict=True))
    pulled = sum(float(np.vdot(t, x)) for t, x in zip(ours.tangents, theirs.first, strict=True))
    found.append(_found("forward", [np.asarray(pushed)], [np.asarray(pulled)]))
    return found


def _found(order: str, got: list, wanted: list) -> Found:
    pairs = [(np.asarray(a), np.asarray(b)) for a, b in zip(got, wanted, strict=True)]
    kind = "agrees"
    for a, b in pairs:
        is_better = np.isnan(b) & ~np.isnan(a)
        if not np.allclose(np.where(is_better, 0, a), np.where(is_better, 0, b), 1e-5, 1e-7, equal_nan=True):
            return Found(order, "differs", _shown(got), _shown(wanted))
        kind = "better" if is_better.any() else kind
    return Found(order, kind)


def _shown(arrays: list) -> str:
    return str([np.round(np.asarray(x).ravel()[:5].astype(float), 4).tolist() for x in arrays])


class _InPyTorch:
    def __init__(self, function: Callable, tensors: list[torch.Tensor], at: list[int]):
        filled = [x.detach().clone() for x in tensors]
        leaves = [filled[i].requires_grad_() for i in at]
        try:
            results = _results(function, filled)
        except Exception as error:
            raise Refused(repr(error)) from error
        self.places = [i for i, x in enumerate(results) if x.requires_grad and x.is_floating_point()]
        if not self.places:
            raise Refused("nothing to differentiate")
        outputs = [results[i] for i in self.places]
        self.cotangents = [torch.rand_like(x) + 0.5 for x in outputs]
        self.tangents = [torch.rand_like(x) + 0.5 for x in leaves]
        try:
            grads = torch.autograd.grad(outputs, leaves, self.cotangents, create_graph=True, allow_unused=True)
        except Exception as error:
            raise Refused(repr(error)) from error
        grads = [torch.zeros_like(x) if g is None else g for x, g in zip(leaves, grads, strict=True)]
        self.first = [g.detach().to_dense().numpy(force=True) for g in grads]
        self.second = self._second(grads, leaves)

    def _second(self, grads, leaves) -> list | None:
        pairs = [(g, t) for g, t in zip(grads, self.tangents, strict=True) if g.requires_grad]
        if not pairs:
            return [np.zeros(x.shape) for x in leaves]
        try:
            found = torch.autograd.grad([g for g, _ in pairs], leaves, [t for _, t in pairs], allow_unused=True)
        except Exception:
            return None
        return [
            np.zeros(x.shape) if g is None else (g.detach() + torch.zeros_like(x)).numpy(force=True)
            for x, g in zip(leaves, found, strict=True)
        ]


def _results(function: Callable, tensors) -> list[torch.Tensor]:
    return [x for x in pytree.tree_leaves(function(*tensors)) if isinstance(x, torch.Tensor)]


class _InJax:
    def __init__(self, function: Callable, tensors: list[torch.Tensor], at: list[int], theirs: _InPyTorch):
        self.given = [t2j(x.detach()) for x in tensors]
        self.at, self.places = at, theirs.places
        self.arrays = [self.given[i] for i in at]
        self.cotangents = [x.numpy() for x in theirs.cotangents]
        self.tangents = [x.numpy() for x in theirs.tangents]
        self._run = t2j(lambda *tensors: _results(function, tensors))

    def __call__(self, *arrays):
        given = list(self.given)
        for i, array in zip(self.at, arrays, strict=True):
            given[i] = array
        results = self._run(*given)
        return [results[i] for i in self.places]

    def pull(self, *arrays):
        cotangents = [jax.numpy.asarray(c) for c in self.cotangents]
        return jax.vjp(self, *arrays)[1](cotangents)

    def second(self):
        return jax.vjp(self.pull, *self.arrays)[1](tuple(jax.numpy.asarray(t) for t in self.tangents))

    def push(self):
        return jax.jvp(self, tuple(self.arrays), tuple(jax.numpy.asarray(t) for t in self.tangents))[1]
