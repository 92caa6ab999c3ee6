"""Sharded programs on eight virtual devices: their results, and what the devices send each other."""

import collections
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from jax.sharding import AxisType, PartitionSpec as P
from torch.distributed.tensor import Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel

from torch2jax import sharding, t2j

from .modules import MLP

pytestmark = pytest.mark.usefixtures("eight_devices")

KINDS = "all-gather|all-reduce|reduce-scatter|all-to-all|collective-permute"
COLLECTIVE = re.compile(rf"= [^=\n]*? ({KINDS})(?:-start)?\(")
MEGATRON = {"up": ColwiseParallel(), "down": RowwiseParallel()}
IN_SEQUENCE = {
    "0": SequenceParallel(),
    "1.up": ColwiseParallel(input_layouts=Shard(1)),
    "1.down": RowwiseParallel(output_layouts=Shard(1)),
    "2": SequenceParallel(),
}


def stack() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.LayerNorm(16), MLP(), torch.nn.LayerNorm(16))


def collectives(function, *args, **options):
    """How many of each kind a compiled program has, and the program."""
    compiled = jax.jit(function, **options).lower(*args).compile()
    return dict(collections.Counter(COLLECTIVE.findall(compiled.as_text()))), compiled


def close(actual, expected, tolerance=1e-5):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance), actual, expected)


@pytest.mark.parametrize(
    ("make", "plan", "axes", "forward", "gradient"),
    [
        # One sum behind the second product; for the gradient of the inputs, which is not asked for, there would be
        # another.
        (MLP, MEGATRON, {"tensor": "model"}, {"all-reduce": 1}, {"all-reduce": 1}),
        (MLP, {"up": "colwise", "down": "rowwise"}, {"tensor": "model"}, {"all-reduce": 1}, {"all-reduce": 1}),
        # A gather and a reduce-scatter, which for CPUs is a sum of which each takes its part; their transposes in the
        # gradient, and the sum of the gradients of the norms.
        (
            stack,
            IN_SEQUENCE,
            {"tensor": "model"},
            {"all-gather": 1, "all-reduce": 1},
            {"all-gather": 2, "all-reduce": 3},
        ),
        (MLP, None, {"fsdp": "data"}, {"all-gather": 2}, {"all-gather": 2, "all-reduce": 1}),
        (MLP, None, {}, {}, {"all-reduce": 1}),
    ],
    ids=["megatron", "megatron in words", "in sequence", "fsdp", "data"],
)
def test_layers(make, plan, axes, forward, gradient):
    """The collectives of the compiled programs are those that one would write by hand."""
    torch.manual_seed(0)
    module, x = make(), jnp.sin(jnp.arange(16 * 8 * 16.0)).reshape(16, 8, 16)
    tensor, data = axes.get("tensor"), axes.get("fsdp") or "data"
    sizes = (1, 8) if tensor else (8, 1)
    with jax.set_mesh(jax.make_mesh(sizes, ("data", "model"), axis_types=(AxisType.Auto,) * 2)):
        specs = sharding.specs(module, plan=plan, **axes)
        given = t2j(module.state_dict())
        params = sharding.put(given, specs)
        laid = t2j(sharding.constrained(module, tensor=tensor, data=data, plan=plan))
        batch = jax.device_put(x, P(data))
        found, compiled = collectives(lambda p, x: laid(x, state_dict=p), params, batch)
        assert found == forward
        close(compiled(params, batch), t2j(module)(x))

        def gradients(f):
            return jax.grad(lambda p, x: (f(x, state_dict=p) ** 2).sum())

        out = sharding.shardings(params, specs)
        found, compiled = collectives(gradients(laid), params, batch, out_shardings=out)
        assert found == gradient
        close(compiled(params, batch), gradients(t2j(module))(given, x), 1e-3)
