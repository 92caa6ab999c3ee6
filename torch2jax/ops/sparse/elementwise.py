"""Elementwise functions: those that keep zero, multiples, sums, and products."""

import math
import numbers

import numpy as np
import torch

from ...rules.inplace import check_cast
from ...rules.registry import implements_sparse
from ...values.sparse import Sparse, make_sparse, size_of
from .conversion import dense, masked_by, to_layout
from .declaring import forms_of, implements_forms, implements_reflected, written
from .places import (
    added_at,
    coalesced,
    coo,
    filled,
    first_places,
    flat_places,
    known_places,
    length_of,
    of_known,
    places,
    room,
)
from .shapes import widened

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

    def rule(input, *args, out=None, **kwargs):
        if coalesces and input.kind is _COO:
            input = coalesced(input)
        result = input.of_values(function(input.elements, *args, **kwargs))
        return result if out is None else written(out, to_layout(result, out.kind), in_values=True)

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


@implements_forms("threshold_backward", "_threshold")
def threshold_backward(grad_output, self, threshold):
    if threshold < 0:
        raise RuntimeError("threshold_backward of sparse tensors needs a threshold that is not negative")
    return grad_output.of_values(grad_output.elements * (self.elements > threshold))


# Multiples.


def _is_number(value) -> bool:
    return isinstance(value, numbers.Number) or (
        isinstance(value, torch.Tensor) and not isinstance(value, Sparse) and value.ndim == 0
    )


def _number(value):
    """A number, or the tensor of one, also of a sparse one without dimensions."""
    return dense(value) if isinstance(value, Sparse) and not size_of(value) else value


def _multiplied(one, other):
    if isinstance(other, torch.Tensor) and size_of(other):
        one = _number(one)
    if isinstance(one, torch.Tensor) and size_of(one):
        other = _number(other)
    if not isinstance(one, Sparse):
        one, other = other, one
    if not isinstance(one, Sparse):
        return one * other
    if _is_number(other):
        return one.of_values(one.elements * other)
    if isinstance(other, Sparse):
        return _intersected(one, other)
    return _times_dense(one, other)


def _times_dense(sparse: Sparse, other: torch.Tensor) -> Sparse:
    shape = torch.broadcast_shapes(size_of(sparse), other.shape)
    if tuple(shape) != tuple(size_of(sparse)):
        return _times_dense(widened(sparse, tuple(shape)), other)
    mask = masked_by(other.expand(shape), sparse)
    return sparse.of_values(sparse.elements * mask.elements)


def _intersected(one: Sparse, other: Sparse) -> Sparse:
    if tuple(size_of(one)) != tuple(size_of(other)):
        shape = tuple(torch.broadcast_shapes(size_of(one), size_of(other)))
        one, other = (x if tuple(size_of(x)) == shape else widened(x, shape) for x in (one, other))
    if one.kind is _COO and not (one.coalesced and other.coalesced):
        first = coalesced(one)
        found = _intersected(first, first if one is other else coalesced(other))
        found.coalesced = False  # in PyTorch it is not known to be
        return found
    if one is other or _are_alike(one, other):
        return one.of_values(one.elements * other.elements)
    if one.kind is not _COO or other.kind is not _COO:
        kind, block = one.kind, one.block or None
        return to_layout(_intersected(to_layout(one, _COO), to_layout(other, _COO)), kind, block)
    if one.sparse_ndim != other.sparse_ndim:
        raise RuntimeError("mul(): two sparse tensors must have the same number of sparse dimensions")
    first, second = (places(x.index[0], "a product of two sparse tensors") for x in (one, other))
    found, which = first_places(np.concatenate([first, second], 1))
    left = np.full(found.shape[1], -1)
    right = left.copy()
    left[which[: first.shape[1]]] = np.arange(first.shape[1])
    right[which[first.shape[1] :]] = np.arange(second.shape[1])
    both = np.nonzero((left >= 0) & (right >= 0))[0]
    values = one.elements.index_select(0, of_known(left[both])) * other.elements.index_select(0, of_known(right[both]))
    return make_sparse(_COO, [of_known(found[:, both])], values, size_of(one), True)


def _are_alike(one: Sparse, other: Sparse) -> bool:
    """Whether both have elements at the same places, in the same order."""
    if one.kind is not other.kind or not one.coalesced or not other.coalesced:
        return False
    if one.elements.shape != other.elements.shape:
        return False
    if all(a is b for a, b in zip(one.index, other.index, strict=True)):
        return True
    pairs = [(known_places(a), known_places(b)) for a, b in zip(one.index, other.index, strict=True)]
    return all(a is not None and b is not None and np.array_equal(a, b) for a, b in pairs)


@implements_forms("mul", "multiply")
def mul(input, other, *, out=None):
    result = _multiplied(input, other)
    return result if out is None else written(out, to_layout(result, out.kind))


implements_reflected("mul")(_multiplied)


@implements_forms("div", "divide", "true_divide", in_values=True)
def div(input, other, *, rounding_mode=None, out=None):
    result = _divided(input, other, rounding_mode)
    return result if out is None else written(out, to_layout(result, out.kind))


def _divided(input, other, rounding_mode):
    other = _number(other)
    if not isinstance(input, Sparse) or isinstance(other, Sparse):
        raise RuntimeError("Sparse division requires a dense tensor or a scalar divisor (no dimensions)")
    if not _is_number(other):
        if input.kind is not _COO:
            other = masked_by(other.expand(size_of(input)), input).elements
            return filled(input, torch.div(input.elements, other, rounding_mode=rounding_mode))
        raise RuntimeError("Sparse division requires a scalar or zero-dim dense tensor divisor")
    if rounding_mode is not None and input.kind is _COO:
        input = coalesced(input)
    return filled(input, torch.div(input.elements, other, rounding_mode=rounding_mode))


@implements_forms("floor_divide", in_values=True)
def floor_divide(input, other):
    return _divided(input, other, "floor")


# Sums.


def _added(one, other, alpha=1):
    if isinstance(one, Sparse) and isinstance(other, Sparse):
        return _sum_of_sparse(one, other, alpha)
    one, other = _number(one), _number(other)
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
    return added_at(rows, values, flat_places(indices, sparse)).reshape(one.shape)


def _sum_of_sparse(one: Sparse, other: Sparse, alpha) -> Sparse:
    if tuple(size_of(one)) != tuple(size_of(other)):
        if one.kind is not _COO:
            raise RuntimeError(
                "torch.add: Expected input tensors to have the same shape, but got tensor `self` with shape "
                f"{list(size_of(one))} and tensor `other` with shape {list(size_of(other))}"
            )
        raise RuntimeError(
            f"add: expected sizes of 'self' and 'other' to match, but {list(size_of(one))} != {list(size_of(other))}"
        )
    elements = other.elements if alpha == 1 else other.elements * alpha
    if _are_alike(one, other):
        return one.of_values(one.elements + elements)
    other = other.of_values(elements)
    if one.kind is not _COO:
        kind, block = one.kind, one.block or None
        return to_layout(_sum_of_sparse(to_layout(one, _COO), to_layout(other, _COO), 1), kind, block)
    if other.kind is not _COO:
        other = to_layout(other, _COO)
    if one.sparse_ndim != other.sparse_ndim:
        dtype = torch.promote_types(one.dtype, other.dtype)
        for empty, rest in ((other, one), (one, other)):
            if not room(empty):
                return rest.of_values(rest.elements.to(dtype))
        raise RuntimeError("add: expected 'self' and 'other' to have same number of sparse dimensions")
    dtype = torch.promote_types(one.dtype, other.dtype)
    index = torch.cat([one.index[0], other.index[0]], 1)
    values = torch.cat([one.elements.to(dtype), other.elements.to(dtype)])
    both = make_sparse(_COO, [index], values, size_of(one), False, length_of([one, other]))
    if one.coalesced and other.coalesced and known_places(index) is not None:
        return coalesced(both)
    return both


@implements_forms("add")
def add(input, other, *, alpha=1, out=None):
    result = _added(input, other, alpha)
    if out is None:
        return result
    return written(out, to_layout(result, out.kind)) if isinstance(out, Sparse) else out.copy_(result)


@implements_forms("sub", "subtract")
def sub(input, other, *, alpha=1):
    return _added(input, other, -alpha)


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


# Of all elements.


@implements_forms("equal")
def equal(input, other):
    if tuple(size_of(input)) != tuple(size_of(other)):
        return False
    return torch.equal(dense(input), dense(other))


@implements_forms("isclose", "eq", "ne", "lt", "le", "gt", "ge")
def _compare(input, other, *args, **kwargs):
    del args, kwargs
    name = next(x.kind for x in (input, other) if isinstance(x, Sparse))
    raise NotImplementedError(f"comparisons are not defined for tensors of layout {name}: call .to_dense() first")


@implements_forms("allclose")
def allclose(input, other, rtol=1e-05, atol=1e-08, equal_nan=False):
    return torch.allclose(dense(input), dense(other), rtol, atol, equal_nan)


@implements_forms("is_nonzero")
def is_nonzero(input):
    return bool(dense(input))


@implements_forms("is_same_size")
def is_same_size(input, other):
    return tuple(size_of(input)) == tuple(size_of(other))


@implements_forms("nonzero")
def nonzero(input, *, as_tuple=False):
    return torch.nonzero(dense(input), as_tuple=as_tuple)
