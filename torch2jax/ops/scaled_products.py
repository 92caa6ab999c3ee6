"""Products of matrices in 8 bits, whose scales are beside them.

The operands are brought to float32 and scaled in front of the product: XLA knows that form, and has kernels for 8 bits
where the device does.
"""

from collections.abc import Sequence

import torch
from torch.nn.functional import ScalingType, SwizzleType

from ..rules.registry import implements_tensors

__all__ = []

aten = torch.ops.aten
_FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2)
_TENSOR, _ROW, _BLOCK = (
    kind.value for kind in (ScalingType.TensorWise, ScalingType.RowWise, ScalingType.BlockWise1x32)
)
_SWIZZLED = SwizzleType.SWIZZLE_32_4_4.value


@implements_tensors(aten._scaled_mm.default)
def _scaled_mm(self, mat2, scale_a, scale_b, bias=None, scale_result=None, out_dtype=None, use_fast_accum=False):
    del scale_result  # PyTorch uses it in none of its kernels either
    by_row = scale_a.numel() != 1 or scale_b.numel() != 1
    recipe = [_ROW if by_row else _TENSOR]
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
    if list(recipe_a) != list(recipe_b):
        raise ValueError(f"scaled_mm: got the recipes {_names(recipe_a)} and {_names(recipe_b)}; wanted the same twice")
    first = _scaled(left, scale_a, recipe_a, swizzle_a, "scale_a")
    second = _scaled(right.t(), scale_b, recipe_b, swizzle_b, "scale_b")
    return first @ second.t()


def _names(recipes: Sequence[int]) -> str:
    return ", ".join(kind for number in recipes for kind, x in ScalingType.__members__.items() if x.value == number)


def _scaled(matrix, scales, recipes, swizzles, name: str):
    """The numbers that a matrix stands for, whose scales are of its rows or of parts of them.

    Raises:
        ValueError: the scales are not as many as the recipe has.
        NotImplementedError: there is no rule for the recipe.
    """
    rows, columns = matrix.shape
    if list(recipes) not in ([_TENSOR], [_ROW], [_BLOCK]):
        raise NotImplementedError(
            f"scaled_mm: got the recipe {_names(recipes)}; t2j has TensorWise, RowWise and BlockWise1x32"
        )
    (recipe,), (scale,) = recipes, scales
    scale = scale.float()
    if recipe != _BLOCK:
        count = 1 if recipe == _TENSOR else rows
        if scale.numel() != count:
            raise ValueError(f"{name} must have {count} Float elements, got {scale.numel()}")
        return matrix.float() * scale.reshape(-1, 1)
    if columns % 32:
        raise ValueError(f"scaled_mm: got {columns} columns in blocks of 32; wanted a multiple of 32")
    scale = _in_order(scale, rows, columns // 32, name, is_swizzled=_SWIZZLED in swizzles)
    return (matrix.float().reshape(rows, -1, 32) * scale.unsqueeze(-1)).reshape(rows, columns)


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
