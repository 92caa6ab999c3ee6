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


PARTS, SQUARES = ScalingType.BlockWise1x128, ScalingType.BlockWise128x128


@pytest.mark.parametrize(("left", "right"), [(PARTS, PARTS), (PARTS, SQUARES), (SQUARES, PARTS)])
def test_scales_of_blocks_of_128(left, right):
    """Those of squares come as one column for each row of squares; the older operator does not take blocks."""
    a, b = _random(160, 300), _random(150, 300).t()

    def scales(rows, recipe):
        small = torch.rand(rows if recipe is PARTS else 2, 3, generator=_GENERATOR)
        tall = small if recipe is PARTS else small.repeat_interleave(128, 0)[:rows]
        return small, tall.repeat_interleave(128, 1)[:, :300]

    (first, of_a), (second, of_b) = scales(160, left), scales(150, right)
    expected = (a.float() * of_a) @ (b.t().float() * of_b).t()
    as_newer = [x if recipe is PARTS else F.pad(x.t(), (0, 0, 0, 1)) for x, recipe in ((first, left), (second, right))]
    newer = t2j(lambda a, b, x, y: F.scaled_mm(a, b, x, left, y, right, output_dtype=torch.float32))
    np.testing.assert_allclose(jax.jit(newer)(*map(t2j, (a, b, *as_newer))), expected, 1e-4, 1e-3)
    with pytest.raises(ValueError, match="TensorWise scaling"):
        t2j(torch._scaled_mm)(*map(t2j, (a, b, first, second.t())))


ENDS = torch.tensor([2, 2, 7, 10], dtype=torch.int32)  # a group is empty, and what follows the last counts nowhere


def _groups(a, b, first, second):
    """Each group's product of scaled matrices in float32, in the order of `ENDS`; and where it goes."""
    starts = [0, *ENDS.tolist()[:-1]]
    for i, (start, end) in enumerate(zip(starts, ENDS.tolist(), strict=True)):
        here = slice(start, end)
        if a.dim() == b.dim() == 2:
            x, y = a[:, here], b[here]
            row, column = (scale.reshape(len(ENDS), -1)[i] for scale in (first, second))
        else:
            x, row = (a[i], first[i]) if a.dim() == 3 else (a[here], first[here])
            y, column = (b[i], second[i]) if b.dim() == 3 else (b[:, here], second[here])
        yield i, here, (x.float() * row[:, None]) @ (y.float() * column)


@pytest.mark.parametrize("version", ["_scaled_grouped_mm", "scaled_grouped_mm"])
@pytest.mark.parametrize(
    ("left", "right", "scales"),
    [((12, 8), (4, 8, 6), (12, (4, 6))), ((4, 5, 8), (8, 12), ((4, 5), 12)), ((5, 12), (12, 6), (20, 24))],
    ids=["rows", "columns", "terms"],
)
def test_products_of_groups(version, left, right, scales):
    a, b = _random(*left), _random(*right)
    first, second = (torch.rand(scale, generator=_GENERATOR) for scale in scales)

    def function(a, b, first, second, ends):
        if version == "_scaled_grouped_mm":
            return torch._scaled_grouped_mm(a, b, first, second, ends, out_dtype=torch.float32)
        return F.scaled_grouped_mm(a, b, first, ROW, second, ROW, offs=ends, output_dtype=torch.float32)

    for run in (t2j(function), jax.jit(t2j(function))):
        result = np.asarray(run(*map(t2j, (a, b, first, second, ENDS))))
        for i, here, expected in _groups(a, b, first, second):
            found = result[i] if len(left) == len(right) else result[here] if len(left) == 2 else result[:, here]
            np.testing.assert_allclose(found, expected, 1e-4, 1e-4)


def test_products_of_stacks():
    a, b = _random(3, 5, 8), _random(3, 8, 6)
    first, second = torch.rand(3, 5, generator=_GENERATOR), torch.rand(3, 6, generator=_GENERATOR)
    found = t2j(torch._scaled_grouped_mm)(*map(t2j, (a, b, first, second)))
    assert found.dtype == jnp.bfloat16
    expected = torch.bmm(a.float() * first[..., None], b.float() * second[:, None])
    np.testing.assert_allclose(found.astype("float32"), expected, 0.02, 0.02)


@pytest.mark.parametrize(
    ("changed", "message"),
    [({0: torch.zeros(12, 8)}, "FP8"), ({2: torch.ones(11)}, "scale_a"), ({3: torch.ones(4, 5)}, "scale_b")],
)
def test_groups_are_refused(changed, message):
    given = [_random(12, 8), _random(4, 8, 6), torch.ones(12), torch.ones(4, 6), ENDS]
    given = [changed.get(i, x) for i, x in enumerate(given)]
    with pytest.raises(RuntimeError, match=message):
        t2j(torch._scaled_grouped_mm)(*map(t2j, given))


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


@pytest.mark.parametrize(("recipe", "first", "second"), TABLE)
def test_the_product_is_one_of_8_bits(recipe, first, second):
    function = t2j(lambda a, b, x, y: F.scaled_mm(a, b.t(), x, recipe, y, recipe, output_dtype=torch.bfloat16))
    text = jax.jit(function).lower(*map(t2j, (A, B.t(), first, second))).as_text()
    assert "contracting_dims = [1] x [1]" in text
    assert "(tensor<16x64xf8E4M3FN>, tensor<32x64xf8E5M2>) -> tensor<16x32xf32>" in text
    assert "16x64xf32" not in text
    assert "32x64xf32" not in text
