"""Diagonals and triangles of matrices with one or two data-dependent dimensions, and pairs of rows."""

import itertools
from typing import Any

import torch
import torch.nn.functional as F

from ..internals.tensors import canonicalize_dim
from ..rules.registry import implements_by_length, implements_masked
from ..runtime.errors import TracedValueError
from ..values.masked import Mask, in_compact_order, index_along, masked, unknown_dims, unnested

Tensor = torch.Tensor


def _above(x: Any) -> Any:
    """The distance of each element above the diagonal of matrices ``(..., n, k)``."""
    return index_along(x, x.ndim - 1) - index_along(x, x.ndim - 2)


def _nothing(x: Any) -> torch.Tensor:
    return torch.zeros((), dtype=x.dtype)


@implements_masked(torch.triu, Tensor.triu)
def triu(input, diagonal=0):
    return torch.where(_above(input) >= diagonal, input, _nothing(input))


@implements_masked(torch.tril, Tensor.tril)
def tril(input, diagonal=0):
    return torch.where(_above(input) <= diagonal, input, _nothing(input))


@implements_masked(Tensor.fill_diagonal_)
def fill_diagonal_(self, fill_value, wrap=False):
    if self.ndim != 2 or wrap:
        raise TracedValueError("Tensor.fill_diagonal_, of more than two dimensions or wrapped, of a mask selection")
    return self.masked_fill_(_above(self) == 0, fill_value)


@implements_masked(torch.diagonal, Tensor.diagonal)
def diagonal(input, offset=0, dim1=0, dim2=1):
    """A copy, which PyTorch's is not."""
    dim1, dim2 = (canonicalize_dim(input.ndim, dim) for dim in (dim1, dim2))
    tensor, masks = unnested(in_compact_order(input))
    both = [masks.get(dim) for dim in (dim1, dim2)]
    found = tensor.diagonal(offset, dim1, dim2)
    rest = {dim - (dim > dim1) - (dim > dim2): x for dim, x in masks.items() if dim not in (dim1, dim2)}
    if any(leading is not None for leading in both):
        starts = max(-offset, 0), max(offset, 0)
        ends = [
            (leading.length if leading is not None else torch.tensor(tensor.shape[dim])) - start
            for leading, dim, start in zip(both, (dim1, dim2), starts, strict=True)
        ]
        is_square = not offset and all(leading is not None for leading in both) and both[0].is_like(both[1])
        count = both[0].length if is_square else torch.minimum(*ends).clamp(min=0)
        rest[found.ndim - 1] = Mask.first(found.shape[-1], count)
    return masked(found, rest)


@implements_masked(torch.diag_embed, Tensor.diag_embed)
def diag_embed(input, offset=0, dim1=-2, dim2=-1):
    if (offset, dim1, dim2) != (0, -2, -1):
        raise TracedValueError("torch.diag_embed beside the diagonal, or not as the last dimensions, of a selection")
    index = index_along(input, input.ndim - 1)
    return torch.where(index.unsqueeze(-1) == index.unsqueeze(-2), input.unsqueeze(-1), _nothing(input))


# By lengths.


@implements_by_length(torch.eye)
def eye(n, m=None, **options):
    is_it = torch.arange(n)[:, None] == torch.arange(n if m is None else m)
    return is_it.to(options.get("dtype") or torch.get_default_dtype())


def _indices(of_triangle):
    def indices(row, col, offset=0, *, dtype=torch.int64, **options):
        del options
        above = torch.arange(col) - torch.arange(row)[:, None]
        return of_triangle(above, offset).nonzero().T.to(dtype)

    return indices


implements_by_length(torch.triu_indices)(_indices(torch.ge))
implements_by_length(torch.tril_indices)(_indices(torch.le))


# Pairs.


def _pairs(input, with_replacement: bool = False):
    """The indices of pairs of rows, of which the second comes later, or may be the same."""
    index = index_along(input, 0).flatten()
    later = index[None] - index[:, None]
    return torch.where(later >= 0 if with_replacement else later > 0)


@implements_masked(torch.combinations)
def combinations(input, r=2, with_replacement=False):
    if r != 2:
        raise TracedValueError("torch.combinations of other than two of a boolean-mask selection")
    return torch.stack([input[positions] for positions in _pairs(input, with_replacement)], 1)


@implements_masked(torch.pdist, F.pdist)
def pdist(input, p=2.0):
    one, other = (input[positions] for positions in _pairs(input))
    return torch.linalg.vector_norm(one - other, p, 1)


@implements_masked(torch.meshgrid)
def meshgrid(*tensors, indexing="ij"):
    tensors = list(tensors[0]) if len(tensors) == 1 and isinstance(tensors[0], (tuple, list)) else list(tensors)
    if indexing not in ("ij", "xy"):
        raise RuntimeError(f'torch.meshgrid: indexing must be one of "xy" or "ij", but received: {indexing}')
    sizes = [x.shape[0] for x in tensors]
    found = [x.reshape(*[1] * i, -1, *[1] * (len(tensors) - 1 - i)).expand(*sizes) for i, x in enumerate(tensors)]
    return tuple(x.transpose(0, 1) for x in found) if indexing == "xy" and len(found) > 1 else tuple(found)


@implements_masked(torch.cartesian_prod)
def cartesian_prod(*tensors):
    return tensors[0] if len(tensors) == 1 else torch.stack([x.flatten() for x in meshgrid(*tensors)], 1)


@implements_masked(torch.broadcast_tensors)
def broadcast_tensors(*tensors):
    tensors = list(tensors[0]) if len(tensors) == 1 and isinstance(tensors[0], (tuple, list)) else list(tensors)
    ndim = max(x.ndim for x in tensors)
    sizes: list[Any] = [1] * ndim
    for x, dim in itertools.product(tensors, range(-ndim, 0)):
        if -dim <= x.ndim and (x.ndim + dim in unknown_dims(x) or x.shape[dim] != 1):
            sizes[dim] = x.shape[dim]
    return tuple(x.expand(*sizes) for x in tensors)
