"""Linear and bilinear layers."""

import jax
import jax.numpy as jnp
import pytest
import torch
from torch.nn import functional as F

from tests.ops.database import check_gradients, check_values, entries, samples
from torch2jax import t2j


@pytest.mark.parametrize("name", ["linear", "bilinear"])
def test_database(name):
    (op,) = entries(f"nn.functional.{name}")
    for sample in samples(op, torch.float32, 4):
        check_values(op, sample)
        check_values(op, sample, jit=True)
    for dtype in {torch.int64, torch.bfloat16} & op.supported_dtypes("cpu"):
        for sample in samples(op, dtype, 2):
            check_values(op, sample)
    for sample in samples(op, torch.float32, 4, requires_grad=True):
        check_gradients(op, sample)


def test_linear_is_one_matrix_product_with_its_bias_added_before_the_reshape():
    jaxpr = jax.make_jaxpr(t2j(F.linear))(jnp.ones((2, 3, 4)), jnp.ones((5, 4)), jnp.ones(5))
    names = [equation.primitive.name for equation in jaxpr.eqns]
    assert names == ["reshape", "dot_general", "broadcast_in_dim", "add", "reshape"]


def test_mismatches_are_refused():
    with pytest.raises(RuntimeError, match="last dimension"):
        t2j(F.linear)(jnp.ones((2, 3)), jnp.ones((5, 4)))
    with pytest.raises(RuntimeError, match="same dtype"):
        t2j(F.linear)(jnp.ones((2, 4), jnp.bfloat16), jnp.ones((5, 4)))
