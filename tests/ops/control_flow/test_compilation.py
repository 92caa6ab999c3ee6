"""Operators that mark code for PyTorch's compilers."""

import operator

import jax
import jax.numpy as jnp
import torch

from tests.ops.control_flow.agreement import graph
from torch2jax import t2j

higher_order = torch.ops.higher_order


def marked(x):
    @torch.compiler.nested_compile_region
    def region(x):
        return x.sin() * 2

    (y,) = higher_order.invoke_subgraph(lambda x: (region(x),), "name", x)
    (y,) = higher_order.hints_wrapper(lambda x: (x * 3,), (y,), {}, {"hint": 1})
    return higher_order.strict_mode(lambda x: x + 1, (y,))


def test_marked_code_runs_as_it_is():
    x = jnp.ones(3)
    assert graph(t2j(marked), x) == graph(lambda x: jnp.sin(x) * 2 * 3 + 1, x)
    assert jnp.allclose(jax.jit(t2j(marked))(x), jnp.sin(x) * 6 + 1)


class Branch(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return (self.function(x),)


def test_graphs_as_export_makes_them_have_their_branches():
    nodes = torch.fx.Graph()
    x = nodes.placeholder("x")
    positive = nodes.call_function(torch.ops.aten.gt.Scalar, (nodes.call_function(torch.ops.aten.sum.default, (x,)), 0))
    branches = nodes.get_attr("true"), nodes.get_attr("false")
    results = nodes.call_function(higher_order.cond, (positive, *branches, (x,)))
    nodes.output(nodes.call_function(operator.getitem, (results, 0)))
    program = torch.fx.GraphModule({"true": Branch(torch.sin), "false": Branch(torch.cos)}, nodes)
    for x in (jnp.ones(3), -jnp.ones(3)):
        assert jnp.allclose(jax.jit(t2j(program))(x), jnp.sin(x) if x.sum() > 0 else jnp.cos(x))
    assert " cond[" in str(jax.make_jaxpr(t2j(program))(jnp.ones(3)))
