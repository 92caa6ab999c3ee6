"""NumPy's arrays of tensors show what is written to these, and are not to be written to."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from torch2jax import t2j

RUNS = pytest.mark.parametrize("run", [lambda f: f, jax.jit], ids=["eager", "jit"])


@RUNS
def test_arrays_show_what_is_written_to_the_tensor(run):
    def function(x):
        tensor = torch.zeros(2, 3)
        array, part = tensor.numpy(), np.asarray(tensor.t()[1:3])[:, 0]
        tensor += 1
        tensor[0, 1] = 5
        assert array.tolist() == [[1, 5, 1], [1, 1, 1]]
        assert part.tolist() == [5, 1]
        return x * tensor

    np.testing.assert_array_equal(run(t2j(function))(jnp.ones((2, 3))), [[1, 5, 1], [1, 1, 1]])


@RUNS
@pytest.mark.parametrize(
    "array_of", [torch.Tensor.numpy, np.asarray, lambda x: x[1:].numpy()[1:], lambda x: np.asarray(x, np.float32)]
)
def test_writes_to_arrays_are_refused(run, array_of):
    def function(x):
        array_of(torch.zeros(4))[0] = 1
        return x

    with pytest.raises(ValueError, match="read-only"):
        run(t2j(function))(jnp.ones(2))


def test_numpys_functions_take_them():
    def function(x):
        y = torch.tensor([3.0, 1.0, 2.0])
        made = torch.from_numpy(np.sort(y.numpy())), torch.as_tensor(y.numpy()), torch.from_numpy(y.numpy()[1:])
        return (*made, torch.as_tensor(y.bfloat16().numpy().astype(np.float32)), y + x)

    expected = [1, 2, 3], [3, 1, 2], [1, 2], [3, 1, 2], [4, 2, 3]
    for got, wanted in zip(t2j(function)(jnp.ones(3)), expected, strict=True):
        np.testing.assert_array_equal(got, wanted)


def test_no_cost_where_it_is_over():
    def drop(x):
        torch.ones(2).numpy()
        return x + torch.ones(2).numpy().sum()

    assert str(jax.make_jaxpr(t2j(drop))(jnp.ones(2))) == str(jax.make_jaxpr(lambda x: x + 2.0)(jnp.ones(2)))
