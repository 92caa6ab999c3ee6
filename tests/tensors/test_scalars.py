"""Python numbers among tensors: which are refused, which wrap around, and what 32 bits make of those of 64."""

import re

import jax
import numpy as np
import pytest
import torch
import torch.nn.functional as F

from tests.ops.database import compare
from torch2jax import t2j

WRAPPING = [
    lambda x, v: x + v,
    lambda x, v: v - x,
    lambda x, v: x * v,
    lambda x, v: x == v,
    lambda x, v: x > v,
    lambda x, v: x ^ v,
    lambda x, v: v**x,
    lambda x, v: x // v,
]
REFUSING = [
    lambda x, v: x.clamp(max=v),
    lambda x, v: torch.clamp_min(x, v),
    lambda x, v: torch.where(x > 0, x, v),
    lambda x, v: x.masked_fill(x > 0, v),
    lambda x, v: x.index_fill(0, torch.tensor([0]), v),
    lambda x, v: x.scatter(0, torch.tensor([0]), v),
    lambda x, v: x.new_full((2,), v),
    lambda x, v: x.clone().fill_(v),
    lambda x, v: torch.add(x, x, alpha=v),
    lambda x, v: torch.addcmul(x, x, x, value=v),
    lambda x, v: torch.addmm(x[:, None], x[:, None], x[:1, None], alpha=v),
    lambda x, v: torch.index_add(x, 0, torch.tensor([0]), x[:1], alpha=v),
    lambda x, v: F.pad(x, (1, 1), value=v if v != 2**63 else 2**64),  # 2**63 PyTorch takes for -2**63
    lambda x, v: F.threshold(x, 0, v),
    lambda x, v: x**v,
    lambda x, v: x.clone().index_put_((torch.tensor([0]),), torch.full_like(x, v)[:1]),
]
BEYOND = [
    (torch.uint8, 300),
    (torch.uint8, -1),
    (torch.uint8, -256),
    (torch.int8, -129),
    (torch.int32, 2**40),
    (torch.int64, 2**63),
    (torch.int64, 2**64),
    (torch.float32, 2**64),
    (torch.float32, 1e300),
    (torch.float32, 2**63),
    (torch.bfloat16, 1e39),
    (torch.bool, 300),
]


@pytest.mark.parametrize(("dtype", "value"), BEYOND)
@pytest.mark.parametrize("function", WRAPPING + REFUSING)
def test_numbers_beyond_a_dtype(function, dtype, value):
    x = torch.tensor([0, 1, 1]).to(dtype)
    with jax.enable_x64(True):
        try:
            expected = function(x, value)
        except Exception as error:
            with pytest.raises(type(error)):
                t2j(lambda x: function(x, value))(t2j(x))
        else:
            compare(t2j(lambda x: function(x, value))(t2j(x)), expected)


@pytest.mark.parametrize("value", [3e4, 7e4, float("inf"), float("nan")])
@pytest.mark.parametrize("function", REFUSING[:8])
def test_numbers_beyond_half_precision(function, value):
    test_numbers_beyond_a_dtype(function, torch.float16, value)


@pytest.mark.parametrize("value", [2.7, 1e10, 1e39, float("inf"), float("nan"), 1j, 1 + 0j, True])
@pytest.mark.parametrize("dtype", [torch.bool, torch.int32, torch.float32, torch.complex64])
def test_numbers_of_another_kind(dtype, value):
    for function in (torch.full_like, torch.fill, lambda x, v: x.masked_fill(x == 0, v)):
        test_numbers_beyond_a_dtype(function, dtype, value)
    for function in (lambda x, v: torch.where(x == 0, x, v), lambda x, v: torch.where(x == 0, v, x)):
        test_numbers_beyond_a_dtype(function, dtype, value)


FLOATING = (torch.float16, torch.bfloat16, torch.float32, torch.float8_e5m2)


@pytest.mark.parametrize("dtype", [*FLOATING, torch.uint8, torch.int16, torch.int32, torch.int64, torch.complex64])
def test_refusals_name_the_type_as_pytorch_does(dtype):
    x = torch.zeros(2).to(dtype)
    with pytest.raises(RuntimeError, match="cannot be converted to type") as expected:
        torch.full_like(x, 1e300)
    with pytest.raises(RuntimeError, match=re.escape(str(expected.value))):
        t2j(lambda x: torch.full_like(x, 1e300))(x)


def test_bounds_of_64_bits_stay_bounds_in_32():
    x = np.arange(3, dtype=np.int32)  # as which JAX takes int64 arrays
    most = torch.iinfo(torch.int64).max
    assert not t2j(lambda x: x > most)(x).any()
    assert np.array_equal(t2j(lambda x: x.clamp(max=most))(x), x)
    assert np.array_equal(t2j(lambda x: x.masked_fill(x > 0, most))(x), [0, 2**31 - 1, 2**31 - 1])
    with pytest.raises(OverflowError, match="65 bits"):
        t2j(lambda x: x > 2**64)(x)


def test_infinity_needs_no_warning(recwarn):
    assert np.isinf(t2j(lambda x: x + 1e300)(np.ones(2, np.float32))).all()
    assert not recwarn.list
