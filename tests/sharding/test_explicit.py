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


F = torch.nn.functional
HEADS, SEQUENCES, CLASSES = P("data", "model"), P("data"), P("data", None, "model")
# What a language model does beside products: by name the function, the shapes and specs of what it takes, and the
# spec of what it gives.
OPERATIONS = {
    "masked_fill": (
        lambda q: (q @ q.mT).masked_fill(torch.ones(8, 8, dtype=torch.bool).triu(1), -1e9).softmax(-1),
        [((4, 4, 8, 8), HEADS)],
        P("data", "model", None, None),
    ),
    "where": (
        lambda q: torch.where(torch.tril(torch.ones(8, 8)) == 0, -1e9, q),
        [((4, 4, 8, 8), HEADS)],
        P("data", "model", None, None),
    ),
    "tril": (lambda q: q.tril(), [((4, 4, 8, 8), HEADS)], P("data", "model", None, None)),
    "attention": (
        lambda q: F.scaled_dot_product_attention(q, q, q, is_causal=True),
        [((4, 4, 8, 8), HEADS)],
        P("data", "model", None, None),
    ),
    "cross_entropy": (
        lambda x, ids: F.cross_entropy(x.flatten(0, 1), ids.flatten(), ignore_index=3),
        [((4, 8, 12), SEQUENCES), ((4, 8), SEQUENCES)],
        P(),
    ),
    "cross_entropy_of_each": (
        lambda x, ids: F.cross_entropy(x.transpose(1, 2), ids, reduction="none"),
        [((4, 8, 12), SEQUENCES), ((4, 8), SEQUENCES)],
        P("data", None),
    ),
    "cross_entropy_of_split_classes": (
        lambda x, ids: F.cross_entropy(x.transpose(1, 2), ids),
        [((4, 8, 12), CLASSES), ((4, 8), SEQUENCES)],
        P(),
    ),
    "shifted": (
        lambda x, ids: F.cross_entropy(x[:, :-1].reshape(-1, 12), F.pad(ids, (0, 1), value=-100)[:, 1:-1].reshape(-1)),
        [((4, 8, 12), SEQUENCES), ((4, 8), SEQUENCES)],
        P(),
    ),
    "groups": (lambda x: x.reshape(4, 2, 16, 4).sin(), [((4, 4, 8, 4), SEQUENCES)], P("data", None, None, None)),
    "split_heads": (
        lambda x: x.view(4, 8, 4, 2, 3).transpose(1, 2),
        [((4, 8, 24), P("data", None, "model"))],
        P("data", "model", None, None, None),
    ),
    "merged_heads": (lambda x: x.transpose(1, 2).reshape(4, 8, 32), [((4, 4, 8, 8), HEADS)], P("data", None, "model")),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_operations_of_a_language_model(name):
    function, given, spec = OPERATIONS[name]
    arrays = [np.sin(np.arange(np.prod(shape), dtype=np.float32)).reshape(shape) for shape, _ in given]
    arrays[1:] = [(np.arange(x.size).reshape(x.shape) * 5 % 12).astype(np.int32) for x in arrays[1:]]
    f = t2j(function)

    def loss(*arrays):
        return (f(*arrays) ** 2).sum()

    expected = function(*(torch.from_numpy(x if x.dtype == np.float32 else x.astype(np.int64)) for x in arrays))
    slope = jax.grad(loss)(*arrays)
    with jax.set_mesh(jax.make_mesh((2, 4), ("data", "model"))):
        placed = [jax.device_put(jnp.asarray(x), where) for x, (_, where) in zip(arrays, given, strict=True)]
        found = jax.jit(f)(*placed)
        assert jax.typeof(found).sharding.spec == spec
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
        gradient = jax.jit(jax.grad(loss))(*placed)
        assert jax.typeof(gradient).sharding == jax.typeof(placed[0]).sharding
        np.testing.assert_allclose(gradient, slope, rtol=1e-5, atol=1e-5)


ROWS, SPLIT = P("data"), P(None, "model")
PRODUCTS = {
    "linear": (lambda x, w, b: F.linear(x, w, b), [((8, 6), ROWS), ((4, 6), P()), ((4,), P())], P("data", None)),
    "columns": (F.linear, [((8, 6), ROWS), ((4, 6), P("model")), ((4,), P("model"))], P("data", "model")),
    "sums": (F.linear, [((2, 8, 8), P("data", None, "model")), ((4, 8), SPLIT), ((4,), P())], P("data", None, None)),
    "products": (lambda x, w, b: x @ w + b, [((8, 8), SPLIT), ((8, 4), P("model")), ((4,), P())], P(None, None)),
    "added": (lambda x, w, b: torch.addmm(b, x, w), [((8, 8), ROWS), ((8, 4), P()), ((4,), P())], P("data", None)),
    "batches": (lambda x, w, b: x @ w * b, [((2, 4, 8), ROWS), ((2, 8, 4), ROWS), ((), P())], P("data", None, None)),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_products_and_biases(name):
    """What is split alike in both operands is summed; the gradient of a bias gathers no rows."""
    function, given, spec = PRODUCTS[name]
    arrays = [np.sin(np.arange(np.prod(shape), dtype=np.float32)).reshape(shape) for shape, _ in given]
    f = t2j(function)

    def loss(*arrays):
        return (f(*arrays) ** 2).sum()

    expected, slopes = function(*map(torch.from_numpy, arrays)), jax.grad(loss, (0, 1, 2))(*arrays)
    with jax.set_mesh(jax.make_mesh((2, 4), ("data", "model"))):
        placed = [jax.device_put(jnp.asarray(x), where) for x, (_, where) in zip(arrays, given, strict=True)]
        found = jax.jit(f)(*placed)
        assert jax.typeof(found).sharding.spec == spec
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
        program = jax.jit(jax.grad(loss, (0, 1, 2))).lower(*placed).compile()
        assert "all-gather" not in program.as_text()
        for gradient, slope, array in zip(program(*placed), slopes, placed, strict=True):
            assert jax.typeof(gradient).sharding == jax.typeof(array).sharding
            np.testing.assert_allclose(gradient, slope, rtol=1e-5, atol=1e-4)


def test_products_that_are_split_in_two_ways_are_ambiguous():
    with jax.set_mesh(jax.make_mesh((2, 4), ("data", "model"))):
        x, w = jax.device_put(jnp.ones((8, 8)), P(None, "model")), jax.device_put(jnp.ones((8, 8)), P("data"))
        with pytest.raises(Exception, match="sharding"):
            jax.jit(t2j(torch.matmul))(x, w)


def test_other_reshapes_are_ambiguous():
    with jax.set_mesh(jax.make_mesh((2, 4), ("data", "model"))):
        for shape, spec, other in (((4, 8), P(None, "model"), (32,)), ((8, 4), P("model"), (2, 16))):
            array = jax.device_put(jnp.ones(shape), spec)
            with pytest.raises(Exception, match="out_sharding"):
                jax.jit(t2j(lambda x: x.reshape(other) + 1))(array)  # noqa: B023


def test_classes_that_are_out_of_range():
    """Give NaN on split classes too, as elsewhere where nobody can look."""
    with jax.set_mesh(jax.make_mesh((2, 4), ("data", "model"))):
        x = jax.device_put(jnp.ones((4, 8)), P("data", "model"))
        ids = jax.device_put(jnp.asarray([0, 8, 7, -1]), P("data"))
        found = jax.jit(t2j(lambda x, ids: F.nll_loss(x, ids, reduction="none")))(x, ids)
        np.testing.assert_array_equal(found, [-1, np.nan, -1, np.nan])


@pytest.mark.parametrize("jit", [lambda f: f, jax.jit])
def test_a_mesh_need_not_be_set(jit):
    mesh = jax.make_mesh((2, 4), ("data", "model"))
    given = [np.sin(np.arange(64.0, dtype=np.float32) + i).reshape(8, 8) for i in range(2)]
    placed = [jax.device_put(x, jax.NamedSharding(mesh, spec)) for x, spec in zip(given, (P("data"), P()), strict=True)]

    def choose(x, y):
        return torch.where(x > 0, x, y)

    found = jit(t2j(choose))(*placed)
    assert jax.typeof(found).sharding.spec == P("data", None)
    np.testing.assert_array_equal(found, choose(*map(torch.from_numpy, given)))
