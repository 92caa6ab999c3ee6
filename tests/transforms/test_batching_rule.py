"""The `vmap` of custom functions, within ``torch.vmap`` in translated code, against PyTorch."""

import jax
import numpy as np
import pytest
import torch
from torch.autograd import Function
from torch.func import grad, jvp, vmap

from torch2jax import t2j

X = torch.tensor([[0.3, -1.2, 2.0], [1.5, 0.4, -0.7]])
CALLS: list = []


class Scaled(Function):
    """Sine times a number; its rule notes how it is called, and is told from what JAX would do by its sign."""

    @staticmethod
    def forward(x, factor):
        return x.sin() * factor

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, ctx.factor = inputs
        ctx.save_for_backward(x)
        ctx.save_for_forward(x)

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return gradient * x.cos() * ctx.factor, None

    @staticmethod
    def jvp(ctx, tangent, _):
        (x,) = ctx.saved_tensors
        return tangent * x.cos() * ctx.factor

    @staticmethod
    def vmap(info, in_dims, x, factor):
        CALLS.append((info.batch_size, info.randomness, in_dims, tuple(x.shape)))
        return -Scaled.apply(x, factor), in_dims[0]


class Doubled_(Function):
    """Writes to its argument."""

    @staticmethod
    def forward(x):
        return x.mul_(2)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.mark_dirty(inputs[0])

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2

    @staticmethod
    def vmap(info, in_dims, x):
        return Doubled_.apply(x), in_dims[0]


def one_batch(x):
    return vmap(lambda x: Scaled.apply(x, 3.0), in_dims=1, out_dims=1)(x)


def batch_of_batches(x):
    return vmap(vmap(lambda x: Scaled.apply(x, 3.0)), randomness="same")(x)


def not_batched(x):
    return vmap(lambda y: y + Scaled.apply(x[0], 2.0))(x)


def gradients_of_examples(x):
    return vmap(grad(lambda x: Scaled.apply(x * x, 3.0).sum()))(x)


def tangents_of_examples(x):
    return vmap(lambda x: jvp(lambda x: Scaled.apply(x, 3.0), (x,), (x,)))(x)


def gradient_of_batch(x):
    return grad(lambda x: vmap(lambda x: Scaled.apply(x, 3.0))(x).sum())(x)


def on_the_tape(x):
    x = x.clone().requires_grad_()
    vmap(lambda x: Scaled.apply(x, 3.0))(x).pow(2).sum().backward()
    return x.grad


def writes(x):
    x = x.clone()
    return vmap(Doubled_.apply)(x), x


CASES = [
    *(one_batch, batch_of_batches, not_batched, gradients_of_examples),
    *(tangents_of_examples, gradient_of_batch, on_the_tape, writes),
]


@pytest.mark.parametrize("function", CASES)
def test_the_rule(function):
    CALLS.clear()
    wanted, noted = function(X), list(CALLS)
    found = t2j(function)(jax.numpy.asarray(X.numpy()))
    assert noted * 2 == CALLS or noted * 3 == CALLS  # a run may have been abandoned for one on a tape
    for a, b in zip(jax.tree.leaves(found), torch.utils._pytree.tree_leaves(wanted), strict=True):
        np.testing.assert_allclose(a, b.numpy(), rtol=1e-5)


def test_the_rule_in_a_graph():
    found = jax.jit(t2j(lambda x: (gradients_of_examples(x), batch_of_batches(x))))(X.numpy())
    for a, b in zip(found, (gradients_of_examples(X), batch_of_batches(X)), strict=True):
        np.testing.assert_allclose(a, b.numpy(), rtol=1e-5)


class Bare(Function):
    @staticmethod
    def forward(x):
        return x * 1

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass


class OldStyle(Function):
    @staticmethod
    def forward(ctx, x):
        return x * 1


class Both(Bare):
    generate_vmap_rule = True

    @staticmethod
    def vmap(info, in_dims, x):
        return x, 0


class OneReturn(Bare):
    @staticmethod
    def vmap(info, in_dims, x):
        return x


class WrongDims(Bare):
    @staticmethod
    def vmap(info, in_dims, x):
        return x, (0, 0)


@pytest.mark.parametrize("function", [Bare, Both, OldStyle, OneReturn, WrongDims])
def test_what_pytorch_refuses(function):
    with pytest.raises(RuntimeError) as wanted:
        vmap(function.apply)(X)
    with pytest.raises(RuntimeError) as found:
        t2j(lambda: vmap(function.apply)(X))()
    assert str(found.value).split(".")[0] == str(wanted.value).split(".")[0]
