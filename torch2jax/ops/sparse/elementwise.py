"""Functions of elements: those that keep zero, multiples, sums, and products; of all of a dimension, too."""

import math
import numbers

import numpy as np
import torch

from ...rules.inplace import check_cast
from ...rules.registry import implements_sparse
from ...values.sparse import Sparse, make_sparse, size_of
from .conversion import converted, dense, masked_by, to_layout
from .rules import (
    added_at,
    coalesced,
    coo,
    dim_of,
    expect_known,
    filled,
    flat_indices,
    forms_of,
    implements_forms,
    implements_reflected,
    known_indices,
    length_of,
    of_known,
    spread,
    unique_indices,
    within,
    written,
)

Tensor = torch.Tensor
_COO = torch.sparse_coo

# Linear ones keep what is not coalesced as it is; others are of the sums.
_LINEAR = ("neg", "negative", "deg2rad", "rad2deg", "positive", "conj", "conj_physical", "real", "imag")
_KEEPING_ZERO = (
    *("abs", "absolute", "angle", "asin", "arcsin", "asinh", "arcsinh", "atan", "arctan", "atanh", "arctanh", "ceil"),
    *("erf", "erfinv", "expm1", "floor", "frac", "isinf", "isnan", "isneginf", "isposinf", "log1p", "nan_to_num"),
    *("relu", "round", "sgn", "sign", "signbit", "sin", "sinh", "sqrt", "square", "tan", "tanh", "trunc", "fix"),
)


def _of_elements(name: str, coalesces: bool):
    function = getattr(torch, name)

    def rule(input, *args, **kwargs):
        if coalesces and input.kind is _COO:
            input = coalesced(input)
        return input.of_values(function(input.elements, *args, **kwargs))

    return rule


_ALIASES = {"absolute": "abs", "fix": "trunc"} | {f"arc{x}": f"a{x}" for x in ("sin", "sinh", "tan", "tanh")}


def _in_place(name: str):
    function = getattr(torch, name)

    def rule(self, *args, **kwargs):
        if self.kind is _COO and not self.coalesced:
            raise RuntimeError(f"{_ALIASES.get(name, name)}_ requires coalesced input")
        return written(self, function(self, *args, **kwargs), in_values=True)

    return rule


for _name in _LINEAR:
    implements_forms(_name, in_values=True)(_of_elements(_name, False))
for _name in _KEEPING_ZERO:
    implements_forms(_name)(_of_elements(_name, True))
for _name in (*_KEEPING_ZERO, "deg2rad", "rad2deg"):
    implements_sparse(*forms_of(f"{_name}_"))(_in_place(_name))


@implements_sparse(torch.nn.functional.relu)
def relu(input, inplace=False):
    return torch.relu_(input) if inplace else torch.relu(input)


for _name in ("real", "imag"):
    implements_sparse(getattr(Tensor, _name).__get__)(_of_elements(_name, False))


@implements_forms("pow")
def pow(input, exponent):
    if not _is_number(exponent) or isinstance(exponent, torch.Tensor):
        raise RuntimeError("pow() of a sparse tensor takes a number as the exponent")
    if exponent == 0:
        raise RuntimeError(
            "pow(): cannot raise to zeroth power on sparse tensor; it would make the result tensor dense"
        )
    found = coalesced(input) if input.kind is _COO else input
    return filled(found, found.elements**exponent)


# Multiples.


def _is_number(value) -> bool:
    return isinstance(value, numbers.Number) or (
        isinstance(value, torch.Tensor) and not isinstance(value, Sparse) and value.ndim == 0
    )


def _multiplied(one, other):
    if not isinstance(one, Sparse):
        one, other = other, one
    if _is_number(other):
        return one.of_values(one.elements * other)
    if isinstance(other, Sparse):
        return _intersected(one, other)
    return _times_dense(one, other)


def _times_dense(sparse: Sparse, other: torch.Tensor) -> Sparse:
    _expect_size_of("a strided tensor", sparse, torch.broadcast_shapes(size_of(sparse), other.shape))
    mask = masked_by(other.expand(size_of(sparse)), sparse)
    return sparse.of_values(sparse.elements * mask.elements)


def _expect_size_of(what: str, sparse: Sparse, size) -> None:
    if tuple(size) != tuple(size_of(sparse)):
        raise RuntimeError(
            f"mul(): got a tensor of layout {sparse.kind} and size {list(size_of(sparse))}, and {what} with which it "
            f"is broadcast to {list(size)}: a sparse one cannot be, call .to_dense() first"
        )


def _intersected(one: Sparse, other: Sparse) -> Sparse:
    _expect_size_of("another", one, size_of(other))
    if one.kind is _COO and not (one.coalesced and other.coalesced):
        first = coalesced(one)
        found = _intersected(first, first if one is other else coalesced(other))
        found.coalesced = False  # in PyTorch it is not known to be
        return found
    if one is other or _have_same_indices(one, other):
        return one.of_values(one.elements * other.elements)
    return _product_of_elements(one, other)


@converted
def _product_of_elements(one: Sparse, other: Sparse) -> Sparse:
    one, other = coalesced(one), coalesced(to_layout(other, _COO))
    if _have_same_indices(one, other):
        return one.of_values(one.elements * other.elements)
    if one.sparse_ndim != other.sparse_ndim:
        raise RuntimeError("mul(): two sparse tensors must have the same number of sparse dimensions")
    first, second = (expect_known(x.index[0], "a product of two sparse tensors") for x in (one, other))
    found, which = unique_indices(np.concatenate([first, second], 1))
    left = np.full(found.shape[1], -1)
    right = left.copy()
    left[which[: first.shape[1]]] = np.arange(first.shape[1])
    right[which[first.shape[1] :]] = np.arange(second.shape[1])
    both = np.nonzero((left >= 0) & (right >= 0))[0]
    values = one.elements.index_select(0, of_known(left[both])) * other.elements.index_select(0, of_known(right[both]))
    return make_sparse(_COO, [of_known(found[:, both])], values, size_of(one), True)


def _have_same_indices(one: Sparse, other: Sparse) -> bool:
    """Returns True if both have elements at the same indices, in the same order."""
    if one.kind is not other.kind or not one.coalesced or not other.coalesced:
        return False
    if one.elements.shape != other.elements.shape:
        return False
    if all(a is b for a, b in zip(one.index, other.index, strict=True)):
        return True
    pairs = [(known_indices(a), known_indices(b)) for a, b in zip(one.index, other.index, strict=True)]
    return all(a is not None and b is not None and np.array_equal(a, b) for a, b in pairs)


implements_forms("mul", "multiply")(lambda input, other: _multiplied(input, other))
implements_reflected("mul")(_multiplied)


@implements_forms("div", "divide", "true_divide", in_values=True)
def div(input, other, *, rounding_mode=None):
    if not isinstance(input, Sparse) or isinstance(other, Sparse):
        raise RuntimeError(
            "Sparse division requires a dense tensor or a scalar divisor (no dimensions): call .to_dense() first"
        )
    if not _is_number(other):
        raise RuntimeError("Sparse division requires a scalar or zero-dim dense tensor divisor: call .to_dense() first")
    if rounding_mode is not None and input.kind is _COO:
        input = coalesced(input)
    return filled(input, torch.div(input.elements, other, rounding_mode=rounding_mode))


implements_forms("floor_divide", in_values=True)(lambda input, other: div(input, other, rounding_mode="floor"))


# Sums.


def _added(one, other, alpha=1):
    if isinstance(one, Sparse) and isinstance(other, Sparse):
        return _sum_of_sparse(one, other, alpha)
    if _is_number(one) or _is_number(other):
        raise RuntimeError(
            "add() of a sparse tensor and a number would have elements everywhere: call .to_dense() first"
        )
    if isinstance(one, Sparse):
        if one.kind is _COO:
            raise RuntimeError("add(sparse, dense) is not supported. Use add(dense, sparse) instead.")
        return dense(one) + other * alpha if alpha != 1 else dense(one) + other
    if tuple(one.shape) != tuple(size_of(other)):
        raise RuntimeError(
            f"add: expected 'self' and 'other' to have same size, but self has size {list(one.shape)} while other has "
            f"size {list(size_of(other))} (FYI: dense-sparse addition does not currently support broadcasting)"
        )
    return _added_to_strided(one, other, alpha)


def _added_to_strided(one: torch.Tensor, other: Sparse, alpha) -> torch.Tensor:
    """A strided tensor with the elements of a sparse one added where they are."""
    indices, values = coo(other)
    dtype = torch.promote_types(one.dtype, values.dtype)
    sparse = size_of(other)[: indices.shape[0]]
    rows = one.to(dtype).reshape(math.prod(sparse), *one.shape[len(sparse) :])
    values = values.to(dtype) if alpha == 1 else values.to(dtype) * alpha
    return added_at(rows, values, flat_indices(indices, sparse)).reshape(one.shape)


def _sum_of_sparse(one: Sparse, other: Sparse, alpha) -> Sparse:
    if tuple(size_of(one)) != tuple(size_of(other)):
        raise RuntimeError(
            f"add: expected sizes of 'self' and 'other' to match, but {list(size_of(one))} != {list(size_of(other))}"
        )
    elements = other.elements if alpha == 1 else other.elements * alpha
    if _have_same_indices(one, other):
        return one.of_values(one.elements + elements)
    return _sum_of_elements(one, other.of_values(elements))


@converted
def _sum_of_elements(one: Sparse, other: Sparse) -> Sparse:
    other = to_layout(other, _COO)
    if _have_same_indices(one, other):
        return one.of_values(one.elements + other.elements)
    dtype = torch.promote_types(one.dtype, other.dtype)
    if one.sparse_ndim != other.sparse_ndim:
        raise RuntimeError("add: expected 'self' and 'other' to have same number of sparse dimensions")
    index = torch.cat([one.index[0], other.index[0]], 1)
    values = torch.cat([one.elements.to(dtype), other.elements.to(dtype)])
    both = make_sparse(_COO, [index], values, size_of(one), False, length_of([one, other]))
    if one.coalesced and other.coalesced and known_indices(index) is not None:
        return coalesced(both)
    return both


implements_forms("add")(lambda input, other, *, alpha=1: _added(input, other, alpha))
implements_forms("sub", "subtract")(lambda input, other, *, alpha=1: _added(input, other, -alpha))
implements_reflected("add")(_added)
implements_reflected("sub")(lambda one, other: _added(one, other, -1))


def _add_in_place(self, other, *, alpha=1):
    if isinstance(self, Sparse):
        return written(self, _added(self, other, alpha))
    result = _added(self, other, alpha)
    check_cast(result, self)
    return self.copy_(result)


implements_sparse(Tensor.add_, Tensor.__iadd__, torch.ops.aten.add_)(_add_in_place)
implements_sparse(Tensor.sub_, Tensor.__isub__, torch.ops.aten.sub_)(
    lambda self, other, *, alpha=1: _add_in_place(self, other, alpha=-alpha)
)


def _mul_in_place(self, other):
    if isinstance(self, Sparse):
        return written(self, _multiplied(self, other))
    return self.mul_(dense(other))


implements_sparse(Tensor.mul_, Tensor.__imul__, torch.ops.aten.mul_)(_mul_in_place)


@implements_forms("is_same_size")
def is_same_size(input, other):
    return tuple(size_of(input)) == tuple(size_of(other))


# Of all elements, or of those along dimensions.


def _dims(dim, ndim: int) -> list[int]:
    if dim is None or (isinstance(dim, (tuple, list)) and not len(dim)):
        return list(range(ndim))
    found = [dim_of(x, ndim) for x in (dim if isinstance(dim, (tuple, list)) else (dim,))]
    if len(set(found)) != len(found):
        raise RuntimeError(f"dim {found[0]} appears multiple times in the list of dims")
    return sorted(found)


def _sum(input: Sparse, dim, keepdim: bool, dtype):
    shape = size_of(input)
    dims = _dims(dim, len(shape))
    elements = input.elements if dtype is None else input.elements.to(dtype)
    if len(dims) == len(shape):
        total = elements.sum()
        return total.reshape([1] * len(shape)) if keepdim else total
    return _sum_along(input.of_values(elements), dims, keepdim)


@converted
def _sum_along(input: Sparse, dims: list[int], keepdim: bool):
    elements, shape, sparse = input.elements, size_of(input), input.sparse_ndim
    summed = [x for x in dims if x >= sparse]
    if summed:
        elements = elements.sum([x - sparse + 1 for x in summed], keepdim=keepdim)
    kept = [x for x in range(sparse) if x not in dims]
    sizes = [1 if x in dims else shape[x] for x in range(len(shape))]
    size = sizes if keepdim else [shape[x] for x in range(len(shape)) if x not in dims]
    if not kept and not keepdim:
        return elements.sum(0, dtype=elements.dtype if not elements.dtype.is_floating_point else None)
    indices = input.index[0]
    if len(kept) == sparse:
        return make_sparse(_COO, [indices], elements, size, input.coalesced, input.length)
    rows = [indices[x] if x in kept else torch.zeros_like(indices[0]) for x in range(sparse) if keepdim or x in kept]
    found = coalesced(make_sparse(_COO, [torch.stack(rows)], elements, size, False))
    if keepdim:
        found.coalesced = False  # in PyTorch it is not known to be
    return found


@implements_sparse(torch.sum, Tensor.sum, torch.ops.aten.sum)
def sum(input, dim=None, keepdim=False, *, dtype=None):
    if dtype is None and not (input.dtype.is_floating_point or input.dtype.is_complex):
        dtype = torch.int64
    return _sum(input, dim, keepdim, dtype)


@implements_sparse(torch.sparse.sum, torch._sparse_sum)
def sparse_sum(input, dim=None, dtype=None):
    if dim is None or (isinstance(dim, (tuple, list)) and len(dim) == len(size_of(input))):
        return input.elements.sum(dtype=dtype or input.dtype)
    return _sum(input, dim, False, dtype)


@implements_sparse(torch.norm, Tensor.norm, torch.functional.norm, torch.ops.aten.norm)
def norm(input, p="fro", dim=None, keepdim=False, dtype=None):
    if keepdim or dtype is not None or len(_dims(dim, len(size_of(input)))) != len(size_of(input)):
        raise RuntimeError(
            f"norm_sparse currently only supports full reductions: got dim={dim}, keepdim={keepdim}, dtype={dtype} for "
            f"a tensor of layout {input.kind}; call .to_dense() first"
        )
    found = coalesced(input) if input.kind is _COO else input
    return torch.norm(found.elements.reshape(-1), 2 if p == "fro" else p)


@implements_sparse(torch.frobenius_norm)
def frobenius_norm(input, dim=None, keepdim=False):
    return norm(input, 2, dim, keepdim)


def _softmax(input: Sparse, dim: int, dtype, logarithm: bool):
    if not isinstance(input, Sparse) or input.kind is not _COO:
        raise RuntimeError("torch.sparse.softmax expects a tensor of layout torch.sparse_coo")
    function = torch.log_softmax if logarithm else torch.softmax
    found, shape = coalesced(input), size_of(input)
    dim = dim_of(dim, len(shape))
    elements = found.elements if dtype is None else found.elements.to(dtype)
    sparse = input.sparse_ndim
    if dim >= sparse:
        return filled(found, function(elements, dim - sparse + 1))
    indices = found.index[0]
    others = [x for x in range(sparse) if x != dim]
    sizes = [shape[x] for x in others]
    known = known_indices(indices)
    rest = (
        of_known(known[others]) if known is not None else torch.stack([indices[x] for x in others] or [indices[0] * 0])
    )
    pools = flat_indices(rest, sizes) if others else torch.zeros(indices.shape[1], dtype=torch.int64)
    mask, count = within(found), math.prod(sizes)
    if mask is not None:  # what pads weighs nothing, in whichever pool
        pools, elements = torch.where(mask, pools, 0), torch.where(spread(mask, elements), elements, -math.inf)
    index = pools.reshape(-1, *[1] * (elements.ndim - 1)).expand(elements.shape)
    zeros = torch.zeros(count, *elements.shape[1:], dtype=elements.dtype)
    with torch.no_grad():
        largest = zeros.scatter_reduce(0, index, elements.detach(), "amax", include_self=False)
    shifted = elements - largest.index_select(0, pools)
    exponentials = shifted.exp()
    totals = zeros.index_add(0, pools, exponentials)
    if logarithm:
        return filled(found, shifted - totals.index_select(0, pools).log())
    return filled(found, exponentials / totals.index_select(0, pools))


@implements_sparse(torch.sparse.softmax)
def sparse_softmax(input, dim, *, dtype=None):
    return _softmax(input, dim, dtype, False)


@implements_sparse(torch.sparse.log_softmax)
def sparse_log_softmax(input, dim, *, dtype=None):
    return _softmax(input, dim, dtype, True)
