"""ATen operators that have no other home."""

import jax
import pytest
import torch

from tests.ops.database import compare
from torch2jax import t2j


@pytest.mark.parametrize("dtype", [torch.complex64, torch.float32, torch.int64])
@pytest.mark.parametrize("function", [torch.conj_physical, torch.Tensor.conj_physical_])
def test_conj_physical(function, dtype):
    x = torch.tensor([1, 2]).to(dtype) * (1 + 2j if dtype.is_complex else 1)
    compare(t2j(lambda x: function(x.clone()))(t2j(x)), function(x.clone()))


@pytest.mark.parametrize("dtype", [torch.complex64, torch.float32, torch.int64])
@pytest.mark.parametrize("function", [torch.conj_physical, torch.positive, lambda x: +x])
def test_what_gives_its_argument_in_pytorch_gives_it(function, dtype):
    def code(x):
        x = x.clone()
        y = function(x)
        y.add_(1)
        return x, y, y is x

    x = torch.tensor([1, 2]).to(dtype)
    for translated in (t2j(code), jax.jit(t2j(code))):
        for got, want in zip(translated(t2j(x)), code(x), strict=True):
            if isinstance(want, torch.Tensor):
                compare(got, want)
            else:
                assert got == want


def test_the_sign_of_truth_values_is_refused():
    for function in (torch.positive, lambda x: +x):
        with pytest.raises(RuntimeError, match="on a bool tensor is not supported"):
            t2j(function)(torch.ones(2, dtype=torch.bool))


def test_copy_leaves_its_operands_alone():
    x, y = torch.zeros(2, 3), torch.arange(3)
    for got, want in zip(
        t2j(lambda x, y: (torch.ops.aten.copy(x, y), x))(t2j(x), y), (y.expand(2, 3).float(), x), strict=True
    ):
        compare(got, want)
