"""What is of neither side, or of the other one already, is refused with what was wanted."""

import functools
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from torch2jax import j2t, t2j, torch2jax


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * x


MODULE = torch.nn.Linear(2, 2)
WRONG = {
    "nothing": (t2j, None, "got None; wanted a tensor"),
    "a file": (t2j, "model.pt", r"wanted a tensor.*torch.load\('model.pt'\)"),
    "a path": (t2j, pathlib.Path("model.pt"), r"torch.load\('model.pt'\)"),
    "a class of modules": (t2j, torch.nn.Linear, r"wanted a module: t2j\(Linear\(\.\.\.\)\)"),
    "a class of functions": (t2j, Square, r"wanted a function: t2j\(Square.apply\)"),
    "a class": (t2j, dict, "got the class dict"),
    "a generator": (t2j, torch.Generator(), "got a Generator"),
    "an iterator": (t2j, MODULE.parameters(), r"got a generator; wanted.*t2j\(list"),
    "a device": (t2j, torch.device("cpu"), "got a device"),
    "a function of JAX's": (t2j, jnp.sin, "jax.numpy.sin, which is JAX's already"),
    "another": (t2j, jnp.sum, "jax.numpy.sum, which is JAX's"),
    "an activation": (t2j, jax.nn.relu, "which is JAX's"),
    "a part of one": (t2j, functools.partial(jnp.sum, axis=0), "which is JAX's"),
    "nothing for j2t": (j2t, None, "got None; wanted an array"),
    "a name for j2t": (j2t, "weights", "wanted an array"),
    "a module": (j2t, MODULE, "Linear, which is PyTorch's already"),
    "a function of PyTorch's": (j2t, torch.sin, "torch.sin, which is PyTorch's already"),
    "a functional": (j2t, torch.nn.functional.relu, "relu, which is PyTorch's already"),
    "a tensor": (torch2jax, torch.ones(2), "got a Tensor; wanted a function"),
    "an array": (torch2jax, jnp.ones(2), "wanted a function"),
}


@pytest.mark.parametrize("name", WRONG)
def test_things_of_neither_side_are_refused(name):
    convert, thing, message = WRONG[name]
    with pytest.raises(TypeError, match=message):
        convert(thing)


@pytest.mark.parametrize("thing", [3.5, 2, True, 1j, np.float32(1)])
def test_numbers_are_the_same_on_both_sides(thing):
    assert t2j(thing) is thing
    assert j2t(thing) is thing


def test_within_trees_other_leaves_stay():
    tree = {"x": torch.ones(2), "name": "x", "none": None, "kind": torch.nn.Linear, "device": torch.device("cpu")}
    result = t2j(tree)
    assert isinstance(result["x"], jax.Array)
    assert {key: value for key, value in result.items() if key != "x"} == {k: v for k, v in tree.items() if k != "x"}
    assert torch.equal(j2t(result)["x"], tree["x"])
    assert t2j([]) == []
    assert t2j(torch.Size([2])) == (2,)


def test_what_one_side_made_of_the_other_is_taken_back():
    x = jnp.ones(2)
    assert t2j(j2t(jnp.sin)) is jnp.sin
    assert torch.equal(j2t(t2j(torch.sin))(torch.ones(2)), torch.ones(2).sin())
    assert torch.equal(j2t(torch2jax(torch.sin, x))(torch.ones(2)), torch.ones(2).sin())
    assert j2t(t2j(MODULE))(torch.ones(2)).shape == (2,)
    np.testing.assert_allclose(j2t(jax.jit(jnp.sin))(torch.ones(2)), jnp.sin(x))
    np.testing.assert_allclose(t2j(jax.tree_util.Partial(torch.sin))(x), jnp.sin(x), rtol=1e-6)
