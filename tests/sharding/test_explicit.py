"""On explicit axes, where shardings are in JAX's types."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from jax.sharding import PartitionSpec as P

from torch2jax import t2j

pytestmark = pytest.mark.usefixtures("eight_devices")
EMBEDDING = torch.nn.functional.embedding


@pytest.mark.parametrize(
    ("table", "ids", "rows"),
    [
        (P(None, "model"), P("data"), P("data", None, "model")),
        (P("model"), P("data"), P("data", None, None)),  # the part of each device, and a sum
        (P(), P(("data", "model")), P(("data", "model"), None, None)),
        (P(None, "model"), P(), P(None, None, "model")),
        (P(), P("data", "model"), P("data", "model", None)),
    ],
)
@pytest.mark.parametrize("options", [{}, {"padding_idx": 3}])
def test_rows_of_a_table_lie_as_indices_and_columns_do(table, ids, rows, options):
    values, numbers = np.sin(np.arange(64.0, dtype=np.float32)).reshape(16, 4), np.arange(32).reshape(8, 4) % 16
    f = t2j(lambda ids, table: EMBEDDING(ids, table, **options))

    def loss(table, ids):
        return (f(ids, table) ** 2).sum()

    expected, slope = f(numbers, values), jax.grad(loss)(values, numbers)
    with jax.set_mesh(jax.make_mesh((2, 4), ("data", "model"))):
        placed = jax.device_put(jnp.asarray(values), table), jax.device_put(jnp.asarray(numbers), ids)
        found = jax.jit(lambda table, ids: f(ids, table))(*placed)
        assert jax.typeof(found).sharding.spec == rows
        np.testing.assert_array_equal(found, expected)
        grads = jax.jit(jax.grad(loss))(*placed)
        assert jax.typeof(grads).sharding == jax.typeof(placed[0]).sharding
        np.testing.assert_allclose(grads, slope, rtol=1e-5, atol=1e-6)


def test_what_is_ambiguous_is_told():
    with jax.set_mesh(jax.make_mesh((2, 4), ("data", "model"))):
        table = jax.device_put(jnp.ones((16, 4)), P(None, "model"))
        ids = jax.device_put(jnp.zeros((8,), int), P("model"))
        with pytest.raises(Exception, match="out_sharding") as raised:
            jax.jit(t2j(EMBEDDING))(ids, table)
        assert any("auto_axes" in note for note in raised.value.__notes__)
