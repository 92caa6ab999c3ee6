"""What is asked of sparse tensors of each layout, in every way that they come to be."""

import functools
from collections.abc import Callable
from typing import Any

import torch

LAYOUTS = ("coo", "uncoalesced", "csr", "csc", "bsr", "bsc")
DENSE = torch.tensor(
    [
        [0.0, 1.5, 0, 0, -2.0, 0],
        [0.0, 0, 0, 0, 0, 0],
        [0.5, 0, 0.25, 0, 0, 3.0],
        [0.0, -1.0, 0, 0, 0.75, 0],
    ]
)


def sparse_of(layout: str, dense: torch.Tensor = DENSE) -> torch.Tensor:
    """The matrix in a layout."""
    if layout == "uncoalesced":
        found = dense.to_sparse()
        indices, values = found.indices(), found.values()
        parts = torch.cat([values * 0.25, values * 0.75])
        return torch.sparse_coo_tensor(torch.cat([indices, indices], 1).flip(1), parts.flip(0), dense.shape)
    if layout in ("bsr", "bsc"):
        return getattr(dense, f"to_sparse_{layout}")((2, 3))
    return getattr(dense, f"to_sparse_{layout}")()


def parts_of(matrix: torch.Tensor) -> tuple[list[torch.Tensor], torch.Tensor]:
    """Indices and values."""
    if matrix.layout is torch.sparse_coo:
        return [matrix._indices()], matrix._values()
    if matrix.layout in (torch.sparse_csc, torch.sparse_bsc):
        return [matrix.ccol_indices(), matrix.row_indices()], matrix.values()
    return [matrix.crow_indices(), matrix.col_indices()], matrix.values()


def built(layout: torch.layout, is_coalesced: bool, index: list[torch.Tensor], values, size) -> torch.Tensor:
    """The matrix of these, by PyTorch's constructors."""
    if layout is torch.sparse_coo:
        return torch.sparse_coo_tensor(*index, values, size, is_coalesced=is_coalesced or None)
    return torch.sparse_compressed_tensor(*index, values, size, layout=layout)


def _of_elements(name: str) -> Callable[[Any, Any], Any]:
    return lambda m, x: getattr(torch, name)(m)


# Of a matrix m of (4, 6), and x of (6, 3), as a strided or a sparse tensor.
OPERATIONS: dict[str, Callable[[Any, Any], Any]] = {
    "matmul": lambda m, x: m @ x,
    "mm": lambda m, x: torch.mm(m, x),
    "sparse.mm": lambda m, x: torch.sparse.mm(m, x),
    "mv": lambda m, x: m.mv(x[:, 0]),
    "matmul vector": lambda m, x: m @ x[:, 0],
    "dense @ sparse": lambda m, x: x[:4].t() @ m,
    "addmm": lambda m, x: torch.addmm(x[:4], m, x, beta=0.5, alpha=2),
    "linear": lambda m, x: torch.nn.functional.linear(x.t(), m),
    "sparse.mm amax": lambda m, x: torch.sparse.mm(m, x, "amax"),
    "sampled_addmm": lambda m, x: torch.sparse.sampled_addmm(m, x[:4], x.t(), beta=0.5, alpha=2),
    "sparse @ sparse": lambda m, x: m @ m.t(),
    "to_dense": lambda m, x: m.to_dense(),
    "to_sparse": lambda m, x: m.to_sparse(),
    "to_sparse_csr": lambda m, x: m.to_sparse_csr(),
    "to_sparse_csc": lambda m, x: m.to_sparse_csc(),
    "to_sparse_bsr": lambda m, x: m.to_sparse_bsr((2, 2)),
    "coalesce": lambda m, x: m.coalesce(),
    "values": lambda m, x: m.values() * 2,
    "t": lambda m, x: m.t(),
    "transpose": lambda m, x: m.transpose(0, 1),
    "clone": lambda m, x: m.clone(),
    "to": lambda m, x: m.to(torch.float64).to(torch.float32),
    "mul number": lambda m, x: m * 2,
    "number mul": lambda m, x: 2 * m,
    "div number": lambda m, x: m / 2,
    "mul dense": lambda m, x: m * x[:4, :1],
    "mul dense of its shape": lambda m, x: m * x.t().repeat(2, 1)[:4],
    "mul sparse": lambda m, x: m * m,
    "add sparse": lambda m, x: m + m * 2,
    "sub sparse": lambda m, x: m - m * 3,
    "dense add": lambda m, x: torch.ones(4, 6, dtype=x.dtype) * x[0, 0] + m,
    "pow": lambda m, x: m.pow(2),
    "neg": lambda m, x: -m,
    "sum": lambda m, x: m.sum(),
    "sum 0": lambda m, x: torch.sparse.sum(m, 0),
    "sum 1": lambda m, x: m.sum(1),
    "sum keepdim": lambda m, x: m.sum(1, keepdim=True),
    "norm": lambda m, x: m.norm(),
    "softmax": lambda m, x: torch.sparse.softmax(m, 1),
    "log_softmax": lambda m, x: torch.sparse.log_softmax(m, 0),
    "index_select": lambda m, x: m.index_select(0, torch.tensor([2, 0, 2])),
    "select": lambda m, x: m.select(0, 2),
    "subscript": lambda m, x: m[2],
    "cat": lambda m, x: torch.cat([m, m * 2], 1),
    "unsqueeze": lambda m, x: m.unsqueeze(0),
    "sparse_mask": lambda m, x: (x[:4] @ x.t()).sparse_mask(m),
    **{name: _of_elements(name) for name in ("sin", "tanh", "sqrt", "abs", "relu", "expm1", "sign", "round")},
}
FACTS: dict[str, Callable[[Any], Any]] = {
    "layout": lambda m: m.layout,
    "shape": lambda m: tuple(m.shape),
    "dtype": lambda m: m.dtype,
    "is_sparse": lambda m: m.is_sparse,
    "is_sparse_csr": lambda m: m.is_sparse_csr,
    "nnz": lambda m: m._nnz(),
    "dim": lambda m: m.dim(),
    "sparse_dim": lambda m: m.sparse_dim(),
    "dense_dim": lambda m: m.dense_dim(),
    "numel": lambda m: m.numel(),
    "size": lambda m: m.size(0),
    "requires_grad": lambda m: m.requires_grad,
    "is_coalesced": lambda m: m.layout is not torch.sparse_coo or m.is_coalesced(),
    "len": lambda m: len(m),
    "isinstance": lambda m: isinstance(m, torch.Tensor),
}


@functools.cache
def served(layout: str) -> tuple[str, ...]:
    """The operations that PyTorch has for the layout, on the CPU."""
    found = []
    for name, operation in OPERATIONS.items():
        try:
            operation(sparse_of(layout), torch.ones(6, 3))
        except (RuntimeError, TypeError, ValueError, IndexError):
            continue
        found.append(name)
    return tuple(found)


def weighed(results: dict[str, torch.Tensor]) -> torch.Tensor:
    """A number that all elements of the results count in, differently."""
    total = torch.zeros((), dtype=next(iter(results.values())).dtype)
    for i, each in enumerate(results.values()):
        dense = each if each.layout is torch.strided else each.to_dense()
        dense = dense.nan_to_num(0, 0, 0)
        weights = torch.linspace(0.1 * i - 1, 1, dense.numel(), dtype=total.dtype).reshape(dense.shape)
        total = total + (dense * weights).sum()
    return total
