"""Embeddings."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch.nn import functional as F

from tests.ops.database import compare
from torch2jax import t2j


def test_the_padding_row_gets_no_gradient():
    def loss(weight):
        return F.embedding(torch.tensor([0, 2, 2, 1]), weight, padding_idx=2).sum()

    grad = jax.jit(jax.grad(t2j(loss)))(jnp.ones((4, 3)))
    np.testing.assert_array_equal(grad[:, 0], [1, 1, 0, 0])
    names = [equation.primitive.name for equation in jax.make_jaxpr(t2j(loss))(jnp.ones((4, 3))).eqns]
    assert "select_n" not in names
    assert "mul" not in names


@pytest.mark.parametrize("by_frequency", [False, True])
def test_what_comes_back_for_the_padding_is_left_out_even_if_it_is_nan(by_frequency):
    def loss(weight):
        rows = F.embedding(
            torch.tensor([[0, 2], [2, 2], [0, 1]]), weight, padding_idx=2, scale_grad_by_freq=by_frequency
        )
        kept = torch.tensor([1, 0, 2.0])
        return (rows.sum((1, 2)) / kept).masked_fill(kept == 0, 0).sum()

    weight = torch.linspace(-1, 1, 12).view(4, 3).requires_grad_()
    loss(weight).backward()
    compare(jax.jit(jax.grad(t2j(loss)))(t2j(weight.detach())), weight.grad)


def test_frequency_scales_the_gradient():
    index = torch.tensor([0, 2, 2, 1])
    weight = torch.randn(4, 3, requires_grad=True)
    F.embedding(index, weight, scale_grad_by_freq=True).sin().sum().backward()
    grad = jax.grad(t2j(lambda w: F.embedding(index, w, scale_grad_by_freq=True).sin().sum()))(t2j(weight.detach()))
    compare(grad, weight.grad)


def test_max_norm_scales_the_rows_that_are_used():
    def lookup(weight, index):
        return F.embedding(index, weight, max_norm=1.0), weight

    weight, index = torch.randn(5, 4) * 3, torch.tensor([1, 3, 1])
    expected = lookup(weight.clone(), index)
    for got, want in zip(t2j(lookup)(t2j(weight), t2j(index)), expected, strict=True):
        compare(got, want)


def test_an_index_out_of_range_is_never_a_wrong_number():
    with pytest.raises(IndexError, match="out of range"):
        t2j(F.embedding)(jnp.array([0, 4]), jnp.ones((4, 3)))
    rows = jax.jit(t2j(F.embedding))(jnp.array([0, 4, -1]), jnp.ones((4, 3)))
    assert jnp.isnan(rows[1:]).all()
    assert (rows[0] == 1).all()


def test_one_hot_needs_values_only_to_count_the_classes():
    classes = jnp.array([0, 2, 1])
    assert jax.jit(t2j(lambda x: F.one_hot(x, 4)))(classes).shape == (3, 4)
    assert t2j(F.one_hot)(torch.tensor([0, 2, 1])).shape == (3, 3)
    with pytest.raises(RuntimeError, match="smaller than num_classes"):
        t2j(lambda: F.one_hot(torch.tensor([5]), 3))()


PADDED = {
    "torch.embedding": torch.embedding,
    "aten": torch.ops.aten.embedding.default,
    "of jagged indices": lambda weight, indices, padding: torch.embedding(
        weight, torch.nested.nested_tensor_from_jagged(indices, torch.tensor([0, 3, 8])), padding
    ).values(),
}


@pytest.mark.parametrize("name", PADDED)
def test_padding_has_no_gradient_in_any_form(name):
    indices, weight = torch.tensor([1, 2, 1, 0, 3, 3, 1, 4]), torch.randn(5, 4)

    def slope(weight):
        weight = weight.detach().requires_grad_()
        (PADDED[name](weight, indices, 1) ** 2).sum().backward()
        return weight.grad

    for run in (t2j(slope), jax.jit(t2j(slope))):
        found = run(t2j(weight))
        assert (found[1] == 0).all()
        np.testing.assert_allclose(found, slope(weight), rtol=1e-5)
