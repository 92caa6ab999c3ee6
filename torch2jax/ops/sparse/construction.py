"""Tensors of sparse layouts from indices and values."""

import numpy as np
import torch

from ...calls.call import current
from ...rules.registry import implements_tensors
from ...values.sparse import BLOCKED, COLUMNS, make_sparse
from .checks import expect_invariants, expect_parts_fit, of_values
from .places import known_places, places

__all__ = ["compressed", "coo_tensor", "finished"]

_COO = torch.sparse_coo
_COMPRESSED = (torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc)


def _tensor(value, dtype=None) -> torch.Tensor:
    """What is given, as PyTorch takes lists, too."""
    if not isinstance(value, torch.Tensor):
        return torch.tensor(value) if dtype is None else torch.tensor(value, dtype=dtype)
    return current().lift(value) if dtype is None else current().lift(value).to(dtype)


def finished(tensor, requires_grad: bool):
    """The tensor, a leaf that requires grad if that is asked for."""
    if requires_grad:
        tensor.elements = tensor.elements.detach().requires_grad_()
    return tensor


@implements_tensors(torch.sparse_coo_tensor)
def sparse_coo_tensor(
    indices=None,
    values=None,
    size=None,
    *,
    dtype=None,
    device=None,
    pin_memory=False,
    requires_grad=False,
    check_invariants=None,
    is_coalesced=None,
    layout=None,
):
    del device, pin_memory, layout
    if values is None:  # a size
        shape = tuple(size if indices is None else indices)
        values = torch.empty(0, dtype=dtype or torch.get_default_dtype())
        return finished(
            make_sparse(_COO, [torch.empty(len(shape), 0, dtype=torch.int64)], values, shape, True), requires_grad
        )
    indices, values = _tensor(indices, torch.int64), _tensor(values, dtype)
    if values.ndim == 0:
        values = values.reshape(1)
    return finished(coo_tensor(indices, values, size, bool(is_coalesced), check_invariants), requires_grad)


def coo_tensor(indices, values, size=None, is_coalesced: bool = False, checks: bool | None = None):
    """A COO tensor.

    Raises:
        RuntimeError: indices and values do not fit together, or the size.
    """
    if indices.ndim != 2:
        raise RuntimeError(
            f"indices must be sparse_dim x nnz, but got: {list(indices.shape)} (sparse_coo_tensor wants two dimensions)"
        )
    if values.shape[0] != indices.shape[1]:
        raise RuntimeError(
            f"indices and values must have same nnz, but got nnz from indices: {indices.shape[1]}, nnz from values: "
            f"{values.shape[0]}"
        )
    known = known_places(indices)
    if size is None:
        if not indices.shape[1]:
            found = [0] * indices.shape[0]
        else:
            found = (places(indices, "sparse_coo_tensor() without a size") + 0).max(1) + 1
        size = (*map(int, found), *values.shape[1:])
    size = tuple(size)
    if len(size) != indices.shape[0] + values.ndim - 1:
        raise RuntimeError(
            f"number of dimensions must be sparse_dim ({indices.shape[0]}) + dense_dim ({values.ndim - 1}), but got "
            f"{len(size)}"
        )
    if tuple(values.shape[1:]) != size[indices.shape[0] :]:
        raise RuntimeError(
            f"values has incorrect size, expected {[values.shape[0], *size[indices.shape[0] :]]}, got "
            f"{list(values.shape)}"
        )
    if known is not None and known.size and checks is not False:
        _expect_within(known, size)
    return make_sparse(_COO, [indices], values, size, is_coalesced or indices.shape[1] < 2)


def _expect_within(known: np.ndarray, size: tuple[int, ...]) -> None:
    for dim, each in enumerate(known):
        if each.min() < 0:
            raise of_values(f"found negative index {each.min()} for dim {dim}")
        if each.max() >= size[dim]:
            raise of_values(
                f"size is inconsistent with indices: for dim {dim}, size is {size[dim]} but found index {each.max()}"
            )


@implements_tensors(torch.sparse_compressed_tensor)
def sparse_compressed_tensor(
    compressed_indices,
    plain_indices,
    values,
    size=None,
    *,
    dtype=None,
    layout=None,
    device=None,
    pin_memory=False,
    requires_grad=False,
    check_invariants=None,
):
    del device, pin_memory
    if layout not in _COMPRESSED:
        raise RuntimeError(f"sparse_compressed_tensor expected a compressed sparse layout, but got {layout}")
    found = compressed(layout, compressed_indices, plain_indices, values, size, dtype, check_invariants)
    return finished(found, requires_grad)


def compressed(layout, compressed_indices, plain_indices, values, size=None, dtype=None, checks: bool | None = None):
    """A tensor of a compressed layout.

    Raises:
        RuntimeError: its parts do not fit together.
    """
    first, plain, values = _tensor(compressed_indices), _tensor(plain_indices), _tensor(values, dtype)
    size = _size_of_parts(layout, first, plain, values) if size is None else tuple(size)
    expect_parts_fit(layout, first, plain, values, size)
    result = make_sparse(layout, [first, plain], values, size, True)
    if torch.sparse.check_sparse_tensor_invariants.is_enabled() if checks is None else checks:
        expect_invariants(result)
    return result


def _size_of_parts(layout, first, plain, values) -> tuple[int, ...]:
    """The least size that has room for all; none if there is none, for which a check says why."""
    batch, blocks = first.ndim - 1, 2 * (layout in BLOCKED)
    if first.ndim < 1 or plain.ndim != first.ndim or values.ndim < plain.ndim + blocks:
        return ()
    block = tuple(values.shape[batch + 1 : batch + 1 + blocks]) or (1, 1)
    known = places(plain, "a compressed sparse tensor without a size")
    count, other = first.shape[-1] - 1, int(known.max()) + 1 if known.size else 0
    rows, columns = (other, count) if layout in COLUMNS else (count, other)
    return (*first.shape[:-1], rows * block[0], columns * block[1], *values.shape[batch + 1 + blocks :])


def _implements_layout(name: str, layout: torch.layout) -> None:
    def rule(
        compressed_indices,
        plain_indices,
        values,
        size=None,
        *,
        dtype=None,
        requires_grad=False,
        check_invariants=None,
        **options,
    ):
        del options
        found = compressed(layout, compressed_indices, plain_indices, values, size, dtype, check_invariants)
        return finished(found, requires_grad)

    def named(**kwargs):
        indices = [kwargs.pop(key) for key in list(kwargs) if key.endswith("_indices")]
        return rule(*indices, kwargs.pop("values"), **kwargs)

    def body(*args, **kwargs):
        if len(args) >= 3:
            return rule(*args, **kwargs)
        names = ("ccol_indices", "row_indices") if layout in COLUMNS else ("crow_indices", "col_indices")
        return named(**dict(zip((*names, "values"), args, strict=False)), **kwargs)

    implements_tensors(getattr(torch, name))(body)


for _kind in _COMPRESSED:
    _implements_layout(f"{str(_kind).removeprefix('torch.')}_tensor", _kind)


@implements_tensors(torch.sparse.spdiags)
def spdiags(diagonals, offsets, shape, layout=None):
    if layout not in (None, _COO, torch.sparse_csr, torch.sparse_csc):
        raise RuntimeError(f"Only output layouts (Sparse, SparseCsc, SparseCsr) are supported, got {layout}")
    if diagonals.ndim not in (1, 2):
        raise RuntimeError("Diagonals must be vector or matrix")
    if len(shape) != 2:
        raise RuntimeError("Output shape must be 2d")
    diagonals, offsets = torch.atleast_2d(diagonals), torch.atleast_1d(offsets)
    if offsets.dtype is not torch.int64:
        raise RuntimeError(f"Offset Tensor must have dtype Long but got {offsets.dtype}")
    known = places(offsets, "torch.sparse.spdiags")
    if len(set(known.tolist())) != len(known):
        raise of_values("Offset tensor contains duplicate values")
    if len(known) != len(diagonals):
        raise RuntimeError(
            f"spdiags(): Number of diagonals ({len(diagonals)}) does not match the number of offsets ({len(known)})"
        )
    rows, columns = shape
    found, which = [], []
    for i, offset in enumerate(known.tolist()):
        column = np.arange(max(offset, 0), min(columns, rows + offset, diagonals.shape[1]))
        found.append(np.stack([column - offset, column]))
        which.append(i * diagonals.shape[1] + column)
    indices = np.concatenate(found, 1) if found else np.zeros((2, 0), np.int64)
    flat = np.concatenate(which) if which else np.zeros(0, np.int64)
    values = diagonals.reshape(-1).index_select(0, torch.from_numpy(flat))
    result = make_sparse(_COO, [current().lift_own(torch.from_numpy(indices))], values, (rows, columns), False)
    return result if layout in (None, _COO) else result.to_sparse(layout=layout)
