"""``torch.export.export`` within translated code."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from torch2jax import t2j
from torch2jax.runtime.translation import current

X = jnp.array([[0.5, -1.0, 2.0], [1.0, 0.0, 3.0]])


class Net(torch.nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.layer = torch.nn.Linear(3, 2)
        self.norm = torch.nn.BatchNorm1d(2)
        self.scale = scale

    def forward(self, x, *, shift):
        return {"result": self.norm(torch.relu(self.layer(x)) * self.scale) + torch.tensor(2.0) * shift, "x": x}


def inside(x):
    net = Net(x.sum() + torch.arange(2.0))
    torch.nn.init.constant_(net.layer.weight, 0.5)
    torch.nn.init.zeros_(net.layer.bias)
    batch = torch.export.Dim("batch", min=1)
    dynamic = {"x": {0: batch}, "shift": None}
    program = torch.export.export(net, (x,), {"shift": x[0, :2]}, dynamic_shapes=dynamic)
    module = program.module()
    first = module(x, shift=x[0, :2])["result"]
    second = module(torch.cat([x, x + 1]), shift=x[0, :2])["result"]
    (first.square().sum() + second.square().sum()).backward()
    return first, second, net.layer.weight.grad, net.norm.num_batches_tracked


@pytest.mark.parametrize("mode", [t2j, lambda function: jax.jit(t2j(function))])
def test_the_program_has_the_tensors_of_the_call(mode):
    expected = inside(torch.tensor(np.asarray(X)))
    for actual, each in zip(mode(inside)(X, rng=jax.random.key(0)), expected, strict=True):
        np.testing.assert_allclose(actual, each.detach(), rtol=1e-4, atol=1e-5)


def test_shapes_by_tensor_and_checks_of_values():
    class Cut(torch.nn.Module):
        def forward(self, x, y):
            count = y.item()
            torch._check(count >= 0)
            torch._check(count <= 5)
            return torch.cat([x, torch.ones(count, x.shape[1])])

    def function(x):
        shapes, y = torch.export.ShapesCollection(), torch.tensor(4)
        shapes[x] = {0: torch.export.Dim.DYNAMIC}
        module = torch.export.export(Cut(), (x, y), dynamic_shapes=shapes).module()
        with pytest.raises(RuntimeError):
            module(x, torch.tensor(7))
        return module(torch.cat([x, x]), torch.tensor(3))

    np.testing.assert_allclose(t2j(function)(X), function(torch.tensor(np.asarray(X))))


def test_what_cannot_be_exported():
    class Branching(torch.nn.Module):
        def forward(self, x):
            return x if x.sum() > 0 else -x

    def function(x):
        with pytest.raises(Exception, match="data-dependent"):
            torch.export.export(Branching(), (x,))
        assert current() is not None
        return x + 1

    np.testing.assert_allclose(t2j(function)(X), X + 1)
