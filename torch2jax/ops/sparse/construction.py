"""Tensors of sparse layouts from indices and values, and of the size and layout of another."""

import numpy as np
import torch

from ...internals.dispatch import DisableTorchFunction
from ...rules.registry import implements_sparse, implements_tensors
from ...runtime.translation import lift
from ...values.sparse import BLOCKED, COLUMNS, Sparse, make_sparse, no_matrix, size_of
from .rules import expect_known, filled, implements_forms, known_indices, of_known

Tensor = torch.Tensor

_COO = torch.sparse_coo
_COMPRESSED = (torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc)


def _tensor(value, dtype=None) -> torch.Tensor:
    """The argument as a tensor; it may be a list."""
    if not isinstance(value, torch.Tensor):
        return torch.tensor(value) if dtype is None else torch.tensor(value, dtype=dtype)
    return lift(value) if dtype is None else lift(value).to(dtype)


def _of_values(text: str) -> RuntimeError:
    """An error about values of indices. PyTorch, asked with other values, does not raise it."""
    error = RuntimeError(text)
    vars(error)["is_of_values"] = True
    return error


def finished(tensor, requires_grad: bool):
    """The tensor; with `requires_grad`, as a leaf."""
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
        size = tuple(size if indices is None else indices)
        return finished(_without_elements(_COO, size, 0, (), dtype or torch.get_default_dtype()), requires_grad)
    indices, values = _tensor(indices, torch.int64), _tensor(values, dtype)
    if values.ndim == 0:
        values = values.reshape(1)
    return finished(_coo_tensor(indices, values, size, bool(is_coalesced), check_invariants), requires_grad)


def _coo_tensor(indices, values, size=None, is_coalesced: bool = False, checks: bool | None = None):
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
    known = known_indices(indices)
    if size is None:
        if not indices.shape[1]:
            found = [0] * indices.shape[0]
        else:
            found = (expect_known(indices, "sparse_coo_tensor() without a size") + 0).max(1) + 1
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
            raise _of_values(f"found negative index {each.min()} for dim {dim}")
        if each.max() >= size[dim]:
            raise _of_values(
                f"size is inconsistent with indices: for dim {dim}, size is {size[dim]} but found index {each.max()}"
            )


def _compressed(layout, first, plain, values, size, dtype, checks: bool | None, requires_grad: bool):
    """A tensor of a compressed layout.

    Raises:
        RuntimeError: its parts do not fit together.
    """
    if layout not in _COMPRESSED:
        raise RuntimeError(f"sparse_compressed_tensor expected a compressed sparse layout, but got {layout}")
    first, plain, values = _tensor(first), _tensor(plain), _tensor(values, dtype)
    if max(first.ndim, plain.ndim, values.ndim - 2 * (layout in BLOCKED)) > 1:
        raise no_matrix(layout, size or values.shape)
    size = _size_of_parts(layout, first, plain, values) if size is None else tuple(size)
    is_checked = torch.sparse.check_sparse_tensor_invariants.is_enabled() if checks is None else checks
    _expect_parts_fit(layout, first, plain, values, size, is_checked)
    return finished(make_sparse(layout, [first, plain], values, size, True), requires_grad)


def _expect_parts_fit(layout, first, plain, values, size, is_checked: bool) -> None:
    """Checks the parts of a compressed layout in PyTorch itself: their values too, if asked for, and known.

    Raises:
        RuntimeError: they do not fit together, or to the size.
    """
    known = [known_indices(x) if is_checked else None for x in (first, plain)]
    if any(x is None for x in known):
        with DisableTorchFunction():
            parts = [torch.empty(x.shape, dtype=x.dtype, device="meta") for x in (first, plain, values)]
            if plain.ndim == first.ndim == 1 and values.ndim and plain.shape == values.shape[:1]:
                parts[1:] = parts[1][:0], parts[2][:0]  # PyTorch takes no others without values
            torch._validate_sparse_compressed_tensor_args(*parts, size, layout)
        return
    with DisableTorchFunction():
        index = [torch.from_numpy(np.array(x)).to(part.dtype) for x, part in zip(known, (first, plain), strict=True)]
        try:
            torch._validate_sparse_compressed_tensor_args(*index, torch.empty(values.shape), size, layout)
        except RuntimeError as error:
            raise _of_values(str(error)) from None


@implements_tensors(torch._validate_sparse_compressed_tensor_args)
def _validate_sparse_compressed_tensor_args(
    compressed_indices, plain_indices, values, size, layout, check_pinning=None
):
    del check_pinning
    _expect_parts_fit(layout, _tensor(compressed_indices), _tensor(plain_indices), _tensor(values), tuple(size), True)


@implements_tensors(torch._validate_sparse_coo_tensor_args)
def _validate_sparse_coo_tensor_args(indices, values, size, is_coalesced=None, check_pinning=None):
    del check_pinning
    _coo_tensor(_tensor(indices), _tensor(values), size, bool(is_coalesced))


def _size_of_parts(layout, first, plain, values) -> tuple[int, ...]:
    """The least size with room for all indices; () where a check refuses the parts anyway."""
    if first.ndim != 1 or plain.ndim != 1 or values.ndim != 1 + 2 * (layout in BLOCKED):
        return ()
    block = tuple(values.shape[1:]) or (1, 1)
    known = expect_known(plain, "a compressed sparse tensor without a size")
    count, other = first.shape[0] - 1, int(known.max()) + 1 if known.size else 0
    rows, columns = (other, count) if layout in COLUMNS else (count, other)
    return rows * block[0], columns * block[1]


def _implements_layout(name: str, of_layout: torch.layout | None) -> None:
    def rule(*parts, layout=None, dtype=None, requires_grad=False, check_invariants=None, **named):
        layout = of_layout or layout
        columns = of_layout in COLUMNS
        names = ("ccol_indices", "row_indices") if columns else ("crow_indices", "col_indices")
        names = names if of_layout else ("compressed_indices", "plain_indices")
        given = dict(zip((*names, "values", "size"), parts, strict=False)) | named
        first, plain, values, size = (given.get(key) for key in (*names, "values", "size"))
        return _compressed(layout, first, plain, values, size, dtype, check_invariants, requires_grad)

    implements_tensors(getattr(torch, name))(rule)


_implements_layout("sparse_compressed_tensor", None)
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
    known = expect_known(offsets, "torch.sparse.spdiags")
    if len(set(known.tolist())) != len(known):
        raise _of_values("Offset tensor contains duplicate values")
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
    result = make_sparse(_COO, [of_known(indices)], values, (rows, columns), False)
    return result if layout in (None, _COO) else result.to_sparse(layout=layout)


# Of the size and layout of another.


def _without_elements(layout, size, dense_ndim: int, block, dtype) -> Sparse:
    first = len(size) - dense_ndim
    if layout is _COO:
        index = [torch.zeros((first, 0), dtype=torch.int64)]
        return make_sparse(_COO, index, torch.zeros((0, *size[first:]), dtype=dtype), size, True)
    main = int(layout in COLUMNS)
    rows = size[main] // (block[main] if block else 1)
    index = [torch.zeros(n, dtype=torch.int64) for n in (rows + 1, 0)]
    return make_sparse(layout, index, torch.zeros((0, *block), dtype=dtype), size, True)


def empty_of(like: Sparse, dtype: torch.dtype) -> Sparse:
    """A tensor without elements, of the size and layout of another."""
    return _without_elements(like.kind, tuple(size_of(like)), like.dense_ndim, like.block, dtype)


@implements_sparse(torch.zeros_like, torch.ops.aten.zeros_like)
def zeros_like(input, *, dtype=None, layout=None, requires_grad=False, **options):
    del options
    if layout is torch.strided:
        return torch.zeros(size_of(input), dtype=dtype or input.dtype, requires_grad=requires_grad)
    _expect_own_layout("zeros_like", input, layout)
    return finished(empty_of(input, dtype or input.dtype), requires_grad)


@implements_sparse(torch.empty_like, torch.ops.aten.empty_like)
def empty_like(input, *, dtype=None, layout=None, requires_grad=False, **options):
    del options
    _expect_own_layout("empty_like", input, layout)
    if input.kind is _COO:
        return finished(empty_of(input, dtype or input.dtype), requires_grad)
    return finished(input.of_values(torch.empty_like(input.elements, dtype=dtype)), requires_grad)


def _expect_own_layout(name: str, like: Sparse, layout: torch.layout | None) -> None:
    if layout not in (None, like.kind):
        raise RuntimeError(
            f"torch.{name} got a tensor of layout {like.kind} and layout={layout}; wanted the same one: convert what "
            "it gives by .to_sparse(layout=...) or .to_dense()"
        )


def _fills(name: str) -> None:
    """Declares a filling function of sparse tensors: with a compressed layout, or strided, as COO's must be."""
    function = getattr(torch, name)

    def rule(input, *args, dtype=None, layout=None, requires_grad=False, **options):
        if layout is torch.strided:
            like = torch.empty(size_of(input), dtype=dtype or input.dtype)
            return function(like, *args, requires_grad=requires_grad, **options)
        _expect_own_layout(name, input, layout)
        if input.kind is _COO:
            raise NotImplementedError(
                f"torch.{name} of a tensor of layout {_COO}, which would have elements everywhere: give "
                "layout=torch.strided, or a tensor .to_sparse_csr(), whose places are filled"
            )
        return finished(filled(input, function(input.elements, *args, dtype=dtype, **options)), requires_grad)

    implements_sparse(function, getattr(torch.ops.aten, name))(rule)


for _name in ("full_like", "ones_like", "rand_like", "randn_like"):
    _fills(_name)


@implements_forms("new_zeros", "new_empty")
def new_zeros(self, *size, dtype=None, layout=None, requires_grad=False, **options):
    size = options.pop("size", size[0] if len(size) == 1 and not isinstance(size[0], int) else size)
    return torch.zeros(size, dtype=dtype or self.dtype, layout=layout or self.kind, requires_grad=requires_grad)


@implements_sparse(Tensor.new)
def new(self, *given, device=None):
    """The legacy constructor: of a size, or of indices, values and perhaps a size."""
    del device
    if self.kind is not _COO:
        raise RuntimeError(f"Tensor.new() is not defined for a tensor of layout {self.kind}")
    if given and isinstance(given[0], torch.Tensor):
        return torch.sparse_coo_tensor(*given, dtype=self.dtype)
    size = given[0] if len(given) == 1 and isinstance(given[0], (tuple, list)) else given or (0,)
    return torch.zeros(size, dtype=self.dtype, layout=_COO)
