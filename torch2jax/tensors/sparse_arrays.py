"""Sparse tensors outside of calls: as the sparse arrays of `jax.experimental.sparse`, or as `CompressedArray`."""

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
import torch

from .interop import array_to_tensor, tensor_to_array
from .traced import is_traced


class SparseParts(NamedTuple):
    """The arrays and metadata that make up a sparse tensor or array."""

    layout: torch.layout
    index: Sequence[Any]
    """For COO ``(sparse dimensions, nnz)``; else the compressed indices and the plain ones."""
    values: Any
    shape: tuple[int, ...]
    is_coalesced: bool


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class CompressedArray:
    """A sparse array of a layout that JAX lacks: `torch.sparse_csc`, `torch.sparse_bsr` or `torch.sparse_bsc`.

    It is a pytree of its three arrays. ``t2j(torch.Tensor.to_dense)(array)`` returns the dense array.

    Args:
        compressed: where each row, or column, of elements or blocks begins, ``(*batch, n + 1)``.
        plain: the column, or row, of each element or block, ``(*batch, nnz)``.
        values: ``(*batch, nnz, *block, *dense)``.
        layout: PyTorch's layout.
        shape: the shape of the whole array.
    """

    compressed: Any
    plain: Any
    values: Any
    layout: torch.layout = dataclasses.field(metadata={"static": True})
    shape: tuple[int, ...] = dataclasses.field(metadata={"static": True})


def array_of_parts(parts: SparseParts) -> Any:
    """The sparse array with these arrays."""
    from jax.experimental import sparse  # slow to import, and seldom needed

    options = {"shape": parts.shape, "indices_sorted": parts.is_coalesced, "unique_indices": parts.is_coalesced}
    if parts.layout is torch.sparse_coo:
        return sparse.BCOO((parts.values, parts.index[0].T), **options)
    compressed, plain = parts.index
    if parts.layout is torch.sparse_csr:
        return sparse.BCSR((parts.values, plain, compressed), **options)
    return CompressedArray(compressed, plain, parts.values, parts.layout, parts.shape)


def parts_of_array(array: object) -> SparseParts:
    """The parts of a sparse array.

    Raises:
        TypeError: PyTorch has no layout for it.
    """
    from jax.experimental import sparse

    if isinstance(array, CompressedArray):
        return SparseParts(array.layout, (array.compressed, array.plain), array.values, tuple(array.shape), True)
    if isinstance(array, sparse.BCOO):
        if array.n_batch:
            array = sparse.bcoo_update_layout(array, n_batch=0)
        is_coalesced = array.indices_sorted and array.unique_indices
        return SparseParts(torch.sparse_coo, (array.indices.T,), array.data, tuple(array.shape), is_coalesced)
    if isinstance(array, sparse.BCSR):
        return SparseParts(torch.sparse_csr, (array.indptr, array.indices), array.data, tuple(array.shape), True)
    raise TypeError(f"got a {type(array).__name__}, which PyTorch has no layout for; wanted a BCOO or BCSR")


def without_padding(parts: SparseParts) -> SparseParts:
    """The same without the elements that pad, where nothing traced decides which these are."""
    index = list(parts.index)
    if any(is_traced(x) for x in index):
        return parts
    positions = [np.asarray(x) for x in index]
    if parts.layout is not torch.sparse_coo:
        count = int(positions[0][-1]) if positions[0].ndim == 1 else positions[1].shape[-1]
        if count >= positions[1].shape[-1]:
            return parts
        return parts._replace(index=(index[0], index[1][:count]), values=parts.values[:count])
    sizes = np.array(parts.shape[: positions[0].shape[0]], positions[0].dtype)
    within = (positions[0] < sizes[:, None]).all(0)
    if within.all():
        return parts
    kept = np.nonzero(within)[0]
    return parts._replace(index=(index[0][:, kept],), values=parts.values[kept])


def parts_of_tensor(tensor: torch.Tensor) -> SparseParts:
    """The parts of a sparse tensor of PyTorch's own."""
    tensor = tensor.detach()
    shape, layout = tuple(tensor.shape), tensor.layout
    if layout is torch.sparse_coo:
        return SparseParts(layout, (tensor._indices(),), tensor._values(), shape, tensor.is_coalesced())
    if layout in (torch.sparse_csc, torch.sparse_bsc):
        index = tensor.ccol_indices(), tensor.row_indices()
    else:
        index = tensor.crow_indices(), tensor.col_indices()
    return SparseParts(layout, index, tensor.values(), shape, True)


def sparse_tensor_to_array(tensor: torch.Tensor, *, copy: bool) -> object:
    """The sparse array of a sparse tensor's values."""
    parts = parts_of_tensor(tensor)
    index = [tensor_to_array(x, copy=copy) for x in parts.index]
    return array_of_parts(parts._replace(index=index, values=tensor_to_array(parts.values, copy=copy)))


def sparse_array_to_tensor(array: object, *, copy: bool) -> torch.Tensor:
    """The sparse tensor of a sparse array's values.

    Raises:
        TypeError: PyTorch has no layout for it, or its arrays are traced.
    """
    parts = without_padding(parts_of_array(array))
    index = [array_to_tensor(x, copy=copy).long() for x in parts.index]
    values = array_to_tensor(parts.values, copy=copy)
    if parts.layout is not torch.sparse_coo:
        return torch.sparse_compressed_tensor(index[0], index[1], values, parts.shape, layout=parts.layout)
    return torch.sparse_coo_tensor(index[0], values, parts.shape, is_coalesced=parts.is_coalesced or None)


def layout_name(layout: torch.layout) -> str:
    """The name of a layout in PyTorch's errors."""
    name = str(layout).removeprefix("torch.")
    return "Sparse" if name == "sparse_coo" else name.title().replace("_", "")
