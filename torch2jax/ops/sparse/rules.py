"""The declaration of rules of sparse tensors, and the indices of a tensor's elements."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
import torch

from ...internals.tensors import canonicalize_dim
from ...rules.array_rule import InnerRule
from ...rules.inplace import check_cast
from ...rules.registry import implements_sparse
from ...rules.tables import OPERATORS
from ...runtime.errors.locations import user_location
from ...runtime.translation import lift, lift_own
from ...values.sparse import COLUMNS, Sparse, make_sparse, size_of
from ..bounds import known_values

Tensor = torch.Tensor


# How they are declared: by the name of a function, for all its forms in PyTorch.


def forms_of(name: str) -> list[Any]:
    """The functions, the method, the operator of Python, and the ATen operator of this name."""
    owners = (torch, Tensor, torch.sparse, torch.nn.functional, torch.special, torch.ops.aten)
    found = [getattr(owner, name) for owner in owners if hasattr(owner, name)]
    if name in OPERATORS and hasattr(Tensor, f"__{OPERATORS[name]}__"):
        found.append(getattr(Tensor, f"__{OPERATORS[name]}__"))
    return found


def written(target: Any, result: Any, in_values: bool = False) -> Any:
    """Replaces the sparse tensor by the result, in its own dtype, and returns it.

    Args:
        in_values: whether a function writes to the values of COO tensors too, which others may share. To those of the
            compressed layouts all functions do. Where the places change, there are other values.

    Raises:
        RuntimeError: the result's dtype cannot be cast to it.
    """
    check_cast(result, target)
    if (in_values or target.kind is not torch.sparse_coo) and _has_indices_of(target, result):
        target.elements.copy_(result.elements)
        return target
    return target.become(result if result.dtype == target.dtype else result.to(target.dtype))


def _has_indices_of(target: Any, result: Any) -> bool:
    return (
        result.kind is target.kind
        and all(x is y for x, y in zip(result.index, target.index, strict=True))
        and result.elements.shape == target.elements.shape
        and result.length is target.length
    )


def implements_forms(*names: str, in_values: bool = False) -> Callable[[Callable], Callable]:
    """Declares the rule of functions by their names, in all forms, and of the forms that write in place.

    Args:
        in_values: see `written`.
    """

    def register(body: Callable) -> Callable:
        def in_place(self, *args, **kwargs):
            return written(self, body(self, *args, **kwargs), in_values)

        for name in names:
            implements_sparse(*forms_of(name))(body)
            in_place_forms = forms_of(name + "_")
            operator = f"__i{OPERATORS[name]}__" if name in OPERATORS else ""
            if hasattr(Tensor, operator):
                in_place_forms.append(getattr(Tensor, operator))
            implements_sparse(*in_place_forms)(in_place)
        return body

    return register


def implements_reflected(*names: str) -> Callable[[Callable], Callable]:
    """Declares the rule of operators of Python, their operands exchanged."""

    def register(body: Callable) -> Callable:
        methods = [getattr(Tensor, f"__r{OPERATORS[name]}__") for name in names]
        implements_sparse(*methods)(lambda self, other: body(other, self))
        return body

    return register


# The places of elements.


def known_indices(tensor: torch.Tensor) -> np.ndarray | None:
    """The values of an index, None if a traced input decides them."""
    return known_values(lift(tensor))


def expect_known(tensor: torch.Tensor, what: str) -> np.ndarray:
    """The values of an index.

    Raises:
        RuntimeError: a traced input decides them; no TypeError, which operators would take for "not implemented".
    """
    found = known_indices(tensor)
    if found is None:
        raise RuntimeError(
            f"{what} has to know where its elements are, which depends on a traced input, at {user_location()}. Ways "
            "out: close over the sparse tensor, or over its indices, and give the values alone as an argument; do this "
            "step outside of jax.jit; or go on with tensor.to_dense()."
        )
    return found


def of_known(values: np.ndarray) -> torch.Tensor:
    """The tensor of the call for an index that is known."""
    return lift_own(torch.from_numpy(np.ascontiguousarray(values, np.int64)))


def _expanded(compressed, count: int):
    # The row of the i-th is how many rows end at or before i.
    ends = compressed[..., 1:]
    steps = jnp.zeros(count + 1, compressed.dtype).at[ends].add(1, mode="drop")
    return jnp.cumsum(steps, -1, dtype=compressed.dtype)[..., :count]


_EXPANDED = InnerRule(_expanded, "expanded_indices", dtype=torch.int64)


def coo(tensor: Sparse) -> tuple[torch.Tensor, torch.Tensor]:
    """Indices and values as of COO, of any layout: blocks are their elements."""
    if tensor.kind is torch.sparse_coo:
        return tensor.index[0], tensor.elements
    compressed, plain = tensor.index
    known = known_indices(compressed)
    if known is not None:
        counts = np.diff(known)
        rows = of_known(np.repeat(np.arange(len(counts)), counts))
        if len(rows) < plain.shape[-1]:
            rows = torch.nn.functional.pad(rows, (0, plain.shape[-1] - len(rows)), value=len(counts))
    else:
        rows = _EXPANDED((compressed, plain.shape[-1]), {})
    rows, columns = (plain, rows) if tensor.kind in COLUMNS else (rows, plain)
    if tensor.block:
        height, width = tensor.block
        shape = (capacity(tensor), height, width)
        rows = (rows[:, None, None] * height + torch.arange(height)[:, None]).expand(shape)
        columns = (columns[:, None, None] * width + torch.arange(width)).expand(shape)
    return torch.stack([rows.reshape(-1), columns.reshape(-1)]), tensor.elements.reshape(-1)


def flat_indices(indices: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    """The places of elements with these coordinates in their dimensions made one."""
    known = known_indices(indices)
    strides = [math.prod(shape[i + 1 :]) for i in range(len(shape))]
    if known is not None:
        return of_known(known.T @ np.array(strides, np.int64) if strides else np.zeros(known.shape[1], np.int64))
    if not strides:
        return torch.zeros(indices.shape[1], dtype=torch.int64)
    return (indices * torch.tensor(strides)[:, None]).sum(0)


def unique_indices(known: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The distinct coordinates among some, ``(dimensions, n)``, in order, and of each which of these it is."""
    if not len(known):
        return known[:, : min(known.shape[1], 1)], np.zeros(known.shape[1], np.int64)
    order = np.lexsort(known[::-1])
    ordered = known[:, order]
    begins = np.ones(known.shape[1], bool)
    begins[1:] = (ordered[:, 1:] != ordered[:, :-1]).any(0)
    which = np.empty(known.shape[1], np.int64)
    which[order] = np.cumsum(begins) - 1
    return ordered[:, begins], which


def _scattered_into(start, values, positions, is_sorted: bool):
    add = start.at[positions].max if values.dtype == bool else start.at[positions].add
    return add(values, mode="drop", indices_are_sorted=is_sorted)


def _scattered(values, positions, size: int, is_sorted: bool):
    return _scattered_into(jnp.zeros((size, *values.shape[1:]), values.dtype), values, positions, is_sorted)


_SCATTERED, _SCATTERED_INTO = InnerRule(_scattered, "index_add"), InnerRule(_scattered_into, "index_add")


def added_at(start: torch.Tensor, values: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """A strided tensor with values added to its rows at indices; those out of bounds are dropped."""
    return _SCATTERED_INTO((start, values, positions, False), {})


def scattered(values: torch.Tensor, positions: torch.Tensor, size: int, is_sorted: bool = False) -> torch.Tensor:
    """The sums of values by their index below `size`; those out of bounds are dropped."""
    return _SCATTERED((values, positions, size, is_sorted), {})


def _coalesced(indices, values, shape: tuple[int, ...]):
    order = jnp.lexsort(indices[::-1]) if len(indices) else jnp.arange(indices.shape[1])
    indices, values = indices[:, order], values[order]
    bounds = jnp.array(shape, indices.dtype)[:, None]
    begins = (indices < bounds).all(0)
    begins &= jnp.concatenate([jnp.ones_like(begins[:1]), (indices[:, 1:] != indices[:, :-1]).any(0)])
    within = jnp.cumsum(begins, dtype=indices.dtype)
    which = jnp.where((indices < bounds).all(0), within - 1, indices.shape[1])
    found = jnp.broadcast_to(bounds, indices.shape).at[:, which].set(indices, mode="drop")
    return found, jnp.zeros_like(values).at[which].add(values, mode="drop"), within[-1]


_COALESCED = InnerRule(_coalesced, "coalesce", dtype=lambda _, values, shape: (torch.int64, values.dtype, torch.int64))


def coalesced(tensor: Sparse) -> Sparse:
    """A COO tensor with each index once, in order.

    Where a traced input decides the indices, there is room for as many as before, and the rest pads.
    """
    if tensor.coalesced:
        return tensor
    indices, values = coo(tensor)
    known = known_indices(indices)
    if known is None:
        index, values, length = _COALESCED((indices, values, tuple(size_of(tensor)[: indices.shape[0]])), {})
        return make_sparse(torch.sparse_coo, [index], values, size_of(tensor), True, length)
    found, which = unique_indices(known)
    if found.shape[1] == known.shape[1]:
        if not np.array_equal(which, np.arange(len(which))):
            values = values.index_select(0, of_known(np.argsort(which)))
    else:
        values = scattered(values, of_known(which), found.shape[1])
    return make_sparse(torch.sparse_coo, [of_known(found)], values, size_of(tensor), True)


# Where a traced input decides the places, some may pad: they are beyond the shape, and their values zero.


def within(tensor: Sparse) -> torch.Tensor | None:
    """The mask of elements that are no padding, of the shape of the last index; None if there is no padding."""
    if known_indices(tensor.index[0]) is not None:
        return None
    if tensor.kind is torch.sparse_coo:
        return (tensor.index[0] < _column(size_of(tensor)[: tensor.sparse_ndim])).all(0)
    compressed, plain = tensor.index
    return torch.arange(plain.shape[-1]) < compressed[..., -1:]


def _column(sizes: Sequence[int]) -> torch.Tensor:
    return torch.tensor(list(sizes), dtype=torch.int64)[:, None]


def spread(mask: torch.Tensor, elements: torch.Tensor) -> torch.Tensor:
    """A mask of elements, as one of their dense dimensions too."""
    return mask.reshape(*mask.shape, *[1] * (elements.ndim - mask.ndim))


def filled(tensor: Sparse, elements: torch.Tensor) -> Sparse:
    """Other values at the same places, and zero where elements pad, whatever was computed there."""
    mask = within(tensor)
    return tensor.of_values(elements if mask is None else torch.where(spread(mask, elements), elements, 0))


def capacity(tensor: Sparse) -> int:
    """The number of elements that there is room for."""
    return tensor.index[-1].shape[-1]


def length_of(tensors: Sequence[Sparse]) -> torch.Tensor | None:
    """The total number of elements of the tensors; None if none of them is padded."""
    if all(x.length is None for x in tensors):
        return None
    counts = [torch.tensor(capacity(x)) if x.length is None else x.length for x in tensors]
    return torch.stack(counts).sum()


def kept(tensor: Sparse, mask: torch.Tensor, index: torch.Tensor, size: Sequence[int], in_order: bool) -> Sparse:
    """A COO tensor with those elements alone that a traced mask chooses; the others pad.

    Args:
        index: what is to be its index, ``(dimensions, nnz)``.
        size: its shape.
        in_order: whether the elements that are there are in order, each once. They are put first then.
    """
    mask = mask & (tensor.index[0] < _column(size_of(tensor)[: tensor.sparse_ndim])).all(0)
    index = torch.where(mask, index, _column(size[: index.shape[0]]))
    values = torch.where(spread(mask, tensor.elements), tensor.elements, 0)
    if in_order:
        order = (~mask).to(torch.int8).argsort(stable=True)
        index, values = index.index_select(1, order), values.index_select(0, order)
    return make_sparse(torch.sparse_coo, [index], values, size, in_order, mask.sum())


def dim_of(dim: int, ndim: int) -> int:
    """A dimension, counted from the first.

    Raises:
        IndexError: there is none of this number.
    """
    return canonicalize_dim(ndim, dim)
