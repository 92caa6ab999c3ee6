"""Conversion between layouts, and copies of sparse tensors."""

import math
from typing import Any

import jax.numpy as jnp
import numpy as np
import torch

from ...calls.call import current
from ...rules.array_rule import InnerRule
from ...rules.registry import implements_sparse, implements_tensors
from ...tensors.dtypes import type_name
from ...tensors.sparse_arrays import layout_name
from ...values.lengths import expect_room, heed, said_bound
from ...values.sparse import BLOCKED, COLUMNS, Sparse, lifted_sparse, make_sparse, size_of
from ..values import values as values_of
from .declaring import implements_forms
from .places import (
    coalesced,
    coo,
    coordinates,
    filled,
    flat_places,
    known_places,
    of_known,
    places,
    scattered,
    spread,
    within,
)

__all__ = ["dense", "marked_elements", "to_layout"]

Tensor = torch.Tensor
_COO = torch.sparse_coo


def dense(tensor: torch.Tensor) -> torch.Tensor:
    """The strided tensor of the same values; one that is strided as it is."""
    if not isinstance(tensor, Sparse):
        return tensor
    shape = size_of(tensor)
    indices, values = coo(tensor)
    sparse = shape[: indices.shape[0]]
    flat = flat_places(indices, sparse)
    ordered = tensor.coalesced and tensor.kind not in BLOCKED and tensor.kind not in COLUMNS
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
    known = known_places(marked)
    if known is not None:
        indices = np.stack(np.nonzero(known)) if known.ndim else np.zeros((0, int(known)), np.int64)
        return gathered(tensor, indices, shape)
    heed()
    said = said_bound()
    room = marked.numel() if said is None else min(said, marked.numel())
    flat = _MARKED((marked.reshape(-1), room), {})
    count = marked.sum()
    length = count if said is None else expect_room(count, room)
    strides = [math.prod(shape[i + 1 :]) for i in range(len(shape))]
    is_there = flat < marked.numel()
    rows = [torch.where(is_there, flat // step % n, n) for step, n in zip(strides, shape, strict=True)]
    index = torch.stack(rows) if rows else torch.zeros(0, room, dtype=torch.int64)
    values = tensor.reshape(marked.numel(), *tensor.shape[len(shape) :])
    values = values.index_select(0, torch.where(is_there, flat, 0))
    values = torch.where(spread(is_there, values), values, 0)
    return make_sparse(_COO, [index], values, tensor.shape, True, length)


def _marked(mask, room: int):
    return jnp.nonzero(mask, size=room, fill_value=mask.shape[0])[0]


_MARKED = InnerRule(_marked, "nonzero", dtype=torch.int64)


def gathered(tensor: torch.Tensor, indices: np.ndarray, sparse: tuple[int, ...]) -> Sparse:
    """The elements of a strided tensor at known coordinates, as COO."""
    found = of_known(indices)
    rows = tensor.reshape(math.prod(sparse), *tensor.shape[len(sparse) :])
    values = rows.index_select(0, flat_places(found, sparse))
    return make_sparse(_COO, [found], values, tensor.shape, True)


def _mask_of_blocks(tensor: torch.Tensor, block: tuple[int, ...], dense_ndim: int) -> torch.Tensor:
    """Which blocks have elements, ``(*batch, rows, columns)``."""
    marked = tensor != 0
    if dense_ndim:
        marked = marked.flatten(tensor.ndim - dense_ndim).any(-1)
    rows, columns = marked.shape[-2:]
    if rows % block[0] or columns % block[1]:
        raise RuntimeError(
            f"tensor sparse size ({rows}, {columns}) must be divisible by given blocksize ({block[0]}, {block[1]})"
        )
    blocks = marked.reshape(*marked.shape[:-2], rows // block[0], block[0], columns // block[1], block[1])
    return blocks.any(-1).any(-2)


def _dense_to_compressed(tensor: torch.Tensor, layout, block=None, dense_dim=None) -> Sparse:
    dense_ndim = dense_dim or 0
    if tensor.ndim - dense_ndim < 2:
        raise RuntimeError(
            f"to_sparse: conversion to {layout} needs a tensor of at least two dimensions, got {tensor.ndim}"
        )
    if (layout in BLOCKED) != bool(block):
        raise RuntimeError(f"to_sparse: conversion to {layout} with blocksize={block} is not supported")
    size = (1, 1) if not block else tuple(block)
    marked = _mask_of_blocks(tensor, size, dense_ndim)
    if not block and marked.ndim == 2 and known_places(marked) is None:
        return _to_compressed(marked_elements(tensor, marked), layout)
    known = values_of(marked, "to_sparse() of a tensor, of which the number of elements that are not zero")
    return _of_blocks(tensor, layout, size, dense_ndim, known)


def _index_of_marks(marked: np.ndarray, layout) -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, ...]]:
    """The compressed and the plain index of marked elements, or blocks, and their coordinates in the same order.

    Args:
        marked: ``(*batch, rows, columns)``.

    Raises:
        RuntimeError: not as many are marked in all of a batch.
    """
    ordered = marked.swapaxes(-1, -2) if layout in COLUMNS else marked
    counts = ordered.sum((-1, -2)).reshape(-1)
    if len(counts) and (counts != counts[0]).any():
        raise RuntimeError("Expect the same number of specified elements per batch.")
    *batch, main, other = np.nonzero(ordered)
    compressed = np.zeros((*ordered.shape[:-2], ordered.shape[-2] + 1), np.int64)
    compressed[..., 1:] = ordered.sum(-1).cumsum(-1)
    plain = other.reshape(*ordered.shape[:-2], int(counts[0]) if len(counts) else 0)
    return (compressed, plain), (*batch, *((other, main) if layout in COLUMNS else (main, other)))


def _of_blocks(tensor, layout, block: tuple[int, ...], dense_ndim: int, marked: np.ndarray) -> Sparse:
    """The elements of a strided tensor, or its blocks, at known places ``(*batch, rows, columns)``."""
    index, found = _index_of_marks(marked, layout)
    shape, first = tensor.shape, tensor.ndim - dense_ndim
    batch = shape[: first - 2]
    rows, columns = shape[first - 2] // block[0], shape[first - 1] // block[1]
    if layout in BLOCKED:
        blocks = tensor.reshape(*batch, rows, block[0], columns, block[1], *shape[first:]).transpose(
            len(batch) + 1, len(batch) + 2
        )
        blocks = blocks.reshape(math.prod(batch) * rows * columns, *block, *shape[first:])
    else:
        blocks = tensor.reshape(math.prod(batch) * rows * columns, *shape[first:])
    flat = np.ravel_multi_index(found, (*batch, rows, columns)) if found[0].size else np.zeros(0, np.int64)
    values = blocks.index_select(0, of_known(flat))
    values = values.reshape(*index[1].shape, *values.shape[1:])
    return make_sparse(layout, [of_known(x) for x in index], values, shape, True)


def _expect_block(block) -> None:
    if block is not None and len(block) != 2:
        raise RuntimeError(f"to_sparse: blocksize needs to be a tuple of two numbers, but got {len(block)}")


@implements_tensors(Tensor.to_sparse, torch.ops.aten.to_sparse)
def strided_to_sparse(self, sparse_dim=None, *, layout=None, blocksize=None, dense_dim=None):
    tensor = current().lift(self)
    _expect_block(blocksize)
    layout = _COO if layout is None else layout
    if layout is torch.strided:
        return tensor
    if layout is _COO:
        return _dense_to_coo(tensor, tensor.ndim - (dense_dim or 0) if sparse_dim is None else sparse_dim)
    return _dense_to_compressed(tensor, layout, blocksize, dense_dim)


# From a sparse one.


def _to_compressed(tensor: Sparse, layout, block=None) -> Sparse:
    if tensor.kind is layout and tuple(block or tensor.block) == tensor.block:
        return tensor
    if tensor.sparse_ndim != 2:
        raise RuntimeError(
            f"to_sparse: conversion from Sparse to {layout_name(layout)} for input tensors with sparse_dim()!=2 is not "
            "supported"
        )
    if layout in BLOCKED and not block and tensor.kind not in BLOCKED:
        raise RuntimeError(f"to_sparse: conversion from {tensor.kind} to {layout} needs a blocksize")
    if layout in BLOCKED or tensor.kind in BLOCKED or tensor.batch_ndim:
        return _over_dense(tensor, layout, block or tensor.block if layout in BLOCKED else None)
    ordered = _ordered_by(tensor, layout)
    indices, values = ordered.index[0], ordered.elements
    main, other = (1, 0) if layout in COLUMNS else (0, 1)
    first = _compressed_of(indices[main], size_of(tensor)[main])
    return make_sparse(layout, [first, indices[other].contiguous()], values, size_of(tensor), True, ordered.length)


def _ordered_by(tensor: Sparse, layout) -> Sparse:
    """As COO with each index once, in the order of its rows, or of its columns."""
    if tensor.kind is _COO:
        found = coalesced(tensor)
    else:
        indices, values = coo(tensor)
        found = make_sparse(_COO, [indices], values, size_of(tensor), tensor.kind not in COLUMNS, tensor.length)
    if layout not in COLUMNS:
        return found if found.coalesced else coalesced(found)
    if tensor.kind in COLUMNS:
        return found
    known, mask = known_places(found.index[0]), within(found)
    if mask is not None:  # what pads comes last
        found.index = (torch.where(mask, found.index[0], torch.tensor(size_of(found))[:, None]),)
    order = found.index[0][1].argsort(stable=True) if known is None else of_known(np.lexsort(known))
    index, values = found.index[0].index_select(1, order), found.elements.index_select(0, order)
    return make_sparse(_COO, [index], values, size_of(found), False, found.length)


def _compressed_of(rows: torch.Tensor, count: int) -> torch.Tensor:
    """Where each of so many rows begins, of elements in the order of their rows."""
    known = known_places(rows)
    if known is not None:
        return of_known(np.concatenate([[0], np.bincount(known, minlength=count).cumsum()])[: count + 1])
    counts = scattered(torch.ones_like(rows), rows, count, True)
    return torch.nn.functional.pad(counts.cumsum(0), (1, 0))


@implements_tensors(torch._convert_indices_from_coo_to_csr, torch.ops.aten._convert_indices_from_coo_to_csr)
def convert_indices_from_coo_to_csr(input, size, *, out_int32=False):
    found = _compressed_of(current().lift(input), size)
    return found.int() if out_int32 else found


@implements_tensors(torch._convert_indices_from_csr_to_coo, torch.ops.aten._convert_indices_from_csr_to_coo)
def convert_indices_from_csr_to_coo(crow_indices, col_indices, *, out_int32=False, transpose=False):
    index = [current().lift(crow_indices), current().lift(col_indices)]
    size = (crow_indices.shape[-1] - 1, 0)
    rows, columns = coordinates(make_sparse(torch.sparse_csr, index, col_indices, size, True))
    found = torch.stack([columns, rows] if transpose else [rows, columns])
    return found.int() if out_int32 else found


def _over_dense(tensor: Sparse, layout, block) -> Sparse:
    """By the marks of all places; what is zero, and there, stays."""
    indices, _ = coo(tensor)
    sparse = size_of(tensor)[: indices.shape[0]]
    known = places(indices, f"a conversion to {layout}")
    marked = np.zeros(sparse, bool)
    marked[tuple(known)] = True
    tensor_dense = dense(tensor)
    dense_ndim = tensor_dense.ndim - len(sparse)
    if layout is _COO:
        return gathered(tensor_dense, np.stack(np.nonzero(marked)), tuple(sparse))
    rows, columns = sparse[-2:]
    size = tuple(block or (1, 1))
    if rows % size[0] or columns % size[1]:
        raise RuntimeError(
            f"tensor sparse size ({rows}, {columns}) must be divisible by given blocksize ({size[0]}, {size[1]})"
        )
    marked = marked.reshape(*sparse[:-2], rows // size[0], size[0], columns // size[1], size[1]).any((-1, -3))
    return _of_blocks(tensor_dense, layout, size, dense_ndim, marked)


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
    if tensor.kind in BLOCKED or tensor.kind in COLUMNS or tensor.batch_ndim:
        indices, values = coo(tensor)
        found = coalesced(make_sparse(_COO, [indices], values, size_of(tensor), False))
        found.coalesced = False  # in PyTorch it is not known to be
        return found
    indices, values = coo(tensor)
    return make_sparse(_COO, [indices], values, size_of(tensor), True, tensor.length)


@implements_sparse(Tensor.to_sparse, torch.ops.aten.to_sparse)
def to_sparse(self, sparse_dim=None, *, layout=None, blocksize=None, dense_dim=None):
    del dense_dim
    if sparse_dim is not None and sparse_dim != self.sparse_ndim:
        raise RuntimeError(
            f"to_sparse: conversion from {layout_name(self.kind)} to Sparse with sparse_dim argument "
            f"!=self.sparse_dim() is not supported: got {sparse_dim}, wanted {self.sparse_ndim}"
        )
    return to_layout(self, layout or _COO, blocksize)


def _declare(name: str, layout, has_block: bool) -> None:
    if has_block:

        def rule(self, blocksize=None, dense_dim=None):  # pyright: ignore[reportRedeclaration] - with other parameters
            if isinstance(self, Sparse):
                return to_layout(self, layout, blocksize)
            return _dense_to_compressed(current().lift(self), layout, blocksize, dense_dim)
    else:

        def rule(self, dense_dim=None):
            if isinstance(self, Sparse) or layout is _COO:
                return to_layout(self, layout)
            return _dense_to_compressed(current().lift(self), layout, None, dense_dim)

    functions = [getattr(owner, name) for owner in (Tensor, torch.ops.aten) if hasattr(owner, name)]
    implements_tensors(*functions)(rule)
    implements_sparse(*functions)(rule)


_declare("to_sparse_coo", _COO, False)
_declare("to_sparse_csr", torch.sparse_csr, False)
_declare("to_sparse_csc", torch.sparse_csc, False)
_declare("to_sparse_bsr", torch.sparse_bsr, True)
_declare("to_sparse_bsc", torch.sparse_bsc, True)


# Copies.


_FORMATS = {
    torch.contiguous_format: "Contiguous",
    torch.channels_last: "ChannelsLast",
    torch.channels_last_3d: "ChannelsLast3d",
}


@implements_forms("clone")
def clone(self, *, memory_format=None):
    if self.kind is _COO and memory_format not in (None, torch.preserve_format):
        raise RuntimeError(f"unsupported memory format option {_FORMATS[memory_format]}")
    return self.of_values(self.elements.clone())


@implements_sparse(Tensor.__deepcopy__)
def deepcopy(self, memo):
    del memo
    return self.of_values(self.elements.clone())


@implements_sparse(Tensor.contiguous)
def contiguous(self, memory_format=None):
    del memory_format
    return self


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
    if not isinstance(self, Sparse):
        raise RuntimeError("copy_() between dense and sparse tensors is not implemented")
    source = src.kind if isinstance(src, Sparse) else torch.strided
    if self.kind is not _COO and source is not self.kind:
        raise RuntimeError(
            "torch.copy_: copy of sparse compressed tensors having different layouts is not supported. self layout is "
            f"{layout_name(self.kind)} and src layout is {layout_name(source)}"
        )
    if source is not self.kind:
        raise RuntimeError("copy_() between dense and sparse tensors is not implemented")
    if self.kind is _COO and size_of(self) != size_of(src):
        raise RuntimeError(
            f"copy_(): the sizes of sparse tensors are to be the same, got {list(size_of(self))} and "
            f"{list(size_of(src))}"
        )
    if self.kind is _COO:
        return self.become(src.of_values(src.elements.to(self.dtype, copy=True)))
    _expect_alike(self, src)
    self.elements.copy_(src.elements)
    self.index = src.index  # not written to: clones have the same
    return self


def _expect_alike(tensor: Sparse, source: Sparse) -> None:
    if tensor.index[1].shape != source.index[1].shape:
        raise RuntimeError(
            "torch.copy_: only sparse compressed tensors with the same number of specified elements are supported."
        )
    if size_of(tensor) != size_of(source):
        raise RuntimeError(
            "torch.copy_: expected shapes of self and src to match along dimension "
            f"but got {list(size_of(tensor))} and {list(size_of(source))}"
        )
    if tensor.block != source.block:
        raise RuntimeError(
            "torch.copy_: copy of sparse compressed tensors having different block sizes is not supported. "
            f"self and src block sizes are {list(tensor.block)} and {list(source.block)}, respectively."
        )


@implements_sparse(Tensor.zero_)
def zero_(self):
    from .likes import empty_of

    return self.become(empty_of(self, self.dtype))


@implements_sparse(Tensor.fill_, torch.ops.aten.fill_)
def fill_(self, value):
    if self.kind is _COO:
        raise NotImplementedError("fill_() of a COO tensor, which would have elements everywhere: call .to_dense()")
    self.elements.fill_(value)
    return self


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
    values = rows.index_select(0, flat_places(indices, sparse))
    if mask.kind in BLOCKED or mask.batch_ndim:
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
    return sparse_mask(*(current().lift(x) if x.layout is torch.strided else lifted_sparse(x) for x in (self, mask)))
