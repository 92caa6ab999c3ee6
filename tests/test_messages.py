"""What wrong calls are told: what was got, what was wanted, what to do."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch import nn

import torch2jax
from torch2jax import t2j


class Model(nn.Sequential):
    def sample(self, x):
        return self(x)


@pytest.mark.parametrize("function", [lambda x: x.numpy(), np.sin, lambda x: torch.from_numpy(np.asarray(x))])
def test_numpy_under_jit_names_the_ways_to_pytorch(function):
    with pytest.raises(torch2jax.TracedValueError, match=r"torch2jax\(function, \*examples\).*call_torch="):
        jax.jit(t2j(lambda x: function(x)))(jnp.ones(3))


def test_a_misspelt_part_names_the_users_own():
    model = Model(nn.Linear(3, 3))
    with pytest.raises(ValueError, match=r"'sampel', .*\(nearest: 'sample'\)"):
        t2j(model, compile=["sampel"])
    with pytest.raises(ValueError, match=r"no method of that name$"):
        t2j(model, compile=["insrt"])


def test_errors_of_users_are_exported():
    assert issubclass(torch2jax.BranchError, torch2jax.TracedValueError)
    with pytest.raises(torch2jax.SparseLayoutError, match="to_dense"):
        t2j(torch.eye(3).to_sparse())


def test_check_shows_notes():
    from torch2jax.cli.check import _told

    error = RuntimeError("first\nsecond")
    error.add_note("what helps")
    error.add_note("--------------------\nof tracebacks")
    assert _told(error) == "first\nwhat helps"
