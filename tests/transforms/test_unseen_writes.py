"""Writes that autograd does not see, or not as writes with a gradient, between uses of a tensor and of a view of it."""

import itertools

import jax
import numpy as np
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
