"""ATen operators that have no other home."""

import pytest
import torch

from tests.ops.database import compare
from torch2jax import t2j


@pytest.mark.parametrize("dtype", [torch.complex64, torch.float32, torch.int64])
@pytest.mark.parametrize("function", [torch.conj_physical, torch.Tensor.conj_physical_])
def test_conj_physical(function, dtype):
    x = torch.tensor([1, 2]).to(dtype) * (1 + 2j if dtype.is_complex else 1)
    compare(t2j(lambda x: function(x.clone()))(t2j(x)), function(x.clone()))


def test_copy_leaves_its_operands_alone():
    x, y = torch.zeros(2, 3), torch.arange(3)
    for got, want in zip(
        t2j(lambda x, y: (torch.ops.aten.copy(x, y), x))(t2j(x), y), (y.expand(2, 3).float(), x), strict=True
    ):
        compare(got, want)
