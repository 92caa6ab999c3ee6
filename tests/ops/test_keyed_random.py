"""Random numbers of keys: as PyTorch documents them; it has them on GPUs alone."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from torch2jax import t2j

if not hasattr(torch.ops.aten, "_philox_uniform"):
    pytest.skip("PyTorch has no keys of random numbers before 2.13", allow_module_level=True)

import torch.func._random as keyed

BOTH = pytest.mark.parametrize("x64", [False, True], ids=["x32", "x64"])
KEYS = np.arange(6).reshape(3, 2)


def _dtype():
    return jax.dtypes.canonicalize_dtype("uint64")


def split(key, count=3):
    return keyed.split(key, count)


@BOTH
def test_a_key_is_split_as_it_is_folded(x64):
    def function(key):
        return split(key), [keyed.fold_in(key, i) for i in range(3)], keyed.fold_in(key, -1)

    with jax.enable_x64(x64):
        for key in (jnp.asarray([7, 0], _dtype()), jnp.asarray(KEYS, _dtype())):
            for run in (t2j(function), jax.jit(t2j(function))):
                children, folded, last = run(key)
                assert children.dtype == key.dtype
                np.testing.assert_array_equal(children, jnp.stack(folded))
                assert (
                    len(np.unique(np.concatenate([children.reshape(-1, 2), last.reshape(-1, 2)]), axis=0))
                    == (children.size + last.size) // 2
                )


def test_numbers_are_of_the_key_alone():
    def function(key):
        return keyed.uniform(key, 4), keyed.normal(keyed.split(key)[0], 4)

    key = jnp.asarray([7, 0], _dtype())
    first = t2j(function)(key)
    np.testing.assert_array_equal(jax.jit(t2j(function))(key)[0], first[0])
    with jax.enable_x64(True):
        for found, wanted in zip(t2j(function)(jnp.asarray([7, 0], _dtype())), first, strict=True):
            np.testing.assert_array_equal(found, wanted)
    made = t2j(lambda: function(keyed.key(7)))()
    np.testing.assert_array_equal(made[1], first[1])
    assert not (t2j(function)(jnp.asarray([8, 0], _dtype()))[0] == first[0]).any()
    assert not (t2j(function)(jnp.asarray([7, 1], _dtype()))[0] == first[0]).any()


@pytest.mark.parametrize(
    ("draw", "mean", "deviation"),
    [
        (lambda key: keyed.uniform(key, 100, 100, low=-1.0, high=3.0), 1, 4 / 12**0.5),
        (lambda key: keyed.normal(key, 100, 100, mean=2.0, std=3.0), 2, 3),
        (lambda key: keyed.uniform_(key, torch.empty(100, 100, dtype=torch.bfloat16)).float(), 0.5, 1 / 12**0.5),
    ],
    ids=["uniform", "normal", "bfloat16"],
)
def test_distributions(draw, mean, deviation):
    drawn = t2j(draw)(jnp.asarray([3, 0], _dtype()))
    assert drawn.shape == (100, 100)
    np.testing.assert_allclose([drawn.mean(), drawn.std()], [mean, deviation], rtol=0.02, atol=0.02 * deviation)


def test_each_key_has_its_part():
    shape = (3, 2, 4)
    keys = t2j(lambda: split(keyed.key(0), 6))().reshape(3, 2, 1, 2)
    drawn = t2j(lambda keys: keyed.normal(keys, *shape))(keys)
    for i, j in np.ndindex(3, 2):
        np.testing.assert_array_equal(drawn[i, j], t2j(lambda key: keyed.normal(key, 1, 1, 4))(keys[i, j, 0])[0, 0])
    of_columns = t2j(lambda keys: keyed.normal(keys, 5, 2))(keys[0].reshape(1, 2, 2))
    np.testing.assert_array_equal(of_columns[:, 1], t2j(lambda key: keyed.normal(key, 5, 1))(keys[0, 1, 0])[:, 0])


@pytest.mark.parametrize("form", ["function", "in place", "out"])
def test_forms_of_an_operator(form):
    def function(x, key):
        if form == "in place":
            return torch.ops.aten._philox_uniform_(x, key, 1.0, high=2.0)
        if form == "out":
            return torch.ops.aten._philox_uniform(x, key, low=1.0, high=2.0, out=torch.empty(5))
        return torch.ops.aten._philox_uniform(x, key, low=1.0, high=2.0)

    key = jnp.asarray([1, 2], _dtype())
    found = t2j(function)(jnp.zeros(5), key)
    np.testing.assert_array_equal(found, t2j(lambda key: keyed.uniform(key, 5, low=1.0, high=2.0))(key))
    assert ((found >= 1) & (found < 2)).all()


@pytest.mark.skipif(not hasattr(keyed, "randint"), reason="integers are of PyTorch 2.15")
@BOTH
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64], ids=str)
def test_integers(x64, dtype):
    def function(key):
        within = keyed.randint(key, 1000, low=-3 if dtype.is_signed else 2, high=9, dtype=dtype)
        return within, keyed.bits(key, 1000, dtype=dtype), keyed.bits(key, 1000, dtype=torch.int32).to(dtype)

    with jax.enable_x64(x64):
        within, bits, narrowed = t2j(function)(jnp.asarray([5, 0], _dtype()))
        assert set(np.unique(within)) == set(range(-3 if dtype.is_signed else 2, 9))
        counts = np.unique(within, return_counts=True)[1]
        assert counts.min() > 0.5 * counts.max()
        if dtype.itemsize <= 4:
            np.testing.assert_array_equal(bits, narrowed)
        assert (bits < 0).any() == dtype.is_signed


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda x, key: torch.ops.aten._philox_key_split(key, 0), "num_splits must be positive, got 0"),
        (lambda x, key: torch.ops.aten._philox_key_split(x, 2), "key must have dtype uint64, got"),
        (lambda x, key: torch.ops.aten._philox_uniform_(x, x), "key must have dtype uint64, got"),
        (lambda x, key: torch.ops.aten._philox_uniform_(key, key), "self must be a floating point tensor, got"),
        (lambda x, key: torch.ops.aten._philox_normal_(x, key.expand(7, 2)), "is not broadcastable with output shape"),
    ],
)
def test_refusals_are_pytorchs(function, words):
    x, key = torch.zeros(2, device="meta"), torch.zeros(2, dtype=torch.uint64, device="meta")
    with pytest.raises(RuntimeError, match=words):
        function(x, key)
    with pytest.raises(RuntimeError, match=words) as found:
        t2j(function)(jnp.zeros(2), jnp.zeros(2, _dtype()))
    assert "Could not run" not in str(found.value)  # as the CPU says that has no such kernels
