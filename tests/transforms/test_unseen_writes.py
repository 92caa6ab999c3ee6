"""Writes that autograd does not see, or not as writes with a gradient, between uses of a tensor and of a view of it."""

import itertools

import jax
import numpy as np
import pytest
import torch

from torch2jax import t2j


def without_gradients(x):
    with torch.no_grad():
        x.mul_(2)


WRITES = (without_gradients, lambda x: x.data.mul_(2), lambda x: x.detach().mul_(2))
VIEWS = (
    lambda x: x.view(4),
    lambda x: x.t(),
    lambda x: x[0],
    lambda x: x.view(4)[1:3],
    lambda x: x.t()[0],
)


def gradients(write, view, written: int, is_leaf: bool):
    leaf = torch.ones(2, 2, requires_grad=True)
    x = leaf if is_leaf else leaf * 1
    y, other = view(x), x.view(2, 2)
    if written:  # else PyTorch's hook would be that of what x was before
        x.register_hook(lambda gradient: gradient * 3)
    before = (x * 3).sum() + (y * 5).sum()
    write((x, y, other)[written])
    after = (x * 7).sum() + (y * 11).sum()
    return [*torch.autograd.grad(before + after, [leaf, x, y]), x.detach(), y.detach()]


def all_gradients():
    cases = itertools.product(WRITES, VIEWS, range(3), (False, True))
    return [gradients(*case) for case in cases]


def test_gradients_of_tensors_and_views_around_them():
    for found, wanted in zip(t2j(all_gradients)(), all_gradients(), strict=True):
        for a, b in zip(jax.tree.leaves(found), wanted, strict=True):
            np.testing.assert_array_equal(a, b.numpy())


LEAVES = {
    "select": lambda x: x[..., 0],
    "select_first": lambda x: x[1],
    "narrow": lambda x: x[:, 1:3],
    "every_second": lambda x: x[:, ::2],
    "diagonal": lambda x: x.diagonal(),
    "transposed": lambda x: x.t(),
    "transposed_part": lambda x: x[1:, ::2].t(),
    "as_strided": lambda x: x.as_strided((3, 2), (2, 1), 1),
    "unfold": lambda x: x.unfold(0, 2, 2),
    "part_of_view": lambda x: x.view(-1)[2:6],
    "complex": lambda x: torch.view_as_complex(x.view(4, 2, 2)),
    "real": lambda x: torch.complex(x, x).real,
}


@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize("name", LEAVES)
def test_leaves_that_are_views_are_trained(name, jit):
    def train(x):
        leaf = torch.nn.Parameter(LEAVES[name](x))
        for _ in range(3):
            leaf.grad = None
            (leaf * leaf.conj()).real.sum().backward()
            with torch.no_grad():
                leaf.sub_(leaf.grad, alpha=0.1)
        return leaf.detach(), leaf.grad, x

    x = torch.arange(16.0).view(4, 4) / 7
    translated = t2j(train)
    got = (jax.jit(translated) if jit else translated)(t2j(x))
    for a, b in zip(got, train(x.clone()), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)


@pytest.mark.parametrize("jit", [False, True])
def test_a_leaf_that_overlaps_itself(jit):
    def gradient(x):
        leaf = torch.nn.Parameter(x[:1].expand(3, 2))
        (leaf * torch.arange(6.0).view(3, 2)).sum().backward()
        return leaf.grad, leaf.detach() + 0

    x = torch.arange(2.0)[None]
    translated = t2j(gradient)
    for a, b in zip((jax.jit(translated) if jit else translated)(t2j(x)), gradient(x), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("jit", [False, True])
def test_leaves_on_one_memory_are_trained(jit):
    def train(x):
        flat = torch.linspace(-1, 1, 15)
        parameters = [torch.nn.Parameter(flat[:9].view(3, 3)), torch.nn.Parameter(flat[9:].view(2, 3).t())]
        optimizer, losses = torch.optim.SGD(parameters, lr=0.1, momentum=0.9), []
        for _ in range(3):
            optimizer.zero_grad()
            loss = (torch.tanh(x @ parameters[0]) @ parameters[1]).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        return losses, flat

    x = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
    translated = t2j(train)
    (losses, flat), (expected, expected_flat) = (jax.jit(translated) if jit else translated)(t2j(x)), train(x)
    np.testing.assert_allclose(losses, expected, rtol=1e-5)
    np.testing.assert_allclose(flat, expected_flat, rtol=1e-5, atol=1e-6)
