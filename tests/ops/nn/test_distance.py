"""Distances and similarities: and derivatives at zero distance."""

import jax
import jax.numpy as jnp
import pytest
import torch

from tests.ops.database import compare
from torch2jax import t2j


@pytest.mark.parametrize("p", [0, 0.5, 1, 2, 3.5, float("inf")])
@pytest.mark.parametrize("rows", [3, 30])
def test_cdist_of_equal_rows(p, rows):
    torch.manual_seed(0)
    x = torch.randint(0, 3, (rows, 2)).float().requires_grad_()
    y = torch.randint(0, 3, (2, 4, 2)).float()
    expected = torch.cdist(x, y, p)
    expected.sum().backward()
    call = t2j(lambda x: torch.cdist(x, y, p))
    compare(call(t2j(x.detach())), expected)
    if p not in (float("inf"), 0.5):  # ties share the derivative; PyTorch's kernel loses the smallest powers
        compare(jax.grad(lambda x: call(x).sum())(t2j(x.detach())), x.grad)


def test_bad_shapes():
    with pytest.raises(RuntimeError, match="same number of columns"):
        t2j(torch.cdist)(jnp.ones((2, 3)), jnp.ones((2, 4)))
    with pytest.raises(RuntimeError, match="only supports 2D"):
        t2j(torch.pdist)(jnp.ones(3))
