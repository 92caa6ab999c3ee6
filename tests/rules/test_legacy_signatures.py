"""Numbers by place, as PyTorch once wanted them."""

import jax
import numpy as np
import pytest
import torch

from torch2jax import t2j

matrix, vector, batch = torch.randn(3, 3), torch.randn(3), torch.randn(2, 3, 3)
PRODUCTS = {
    "addmm": (matrix, matrix, matrix),
    "addmv": (vector, matrix, vector),
    "addr": (matrix, vector, vector),
    "addbmm": (matrix, batch, batch),
    "baddbmm": (batch, batch, batch),
}
CASES = [
    *((name, numbers, operands) for name, operands in PRODUCTS.items() for numbers in ((2,), (2, 3))),
    *((name, (2,), (matrix, matrix.T)) for name in ("add", "sub")),
    *((name, (2,), (matrix, matrix.T, matrix.exp())) for name in ("addcmul", "addcdiv")),
]


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(("name", "numbers", "operands"), CASES, ids=[f"{name}-{len(n)}" for name, n, _ in CASES])
def test_numbers_by_place(name, numbers, operands):
    def function(x, y, *z):
        if name in PRODUCTS:
            first = getattr(torch, name)(numbers[0], x, *numbers[1:], y, *z)
        else:
            first = getattr(torch, name)(x, *numbers, y, *z)
        second = getattr(x, name)(*numbers, y, *z)
        third = getattr(x.clone(), f"{name}_")(*numbers, y, *z)
        return torch.stack([first, second, third])

    expected = function(*operands).numpy()
    for run in (t2j(function), jax.jit(t2j(function))):
        np.testing.assert_allclose(run(*map(t2j, operands)), expected, rtol=1e-4, atol=1e-5)
