"""Conversion between layouts, and copies of sparse tensors."""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
import torch

from ...rules.array_rule import InnerRule
from ...rules.registry import implements_sparse, implements_tensors
from ...runtime.translation import lift
from ...tensors.dtypes import type_name
from ...tensors.sparse_arrays import layout_name
from ...values.lengths import expect_capacity, hinted_bound, track_lengths
from ...values.sparse import BLOCKED, COLUMNS, Sparse, lifted_sparse, make_sparse, no_matrix, size_of
from ..values import values as values_of
from .construction import empty_of
from .rules import (
    coalesced,
    coo,
    expect_known,
    filled,
    flat_indices,
    forms_of,
    implements_forms,
    known_indices,
    of_known,
    scattered,
    spread,
    within,
)

Tensor = torch.Tensor
_COO = torch.sparse_coo


def dense(tensor: torch.Tensor) -> torch.Tensor:
    """The strided tensor of the same values; a strided one unchanged."""
    if not isinstance(tensor, Sparse):
        return tensor
    shape = size_of(tensor)
    indices, values = coo(tensor)
    sparse = shape[: indices.shape[0]]
    flat = flat_indices(indices, sparse)
    ordered = tensor.coalesced and tensor.kind in (_COO, torch.sparse_csr)
    return scattered(values, flat, math.prod(sparse), ordered).reshape(shape)


@implements_forms("to_dense", "_to_dense")
def to_dense(self, dtype=None, *, masked_grad=None):
    del masked_grad
    result = dense(self)
    return result if dtype is None else result.to(dtype)


# From a strided tensor.


def _dense_to_coo(tensor: torch.Tensor, sparse_dim: int) -> Sparse:
    if not 0 <= sparse_dim <= tensor.ndim or (sparse_dim == 0 and tensor.ndim):
        raise RuntimeError(
            f"to_sparse: sparse_dim argument must be in range [{min(1, tensor.ndim)}, {tensor.ndim}], got {sparse_dim}"
        )
    marked = tensor != 0
    if sparse_dim < tensor.ndim:
        marked = marked.flatten(sparse_dim).any(-1)
    return marked_elements(tensor, marked)


def marked_elements(tensor: torch.Tensor, marked: torch.Tensor) -> Sparse:
    """The elements of a strided tensor that a mask of its first dimensions marks, as COO.

    Where a traced input decides the mask, there is room for all of its elements, or for those that ``bounds=`` says.
    """
    shape = tuple(marked.shape)
    known = known_indices(marked)
    if known is not None:
        found = of_known(np.stack(np.nonzero(known)) if known.ndim else np.zeros((0, int(known)), np.int64))
        rows = tensor.reshape(math.prod(shape), *tensor.shape[len(shape) :])
        values = rows.index_select(0, flat_indices(found, shape))
        return make_sparse(_COO, [found], values, tensor.shape, True)
    track_lengths()
    hinted = hinted_bound()
    capacity = marked.numel() if hinted is None else min(hinted, marked.numel())
    flat = _MARKED((marked.reshape(-1), capacity), {})
    count = marked.sum()
    length = count if hinted is None else expect_capacity(count, capacity)
    strides = [math.prod(shape[i + 1 :]) for i in range(len(shape))]
    is_there = flat < marked.numel()
    rows = [torch.where(is_there, flat // step % n, n) for step, n in zip(strides, shape, strict=True)]
    index = torch.stack(rows) if rows else torch.zeros(0, capacity, dtype=torch.int64)
    values = tensor.reshape(marked.numel(), *tensor.shape[len(shape) :])
    values = values.index_select(0, torch.where(is_there, flat, 0))
    values = torch.where(spread(is_there, values), values, 0)
    return make_sparse(_COO, [index], values, tensor.shape, True, length)


def _marked(mask, capacity: int):
    return jnp.nonzero(mask, size=capacity, fill_value=mask.shape[0])[0]


_MARKED = InnerRule(_marked, "nonzero", dtype=torch.int64)


def _dense_to_compressed(tensor: torch.Tensor, layout, block=None, dense_dim=None) -> Sparse:
    if tensor.ndim != 2 or dense_dim:
        raise no_matrix(layout, tensor.shape)
    marked = tensor != 0
    if layout in BLOCKED:
        what = "to_sparse() of a tensor, of which the number of elements that are not zero"
        return _blocks_of(tensor, layout, block, values_of(marked, what))
    return _to_compressed(marked_elements(tensor, marked), layout)


def _blocks_of(tensor: torch.Tensor, layout, block: Sequence[int] | None, marked: np.ndarray) -> Sparse:
    """The blocks of a strided matrix that have one of the marked elements."""
    if block is None or len(block) != 2:
        raise RuntimeError(f"to_sparse: blocksize needs to be a tuple of two numbers for {layout}, but got {block}")
    rows, columns = marked.shape
    height, width = block
    if rows % height or columns % width:
        raise RuntimeError(
            f"tensor sparse size ({rows}, {columns}) must be divisible by given blocksize ({height}, {width})"
        )
    grid = marked.reshape(rows // height, height, columns // width, width).any((1, 3))
    ordered = grid.T if layout in COLUMNS else grid
    main, other = np.nonzero(ordered)
    flat = other * grid.shape[1] + main if layout in COLUMNS else main * grid.shape[1] + other
    blocks = tensor.reshape(grid.shape[0], height, grid.shape[1], width).transpose(1, 2)
    values = blocks.reshape(grid.size, height, width).index_select(0, of_known(flat))
    index = [of_known(np.concatenate([[0], ordered.sum(1).cumsum()])), of_known(other)]
    return make_sparse(layout, index, values, tensor.shape, True)


@implements_tensors(Tensor.to_sparse, torch.ops.aten.to_sparse)
def strided_to_sparse(self, sparse_dim=None, *, layout=None, blocksize=None, dense_dim=None):
    tensor = lift(self)
    layout = _COO if layout is None else layout
    if blocksize is not None and layout not in BLOCKED:
        raise RuntimeError(f"to_sparse: conversion to {layout} takes no blocksize, but got {blocksize}")
    if layout is torch.strided:
        return tensor
    if layout is _COO:
        return _dense_to_coo(tensor, tensor.ndim - (dense_dim or 0) if sparse_dim is None else sparse_dim)
    return _dense_to_compressed(tensor, layout, blocksize, dense_dim)


# From a sparse one.


def _to_compressed(tensor: Sparse, layout, block=None) -> Sparse:
    if tensor.kind is layout and tuple(block or tensor.block) == tensor.block:
        return tensor
    if tensor.sparse_ndim != 2 or tensor.dense_ndim:
        raise RuntimeError(
            f"to_sparse: conversion from Sparse to {layout_name(layout)} for input tensors with sparse_dim()!=2 or "
            "dense dimensions is not supported: call .to_dense() first"
        )
    if layout in BLOCKED:
        known = expect_known(coo(tensor)[0], f"a conversion to {layout}")
        marked = np.zeros(size_of(tensor), bool)  # what is zero, and there, stays
        marked[tuple(known)] = True
        return _blocks_of(dense(tensor), layout, block or tensor.block, marked)
    ordered = _ordered_by(tensor, layout)
    indices, values = ordered.index[0], ordered.elements
    main, other = (1, 0) if layout in COLUMNS else (0, 1)
    first = _compressed_of(indices[main], size_of(tensor)[main])
    return make_sparse(layout, [first, indices[other].contiguous()], values, size_of(tensor), True, ordered.length)


def _ordered_by(tensor: Sparse, layout) -> Sparse:
    """As COO with each index once, in the order of its rows, or of its columns."""
    indices, values = coo(tensor)
    in_order = tensor.coalesced and tensor.kind in (_COO, torch.sparse_csr)
    found = coalesced(make_sparse(_COO, [indices], values, size_of(tensor), in_order, tensor.length))
    if layout not in COLUMNS:
        return found
    known, mask = known_indices(found.index[0]), within(found)
    if mask is not None:  # what pads comes last
        found.index = (torch.where(mask, found.index[0], torch.tensor(size_of(found))[:, None]),)
    order = found.index[0][1].argsort(stable=True) if known is None else of_known(np.lexsort(known))
    index, values = found.index[0].index_select(1, order), found.elements.index_select(0, order)
    return make_sparse(_COO, [index], values, size_of(found), False, found.length)


def _compressed_of(rows: torch.Tensor, count: int) -> torch.Tensor:
    """The index of the first element of each row, and the end of the last row; elements are in the order of rows."""
    known = known_indices(rows)
    if known is not None:
        return of_known(np.concatenate([[0], np.bincount(known, minlength=count).cumsum()])[: count + 1])
    counts = scattered(torch.ones_like(rows), rows, count, True)
    return torch.nn.functional.pad(counts.cumsum(0), (1, 0))


@implements_tensors(torch._convert_indices_from_coo_to_csr, torch.ops.aten._convert_indices_from_coo_to_csr)
def convert_indices_from_coo_to_csr(input, size, *, out_int32=False):
    found = _compressed_of(lift(input), size)
    return found.int() if out_int32 else found


def to_layout(tensor: torch.Tensor, layout, block=None) -> Any:
    """The tensor in a layout."""
    if layout is torch.strided:
        return dense(tensor)
    if not isinstance(tensor, Sparse):
        return strided_to_sparse(tensor, layout=layout, blocksize=block)
    if layout is not _COO:
        found = _to_compressed(tensor, layout, block)
        if tensor.kind is not _COO:  # PyTorch keeps the dtype of their indices
            found.index = tuple(x.to(tensor.index[0].dtype) for x in found.index)
        return found
    if tensor.kind is _COO:
        return tensor
    indices, values = coo(tensor)
    if tensor.kind is not torch.sparse_csr:
        found = coalesced(make_sparse(_COO, [indices], values, size_of(tensor), False))
        found.coalesced = False  # in PyTorch it is not known to be
        return found
    return make_sparse(_COO, [indices], values, size_of(tensor), True, tensor.length)


def converted(rule: Callable) -> Callable:
    """A rule of COO, for the other layouts too: they are converted, and the result is given back in the first's."""

    @functools.wraps(rule)
    def run(tensor, *args, **kwargs):
        if tensor.kind is _COO:
            return rule(tensor, *args, **kwargs)
        found = rule(to_layout(tensor, _COO), *args, **kwargs)
        return to_layout(found, tensor.kind, tensor.block or None) if isinstance(found, Sparse) else found

    return run


@implements_sparse(Tensor.to_sparse, torch.ops.aten.to_sparse)
def to_sparse(self, sparse_dim=None, *, layout=None, blocksize=None, dense_dim=None):
    del dense_dim
    if sparse_dim is not None and sparse_dim != self.sparse_ndim:
        raise RuntimeError(
            f"to_sparse: conversion from {layout_name(self.kind)} to Sparse with sparse_dim argument "
            f"!=self.sparse_dim() is not supported: got {sparse_dim}, wanted {self.sparse_ndim}"
        )
    return to_layout(self, layout or _COO, blocksize)


def _declare(name: str, layout: torch.layout) -> None:
    def rule(self, *block, dense_dim=None, **named):
        block = named.get("blocksize", *block) if layout in BLOCKED else None
        if isinstance(self, Sparse) or layout is _COO:
            return to_layout(self, layout, block)
        return _dense_to_compressed(lift(self), layout, block, dense_dim)

    implements_tensors(*forms_of(name))(rule)
    implements_sparse(*forms_of(name))(rule)


for _name in ("coo", "csr", "csc", "bsr", "bsc"):
    _declare(f"to_sparse_{_name}", getattr(torch, f"sparse_{_name}"))


# Copies.


@implements_forms("clone")
def clone(self, *, memory_format=None):
    del memory_format
    return self.of_values(self.elements.clone())


@implements_sparse(Tensor.__deepcopy__)
def deepcopy(self, memo):
    del memo
    return self.of_values(self.elements.clone())


@implements_sparse(Tensor.to, torch.ops.aten._to_copy)
def to(self, *args, copy=False, **kwargs):
    if args and isinstance(args[0], torch.Tensor):
        args = (args[0].dtype, *args[1:])
    layout = kwargs.pop("layout", None)
    elements = self.elements.to(*args, copy=copy, **kwargs)
    result = self if elements is self.elements else self.of_values(elements)
    return result if layout is None else to_layout(result, layout)


for _name in (
    *("float", "double", "half", "bfloat16", "cfloat", "cdouble", "byte", "char", "short", "int", "long", "bool"),
    *("cpu", "cuda", "conj", "resolve_conj", "resolve_neg", "pin_memory"),
):

    def _cast(self, *args, _name=_name, **kwargs):
        elements = getattr(self.elements, _name)(*args, **kwargs)
        return self if elements is self.elements else self.of_values(elements)

    implements_sparse(getattr(Tensor, _name), *([getattr(torch, _name)] if hasattr(torch, _name) else []))(_cast)


@implements_sparse(Tensor.type)
def type_(self, dtype=None, non_blocking=False):
    del non_blocking
    if dtype is None:
        return f"torch.sparse.{type_name(self.dtype)}Tensor"
    return self.to(dtype if isinstance(dtype, torch.dtype) else torch.empty(0).type(dtype).dtype)


@implements_sparse(Tensor.type_as)
def type_as(self, other):
    return self.to(other.dtype)


@implements_sparse(Tensor.copy_)
def copy_(self, src, non_blocking=False):
    del non_blocking
    kinds = [x.kind if isinstance(x, Sparse) else torch.strided for x in (self, src)]
    if kinds[0] is not kinds[1] or size_of(self) != size_of(src):
        raise RuntimeError(
            f"torch.copy_: got tensors of different layouts or shapes: self is {layout_name(kinds[0])} of "
            f"{list(size_of(self))} and src layout is {layout_name(kinds[1])} of {list(size_of(src))}; convert src by "
            ".to_sparse(layout=...) or .to_dense()"
        )
    if self.kind is _COO:
        return self.become(src.of_values(src.elements.to(self.dtype, copy=True)))
    if self.elements.shape != src.elements.shape:
        raise RuntimeError(
            "torch.copy_: only sparse compressed tensors with the same number of specified elements are supported, "
            f"got values of shapes {list(self.elements.shape)} and {list(src.elements.shape)}"
        )
    self.elements.copy_(src.elements)
    self.index = src.index  # not written to: clones have the same
    return self


@implements_sparse(Tensor.zero_)
def zero_(self):
    return self.become(empty_of(self, self.dtype))


# Elements of a strided tensor at the places of a sparse one.


def masked_by(tensor: torch.Tensor, mask: Sparse) -> Sparse:
    """The elements of a strided tensor where a sparse one has elements."""
    if tuple(tensor.shape) != tuple(size_of(mask)):
        raise RuntimeError(
            f"sparse_mask(): operands have incompatible sizes; self has size {list(tensor.shape)} but mask has size "
            f"{list(size_of(mask))}"
        )
    indices, _ = coo(mask)
    sparse = tuple(size_of(mask))[: indices.shape[0]]
    rows = tensor.reshape(math.prod(sparse), *tensor.shape[len(sparse) :])
    values = rows.index_select(0, flat_indices(indices, sparse))
    if mask.kind in BLOCKED:
        values = values.reshape(mask.elements.shape)
    return filled(mask, values)


@implements_sparse(Tensor.sparse_mask, torch.ops.aten.sparse_mask)
def sparse_mask(self, mask):
    if not isinstance(mask, Sparse):
        raise RuntimeError("sparse_mask(): the mask is to be a sparse tensor")
    if isinstance(self, Sparse):
        if tuple(size_of(self)) != tuple(size_of(mask)):
            raise RuntimeError("sparse_mask(): operands have incompatible sizes")
        self = dense(self)
    return masked_by(self, mask)


@implements_tensors(Tensor.sparse_mask)
def strided_sparse_mask(self, mask):
    return sparse_mask(*(lift(x) if x.layout is torch.strided else lifted_sparse(x) for x in (self, mask)))
