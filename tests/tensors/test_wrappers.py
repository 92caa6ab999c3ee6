"""Tensors that hold no values but wrap others, and compute in a ``__torch_dispatch__`` of their own."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch.utils._pytree import tree_map

from torch2jax import t2j

X = jnp.array([0.5, -1.0, 2.0])


class Wrapped(torch.Tensor):
    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)  # pyright: ignore

    def __init__(self, inner):
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        args = tree_map(lambda x: x.inner if isinstance(x, cls) else x, args)
        return tree_map(lambda x: cls(x) if isinstance(x, torch.Tensor) else x, func(*args, **(kwargs or {})))


@pytest.mark.parametrize("mode", [t2j, lambda function: jax.jit(t2j(function))])
def test_they_compute(mode):
    outside = Wrapped(torch.arange(3.0))

    def function(x):
        wrapped = Wrapped(x)
        results = [wrapped * 2, torch.sin(wrapped) + x, x - wrapped, torch.nn.functional.softplus(wrapped), wrapped[:2]]
        results += [torch.cat([wrapped, wrapped]), wrapped.sum(), wrapped * outside, wrapped.clone().add_(1)]
        assert all(type(result) is Wrapped for result in results)
        return [result.inner for result in results]

    expected = function(torch.tensor(np.asarray(X)))
    for actual, each in zip(mode(function)(X), expected, strict=True):
        np.testing.assert_allclose(actual, each, rtol=1e-6)


def test_derivatives():
    slope = jax.grad(lambda x: t2j(lambda x: (Wrapped(x) ** 2).sum().inner)(x))(X)
    np.testing.assert_allclose(slope, 2 * X)


def test_they_draw_keys_of_the_call():
    def function(x):
        return Wrapped(x).bernoulli().inner

    first, second = (t2j(function)(jnp.full(64, 0.5), rng=jax.random.key(seed)) for seed in (0, 1))
    assert set(np.unique(first)) == {0, 1}
    assert (first != second).any()


def test_a_rule_of_an_operator_for_them():
    library = torch.library.Library("wrappers", "FRAGMENT")
    library.define("halved(Tensor x) -> Tensor")
    library.impl("halved", lambda x: x / 2, "CPU")
    library._register_torch_dispatch_rule(
        "halved", Wrapped, lambda kind, func, types, args, kwargs: kind(func(args[0].inner) + 1)
    )
    np.testing.assert_allclose(t2j(lambda x: torch.ops.wrappers.halved(Wrapped(x)).inner)(X), X / 2 + 1)


def test_their_memory_is_not_read():
    with pytest.raises(NotImplementedError, match="Wrapped, which holds no values"):
        t2j(lambda: Wrapped(torch.ones(3)))()
