"""Products of matrices in 8 bits, against PyTorch's kernels for CPU and against float32 products."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.nn.functional import ScalingType, SwizzleType

from torch2jax import t2j

TENSOR, ROW, BLOCK = ScalingType.TensorWise, ScalingType.RowWise, ScalingType.BlockWise1x32
_GENERATOR = torch.Generator().manual_seed(0)


def _random(*shape, dtype=torch.float8_e4m3fn):
    return torch.randn(*shape, generator=_GENERATOR).to(dtype)


A, B = _random(16, 64), _random(32, 64, dtype=torch.float8_e5m2).t()
ONE = torch.tensor(1.5)
ROWS, COLUMNS = torch.rand(16, 1, generator=_GENERATOR), torch.rand(1, 32, generator=_GENERATOR)
TABLE = [(TENSOR, ONE, ONE * 2), (ROW, ROWS, COLUMNS)]


def _compare(function, *tensors, atol=1e-4):
    expected = function(*tensors)
    for run in (t2j(function), jax.jit(t2j(function))):
        result = run(*[t2j(x) for x in tensors])
        assert t2j(expected.clone()).dtype == result.dtype
        step = 0.02 if expected.dtype == torch.bfloat16 else 1e-5
        wanted = np.asarray(expected.float())
        np.testing.assert_allclose(np.asarray(result.astype("float32")), wanted, step, atol)


@pytest.mark.parametrize(("recipe", "first", "second"), TABLE)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_scales_of_all_and_of_rows(recipe, first, second, dtype):
    def function(a, b, first, second, bias):
        return F.scaled_mm(a, b, first, recipe, second, recipe, bias=bias, output_dtype=dtype)

    _compare(function, A, B, first, second, _random(32, dtype=dtype))


@pytest.mark.parametrize(("recipe", "first", "second"), TABLE)
def test_the_older_operator(recipe, first, second):
    del recipe
    _compare(lambda a, b, x, y: torch._scaled_mm(a, b, x, y, out_dtype=torch.float32), A, B, first, second)


def test_scales_of_blocks():
    scales = [torch.randint(-3, 3, (rows, 2), generator=_GENERATOR).float().exp2() for rows in (16, 32)]
    first, second = (scale.repeat_interleave(32, 1) for scale in scales)
    expected = (A.float() * first) @ (B.t().float() * second).t()

    def tiles(scale):
        padded = torch.zeros(128, 4)
        padded[: scale.shape[0], : scale.shape[1]] = scale
        return padded.reshape(4, 32, 4).transpose(0, 1).reshape(-1).to(torch.float8_e8m0fnu)

    swizzle = SwizzleType.SWIZZLE_32_4_4
    in_tiles = t2j(
        lambda a, b, x, y: F.scaled_mm(a, b, x, BLOCK, y, BLOCK, swizzle, swizzle, output_dtype=torch.float32)
    )(*map(t2j, (A, B, *map(tiles, scales))))
    in_order = t2j(lambda a, b, x, y: F.scaled_mm(a, b, x, BLOCK, y, BLOCK, output_dtype=torch.float32))(
        *map(t2j, (A, B, *scales))
    )
    np.testing.assert_allclose(in_tiles, expected, 1e-5, 1e-4)
    np.testing.assert_allclose(in_order, expected, 1e-5, 1e-4)


@pytest.mark.skipif(not hasattr(F, "scaled_addmm"), reason="scaled_addmm is of PyTorch 2.15")
@pytest.mark.parametrize("beta", [1.0, 0.5, 0.0])
def test_sums(beta):
    x = _random(16, 32, dtype=torch.float32)
    if beta == 0:
        x[0, 0] = torch.nan
    expected = beta * x.nan_to_num() + 2 * 4.5 * (A.float() @ B.float())
    options = {"beta": beta, "alpha": 2.0}

    def function(x, a, b, one):
        return F.scaled_addmm(x, a, b, one, TENSOR, one * 2, TENSOR, **options)

    def in_place(x, a, b, one):
        F.scaled_addmm_(x, a, b, one, TENSOR, one * 2, TENSOR, **options)
        return x

    for run in (function, in_place):
        result = jax.jit(t2j(run))(*map(t2j, (x, A, B, ONE)))
        np.testing.assert_allclose(result, expected, 1e-5, 1e-3)


@pytest.mark.parametrize(
    "arguments",
    [
        (A.float(), B, ONE, TENSOR, ONE, TENSOR),
        (A, B, ROWS[:5], ROW, COLUMNS, ROW),
        (A, B, ROWS, ROW, ONE, TENSOR),
        (A, B.t(), ONE, TENSOR, ONE, TENSOR),
    ],
    ids=["dtype", "scales", "recipes", "shapes"],
)
def test_refusals_are_of_pytorchs_class(arguments):
    with pytest.raises(Exception) as wanted:  # noqa: PT011
        F.scaled_mm(*arguments)
    tensors = [x for x in arguments if isinstance(x, torch.Tensor)]
    recipes = [x for x in arguments if not isinstance(x, torch.Tensor)]

    def function(a, b, x, y):
        return F.scaled_mm(a, b, x, recipes[0], y, recipes[1])

    with pytest.raises(wanted.type):
        t2j(function)(*map(t2j, tensors))


def test_the_graph_is_one_product():
    function = t2j(lambda a, b, x, y: F.scaled_mm(a, b, x, ROW, y, ROW))
    graph = str(jax.make_jaxpr(function)(*map(t2j, (A, B, ROWS, COLUMNS))))
    assert graph.count("dot_general[") == 1
    assert jax.eval_shape(function, *map(t2j, (A, B, ROWS, COLUMNS))).dtype == jnp.bfloat16
