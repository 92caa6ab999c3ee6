"""Convolutions and their transposes, folding and unfolding."""

import jax
import jax.numpy as jnp
import pytest
import torch
from torch.nn import functional as F

from tests.ops.database import compare
from torch2jax import t2j


@pytest.mark.parametrize("channels", [(), (2,)])
def test_fold_sums_what_unfold_takes_apart(channels):
    x = torch.randn(*channels, 3, 7, 6)
    options = {"kernel_size": (3, 2), "dilation": (1, 2), "padding": 1, "stride": (2, 1)}
    columns = F.unfold(x, **options)
    compare(t2j(F.unfold)(t2j(x), **options), columns)
    compare(t2j(F.fold)(t2j(columns), (7, 6), **options), F.fold(columns, (7, 6), **options))


@pytest.mark.parametrize("transposed", [False, True])
def test_torch_convolution(transposed):
    x, weight = torch.randn(2, 4, 6, 5), torch.randn(4, 2, 3, 3)
    args = ([2, 1], [1, 1], [1, 1], transposed, [1, 0] if transposed else [0, 0], 2)
    bias = torch.randn(4)
    compare(t2j(torch.convolution)(t2j(x), t2j(weight), t2j(bias), *args), torch.convolution(x, weight, bias, *args))


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("mask", [(True, True, True), (False, True, False)])
def test_convolution_backward(transposed, mask):
    x, weight = torch.randn(2, 4, 6, 5), torch.randn(4, 2, 3, 3)
    args = ([2, 1], [1, 1], [1, 1], transposed, [1, 0] if transposed else [0, 0], 2)
    gradient = torch.randn_like(torch.convolution(x, weight, None, *args))
    backward = lambda *tensors: torch.ops.aten.convolution_backward(*tensors, [4], *args, mask)
    found, wanted = t2j(backward)(t2j(gradient), t2j(x), t2j(weight)), backward(gradient, x, weight)
    for a, b in zip(found, wanted, strict=True):
        assert a is b is None or compare(a, b) is None


def test_a_chain_of_convolutions_stays_in_channels_last_order():
    def chain(x, weight, bias):
        for _ in range(3):
            x = F.max_pool2d(F.relu(F.conv2d(x, weight, bias, padding=1)), 3, 1, 1)
        return x.mean((2, 3))

    jaxpr = jax.make_jaxpr(t2j(chain))(jnp.ones((2, 4, 8, 8)), jnp.ones((4, 4, 3, 3)), jnp.ones(4))
    assert [equation.primitive.name for equation in jaxpr.eqns].count("transpose") <= 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (((2, 3, 8, 8), (4, 2, 3, 3)), "channels"),
        (((3, 8), (4, 3, 3, 3)), "unbatched"),
        (((2, 3, 2, 8), (4, 3, 3, 3)), "Kernel size can.t be greater"),
    ],
)
def test_wrong_shapes_are_refused(arguments, message):
    with pytest.raises(RuntimeError, match=message):
        t2j(F.conv2d)(*(jnp.ones(shape) for shape in arguments))


def test_same_padding_refuses_strides():
    with pytest.raises(RuntimeError, match="strided"):
        t2j(lambda x, w: F.conv2d(x, w, stride=2, padding="same"))(jnp.ones((2, 3, 8, 8)), jnp.ones((4, 3, 3, 3)))


@pytest.mark.parametrize("pad", [0, 2])
def test_convolution_of_time_first(pad):
    x, weight, bias = torch.randn(7, 2, 3), torch.randn(3, 3, 4), torch.randn(4)
    compare(t2j(torch.conv_tbc)(*t2j((x, weight, bias)), pad), torch.conv_tbc(x, weight, bias, pad))
    with pytest.raises(RuntimeError, match="conv_tbc wants"):
        t2j(torch.conv_tbc)(*t2j((x, weight[:, :2], bias)))


@pytest.mark.parametrize(
    ("function", "shape"),
    [
        (lambda x: torch.nn.functional.unfold(x, 2), (3, 0, 3, 4)),
        (lambda x: torch.nn.functional.unfold(x, 2), (0, 3, 4)),
        (lambda x: torch.nn.functional.fold(x, (2, 2), 2), (3, 0, 4)),
    ],
)
def test_blocks_of_nothing(function, shape):
    with pytest.raises(RuntimeError) as expected:
        function(torch.zeros(shape))
    with pytest.raises(RuntimeError, match="possibly 0 batch size") as got:
        t2j(function)(jnp.zeros(shape))
    assert str(expected.value) in str(got.value)
