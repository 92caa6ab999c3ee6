"""What a tensor within a translated call says that it is."""

import jax
import numpy as np
import opt_einsum
import torch

from torch2jax import t2j


def test_libraries_see_a_tensor_of_pytorchs():
    """Those that take a function from the package of an array's class."""
    seen = []

    def f(x, y):
        seen.append(type(x).__module__)
        return opt_einsum.contract("ab,bc,cd->ad", x, y, x)

    x, y = torch.randn(3, 4), torch.randn(4, 3)
    np.testing.assert_allclose(jax.jit(t2j(f))(t2j(x), t2j(y)), f(x, y), rtol=1e-5)
    assert seen == ["torch", "torch"]
