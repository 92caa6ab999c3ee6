"""Matrices with data-dependent dimensions: products, ``einsum``, distances of rows, diagonals and triangles."""

import itertools
from typing import Any

import torch
import torch.nn.functional as F

from ..internals.tensors import canonicalize_dim
from ..rules.registry import implements_by_length, implements_masked
from ..runtime.errors import TracedValueError
from ..values.masked import (
    Mask,
    aligned_along,
    as_long,
    in_compact_order,
    index_along,
    masked,
    ndim_of,
    unknown_dims,
    unnested,
    zeroed,
)

Tensor = torch.Tensor


LETTERS = "abcdefghijklmnopqrstuvw"
"""Names of dimensions in equations."""


def _matmul(what: str):
    def matmul(input, other):
        one, two = ndim_of(input), ndim_of(other)
        batch = LETTERS[: max(one, two, 2) - 2]
        first = "x" if one == 1 else f"{batch[len(batch) - one + 2 :]}zx"
        second = "x" if two == 1 else f"{batch[len(batch) - two + 2 :]}xy"
        result = f"{batch}{'z' * (one > 1)}{'y' * (two > 1)}"
        strict = f"x{batch}" if what == "torch.bmm" else "x"
        return _contracted(torch.matmul, what, [first, second], result, [input, other], strict)

    return matmul


def _contracted(function, what: str, letters: list[str], result: str, operands: list, strict: str = "") -> Any:
    """A contraction with letters for dimensions, as in ``einsum``: it sums over those that the result lacks.

    Args:
        strict: the dimensions along which a size of one fits no other.
    """
    dims = [{names[dim]: dim for dim in unknown_dims(x)} for names, x in zip(letters, operands, strict=True)]
    unknown = dict.fromkeys(letter for each in dims for letter in each)
    for letter in unknown:
        if any(names.count(letter) > 1 for names in letters):
            raise TracedValueError(f"{what} along a diagonal of boolean-mask selections")
        at = [names.find(letter) for names in letters]
        beside = [(x, dim) for x, dim in zip(operands, at, strict=True) if dim >= 0 and dim not in unknown_dims(x)]
        sizes = {x.shape[dim] for x, dim in beside} - (set() if letter in strict else {1})
        if sizes:
            size, has = max(sizes), lambda x, dim: dim in unknown_dims(x)
            operands = [as_long(x, dim, size) if has(x, dim) else x for x, dim in zip(operands, at, strict=True)]
        else:
            operands = aligned_along(operands, [each.get(letter) for each in dims], what)
    tensors, masks = [], {}
    for names, x in zip(letters, operands, strict=True):
        tensor, found = unnested(x, zeroed)
        tensors.append(tensor)
        masks.update({names[dim]: mask for dim, mask in found.items()})
    made = function(*tensors)
    return masked(made, {result.index(letter): mask for letter, mask in masks.items() if letter in result})


for _functions in (
    (torch.matmul, Tensor.matmul, Tensor.__matmul__),
    (torch.mm, Tensor.mm),
    (torch.mv, Tensor.mv),
    (torch.bmm, Tensor.bmm),
    (torch.dot, Tensor.dot),
):
    implements_masked(*_functions)(_matmul(f"torch.{_functions[0].__name__}"))


@implements_masked(torch.outer, Tensor.outer, torch.ger, Tensor.ger)
def outer(input, vec2):
    return _contracted(torch.outer, "torch.outer", ["x", "y"], "xy", [input, vec2])


@implements_masked(torch.einsum)
def einsum(equation, *operands):
    operands = list(operands[0]) if len(operands) == 1 and isinstance(operands[0], (tuple, list)) else list(operands)
    if not isinstance(equation, str) or "." in equation:
        raise TracedValueError("torch.einsum by an equation with an ellipsis, or by lists, of a boolean-mask selection")
    left, arrow, right = equation.replace(" ", "").partition("->")
    letters = left.split(",")
    if not arrow:
        right = "".join(sorted(x for x in {*left} - {","} if left.count(x) == 1))
    if [len(x) for x in letters] != list(map(ndim_of, operands)):
        raise RuntimeError(
            f"einsum(): got {equation!r} and operands of {list(map(ndim_of, operands))} dimensions; wanted a letter "
            "for each dimension"
        )
    return _contracted(lambda *x: torch.einsum(equation, *x), "torch.einsum", letters, right, operands)


@implements_masked(torch.cdist)
def cdist(x1, x2, p=2.0, compute_mode="use_mm_for_euclid_dist_if_necessary"):
    one, two = ndim_of(x1), ndim_of(x2)
    batch = LETTERS[: max(one, two) - 2]
    letters = [f"{batch[len(batch) - one + 2 :]}zx", f"{batch[len(batch) - two + 2 :]}yx"]
    distances = lambda *x: torch.cdist(*x, p=p, compute_mode=compute_mode)
    return _contracted(distances, "torch.cdist", letters, f"{batch}zy", [x1, x2], "x")


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
