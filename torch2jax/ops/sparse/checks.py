"""Checks of the indices of compressed layouts, as PyTorch's invariant checks do."""

import math

import numpy as np
import torch

from ...internals.guards import DisableTorchFunction
from ...rules.registry import implements_tensors
from ...values.sparse import COLUMNS, Sparse, size_of
from .places import known_places


def of_values(text: str) -> RuntimeError:
    """An error about values of indices, of which PyTorch, asked with others in their place, knows nothing."""
    error = RuntimeError(text)
    vars(error)["is_of_values"] = True
    return error


def expect_parts_fit(layout, first, plain, values, size) -> None:
    """Checks shapes, dtypes and strides of the parts of a compressed layout by PyTorch itself, without values.

    Raises:
        RuntimeError: they do not fit together, or to the size.
    """
    batch = first.ndim - 1
    name = "row" if layout in COLUMNS else "col"
    with DisableTorchFunction():
        parts = [torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="meta") for x in (first, plain, values)]
        if first.ndim and plain.ndim == first.ndim and values.ndim > batch:
            count = values.shape[batch]
            if plain.shape[-1] != count:
                raise RuntimeError(
                    f"{name}_indices.shape[-1] must be equal to nnz (={count}) as defined by values.shape[{batch}], "
                    f"but got {plain.shape[-1]}"
                )
            if count > 1 and plain.stride(-1) != 1:
                raise RuntimeError(f"expected {name}_indices to be a contiguous tensor per batch")
            parts[1:] = parts[1][..., :0], parts[2].narrow(batch, 0, 0)  # PyTorch takes no others without values
        torch._validate_sparse_compressed_tensor_args(*parts, size, layout)


def expect_invariants(tensor: Sparse) -> None:
    """Checks the indices of a tensor of a compressed layout, where they are known.

    Raises:
        RuntimeError: they have not the invariants of the layout.
    """
    first, plain = tensor.index
    dim = tensor.batch_ndim
    sizes = [n // (tensor.block[i] if tensor.block else 1) for i, n in enumerate(size_of(tensor)[dim : dim + 2])]
    count, other = sizes[::-1] if tensor.kind in COLUMNS else sizes
    validate_compressed_sparse_indices(tensor.kind not in COLUMNS, first, plain, count, other, plain.shape[-1])


@implements_tensors(torch._validate_sparse_coo_tensor_args, torch.ops.aten._validate_sparse_coo_tensor_args)
def validate_sparse_coo_tensor_args(indices, values, size, is_coalesced=None, check_pinning=None):
    del check_pinning
    torch.sparse_coo_tensor(indices, values, size, is_coalesced=is_coalesced, check_invariants=True)


@implements_tensors(torch._validate_compressed_sparse_indices, torch.ops.aten._validate_compressed_sparse_indices)
def validate_compressed_sparse_indices(is_crow, compressed_idx, plain_idx, cdim, dim, nnz):
    """Checks the invariants 5.1 to 5.6 of PyTorch; of indices that a traced input decides only their shapes.

    Raises:
        RuntimeError: one does not hold.
    """
    compressed, plain = ("crow", "col") if is_crow else ("ccol", "row")
    first, count = f"{compressed}_indices", f"n{compressed[1:]}s"
    other = f"n{plain}s"
    if compressed_idx.dtype != plain_idx.dtype:
        raise RuntimeError(f"{first} and {plain}_indices must have the same dtype")
    if compressed_idx.shape[-1] != cdim + 1:
        raise RuntimeError(
            f"{first} have wrong shape: {first}.shape[-1] = {compressed_idx.shape[-1]} is not equal to {count} + 1 = "
            f"{cdim + 1}"
        )
    begins, places = known_places(compressed_idx), known_places(plain_idx)
    if begins is None or places is None:
        return
    lengths = np.diff(begins)
    for holds, text in (
        ((begins[..., 0] == 0).all(), f"{first}[..., 0] == 0"),
        ((begins[..., -1] == nnz).all(), f"{first}[..., -1] == nnz"),
        (((lengths >= 0) & (lengths <= dim)).all(), f"0 <= {first}[..., 1:] - {first}[..., :-1] <= {other}"),
        (((places >= 0) & (places < dim)).all(), f"0 <= {plain}_indices < {other}"),
    ):
        if not holds:
            raise of_values(f"`{text}` is not satisfied.")
    # Within a row each place is beyond the one before; between two rows anything is right.
    batch = math.prod(begins.shape[:-1])
    rows, spots = begins.reshape(batch, cdim + 1), places.reshape(batch, nnz)
    for row, spot in zip(rows, spots, strict=True):
        inner = np.ones(max(nnz - 1, 0), bool)
        ends = row[(row > 0) & (row < nnz)]
        inner[ends - 1] = False
        if (np.diff(spot)[inner] <= 0).any():
            raise of_values(
                f"`{plain}_indices[..., {first}[..., i - 1]:{first}[..., i]] for all i = 1, ..., {count} are sorted "
                "and distinct along the last dimension values` is not satisfied."
            )
