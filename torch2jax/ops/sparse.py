"""Sparse layouts, which JAX has no arrays for: whatever makes such a tensor raises one clear error."""

import torch

from ..errors import SparseLayoutError
from ..rules.registry import implements_tensors

aten = torch.ops.aten
Tensor = torch.Tensor


def _refuse(name: str, *functions) -> None:
    def rule(*args, **kwargs):
        raise SparseLayoutError(f"{name} makes a tensor of a sparse layout")

    implements_tensors(*functions)(rule)


for _layout in ("", "_coo", "_csr", "_csc", "_bsr", "_bsc"):
    _refuse(f"Tensor.to_sparse{_layout}()", getattr(Tensor, f"to_sparse{_layout}"))
for _layout in ("coo", "csr", "csc", "bsr", "bsc", "compressed"):
    _refuse(f"torch.sparse_{_layout}_tensor", getattr(torch, f"sparse_{_layout}_tensor"))
_refuse("sparse_mask", Tensor.sparse_mask)
_refuse("torch.sparse.spdiags", torch.sparse.spdiags)
