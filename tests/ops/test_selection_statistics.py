"""Quantiles and the mode of ``x[mask]`` under jit: PyTorch's values, places and gradients."""

import jax
import numpy as np
import pytest
import torch

from torch2jax import t2j

X = torch.tensor([[3.0, -1, 2], [1, 1, 1], [3, -1, 0.5], [2, 7, 2], [-2, 0, 2], [3, 5, -4]])
# The machine's sort decides which of equal elements gets a quantile's gradient, so gradients are of distinct ones.
DISTINCT = X + torch.arange(18.0).reshape(6, 3) / 64
ROWS = torch.tensor([True, False, True, True, False, True])
CHOICES = {
    "of a matrix": lambda x: (x, x.detach() > 0.1),
    "of rows": lambda x: (x, ROWS),
    "of a vector": lambda x: (x[:, 0], ROWS),
}
Q = torch.tensor([0.0, 0.3, 0.5, 0.77, 1])
INTERPOLATIONS = ("linear", "lower", "higher", "midpoint", "nearest")
FUNCTIONS = {
    "of all": lambda s: (s.quantile(0.3), s.nanquantile(Q), s.quantile(Q, keepdim=True)),
    "along": lambda s: (s.quantile(Q, 0), s.nanquantile(0.6, dim=0, keepdim=True), s.quantile(0.4, -1).sum()),
    "interpolated": lambda s: tuple(s.quantile(Q, 0, interpolation=name) for name in INTERPOLATIONS),
    "mode": lambda s: (s.mode(0), s.mode(dim=0, keepdim=True)),
}


def total(results):
    return sum(x.sum() * (1 + i / 8) for i, x in enumerate(jax.tree.leaves(results)) if "float" in str(x.dtype))


def of(function, choice):
    def run(x):
        x, mask = CHOICES[choice](x)
        mask = mask & (x.sum() < 1e9).reshape([1] * mask.ndim)  # which JAX traces
        return {name: each(x[mask]) for name, each in function.items()}

    return run


@pytest.mark.parametrize("choice", CHOICES)
def test_values_and_gradients(choice):
    names = [name for name in FUNCTIONS if (choice, name) != ("of a vector", "along")]  # a vector has one dimension
    function = of({name: FUNCTIONS[name] for name in names}, choice)
    compare(jax.jit(t2j(function))(t2j(X)), function(X))
    leaf = DISTINCT.clone().requires_grad_()
    (slope,) = torch.autograd.grad(total(function(leaf)), leaf)
    ours = jax.jit(jax.grad(lambda x: total(t2j(function)(x))))(t2j(DISTINCT))
    np.testing.assert_allclose(ours, slope.numpy(), 1e-5, 1e-6)


def compare(ours, wanted):
    for got, want in zip(jax.tree.leaves(ours), jax.tree.leaves(wanted), strict=True):
        assert str(got.dtype) == str(want.dtype).removeprefix("torch.").replace("int64", "int32")
        np.testing.assert_allclose(got, want.numpy(), 1e-6, 1e-6)


def test_numbers_that_are_none_and_nothing():
    def function(x, mask):
        return x[mask].quantile(Q), x[mask].nanquantile(Q), x[mask].mode().values

    x, mask = torch.tensor([3.0, float("nan"), 1.0, 2.0, 2.0]), torch.tensor([True, True, False, True, True])
    compare(jax.jit(t2j(function))(t2j(x), t2j(mask)), function(x, mask))
    nothing = jax.jit(t2j(lambda x, mask: x[mask].nanquantile(Q)))(t2j(x), np.zeros(5, bool))
    assert np.isnan(nothing).all()


@pytest.mark.parametrize("given", [{"q": 1.5}, {"q": Q.half()}, {"q": 0.5, "interpolation": "cubic"}])
def test_what_pytorch_refuses(given):
    def function(x):
        return x[x > 0].quantile(**given)

    for run in (lambda: function(X), lambda: jax.jit(t2j(function))(t2j(X))):
        with pytest.raises(RuntimeError, match=r"quantile\(\)"):
            run()
