"""Rows that a traced mask does not choose: nan, infinite, equal to those that it does; no row chosen, or every row.

They may be in no value and in no derivative, first or second. A function of a mask and of tensors is compiled once, and
compared with PyTorch, which runs it on the rows that count. Where it differs, it must give what torch2jax gives for
the rows that count, without a mask: that differs from PyTorch by itself, as docs/special-points.md lists.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import torch

from torch2jax import Padded, TracedValueError, t2j

Tensor = torch.Tensor
_REFUSALS = ("mask selection", "mask selected", "data-dependent", "data decide")

KINDS = {
    "nan": "rows that are not chosen are nan, or integers far from all others",
    "inf": "they are infinite, or negative",
    "equal": "all rows, chosen or not, are equal, and few digits long",
    "none": "no row is chosen; all are nan",
    "every": "every row is chosen",
}
"""The kinds of rows, and of masks."""


def masks(count: int, kind: str) -> tuple[Tensor, Tensor]:
    """A mask of the places of so many rows, with others before, between and behind them; and what is chosen."""
    places = torch.ones(count, dtype=torch.bool)
    nothing = torch.zeros(1, dtype=torch.bool)
    places = torch.cat([nothing, places[:1], nothing, places[1:], nothing])
    mask = {"none": torch.zeros_like(places), "every": torch.ones_like(places)}.get(kind, places)
    return places, mask


def spread(tensor: Tensor, places: Tensor, dim: int, kind: str) -> Tensor:
    """A longer tensor with the rows of this one at some places."""
    front = tensor.movedim(dim, 0)
    if kind == "equal":
        front = front[:1].expand(front.shape)
        front = (front * 8).round() / 8 if front.is_floating_point() else front
    whole = torch.full((len(places), *front.shape[1:]), 0, dtype=tensor.dtype)
    if kind in ("equal", "every"):
        whole[:] = front[:1]
    elif tensor.is_floating_point() or tensor.is_complex():
        whole[:] = float("inf" if kind == "inf" else "nan")
    else:
        whole[:] = kind != "inf" if tensor.dtype == torch.bool else -101 if kind == "inf" and whole.is_signed() else 101
    whole[places] = front
    return whole.movedim(0, dim).contiguous()


class Given(NamedTuple):
    """A mask and tensors that it chooses from, with PyTorch's results for what it chooses."""

    mask: Tensor
    wholes: list[Tensor]
    rows: list[Tensor]
    """The tensors, without what is not chosen."""
    dims: list[int | None]
    """Along which dimension each tensor is chosen; None for those that are whole."""
    results: list[Tensor]
    derivatives: list[list[Tensor]]
    """The first derivative for each tensor that is trained, then the second."""


def given(
    function: Callable, mask: Tensor, wholes: list[Tensor], dims: list[int | None], most: int = 2
) -> Given | None:
    """What PyTorch gives, with derivatives of an order of `most`; None if it refuses."""
    try:
        results = jax.tree.leaves(function(mask, [x.clone() for x in wholes]))
    except Exception:
        return None  # samples that PyTorch takes with their own strides or sizes only
    rows = [_chosen(x, mask, dim) for x, dim in zip(wholes, dims, strict=True)]
    derivatives = _derivatives(function, mask, wholes, most)
    return Given(mask, wholes, rows, dims, [x.detach().resolve_conj() for x in results], derivatives)


def _derivatives(function: Callable, mask: Tensor, wholes: list[Tensor], most: int) -> list[list[Tensor]]:
    """PyTorch's derivatives; of an operator that is not differentiated none, or no second."""
    leaves = [x.clone().requires_grad_() if x.is_floating_point() else x for x in wholes]
    trained, found = [x for x in leaves if x.requires_grad], []
    try:
        results = [x for x in jax.tree.leaves(function(mask, leaves)) if x.requires_grad]
        while len(found) < most and results and not any(x.is_complex() for x in results):
            weighted = [(x * torch.from_numpy(_weights(x.shape)).to(x.dtype)).sum() for x in results]
            total = torch.stack(weighted).sum()
            slopes = torch.autograd.grad(total, trained, allow_unused=True, create_graph=len(found) + 1 < most)
            results = [x for x in slopes if x is not None and x.requires_grad]
            found.append([torch.zeros_like(x) if y is None else y for x, y in zip(trained, slopes, strict=True)])
            found[-1] = [x.detach() for x in found[-1]]
    except Exception:
        return found
    return found


def compare(function: Callable, wanted: Mapping[str, Given | None]) -> dict[str, str]:
    """What is wrong with each of several masks: nothing, where the text is empty; or that it is refused."""
    wrong = {kind: "left out" for kind, each in wanted.items() if each is None}
    order = max((len(each.derivatives) for each in wanted.values() if each is not None), default=0)
    compiled = jax.jit(_with_derivatives(function, order))
    for kind, each in wanted.items():
        if each is None:
            continue
        try:
            wrong[kind] = _difference(function, order, compiled, each)
        except Exception as error:
            text = " ".join(str(error).split())
            is_refused = isinstance(error, RuntimeError) and any(words in text for words in _REFUSALS)
            if isinstance(error, TracedValueError) or is_refused:
                return {kind: wrong.get(kind) or f"refused: {text[:110]}" for kind in wanted}
            wrong[kind] = f"{type(error).__name__}: {text[:200]}"
    return wrong


def _with_derivatives(function: Callable, order: int, weights: Sequence[np.ndarray] | None = None) -> Callable:
    """The same in JAX: the results, and the derivatives for each tensor that is trained.

    Args:
        weights: those of each first derivative, if not by its places.
    """

    def loss(trained, mask, wholes):
        at = iter(trained)
        found = t2j(function)(mask, [next(at) if x.dtype.kind == "f" else x for x in wholes])
        leaves = jax.tree.leaves(found, is_leaf=lambda x: isinstance(x, Padded))
        return _weighted([x.values if isinstance(x, Padded) else x for x in leaves]), (leaves, ())

    def differentiated(function) -> Any:
        def slopes(trained, mask, wholes):
            (_, (leaves, before)), found = jax.value_and_grad(function, has_aux=True)(trained, mask, wholes)
            return _weighted(found, weights), (leaves, (*before, found))

        return slopes

    derivative: Any = loss
    for _ in range(order):
        derivative = differentiated(derivative)
    return lambda *args: derivative(*args)[1]


def _difference(function: Callable, order: int, compiled: Callable, given: Given) -> str:
    arrays = [[t2j(x) for x in tensors if x.is_floating_point()] for tensors in (given.wholes, given.rows)]
    leaves, derivatives = compiled(arrays[0], t2j(given.mask), t2j(given.wholes))
    leaves = [np.asarray(x.compact() if isinstance(x, Padded) else x) for x in leaves]
    text = _unlike(leaves, derivatives, given.results, given.derivatives)
    if not text:
        return ""
    trained = [(x, dim) for x, dim in zip(given.wholes, given.dims, strict=True) if x.is_floating_point()]
    weights = [_chosen(torch.from_numpy(_weights(x.shape)), given.mask, dim).numpy() for x, dim in trained]
    plain = _with_derivatives(lambda _, wholes: function(slice(None), wholes), order, weights)
    results, slopes = jax.jit(plain)(arrays[1], None, t2j(given.rows))
    return text if _unlike(leaves, derivatives, results, [_among_all(given, x) for x in slopes]) else ""


def _among_all(given: Given, slopes: Sequence[Any]) -> list[Tensor]:
    """The derivatives for the rows that count, among zeros for those that do not."""
    trained = [(x, dim) for x, dim in zip(given.wholes, given.dims, strict=True) if x.is_floating_point()]
    found = []
    for (whole, dim), slope in zip(trained, slopes, strict=True):
        slope = torch.tensor(np.asarray(slope))
        if dim is not None:
            front = torch.zeros_like(whole.movedim(dim, 0))
            front[given.mask] = slope.movedim(dim, 0)
            slope = front.movedim(0, dim)
        found.append(slope)
    return found


def _unlike(results: Sequence, derivatives: Sequence, wanted: Sequence, wanted_derivatives: Sequence) -> str:
    """The first difference, in words."""
    for one, other in zip(results, wanted, strict=True):
        if one.shape != tuple(other.shape):
            return f"got the shape {one.shape}; wanted {tuple(other.shape)}"
        if not _close(one, other):
            return f"got {one.ravel()[:8]}; wanted {other.ravel()[:8]}"
    names = "gradient", "second derivative"
    for name, found, others in zip(names, derivatives, wanted_derivatives, strict=False):
        for one, other in zip(found, others, strict=True):
            size = float(other.abs().nan_to_num(0, 0, 0).max()) if other.numel() else 0.0
            if not np.allclose(one, other.numpy(), 1e-3, 1e-3 * max(size, 1), equal_nan=True):
                return f"{name} {np.asarray(one).ravel()[:12]}; wanted {other.ravel()[:12]}"
    return ""


def _chosen(tensor: Tensor, mask: Tensor, dim: int | None) -> Tensor:
    return tensor if dim is None else tensor.movedim(dim, 0)[mask].movedim(0, dim)


def _weighted(arrays: Sequence[Any], weights: Sequence[np.ndarray] | None = None) -> Any:
    """The sum of all floating-point numbers, each with a weight by its place: rows that are mixed up are noticed."""
    weights = [_weights(x.shape) for x in arrays] if weights is None else weights
    pairs = [(x, y) for x, y in zip(arrays, weights, strict=True) if jnp.issubdtype(x.dtype, jnp.floating)]
    return sum([(x * y.astype(x.dtype)).sum() for x, y in pairs], jnp.zeros(()))


def _weights(shape: Sequence[int]) -> np.ndarray:
    """A number for each place, which does not depend on how many there are."""
    index = [np.arange(size).reshape(-1, *[1] * (len(shape) - 1 - dim)) for dim, size in enumerate(shape)]
    return np.cos(0.4 + sum([(0.9 - 0.2 * dim) * x for dim, x in enumerate(index)], np.zeros(shape)))


def _close(one: np.ndarray, other: Any) -> bool:
    if other.dtype == torch.bfloat16:  # which NumPy has not
        one, other = one.astype(np.float32), other.float()
    return np.allclose(one, np.asarray(other), 1e-3, 1e-4, equal_nan=True)
