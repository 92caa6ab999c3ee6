"""Products of 8-bit matrices with separate scales.

Where a scale is of a row, or of all, the product is one of operands in 8 bits, and scaled. Those with a scale for each
part of a row are brought to float32 and scaled in front of the product.
"""

from collections.abc import Sequence

import numpy as np
import torch
from jax import lax
from torch.nn.functional import ScalingType, SwizzleType

from ..rules.array_rule import InnerRule
from ..rules.registry import implements_tensors

aten = torch.ops.aten
_FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2)
_TENSOR, _ROW, _PARTS_OF_32, _PARTS_OF_128, _SQUARES = (
    kind.value
    for kind in (
        *(ScalingType.TensorWise, ScalingType.RowWise, ScalingType.BlockWise1x32, ScalingType.BlockWise1x128),
        ScalingType.BlockWise128x128,
    )
)
_PAIRS = (
    *([_TENSOR, _TENSOR], [_ROW, _ROW], [_PARTS_OF_32, _PARTS_OF_32], [_PARTS_OF_128, _PARTS_OF_128]),
    *([_PARTS_OF_128, _SQUARES], [_SQUARES, _PARTS_OF_128]),
)
_SWIZZLED = SwizzleType.SWIZZLE_32_4_4.value


@implements_tensors(aten._scaled_mm.default)
def _scaled_mm(self, mat2, scale_a, scale_b, bias=None, scale_result=None, out_dtype=None, use_fast_accum=False):
    del scale_result  # PyTorch uses it in none of its kernels either
    recipe = [_TENSOR if scale_a.numel() == scale_b.numel() == 1 else _ROW]
    result = _product(self, mat2, [scale_a], recipe, [], [scale_b], recipe, [])
    return _finished(result, self, bias, out_dtype)


@implements_tensors(aten._scaled_mm_v2.default)
def _scaled_mm_v2(
    self,
    mat2,
    scale_a,
    recipe_a,
    swizzle_a,
    scale_b,
    recipe_b,
    swizzle_b,
    bias,
    out_dtype,
    contraction_dim=(),
    use_fast_accum=False,
):
    _expect_inner(contraction_dim)
    result = _product(self, mat2, scale_a, recipe_a, swizzle_a, scale_b, recipe_b, swizzle_b)
    return _finished(result, self, bias, out_dtype)


def _scaled_addmm(
    self,
    mat1,
    mat2,
    scale_a,
    recipe_a,
    swizzle_a,
    scale_b,
    recipe_b,
    swizzle_b,
    contraction_dim=(),
    *,
    beta=1,
    alpha=1,
    use_fast_accum=False,
):
    _expect_inner(contraction_dim)
    if self.shape != (mat1.shape[0], mat2.shape[1]):
        raise ValueError(
            f"scaled_addmm: got an input of shape {list(self.shape)}; wanted {[mat1.shape[0], mat2.shape[1]]}, that of "
            "the product"
        )
    result = _product(mat1, mat2, scale_a, recipe_a, swizzle_a, scale_b, recipe_b, swizzle_b)
    added = 0 if beta == 0 else beta * self.float()  # what it holds does not count then
    return (added + alpha * result).to(self.dtype)


def _scaled_addmm_(self, *args, **kwargs):
    return self.copy_(_scaled_addmm(self, *args, **kwargs))


if hasattr(aten, "_scaled_addmm"):  # since PyTorch 2.15
    implements_tensors(aten._scaled_addmm.default)(_scaled_addmm)
    implements_tensors(aten._scaled_addmm_.default)(_scaled_addmm_)


def _expect_inner(contraction_dim: Sequence[int]) -> None:
    if contraction_dim and [dim % 2 for dim in contraction_dim] != [1, 0]:
        raise ValueError(f"scaled_mm: got contraction_dim={tuple(contraction_dim)}; wanted (1, 0), or none")


def _finished(result, left, bias, out_dtype):
    return (result if bias is None else result + bias).to(out_dtype or left.dtype)


def _product(left, right, scale_a, recipe_a, swizzle_a, scale_b, recipe_b, swizzle_b):
    if left.dtype not in _FLOAT8 or right.dtype not in _FLOAT8:
        raise ValueError(
            f"scaled_mm: expected both inputs to be fp8, but got mat_a.dtype={left.dtype} and mat_b.dtype={right.dtype}"
        )
    if left.dim() != 2 or right.dim() != 2 or left.shape[1] != right.shape[0]:
        raise ValueError(f"scaled_mm: shapes {list(left.shape)} and {list(right.shape)} cannot be multiplied")
    if list(recipe_a) != list(recipe_b) and [*recipe_a, *recipe_b] not in _PAIRS:
        raise ValueError(
            f"scaled_mm: got the recipes {_names(recipe_a)} and {_names(recipe_b)}; wanted the same twice, or "
            "BlockWise128x128 beside BlockWise1x128"
        )
    if set(recipe_a) | set(recipe_b) <= {_TENSOR, _ROW} and len(recipe_a) == 1:
        return _scaled_once(left, right, *scale_a, *recipe_a, *scale_b, *recipe_b)
    first = _scaled(left, scale_a, recipe_a, swizzle_a, "scale_a")
    second = _scaled(right.t(), scale_b, recipe_b, swizzle_b, "scale_b")
    return first @ second.t()


def _scaled_once(left, right, scale_a, recipe_a: int, scale_b, recipe_b: int):
    """The product of operands in 8 bits, which is scaled."""
    scale_a = _of_rows(scale_a, recipe_a, left.shape[0], "scale_a")
    scale_b = _of_rows(scale_b, recipe_b, right.shape[1], "scale_b").t()
    is_turned = right.stride(0) == 1 and right.stride(1) != 1
    product = _IN_8_BITS((left, right.t() if is_turned else right, is_turned), {})
    return product * scale_a * scale_b


def _in_8_bits(left, right, is_turned: bool):
    dims = ((1,), (1 if is_turned else 0,)), ((), ())
    return lax.dot_general(left, right, dims, preferred_element_type=np.float32)


_IN_8_BITS = InnerRule(_in_8_bits, "scaled_mm")


def _of_rows(scale, recipe: int, rows: int, name: str):
    """A scale for each row, or one for all, as a column."""
    count = 1 if recipe == _TENSOR else rows
    if scale.numel() != count:
        raise ValueError(f"{name} must have {count} Float elements, got {scale.numel()}")
    return scale.float().reshape(-1, 1)


def _names(recipes: Sequence[int]) -> str:
    return ", ".join(kind for number in recipes for kind, x in ScalingType.__members__.items() if x.value == number)


def _scaled(matrix, scales, recipes, swizzles, name: str):
    """The real values of a matrix with scales for its rows or for parts of them.

    Raises:
        ValueError: the scales are not as many as the recipe has.
        NotImplementedError: there is no rule for the recipe.
    """
    rows, columns = matrix.shape
    if list(recipes) not in ([_TENSOR], [_ROW], [_PARTS_OF_32], [_PARTS_OF_128], [_SQUARES]):
        raise NotImplementedError(
            f"scaled_mm: got the recipe {_names(recipes)}; t2j has TensorWise, RowWise, BlockWise1x32, BlockWise1x128 "
            "and BlockWise128x128, since JAX has no arrays of two numbers in a byte"
        )
    (recipe,), (scale,) = recipes, scales
    scale = scale.float()
    if recipe == _PARTS_OF_32:
        if columns % 32:
            raise ValueError(f"scaled_mm: got {columns} columns in blocks of 32; wanted a multiple of 32")
        scale = _in_order(scale, rows, columns // 32, name, is_swizzled=_SWIZZLED in swizzles)
        return _in_parts(matrix, scale, 32)
    blocks, down = -(-columns // 128), rows if recipe == _PARTS_OF_128 else -(-rows // 128)
    if recipe == _SQUARES and scale.dim() == 2:  # one column for each row of squares, with some more at the end
        scale = scale.t()[:, :blocks]
    if scale.shape != (down, blocks):
        wanted = [down, blocks] if recipe == _PARTS_OF_128 else [blocks, down]
        raise ValueError(f"{name} must have the shape {wanted}, got {list(scale.shape)}")
    if recipe == _SQUARES:
        scale = scale.unsqueeze(1).expand(-1, 128, -1).flatten(0, 1)[:rows]
    return _in_parts(matrix, scale, 128)


def _in_parts(matrix, scale, width: int):
    """The real values of a matrix with a scale for each `size` elements of a row; the last part may be shorter."""
    columns = scale.unsqueeze(-1).expand(-1, -1, width).flatten(1)
    return matrix.float() * columns[:, : matrix.shape[1]]


def _in_order(scale, rows: int, blocks: int, name: str, *, is_swizzled: bool):
    """The scales of blocks, one row for each of the matrix, out of tiles of 128 x 4 as CUDA's kernels have them."""
    down, across = (-(-rows // 128), -(-blocks // 4)) if is_swizzled else (0, 0)
    count = down * across * 512 if is_swizzled else rows * blocks
    if scale.numel() != count:
        raise ValueError(f"{name} must have {count} elements, got {scale.numel()}")
    if not is_swizzled:
        return scale.reshape(rows, blocks)
    tiles = scale.reshape(down, across, 32, 4, 4).permute(0, 3, 2, 1, 4)
    return tiles.reshape(down * 128, across * 4)[:rows, :blocks]


# Products of groups: the scales are of the rows of each matrix on the left, and of the columns on the right.


@implements_tensors(aten._scaled_grouped_mm.default)
def _scaled_grouped_mm(
    self, mat2, scale_a, scale_b, offs=None, bias=None, scale_result=None, out_dtype=None, use_fast_accum=False
):
    if scale_result is not None:
        raise RuntimeError("Scale result tensor provided, but it is not supported yet.")
    return _grouped(self, mat2, scale_a, scale_b, offs, bias, out_dtype)


@implements_tensors(aten._scaled_grouped_mm_v2.default)
def _scaled_grouped_mm_v2(
    self,
    mat2,
    scale_a,
    recipe_a,
    swizzle_a,
    scale_b,
    recipe_b,
    swizzle_b,
    offs=None,
    bias=None,
    out_dtype=None,
    contraction_dim=(),
    use_fast_accum=False,
):
    _expect_inner(contraction_dim)
    if list(recipe_a) != [_ROW] or list(recipe_b) != [_ROW]:
        raise NotImplementedError(
            f"scaled_grouped_mm: got the recipes {_names(recipe_a)} and {_names(recipe_b)}; t2j has RowWise"
        )
    return _grouped(self, mat2, scale_a[0], scale_b[0], offs, bias, out_dtype)


def _grouped(left, right, scale_a, scale_b, offs, bias, out_dtype):
    """As ``grouped_mm``, for scaled matrices.

    Raises:
        RuntimeError: the operands are not in 8 bits, or have no scales of their shapes.
    """
    if left.dtype not in _FLOAT8 or right.dtype not in _FLOAT8:
        raise RuntimeError(
            "scaled_grouped_mm: expected inputs of FP8 type, but got "
            f"mat_a.dtype={left.dtype} and mat_b.dtype={right.dtype}"
        )
    if left.dim() not in (2, 3) or right.dim() not in (2, 3):
        raise RuntimeError(
            f"Multiplicands must be 2D or 3D but got mat_a.dim()={left.dim()} and mat_b.dim()={right.dim()}"
        )
    ends = offs if left.dim() == right.dim() == 2 else None  # of the groups that the sum falls into
    left = _by_rows(left, scale_a, ends, "scale_a")
    right = _by_rows(right.transpose(-2, -1), scale_b, ends, "scale_b").transpose(-2, -1)
    return torch.ops.aten._grouped_mm(left, right, offs, bias).to(out_dtype or torch.bfloat16)


def _by_rows(matrix, scale, ends, name: str):
    """The numbers of a matrix, or of a stack, with a scale for each row; or for each group of columns in a row."""
    rows = tuple(matrix.shape[:-1])
    wanted = rows if ends is None else (rows[0] * ends.numel(),)
    if tuple(scale.shape) != wanted:
        raise RuntimeError(f"Expected {name} to have the shape {list(wanted)}, got {list(scale.shape)}.")
    if ends is None:
        return matrix.float() * scale.unsqueeze(-1)
    columns = torch.arange(matrix.shape[-1], dtype=ends.dtype, device=ends.device)
    group = (columns.unsqueeze(-1) >= ends).sum(-1).clamp(max=ends.numel() - 1)  # what is beyond the last is not summed
    return matrix.float() * scale.reshape(-1, rows[0])[group].t()
