import secrets

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from torch2jax import t2j

KEY = jax.random.key(0)


@pytest.mark.parametrize(
    "key",
    [jax.random.key(3), jax.random.PRNGKey(3), jax.random.key(3, impl="rbg"), jax.random.key(3, impl="unsafe_rbg")],
    ids=["new", "old", "rbg", "unsafe_rbg"],
)
def test_kinds_of_keys(key):
    def f():
        x = torch.rand(100)
        return x, torch.randn(3), torch.randperm(5), x.bernoulli_(0.5)

    eager, jitted = t2j(f)(rng=key), jax.jit(t2j(f))(rng=key)
    for a, b in zip(eager, jitted, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5)


def test_rejection_samplers_take_every_kind_of_key():
    counts = t2j(lambda: torch.poisson(torch.full((100,), 3.0)))(rng=jax.random.key(3, impl="rbg"))
    assert 2 < counts.mean() < 4


def test_same_key_same_numbers_and_each_operator_its_own():
    f = t2j(lambda: (torch.rand(4), torch.rand(4)))
    first, second = f(rng=KEY)
    assert not np.array_equal(first, second)
    np.testing.assert_array_equal(first, f(rng=KEY)[0])
    assert not np.array_equal(first, f(rng=jax.random.key(1))[0])


def test_a_missing_key_is_one_clear_error():
    with pytest.raises(RuntimeError, match=r"needs a key, at .*test_rng.py.*rng=jax.random.key"):
        t2j(lambda: torch.rand(2))()
    module = torch.nn.Dropout()
    with pytest.raises(RuntimeError, match=r"module\.eval"):
        t2j(module)(jnp.ones(2))


@pytest.mark.parametrize("rng", [0, np.zeros(3, np.uint32), jnp.zeros(2), jax.random.split(KEY, 3)])
def test_what_is_no_key_is_refused(rng):
    with pytest.raises(TypeError, match="wanted one JAX key"):
        t2j(lambda: torch.rand(2))(rng=rng)


def test_keys_batch():
    keys = jax.random.split(KEY, 3)
    rows = jax.vmap(lambda key: t2j(lambda: torch.randn(2))(rng=key))(keys)
    assert rows.shape == (3, 2)
    assert len(np.unique(rows)) == 6


def test_manual_seed_reseeds_the_call():
    def f(seed):
        torch.rand(3)
        assert torch.manual_seed(seed) is torch.default_generator
        assert torch.initial_seed() == seed
        return torch.rand(3)

    numbers = t2j(f)(5, rng=KEY)
    np.testing.assert_array_equal(numbers, t2j(f)(5, rng=jax.random.key(1)))
    np.testing.assert_array_equal(numbers, t2j(lambda: (torch.manual_seed(5), torch.rand(3))[1])())
    assert not np.array_equal(numbers, t2j(f)(6, rng=KEY))
    assert not np.array_equal(numbers, t2j(f)(5 + 2**32, rng=KEY))


@pytest.mark.filterwarnings("ignore:translated code draws from a torch.Generator")
def test_torchs_own_state_is_left_alone():
    generator = torch.Generator().manual_seed(3)
    before, of_generator = torch.get_rng_state(), generator.get_state()
    of_numpy = np.random.get_state()[1].copy()  # noqa: NPY002

    def f(x):
        torch.manual_seed(1)
        torch.seed()
        torch.random.fork_rng().__enter__()
        x = torch.dropout(x, 0.5, True) + torch.rand(3) + torch.randn(3, generator=generator)
        x = x + torch.rand(3, generator=torch.default_generator)
        return torch.nn.init.xavier_normal_(torch.empty(3, 3)) + x + torch.bernoulli(torch.full((3,), 0.5))

    t2j(f)(jnp.ones(3), rng=KEY)
    jax.jit(t2j(f))(jnp.ones(3), rng=KEY)
    assert torch.equal(before, torch.get_rng_state())
    assert torch.equal(of_generator, generator.get_state())
    np.testing.assert_array_equal(of_numpy, np.random.get_state()[1])  # noqa: NPY002


def test_outside_a_call_torch_is_itself():
    state = torch.get_rng_state()
    try:
        torch.manual_seed(11)
        assert torch.initial_seed() == torch.default_generator.initial_seed() == 11
        first = torch.rand(3)
        torch.manual_seed(11)
        assert torch.equal(first, torch.rand(3))
        assert torch.seed() == torch.initial_seed()
    finally:
        torch.set_rng_state(state)


def test_generators_have_streams_of_their_own():
    def f():
        a, b = torch.Generator().manual_seed(0), torch.Generator().manual_seed(1)
        first, other = torch.rand(3, generator=a), torch.rand(3, generator=b)
        state = a.get_state()
        second = torch.rand(3, generator=a)
        a.manual_seed(0)
        again = torch.rand(3, generator=a)
        a.set_state(state)
        return first, other, second, again, torch.rand(3, generator=a)

    first, other, second, again, restored = t2j(f)()
    assert len(np.unique([first, other, second])) == 9
    np.testing.assert_array_equal(first, again)
    np.testing.assert_array_equal(second, restored)


@pytest.mark.filterwarnings("ignore:translated code draws from a torch.Generator")
def test_a_generator_from_outside_starts_every_call_alike():
    generator = torch.Generator().manual_seed(7)
    f = t2j(lambda: torch.rand(3, generator=generator))
    np.testing.assert_array_equal(f(), f())
    before = f()
    torch.rand(1, generator=generator)
    assert not np.array_equal(before, f())


@pytest.mark.parametrize("key", [KEY, jax.random.PRNGKey(0)], ids=["new", "old"])
@pytest.mark.parametrize("transform", [lambda f: f, jax.jit])
def test_states_are_restored(key, transform):
    def f():
        torch.rand(2)
        state = torch.get_rng_state()
        assert state.dtype == torch.uint8
        first = torch.rand(3)
        torch.set_rng_state(state.clone())
        second = torch.rand(3)
        torch.set_rng_state(state)
        with torch.random.fork_rng():
            torch.rand(5)
            torch.manual_seed(3)
        return first, second, torch.rand(3)

    first, second, third = transform(t2j(f))(rng=key)
    np.testing.assert_array_equal(first, second)
    np.testing.assert_array_equal(first, third)


def test_state_without_a_key():
    def f(x):
        with torch.random.fork_rng():
            return x + 1

    np.testing.assert_array_equal(t2j(f)(jnp.zeros(2)), [1, 1])


def test_seed_and_initial_seed(monkeypatch):
    monkeypatch.setattr(secrets, "randbits", lambda bits: 12)

    def f():
        assert torch.seed() == 12
        assert torch.initial_seed() == 12
        return torch.rand(2)

    np.testing.assert_array_equal(t2j(f)(), t2j(lambda: (torch.manual_seed(12), torch.rand(2))[1])())
    with pytest.raises(RuntimeError, match="not from a seed"):
        t2j(lambda: torch.initial_seed())(rng=KEY)


def test_nested_calls_share_the_stream():
    inner = t2j(lambda: torch.rand(2))

    def f():
        return torch.rand(2), inner(), inner(rng=jax.random.key(9))

    outer, nested, own = t2j(f)(rng=KEY)
    assert not np.array_equal(outer, nested)
    np.testing.assert_array_equal(own, inner(rng=jax.random.key(9)))


@pytest.mark.parametrize("transform", [lambda f: f, jax.jit, lambda f: jax.vmap(f, in_axes=0)])
def test_a_generator_from_outside_is_warned_of(transform):
    generator = torch.Generator().manual_seed(3)
    before = generator.get_state()

    def outside(x):
        return x + torch.rand(3, generator=generator)

    def inside(x):
        if x.sum() > 100:  # runs more than once
            x = x + 1
        return x + torch.rand(3, generator=torch.Generator().manual_seed(3))

    x = jnp.ones((2, 3))
    with pytest.warns(UserWarning, match="each call draws the same numbers"):
        given = transform(t2j(outside))(x)
    assert torch.equal(generator.get_state(), before)
    np.testing.assert_array_equal(given, transform(t2j(inside))(x))


def test_a_generator_is_not_warned_of_where_the_call_fails():
    generator = torch.Generator()

    def fails(x):
        torch.rand(3, generator=generator)
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        t2j(fails)(jnp.ones(3))


def test_a_loop_draws_the_same_from_a_key_that_is_known():
    def walk(x):
        while x.sum() < 9:
            x = x + torch.rand(2)
        return x

    key, x = jax.random.key(0), jnp.zeros(2)
    wanted = jax.jit(lambda x, key: t2j(walk)(x, rng=key))(x, key)
    np.testing.assert_array_equal(jax.jit(lambda x: t2j(walk)(x, rng=key))(x), wanted)
