"""Plans of tensors of one value: they are new each time, and what PyTorch gives."""

import jax
import jax.numpy as jnp
import numpy as np
import torch

from torch2jax import t2j
from torch2jax.calls import plans
from torch2jax.rules.plan import FILLED


def _made(x):
    made = []
    for _ in range(3):
        zeros = torch.zeros(4)
        zeros[0] = 1.0
        zeros.add_(x[0, 0])
        made += [zeros, torch.full((2, 3), 1.5, dtype=torch.int32), torch.ones((2,), dtype=torch.complex64)]
        made += [torch.full((), 3), torch.zeros(2, requires_grad=True), torch.zeros(0), torch.full((2,), True)]
        made += [
            torch.full((2,), torch.tensor(3.0)),
            torch.full([2], 2, dtype=torch.bool),
            torch.zeros(2, 2, device="cpu"),
        ]
        torch.set_default_dtype(torch.float64)
        try:
            made.append(torch.ones(2))
        finally:
            torch.set_default_dtype(torch.float32)
        made += [torch.ones(2), torch.full((2,), 1j), torch.full((2,), -0.0), torch.full((2,), 0.0)]
        with torch.device("meta"):
            assert torch.zeros(4).is_meta
        plain = torch.zeros(3)
        made.append(torch.tensor([plain.requires_grad, plain.is_contiguous(), plain.is_leaf]))
    return made


def test_they_are_what_pytorch_gives():
    expected = [tensor.detach().numpy() for tensor in _made(torch.ones(2, 2))]
    eager, jitted = t2j(_made)(jnp.ones((2, 2))), jax.jit(t2j(_made))(jnp.ones((2, 2)))
    for wanted, found, traced in zip(expected, eager, jitted, strict=True):
        assert found.shape == traced.shape == wanted.shape
        assert found.dtype == traced.dtype
        assert np.array_equal(found, wanted)
        assert np.array_equal(traced, wanted)
        assert np.array_equal(np.signbit(found.real), np.signbit(wanted.real))
    dtypes = [array.dtype for array in eager]
    assert dtypes == dtypes[: len(dtypes) // 3] * 3


def test_each_is_an_array_of_its_own():
    function = t2j(lambda x: [torch.zeros(3) for _ in range(3)])
    donating = jax.jit(lambda x: x + 1, donate_argnums=0)
    for _ in range(2):
        for array in function(jnp.ones(1)):
            assert np.array_equal(donating(array), np.ones(3))


def test_they_have_plans():
    function = t2j(lambda x: [torch.zeros(3), torch.ones(2, 2), torch.full((2,), 5)])
    function(jnp.ones(1))
    before = plans.bypassed.total()
    function(jnp.ones(1))
    assert plans.bypassed.total() == before


def test_what_is_said_of_the_value_is_so():
    for function, value_of in FILLED.items():
        given = ((2, 2), 7.0) if function is torch.full else ((2, 2),)
        assert function(*given).unique().tolist() == [value_of(*given)]
