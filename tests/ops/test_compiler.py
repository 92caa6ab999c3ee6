"""``torch.compile`` in translated code."""

import jax
import jax.numpy as jnp
import torch

from torch2jax import t2j


def test_what_translated_code_compiles_is_translated():
    def f(x):
        @torch.compile(fullgraph=True)
        def double(x):
            return 2 * x

        return torch.compile(lambda x: double(x) + 1)(x)

    original = torch.compile
    for transform in (lambda f: f, jax.jit):
        assert transform(t2j(f))(jnp.ones(())) == 3
    assert torch.compile is original
