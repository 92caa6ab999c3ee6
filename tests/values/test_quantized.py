"""Tensors of PyTorch's own quantized dtypes: constants that are read in PyTorch itself, or one clear error."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from torch2jax import NoRuleError, t2j

pytestmark = pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")  # PyTorch is to remove them

VALUES = torch.tensor([[0.33, -0.2, 1.4], [0.0, 2.5, -0.7]])


def of_tensor() -> torch.Tensor:
    return torch.quantize_per_tensor(VALUES, 0.1, 3, torch.quint8)


def of_channels() -> torch.Tensor:
    return torch.quantize_per_channel(VALUES, torch.tensor([0.1, 0.25]), torch.tensor([0, 1]), 0, torch.qint8)


READ = {
    "dequantized": lambda q, x: q.dequantize() @ x,
    "codes": lambda q, x: q.int_repr().float() @ x,
    "a part": lambda q, x: q[1].dequantize() @ x,
    "as another shape": lambda q, x: q.reshape(3, 2).dequantize().t() @ x,
    "a scale": lambda q, x: x * q.q_scale() + q.q_zero_point(),
    "its relu": lambda q, x: torch.relu(q).dequantize() @ x,
    "facts": lambda q, x: x * len(q) * q.is_quantized * (q.dtype is torch.quint8) * (q.qscheme() is not None),
}


@pytest.mark.parametrize("name", READ)
def test_what_code_closes_over_is_read(name):
    q, x = of_tensor(), torch.tensor([1.0, 2, 3])
    for run in (t2j, lambda f: jax.jit(t2j(f))):
        found = run(lambda x: READ[name](q, x))(jnp.asarray(x))
        np.testing.assert_allclose(found, READ[name](q, x), rtol=1e-6)


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("weight", of_channels())
        self.linear = torch.nn.Linear(3, 3)

    def forward(self, x):
        scales = self.weight.q_per_channel_scales().float()
        return self.linear(x) @ self.weight.dequantize().t() * scales + self.weight.q_per_channel_axis()


def test_a_buffer_is_a_constant():
    layer, x = Layer(), torch.randn(4, 3)
    function, expected = t2j(layer), layer(x).detach()
    params, buffers = function.split()
    assert sorted(params) == ["linear.bias", "linear.weight"]
    assert buffers == {}
    for run in (function, jax.jit(function), lambda x: jax.jit(lambda s, x: function(x, state_dict=s))(params, x)):
        np.testing.assert_allclose(run(jnp.asarray(x)), expected, rtol=1e-5, atol=1e-6)
    slopes = jax.grad(lambda s: function(jnp.asarray(x), state_dict=s).sum())(params)
    (expected,) = torch.autograd.grad(layer(x).sum(), [layer.linear.weight])
    np.testing.assert_allclose(slopes["linear.weight"], expected, rtol=1e-5, atol=1e-6)


REFUSED = {
    "with a traced one": lambda q, x: q * x,
    "written to": lambda q, x: q.relu_().dequantize(),
    "a part written to": lambda q, x: q.__setitem__(0, 1.0),
    "a copy into it": lambda q, x: q.copy_(x),
    "as a result": lambda q, x: q,
}


@pytest.mark.parametrize("name", REFUSED)
def test_the_rest_is_refused(name):
    q = of_tensor()
    codes = q.int_repr()
    for run in (t2j, lambda f: jax.jit(t2j(f))):
        with pytest.raises((TypeError, NotImplementedError), match=r"quint8(.|\n)*tensor\.dequantize\(\)"):
            run(lambda x: REFUSED[name](q, x))(jnp.ones((2, 3)))
    assert torch.equal(q.int_repr(), codes)


MADE = {
    "of a tensor": lambda x: torch.quantize_per_tensor(x, 0.1, 0, torch.qint8),
    "of channels": lambda x: torch.quantize_per_channel(x, torch.ones(2), torch.zeros(2), 0, torch.qint8),
    "dynamically": lambda x: torch.quantize_per_tensor_dynamic(x, torch.quint8, False),
    "of codes": lambda x: torch._make_per_tensor_quantized_tensor(x.to(torch.int8), 0.1, 0),
    "empty": lambda x: torch._empty_affine_quantized([2], scale=0.1, zero_point=0, dtype=torch.qint8),
    "by a module": lambda x: torch.ao.nn.quantized.dynamic.Linear(3, 4)(x),
}


@pytest.mark.parametrize("name", MADE)
def test_none_is_made(name):
    with pytest.raises(NoRuleError, match=r"torchao\.quantization\.quantize_"):
        t2j(MADE[name])(jnp.ones((2, 3)))


def test_dtypes():
    for dtype in (torch.qint8, torch.quint8, torch.qint32):
        with pytest.raises(TypeError, match=rf"counterpart of {dtype}; (.|\n)*int_repr"):
            t2j(dtype)
    for q in (of_tensor(), {"weight": of_channels()}):
        with pytest.raises(TypeError, match=r"got a quantized tensor(.|\n)*dequantize"):
            t2j(q)
