"""Products with integers of 8 and 4 bits, against PyTorch's kernels for the CPU, and what they are in StableHLO."""

import re

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from torch2jax import t2j
from torch2jax.ops import packed_products
from torch2jax.runtime.errors import NoRuleError

aten = torch.ops.aten
_GENERATOR = torch.Generator().manual_seed(0)
FLOATS = [torch.float32, torch.float16, torch.bfloat16]


def _random(*shape, dtype=torch.float32):
    return torch.randn(*shape, generator=_GENERATOR).to(dtype)


def _integers(low, high, *shape, dtype=torch.int8):
    return torch.randint(low, high, shape, generator=_GENERATOR, dtype=dtype)


def _compare(function, *tensors, rtol=1e-5, atol=1e-4):
    expected = function(*tensors)
    for run in (t2j(function), jax.jit(t2j(function))):
        result = run(*map(t2j, tensors))
        assert result.dtype == t2j(expected).dtype
        np.testing.assert_allclose(np.asarray(result).astype(np.float64), expected.double(), rtol, atol)


def _tolerance(dtype):
    return {torch.float32: 1e-5, torch.float16: 1e-3, torch.bfloat16: 1e-2}[dtype]


def _stablehlo(function, *tensors, platform):
    """The program for a platform, also one that is not there."""
    exported = jax.export.export(jax.jit(t2j(function)), platforms=[platform])(*map(t2j, tensors))
    return exported.mlir_module()


# Integers with integers.


def _by_column(x, w):
    return torch._int_mm(x, w.t())


@pytest.mark.parametrize("rows", [1, 2, 17])
def test_integers_with_integers(rows):
    x, w = _integers(-128, 128, rows, 40), _integers(-128, 128, 24, 40)
    _compare(_by_column, x, w)
    _compare(torch._int_mm, x, w.t().contiguous())
    _compare(lambda x, w: torch._int_mm(x, w.t(), out=torch.empty(x.shape[0], 24, dtype=torch.int32)), x, w)
    unsigned = _integers(0, 256, rows, 40, dtype=torch.uint8)
    product = unsigned.int() @ w.t().int()
    np.testing.assert_array_equal(t2j(torch._int_mm)(t2j(unsigned), t2j(w.t())), product)
    np.testing.assert_array_equal(jax.jit(t2j(_by_column))(t2j(unsigned), t2j(w)), product)


@pytest.mark.parametrize("rows", [1, 8])
@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8])
def test_integers_stay_integers(rows, dtype):
    """One product of int8 with the weight as it lies in memory, and on the CPU no copy of it."""
    x, w = _integers(0, 128, rows, 512, dtype=dtype), _integers(-128, 128, 256, 512)
    text = _stablehlo(_by_column, x, w, platform="cpu")
    (product,) = re.findall(r"dot_general .*", text)
    assert "contracting_dims = [1] x [1]" in product
    count = rows + 1 if dtype == torch.uint8 else max(rows, 2)
    assert re.search(rf"\(tensor<{count}x512xi8>, tensor<256x512xi8>\) -> tensor<{count}x256xi32>", product)
    assert "transpose" not in text
    compiled = jax.jit(t2j(_by_column), compiler_options={"xla_backend_optimization_level": 3})
    memory = compiled.lower(t2j(x), t2j(w)).compile().memory_analysis()
    assert memory.temp_size_in_bytes < w.numel() / 4


# Floating point with integers of 4 bits.

ROWS = [16, 64, 80, 128, 176]  # of one block, of some, and of a rest


@pytest.mark.parametrize("rows", ROWS)
def test_int4_is_packed_as_pytorch_does(rows):
    w = _integers(0, 16, rows, 34, dtype=torch.int32)
    _compare(lambda w: aten._convert_weight_to_int4pack_for_cpu(w, 1), w, atol=0)


@pytest.mark.parametrize(("rows", "dtype"), [*((n, torch.float32) for n in ROWS), (80, torch.bfloat16)])
@pytest.mark.parametrize("group", [32, 64])
def test_floats_with_int4(rows, dtype, group):
    packed = aten._convert_weight_to_int4pack_for_cpu(_integers(0, 16, rows, 128, dtype=torch.int32), 1)
    numbers = _random(128 // group, rows, 2, dtype=dtype)

    def function(x, packed, numbers):
        return aten._weight_int4pack_mm_for_cpu(x, packed, group, numbers)

    for count in (1, 3):
        _compare(function, _random(count, 128, dtype=dtype), packed, numbers, rtol=_tolerance(dtype), atol=2e-3)


@pytest.mark.parametrize("are_halves", [True, False])
def test_int4_elsewhere_is_a_product_with_integers(are_halves):
    packed = _integers(0, 256, 2, 64, 16, dtype=torch.uint8)
    scales, zeros = _random(2, 2, 32), _random(2, 2, 32)
    given = [t2j(each) for each in (_random(3, 64), packed, scales, zeros)]
    found = packed_products._int4_at_once(*given, are_halves=are_halves)
    np.testing.assert_allclose(found, packed_products._int4_on_cpu(*given, are_halves=are_halves), 1e-4, 1e-4)

    def function(x, w, numbers):
        return aten._weight_int4pack_mm_for_cpu(x, w, 32, numbers)

    text = _stablehlo(
        function, _random(3, 64), _integers(0, 256, 64, 32, dtype=torch.uint8), _random(2, 64, 2), platform="tpu"
    )
    assert re.search(r"dot_general .*\(tensor<3x2x32xf32>, tensor<\dx2x32x\d\dxi8>\)", text)


def test_int4_is_differentiated_for_the_input():
    w, numbers = _integers(0, 16, 80, 64, dtype=torch.int32), _random(2, 80, 2)
    packed, scale, zero = aten._convert_weight_to_int4pack_for_cpu(w, 1), *numbers.unbind(-1)
    x = _random(3, 64).requires_grad_()
    plain = (w.reshape(80, 2, 32) - 8) * scale.t()[..., None] + zero.t()[..., None]
    (x @ plain.flatten(1).t()).square().sum().backward()
    function = t2j(lambda x: aten._weight_int4pack_mm_for_cpu(x, packed, 32, numbers).square().sum())
    np.testing.assert_allclose(jax.jit(jax.grad(function))(t2j(x.detach())), x.grad, 1e-4, 1e-3)


def test_packed_int8_has_no_rule():
    with pytest.raises(NoRuleError, match="_weight_int8pack_mm"):
        t2j(aten._weight_int8pack_mm)(t2j(_random(2, 32)), t2j(W8), jnp.ones(16))


W8, W4 = _integers(-128, 128, 16, 32), _integers(0, 256, 16, 16, dtype=torch.uint8)


@pytest.mark.parametrize(
    ("operator", "operands", "message"),
    [
        (aten._weight_int4pack_mm_for_cpu, (_random(2, 32), W4, 16, _random(2, 16, 2)), "32, 64, 128 or 256"),
        (aten._weight_int4pack_mm_for_cpu, (_random(2, 32), W4, 64, _random(1, 16, 2)), "divisible"),
        (aten._weight_int4pack_mm_for_cpu, (_random(2, 30), W4, 32, _random(1, 16, 2)), "columns"),
        (aten._weight_int4pack_mm_for_cpu, (_random(2, 32), W4, 32, _random(1, 15, 2)), "qScaleAndZeros"),
        (aten._weight_int4pack_mm_for_cpu, (_random(2, 32), W8, 32, _random(1, 16, 2)), "uint8"),
        (aten._convert_weight_to_int4pack_for_cpu, (torch.zeros(15, 4, dtype=torch.int32), 1), "dividable"),
        (aten._convert_weight_to_int4pack_for_cpu, (torch.zeros(16, 4, dtype=torch.uint8), 1), "kInt"),
        (torch._int_mm, (W8, W8), "size"),
    ],
)
def test_what_pytorch_refuses_is_refused(operator, operands, message):
    with pytest.raises(RuntimeError):
        operator(*operands)
    given = [t2j(x) if isinstance(x, torch.Tensor) else x for x in operands]
    with pytest.raises(RuntimeError, match=message):
        jax.jit(t2j(operator), static_argnums=[i for i, x in enumerate(given) if isinstance(x, int)])(*given)
