"""Linear and bilinear layers."""

import jax
import jax.numpy as jnp
import pytest
from torch.nn import functional as F

from torch2jax import t2j


def test_linear_is_one_matrix_product_with_its_bias_added_before_the_reshape():
    jaxpr = jax.make_jaxpr(t2j(F.linear))(jnp.ones((2, 3, 4)), jnp.ones((5, 4)), jnp.ones(5))
    names = [equation.primitive.name for equation in jaxpr.eqns]
    assert names == ["reshape", "dot_general", "broadcast_in_dim", "add", "reshape"]


def test_mismatches_are_refused():
    with pytest.raises(RuntimeError, match="last dimension"):
        t2j(F.linear)(jnp.ones((2, 3)), jnp.ones((5, 4)))
    with pytest.raises(RuntimeError, match="same dtype"):
        t2j(F.linear)(jnp.ones((2, 4), jnp.bfloat16), jnp.ones((5, 4)))
