"""What is written to an array of NumPy's that is a tensor's memory, the tensor shows, and the other way round."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from tests.ops.database import compare_trees
from torch2jax import t2j


def written_to_arrays(x):
    tensor = torch.zeros(2, 3)
    array = tensor.numpy()
    array[0, 1] = 5
    before = tensor.clone()
    tensor += 1
    shown = torch.from_numpy(array.copy())
    array[1] = 7
    part = array[1:]
    del array
    part[0, 0] = 9  # a view keeps the memory
    del part
    return tensor + x, before, shown, tensor.sum(), torch.full((), tensor._version)


def written_through_views(x):
    tensor = torch.arange(12.0).reshape(3, 4)
    np.asarray(tensor.t()[1:3])[:, 0] = -1
    scalar = torch.tensor(1, dtype=torch.int16)
    scalar.numpy()[...] = 4
    empty = torch.zeros(0, 2)
    empty.numpy()[...] = 3
    return tensor * x[0, 0], scalar, empty


def written_after_a_traced_write(x):
    tensor = torch.zeros(2, 3)
    array = tensor.numpy()
    tensor += x
    array[0, 0] = 4
    return tensor


def initialized(x):
    layer: Any = torch.nn.utils.skip_init(torch.nn.Linear, 3, 2)
    layer.weight.data.numpy()[:] = [[1, 2, 3], [4, 5, 6]]
    layer.bias.detach().numpy().fill(0.5)
    layer(x).square().sum().backward()
    with torch.no_grad():
        layer.weight.numpy()[1] = 0
    return layer.weight.grad, layer(x)


@pytest.mark.parametrize(
    "function", [written_to_arrays, written_through_views, written_after_a_traced_write, initialized]
)
def test_writes(function):
    x = np.arange(1.0, 7.0, dtype=np.float32).reshape(2, 3)
    expected = jax.tree.map(lambda tensor: tensor.detach().numpy(), function(torch.tensor(x)))
    for translated in (t2j(function), jax.jit(t2j(function))):
        jax.tree.map(np.testing.assert_allclose, translated(jnp.asarray(x)), expected)


def test_inputs_stay_as_they_are():
    def fill(x):
        x.numpy()[...] = 3
        return x

    for x in (jnp.ones(2), np.ones(2, np.float32)):
        assert t2j(fill)(x).tolist() == [3, 3]
        assert x.tolist() == [1, 1]


def test_arrays_of_calls_that_have_ended():
    arrays = []

    def keep(x):
        arrays.append(torch.ones(2).numpy())
        return x

    t2j(keep)(jnp.ones(2))
    arrays[0][0] = 5
    assert t2j(lambda x: x + 1)(jnp.ones(2)).tolist() == [2, 2]


def test_no_cost_where_it_is_over():
    def drop(x):
        torch.ones(2).numpy()
        return x + torch.ones(2).numpy().sum()

    assert str(jax.make_jaxpr(t2j(drop))(jnp.ones(2))) == str(jax.make_jaxpr(lambda x: x + 2.0)(jnp.ones(2)))


@pytest.mark.parametrize(
    "back",
    [
        lambda array: torch.from_numpy(array),
        lambda array: torch.as_tensor(array),
        lambda array: torch.asarray(array),
        lambda array: torch.frombuffer(array, dtype=torch.float32),
        lambda array: torch.asarray(memoryview(array)),
        lambda array: torch.utils.dlpack.from_dlpack(torch.utils.dlpack.to_dlpack(torch.from_numpy(array))),
    ],
)
def test_a_tensor_made_of_a_lent_array_is_on_the_memory_that_it_stands_for(back):
    def write():
        x = torch.zeros(6)
        part = back(x[2:].numpy()[1:])
        part[0] = 5
        x[4] = 7
        return x, part, part.data_ptr() - x.data_ptr()

    compare_trees(t2j(write)(), write())


def test_a_lent_array_is_where_its_tensor_is():
    def offset():
        array = (x := torch.arange(4.0)).numpy()
        return array.__array_interface__["data"][0] - x.data_ptr()

    assert t2j(offset)() == offset() == 0


def test_a_capsule_is_taken_whatever_else_there_is():
    kept = []

    def keep(x):
        kept.append(x.sum().item())  # a number without a value, once the call has ended
        return x

    def write(x):
        part = torch.utils.dlpack.from_dlpack(torch.utils.dlpack.to_dlpack(x))
        part[0] = 5
        return part

    jax.make_jaxpr(t2j(keep))(jnp.ones(2))
    assert kept
    assert t2j(lambda: write(torch.zeros(2)))().tolist() == [5, 0]
