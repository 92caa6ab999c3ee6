"""Products of matrices and vectors: each is one ``lax.dot_general``, with no transposed copy of an operand."""

import functools
import math
import re

import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from ..internals.dispatch import DisableTorchDispatch
from ..internals.tensors import tree_leaves
from ..rules.options import Tag
from ..rules.promotion import Promotion, kind_of, promoted
from ..rules.registry import implements, implements_tensors
from ..rules.rule import of_metadata
from ..tensors.dtypes import HALF, NUMBERS, Takes, canonical, expect_fits
from ..tensors.view_kind import dot_general, rows_of
from .arrays import cast, is_complex, is_float8, is_half, like

Tensor = torch.Tensor
multiplied = functools.partial(implements, takes=NUMBERS)
GROUPED: Takes = HALF | {torch.float32}


@multiplied(torch.matmul, torch.linalg.matmul, Tensor.__matmul__, tags=[Tag.PRODUCT])
def matmul(input, other):
    """The product of stacks of matrices (or vectors) under the broadcasting rules of ``torch.matmul``."""
    rank, other_rank = input.ndim, other.ndim
    if rank == 0 or other_rank == 0:
        raise RuntimeError(f"both arguments to matmul need to be at least 1D, but they are {rank}D and {other_rank}D")
    if rank <= 2 and other_rank <= 2:
        return _product(input, other)
    if other_rank == 1:
        _check_sizes(input, other)
        return _contract(input, other, (rank - 1,), (0,))
    if rank == 1:
        _check_sizes(input, other)
        return _contract(other, input, (other_rank - 2,), (0,))
    return _batched(input, other)


def _batched(input, other):
    batch = _broadcast_batch(input.shape[:-2], other.shape[:-2])
    rows, columns = input.shape[-2], other.shape[-1]
    if math.prod(other.shape[:-2]) == 1 and input.shape[:-2] == batch:
        _check_sizes(input, other)
        stacked = lax.reshape(input, (math.prod(batch) * rows, input.shape[-1]))
        return lax.reshape(_product(stacked, lax.reshape(other, other.shape[-2:])), (*batch, rows, columns))
    _check_batch_sizes(input, other)
    operands = (with_batch(operand, batch) for operand in (input, other))
    dims = tuple(range(len(batch)))
    return _contract(*operands, (len(batch) + 1,), (len(batch),), dims)


def _broadcast_batch(first, second) -> tuple[int, ...]:
    try:
        return np.broadcast_shapes(first, second)
    except ValueError:
        raise RuntimeError(
            f"matmul: the batch dimensions {list(first)} and {list(second)} of its arguments do not broadcast"
        ) from None


def with_batch(array, batch):
    """An array of matrices, broadcast to these dimensions before them."""
    shape = (*batch, *array.shape[-2:])
    if array.shape == shape:
        return array
    return lax.broadcast_in_dim(array, shape, range(len(shape) - array.ndim, len(shape)))


def _contract(left, right, left_dims, right_dims, batch=(), dtype=None):
    """``lax.dot_general`` with equal batch dimensions, for operands of one dtype, which is by default the result's."""
    found, other = left.dtype, right.dtype
    if found != other:
        raise RuntimeError(f"expected both operands to have the same dtype, but got: {found} != {other}")
    dims = (left_dims, right_dims), (batch, batch)
    return dot_general(left, right, dims, dtype or found)


def _product(left, right, dtype=None):
    """The product of two operands of one or two dimensions."""
    _check_sizes(left, right)
    return _contract(left, right, (left.ndim - 1,), (0,), dtype=dtype)


def _check_sizes(left, right) -> None:
    rows, columns = left.shape, right.shape
    if rows[-1] == columns[-2 if len(columns) > 1 else 0]:
        return
    if left.ndim == right.ndim == 1:
        raise RuntimeError(
            f"inconsistent tensor size, expected tensor {list(left.shape)} and src {list(right.shape)} to have the "
            f"same number of elements, but got {left.size} and {right.size} elements respectively"
        )
    if right.ndim == 1:
        raise RuntimeError(f"size mismatch, got input {list(left.shape)}, vec {list(right.shape)}")
    raise RuntimeError(
        f"mat1 and mat2 shapes cannot be multiplied ({_sizes(left)} and {'x'.join(map(str, right.shape[-2:]))})"
    )


def _sizes(array) -> str:
    rows = (math.prod(array.shape[:-1]),) if array.ndim > 1 else (1,)
    return "x".join(map(str, (*rows, array.shape[-1])))


def _check_batch_sizes(batch1, batch2) -> None:
    if batch1.shape[-1] != batch2.shape[-2]:
        raise RuntimeError(
            f"Expected size for first two dimensions of batch2 tensor to be: "
            f"[{math.prod(batch2.shape[:-2])}, {batch1.shape[-1]}] but got: "
            f"[{math.prod(batch2.shape[:-2])}, {batch2.shape[-2]}]."
        )


def _check_ndim(function: str, **operands) -> None:
    """Raises unless each operand, given as ``name=(array, ndim)``, has that many dimensions."""
    for name, (array, ndim) in operands.items():
        if array.ndim != ndim:
            kind = {1: "a vector", 2: "a matrix", 3: "a 3D tensor"}[ndim]
            raise RuntimeError(f"{function}: {name} must be {kind}, but got a {array.ndim}D tensor")


@multiplied(torch.mm, tags=[Tag.PRODUCT])
def mm(input, mat2):
    _check_ndim("mm", self=(input, 2), mat2=(mat2, 2))
    return _product(input, mat2)


@multiplied(torch.bmm, tags=[Tag.PRODUCT])
def bmm(input, mat2):
    return _products(input, mat2)


def _products(input, mat2, dtype=None):
    _check_ndim("bmm", batch1=(input, 3), batch2=(mat2, 3))
    if input.shape[0] != mat2.shape[0] or input.shape[2] != mat2.shape[1]:
        raise RuntimeError(
            f"Expected size for first two dimensions of batch2 tensor to be: "
            f"[{input.shape[0]}, {input.shape[2]}] but got: [{mat2.shape[0]}, {mat2.shape[1]}]."
        )
    return _contract(input, mat2, (2,), (1,), (0,), dtype)


@multiplied(torch.mv, tags=[Tag.PRODUCT])
def mv(input, vec):
    _check_ndim("mv", input=(input, 2), vec=(vec, 1))
    return _product(input, vec)


@multiplied(torch.dot, tags=[Tag.PRODUCT])
def dot(input, tensor):
    if input.ndim != 1 or tensor.ndim != 1:
        raise RuntimeError(f"1D tensors expected, but got {input.ndim}D and {tensor.ndim}D tensors")
    return _product(input, tensor)


@multiplied(torch.vdot)
def vdot(input, other):
    return dot(lax.conj(input) if is_complex(input) else input, other)


@of_metadata
def _with_numbers_promoted(input, other) -> tuple[tuple, dict]:
    """Adds the dtype of an elementwise product, which a product with a 0-d operand is, as in `torch.mul`."""
    if input.ndim and other.ndim:
        return (input, other), {}
    _, dtype = promoted(Promotion.NO_OPMATH, (kind_of(input), kind_of(other)))
    return (input, other), {"common": canonical(dtype)}


@multiplied(torch.inner, prepare=_with_numbers_promoted)
def inner(input, other, *, common=None):
    if input.ndim == 0 or other.ndim == 0:
        shape = np.broadcast_shapes(input.shape, other.shape)
        return lax.mul(*(jnp.broadcast_to(cast(x, common), shape) for x in (input, other)))
    if input.shape[-1] != other.shape[-1]:
        raise RuntimeError(
            f"inner() the last dimension must match on both input tensors but got shapes {list(input.shape)} and "
            f"{list(other.shape)}"
        )
    return _contract(input, other, (input.ndim - 1,), (other.ndim - 1,))


# Products that are added to something: beta * input + alpha * product. With beta 0 the input is not looked at.


def _added_dtypes(input, *factors, beta=1, alpha=1):
    """Numbers; beta and alpha must be ones that the dtype holds, or single precision for half."""
    del factors
    for number in (beta, alpha):
        expect_fits(number, torch.float32 if input.dtype in HALF else input.dtype)
    return NUMBERS


added = functools.partial(implements, takes=_added_dtypes)


def _scaled(array, factor):
    # PyTorch, too, truncates a factor of integers to an integer.
    return array if factor == 1 else lax.mul(array, like(array, factor))


def _added(input, multiply, left, right, beta, alpha):
    if input.dtype != left.dtype:
        raise RuntimeError(f"self and the product must have the same dtype, but got {input.dtype} and {left.dtype}")
    # As in PyTorch, half precision is scaled and added in single precision; 8-bit floats are added in it.
    widens = is_float8(left) or (is_half(left) and (beta, alpha) != (1, 1))
    product = _scaled(multiply(left, right, np.float32 if widens else left.dtype), alpha)
    if beta == 0:
        return cast(product, left.dtype)
    try:
        np.broadcast_shapes(input.shape, product.shape)
    except ValueError:
        raise RuntimeError(
            f"The expanded size of the tensor {list(product.shape)} must match the existing size "
            f"{list(input.shape)} at non-singleton dimensions"
        ) from None
    input = _scaled(cast(input, product.dtype), beta)
    if input.ndim < product.ndim and input.shape == product.shape[product.ndim - input.ndim :]:
        input = rows_of(input, product)
    elif input.shape != product.shape:
        input = lax.broadcast_in_dim(input, product.shape, range(product.ndim - input.ndim, product.ndim))
    return cast(lax.add(input, product), left.dtype)


@added(torch.addmm, tags=[Tag.PRODUCT])
def addmm(input, mat1, mat2, *, beta=1, alpha=1):
    _check_ndim("addmm", mat1=(mat1, 2), mat2=(mat2, 2))
    return _added(input, _product, mat1, mat2, beta, alpha)


@added(torch.addmv)
def addmv(input, mat, vec, *, beta=1, alpha=1):
    _check_ndim("addmv", mat=(mat, 2), vec=(vec, 1))
    return _added(input, _product, mat, vec, beta, alpha)


@added(torch.baddbmm, tags=[Tag.PRODUCT])
def baddbmm(input, batch1, batch2, *, beta=1, alpha=1):
    return _added(input, _products, batch1, batch2, beta, alpha)


@added(torch.addbmm)
def addbmm(input, batch1, batch2, *, beta=1, alpha=1):
    _check_ndim("addbmm", batch1=(batch1, 3), batch2=(batch2, 3))
    _check_batch_sizes(batch1, batch2)
    if batch1.shape[0] != batch2.shape[0]:
        raise RuntimeError(
            f"batch1 and batch2 must have same number of batches, got {batch1.shape[0]} and {batch2.shape[0]}"
        )
    multiply = lambda batch1, batch2, dtype: _contract(batch1, batch2, (0, 2), (0, 1), dtype=dtype)
    return _added(input, multiply, batch1, batch2, beta, alpha)


@implements_tensors(torch.Tensor.addbmm_, torch.ops.aten.addbmm_.default)
def addbmm_(input, batch1, batch2, *, beta=1, alpha=1):
    result = torch.addbmm(input, batch1, batch2, beta=beta, alpha=alpha)
    if result.shape != input.shape:  # its like refuse that
        input.resize_(result.shape)
    return input.copy_(result)


# Mixtures of experts: consecutive rows, columns, or terms of the sum form groups, and each has a matrix of its own.


@implements(torch.ops.aten._grouped_mm, takes=GROUPED)
def _grouped_mm(input, mat2, offs=None, bias=None, out_dtype=None):
    if bias is not None:
        raise RuntimeError("grouped_mm: a bias is not supported yet; add it to the result")
    if out_dtype is not None and canonical(out_dtype) != input.dtype:
        raise RuntimeError(f"grouped_mm: out_dtype must be the dtype of mat_a, {input.dtype}, but got {out_dtype}")
    if input.ndim not in (2, 3) or mat2.ndim not in (2, 3):
        raise RuntimeError(f"grouped_mm: mat_a and mat_b must be 2D or 3D, but they are {input.ndim}D and {mat2.ndim}D")
    if (offs is None) != (input.ndim == mat2.ndim == 3):
        raise RuntimeError("grouped_mm: wanted offs if and only if mat_a or mat_b is a matrix")
    if offs is None:
        return bmm(input, mat2)
    if input.shape[-1] != mat2.shape[-2]:
        raise RuntimeError(f"grouped_mm: shapes {list(input.shape)} and {list(mat2.shape)} cannot be multiplied")
    groups = {len(stack) for stack in (input, mat2) if stack.ndim == 3}
    if groups and groups != {offs.size}:
        raise RuntimeError(f"grouped_mm: got {offs.size} offsets for {groups.pop()} matrices")
    sizes = lax.sub(offs, lax.pad(offs, np.int32(0), [(1, -1, 0)]))
    if input.ndim == 3:  # a transposed product, since JAX has the groups in its first operand
        swapped = _grouped(mat2, input, sizes, ((0,), (2,)), ragged=1, group=0)
        return lax.transpose(swapped, (1, 0))
    if mat2.ndim == 3:
        return _grouped(input, mat2, sizes, ((1,), (1,)), ragged=0, group=0)
    return _grouped(input, mat2, sizes, ((1,), (0,)), ragged=1, group=None)


def _grouped(left, right, sizes, contracted, ragged: int, group: int | None):
    dimensions = lax.RaggedDotDimensionNumbers(
        dot_dimension_numbers=(contracted, ((), ())),
        lhs_ragged_dimensions=[ragged],
        rhs_group_dimensions=[] if group is None else [group],
    )
    return lax.ragged_dot_general(left, right, sizes, dimensions, preferred_element_type=left.dtype)


# Products named by their indices. Traced, jnp.einsum leaves its dot_generals and nothing around them.


def _dtype_of_einsum(*arguments, path=None):
    """PyTorch's dtype for integers, which become int64 where it sums on the way. Otherwise the operands' dtype."""

    def without_data(value):
        if isinstance(value, (list, tuple)):
            return [without_data(item) for item in value]
        return torch.empty(value.shape, dtype=value.dtype, device="meta") if isinstance(value, torch.Tensor) else value

    bare = without_data(arguments)
    tensors = [value for item in bare for value in (item if isinstance(item, list) else [item])]
    if any(value.is_floating_point() or value.is_complex() for value in tensors if isinstance(value, torch.Tensor)):
        return None
    with DisableTorchDispatch():
        return torch.functional.einsum(*bare).dtype


def _dtypes_of_factors(*arguments, path=None):
    """One operand alone is not multiplied."""
    operands = [x for x in tree_leaves(arguments) if hasattr(x, "dtype")]
    return NUMBERS if len(operands) > 1 else None


@implements(torch.einsum, takes=_dtypes_of_factors, dtype=_dtype_of_einsum)
def einsum(equation, *operands, path=None):
    if not isinstance(equation, str):
        return _einsum((equation, *operands), (equation, *operands)[::2])
    if len(operands) == 1 and isinstance(operands[0], (list, tuple)):
        operands = tuple(operands[0])
    _check_equation(equation)
    return _einsum((equation.replace(" ", ""), *operands), operands)


def _check_equation(equation: str) -> None:
    """Refuses equations that PyTorch refuses and jnp.einsum takes: separate dots, and subscripts other than letters."""
    if parted := re.search(r"\.\s+\.", equation):
        operand = equation[: parted.start()].count(",")
        raise RuntimeError(f"einsum(): found '.' for operand {operand} that is not part of any ellipsis")
    if other := re.search(r"[^A-Za-z.,\s>-]", equation):
        raise RuntimeError(
            f"einsum(): invalid subscript given at index {other.start()} in the equation string, subscripts must be in "
            "[a-zA-Z]"
        )


def _einsum(arguments, operands):
    try:
        return jnp.einsum(*arguments)
    except (ValueError, TypeError, AssertionError) as error:
        shapes = ", ".join(str(list(np.shape(operand))) for operand in operands)
        raise RuntimeError(f"einsum(): operands of shapes {shapes} do not fit {arguments[0]!r}: {error}") from None


@multiplied(torch.tensordot, exact_out=True)
def tensordot(a, b, dims=2):
    """``torch.tensordot``: contracts the last dimensions of one with the first of the other, or the listed ones."""
    if isinstance(dims, (jnp.ndarray, np.ndarray)):
        dims = np.asarray(dims).tolist()
    if isinstance(dims, int):
        if dims < 0:
            raise RuntimeError(f"tensordot expects dims >= 0, but got dims={dims}")
        if dims > min(a.ndim, b.ndim):
            raise RuntimeError(f"tensordot expects dims < ndim_a or ndim_b, but got dims={dims}")
        dims = (range(a.ndim - dims, a.ndim), range(dims))
    first, second = ([dim % array.ndim for dim in _as_list(given)] for given, array in zip(dims, (a, b), strict=True))
    if len(first) != len(second):
        raise RuntimeError("both dimension lists should have same length")
    first_names, second_names = list(range(a.ndim)), list(range(a.ndim, a.ndim + b.ndim))
    for dim, other in zip(first, second, strict=True):
        if a.shape[dim] != b.shape[other] and 1 not in (a.shape[dim], b.shape[other]):
            raise RuntimeError(
                f"contracted dimensions need to match, but first has size {a.shape[dim]} in dim {dim} and second has "
                f"size {b.shape[other]} in dim {other}"
            )
        second_names[other] = first_names[dim]
    kept = [name for name in first_names + second_names if not (name in first_names and name in second_names)]
    return jnp.einsum(a, first_names, b, second_names, kept)


def _as_list(dims) -> list[int]:
    return [dims] if isinstance(dims, int) else list(dims)


# The cross product.


@multiplied(torch.cross)
def cross(input, other, dim=None):
    if dim is None:
        dim = next((i for i, size in enumerate(input.shape) if size == 3), None)
        if dim is None:
            raise RuntimeError(f"no dimension of size 3 in input, got a tensor of shape {list(input.shape)}")
    return linalg_cross(input, other, dim=dim)


@multiplied(torch.linalg.cross, torch.ops.aten.linalg_cross)
def linalg_cross(input, other, *, dim=-1):
    if input.ndim != other.ndim or input.shape[dim] != 3 or other.shape[dim] != 3:
        raise RuntimeError(
            f"linalg.cross: inputs must have the same number of dimensions and length 3 in dimension {dim}, got "
            f"shapes {list(input.shape)} and {list(other.shape)}"
        )
    shape = np.broadcast_shapes(input.shape, other.shape)
    dim %= len(shape)
    a, b = jnp.broadcast_to(input, shape), jnp.broadcast_to(other, shape)
    return lax.sub(lax.mul(_rolled(a, 1, dim), _rolled(b, 2, dim)), lax.mul(_rolled(a, 2, dim), _rolled(b, 1, dim)))


def _rolled(array, shift: int, dim: int):
    parts = lax.slice_in_dim(array, shift, None, axis=dim), lax.slice_in_dim(array, 0, shift, axis=dim)
    return lax.concatenate(parts, dim)
