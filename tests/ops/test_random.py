"""Every distribution: shape, dtype, and the distribution itself, with fixed keys, so that no check can flake."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
import torch

from torch2jax import t2j
from torch2jax.tensors.dtypes import canonical

KEY = jax.random.key(42)
COUNT = 4000


def draw(function, *args):
    return np.asarray(t2j(function)(*args, rng=KEY))


CONTINUOUS = {
    "rand": (lambda: torch.rand(COUNT), scipy.stats.uniform()),
    "rand_like": (lambda: torch.rand_like(torch.empty(COUNT)), scipy.stats.uniform()),
    "randn": (lambda: torch.randn(COUNT), scipy.stats.norm()),
    "randn_like": (lambda: torch.randn_like(torch.empty(COUNT)), scipy.stats.norm()),
    "uniform_": (lambda: torch.empty(COUNT).uniform_(-2, 3), scipy.stats.uniform(-2, 5)),
    "normal_": (lambda: torch.empty(COUNT).normal_(1, 2), scipy.stats.norm(1, 2)),
    "normal": (lambda: torch.normal(1.0, 2.0, (COUNT,)), scipy.stats.norm(1, 2)),
    "normal_mean": (lambda: torch.normal(torch.full((COUNT,), 3.0), 2.0), scipy.stats.norm(3, 2)),
    "normal_std": (lambda: torch.normal(1.0, torch.full((COUNT,), 0.5)), scipy.stats.norm(1, 0.5)),
    "normal_both": (lambda: torch.normal(torch.zeros(COUNT), torch.full((1,), 3.0)), scipy.stats.norm(0, 3)),
    "normal_rows": (
        lambda: torch.normal(torch.zeros(COUNT // 4, 4), torch.full((4,), 3.0)).flatten(),
        scipy.stats.norm(0, 3),
    ),
    "exponential_": (lambda: torch.empty(COUNT).exponential_(2.0), scipy.stats.expon(scale=0.5)),
    "log_normal_": (lambda: torch.empty(COUNT).log_normal_(0.5, 0.25), scipy.stats.lognorm(0.25, scale=np.exp(0.5))),
    "cauchy_": (lambda: torch.empty(COUNT).cauchy_(1, 2), scipy.stats.cauchy(1, 2)),
    "standard_gamma": (lambda: torch._standard_gamma(torch.full((COUNT,), 2.5)), scipy.stats.gamma(2.5)),
    "Beta": (lambda: torch.distributions.Beta(2.0, 3.0).sample((COUNT,)), scipy.stats.beta(2, 3)),
    "Gamma": (lambda: torch.distributions.Gamma(2.0, 4.0).sample((COUNT,)), scipy.stats.gamma(2, scale=0.25)),
    "Laplace": (lambda: torch.distributions.Laplace(1.0, 2.0).sample((COUNT,)), scipy.stats.laplace(1, 2)),
    "StudentT": (lambda: torch.distributions.StudentT(5.0).sample((COUNT,)), scipy.stats.t(5)),
}


@pytest.mark.parametrize("name", CONTINUOUS)
def test_continuous(name):
    function, distribution = CONTINUOUS[name]
    sample = draw(function)
    assert sample.shape == (COUNT,)
    assert sample.dtype == np.float32
    assert scipy.stats.kstest(sample, distribution.cdf).pvalue > 0.001


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    "name", sorted(CONTINUOUS.keys() - {"Laplace"})
)  # which PyTorch itself computes of coarse uniforms
def test_half_precision_rounds_a_finer_draw(name, dtype):
    def in_half_precision():
        torch.set_default_dtype(dtype)
        try:
            return CONTINUOUS[name][0]()
        finally:
            torch.set_default_dtype(torch.float32)

    sample, finer = draw(in_half_precision), draw(CONTINUOUS[name][0])
    assert sample.dtype == canonical(dtype)
    rounded = np.unique(finer.astype(sample.dtype))
    assert len(np.unique(sample)) > 0.8 * len(rounded)


DISCRETE = {
    "randint": (lambda: torch.randint(2, 7, (COUNT,)), scipy.stats.randint(2, 7), np.int32),
    "randint_high": (lambda: torch.randint(5, size=(COUNT,)), scipy.stats.randint(0, 5), np.int32),
    "randint_float": (
        lambda: torch.randint(0, 5, (COUNT,), dtype=torch.float32),
        scipy.stats.randint(0, 5),
        np.float32,
    ),
    "randint_like": (
        lambda: torch.randint_like(torch.zeros(COUNT), 1, 4),
        scipy.stats.randint(1, 4),
        np.float32,
    ),
    "random_": (lambda: torch.zeros(COUNT, dtype=torch.int16).random_(3, 6), scipy.stats.randint(3, 6), np.int16),
    "random_to": (lambda: torch.zeros(COUNT).random_(4), scipy.stats.randint(0, 4), np.float32),
    "bernoulli": (lambda: torch.bernoulli(torch.full((COUNT,), 0.3)), scipy.stats.bernoulli(0.3), np.float32),
    "bernoulli_p": (lambda: torch.zeros(COUNT).bernoulli(0.2), scipy.stats.bernoulli(0.2), np.float32),
    "bernoulli_": (lambda: torch.zeros(COUNT, dtype=torch.bool).bernoulli_(), scipy.stats.bernoulli(0.5), np.bool_),
    "bernoulli_tensor": (
        lambda: torch.zeros(COUNT, dtype=torch.int64).bernoulli_(torch.tensor(0.7)),
        scipy.stats.bernoulli(0.7),
        np.int32,
    ),
    "poisson": (lambda: torch.poisson(torch.full((COUNT,), 3.0)), scipy.stats.poisson(3), np.float32),
    "binomial": (
        lambda: torch.binomial(torch.full((COUNT,), 6.0), torch.full((COUNT,), 0.4)),
        scipy.stats.binom(6, 0.4),
        np.float32,
    ),
    "geometric_": (lambda: torch.empty(COUNT).geometric_(0.3), scipy.stats.geom(0.3), np.float32),
    "multinomial": (
        lambda: torch.multinomial(torch.tensor([1.0, 2.0, 0.0, 5.0]), COUNT, replacement=True),
        scipy.stats.rv_discrete(values=([0, 1, 2, 3], [1 / 8, 2 / 8, 0, 5 / 8])),
        np.int32,
    ),
    "Categorical": (
        lambda: torch.distributions.Categorical(torch.tensor([0.1, 0.6, 0.3])).sample((COUNT,)),
        scipy.stats.rv_discrete(values=([0, 1, 2], [0.1, 0.6, 0.3])),
        np.int32,
    ),
}


@pytest.mark.parametrize("name", DISCRETE)
def test_discrete(name):
    function, distribution, dtype = DISCRETE[name]
    sample = draw(function)
    assert sample.shape == (COUNT,)
    assert sample.dtype == dtype
    values, counts = np.unique(sample, return_counts=True)
    expected = COUNT * distribution.pmf(values.astype(int))
    assert expected.min() > 0
    common = expected >= 5  # the chi-square test needs a few of each; the rest is one class
    observed = [*counts[common], COUNT - counts[common].sum()]
    wanted = [*expected[common], COUNT - expected[common].sum()]
    if wanted[-1] < 1e-6:
        assert observed.pop() == 0
        wanted.pop()
    assert scipy.stats.chisquare(observed, wanted, sum_check=False).pvalue > 0.001


def test_randperm_is_a_uniform_permutation():
    rows = np.asarray(jax.vmap(lambda key: t2j(lambda: torch.randperm(4))(rng=key))(jax.random.split(KEY, 2000)))
    assert rows.dtype == np.int32
    np.testing.assert_array_equal(np.sort(rows, axis=1), np.tile(np.arange(4), (2000, 1)))
    _, counts = np.unique(rows, axis=0, return_counts=True)
    assert len(counts) == 24
    assert scipy.stats.chisquare(counts).pvalue > 0.001
    assert draw(lambda: torch.randperm(0)).shape == (0,)


def test_multinomial_without_replacement():
    weights = torch.tensor([[1.0, 0.0, 3.0, 4.0], [1.0, 1.0, 1.0, 1.0]])
    call = t2j(lambda: torch.multinomial(weights, 3))
    rows = np.asarray(jax.vmap(lambda key: call(rng=key))(jax.random.split(KEY, 2000)))
    assert rows.shape == (2000, 2, 3)
    assert (rows[:, 0] != 1).all()
    assert (np.sort(rows[:, 1], axis=-1)[:, 1:] > np.sort(rows[:, 1], axis=-1)[:, :-1]).all()
    first = np.bincount(rows[:, 0, 0], minlength=4)[[0, 2, 3]]
    assert scipy.stats.chisquare(first, 2000 * np.array([1, 3, 4]) / 8).pvalue > 0.001


def test_dirichlet_and_its_gradient():
    sample = draw(lambda: torch.distributions.Dirichlet(torch.tensor([1.0, 2.0, 5.0])).sample((COUNT,)))
    np.testing.assert_allclose(sample.sum(-1), 1, rtol=1e-5)
    np.testing.assert_allclose(sample.mean(0), [1 / 8, 2 / 8, 5 / 8], atol=0.02)
    f = t2j(lambda a: torch._standard_gamma(a).mean())
    gradient = jax.grad(f)(jnp.full(COUNT, 2.5), rng=KEY).sum()  # of the mean, which is `a` itself
    np.testing.assert_allclose(gradient, 1, atol=0.05)


def test_distributions_with_traced_parameters():
    def f(mean, scale):
        posterior, prior = torch.distributions.Normal(mean, scale), torch.distributions.Normal(0.0, 1.0)
        divergence = torch.distributions.kl_divergence(posterior, prior).sum()
        return posterior.log_prob(posterior.rsample()).sum() + divergence

    gradients = jax.jit(jax.grad(t2j(f), (0, 1)))(jnp.ones(3), jnp.full(3, 2.0), rng=KEY)
    np.testing.assert_allclose(gradients, [np.ones(3), np.full(3, 1.0)], rtol=1e-5)
    with pytest.raises(ValueError, match="to satisfy the constraint"):
        t2j(f)(jnp.ones(3), -jnp.ones(3), rng=KEY)


def test_complex_normal():
    sample = draw(lambda: torch.randn(COUNT, dtype=torch.complex64))
    assert sample.dtype == np.complex64
    np.testing.assert_allclose([sample.real.var(), sample.imag.var()], [0.5, 0.5], atol=0.04)
    square = draw(lambda: torch.rand(COUNT, dtype=torch.complex64))
    np.testing.assert_allclose([square.real.mean(), square.imag.mean()], [0.5, 0.5], atol=0.03)
    assert square.real.min() >= 0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_float_dtypes(dtype):
    def f():
        for x in (
            torch.rand(4, dtype=dtype),
            torch.randn(4).to(dtype).normal_(),
            torch.empty(4, dtype=dtype).cauchy_(),
        ):
            assert x.dtype == dtype
        return torch.rand(COUNT, dtype=dtype)

    sample = draw(f)
    assert sample.dtype == canonical(dtype)
    assert sample.min() >= 0
    assert sample.max() < 1
    assert abs(sample.astype(np.float32).mean() - 0.5) < 0.02


def test_normal_of_tensors_warns_where_out_has_another_shape():
    def f(mean):
        return torch.normal(mean, 1.0, out=torch.zeros(3))

    with pytest.warns(UserWarning, match="An output with one or more elements was resized"):
        assert draw(f, jnp.zeros((2, 3))).shape == (2, 3)
    assert draw(lambda: torch.normal(0.0, 1.0, (2, 3), out=torch.zeros(3))).shape == (2, 3)  # in silence, as PyTorch


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64])
def test_random_fills_the_whole_range(dtype):
    sample = draw(lambda: torch.zeros(COUNT, dtype=dtype).random_()).astype(np.float64)
    top = float(jnp.iinfo(canonical(dtype)).max)
    assert sample.min() >= 0
    assert sample.max() <= top
    assert abs(sample.mean() / top - 0.5) < 0.02


def test_full_signed_range():
    sample = draw(lambda: torch.zeros(COUNT, dtype=torch.int8).random_(-128, 128))
    assert sample.min() == -128
    assert sample.max() == 127


def test_shapes_strides_labels_and_generators():
    def f(x):
        y = x.transpose(0, 1)
        assert torch.rand_like(y).stride() == y.stride()
        assert torch.rand(2, 3, device="cuda").device.type == "cuda"
        assert torch.rand(2, requires_grad=True).requires_grad
        assert torch.randn((2, 3)).shape == torch.randn(size=(2, 3)).shape == (2, 3)
        assert torch.randint(0, 4, (2,)).dtype == torch.int64
        assert torch.randint(low=0, high=4, size=(2,)).shape == (2,)
        assert torch.randint(high=4, size=(2,)).shape == (2,)
        assert torch.bernoulli(x, p=0.5).shape == x.shape
        assert torch.rand(2, out=torch.empty(2)).shape == (2,)
        part = torch.zeros(3, 2)
        part[1].uniform_(1, 2)
        return part

    sample = draw(f, jnp.ones((2, 3)))
    np.testing.assert_array_equal(sample == 0, [[True, True], [False, False], [True, True]])


def test_no_gradient_passes_through_a_draw():
    f = t2j(lambda x: (torch.normal(x, 1.0) + torch.bernoulli(x) + x.clone().uniform_() + torch.poisson(x)).sum())
    np.testing.assert_array_equal(jax.grad(f)(jnp.full(3, 0.5), rng=KEY), np.zeros(3))


@pytest.mark.parametrize(
    ("function", "error", "message"),
    [
        (lambda: torch.rand(2, dtype=torch.int32), NotImplementedError, "floating-point"),
        (lambda: torch.zeros(2, dtype=torch.int64).normal_(), NotImplementedError, "floating-point"),
        (lambda: torch.empty(2).bernoulli_(2), RuntimeError, r"in \[0, 1\]"),
        (lambda: torch.empty(2).geometric_(1.5), RuntimeError, r"in \(0, 1\)"),
        (lambda: torch.empty(2).uniform_(2, 1), RuntimeError, "from=2 > to=1"),
        (lambda: torch.empty(2).normal_(0, -1), RuntimeError, "std >= 0"),
        (lambda: torch.normal(0.0, -1.0, (2,)), RuntimeError, "std >= 0"),
        (lambda: torch.randint(3, 3, (2,)), RuntimeError, "less than"),
        (lambda: torch.randint(0, 2**40, (2,)), ValueError, "jax_enable_x64"),
        (
            lambda: torch.randint(0, 2**30, (2,), dtype=torch.float16),
            RuntimeError,
            "to - 1 is out of bounds for c10::H",
        ),
        (lambda: torch.empty(2, dtype=torch.bool).random_(-1, 2), RuntimeError, "from is out of bounds for bool"),
        (lambda: torch.empty(2, dtype=torch.int8).random_(0, 200), RuntimeError, "to - 1 is out of bounds"),
        (lambda: torch.empty(2).uniform_(-3e38, 3e38), RuntimeError, "expects to-from <="),
        (lambda: torch.empty(2).uniform_(0, 1e39), RuntimeError, "to is out of bounds for float"),
        (lambda: torch.empty(2).uniform_(math.nan, 1), RuntimeError, "from is out of bounds for float"),
        (lambda: torch.randperm(-1), RuntimeError, "negative"),
        (lambda: torch.multinomial(torch.ones(3), 5), RuntimeError, "without replacement"),
        (lambda: torch.multinomial(torch.ones(3), 0), RuntimeError, "n_sample <= 0"),
        (lambda: torch.multinomial(torch.zeros(3), 1), RuntimeError, "sum of probabilities <= 0"),
        (
            lambda: torch.multinomial(torch.tensor([[1.0, 2.0], [0.0, 0.0]]), 1),
            RuntimeError,
            "sum of probabilities <= 0",
        ),
        (lambda: torch.multinomial(torch.tensor([-1.0, 2.0]), 1), RuntimeError, "element < 0"),
        (lambda: torch.multinomial(torch.tensor([1.0, math.nan]), 1), RuntimeError, "element < 0"),
        (lambda: torch.multinomial(torch.tensor([math.nan, 1.0]).bfloat16(), 1), RuntimeError, "element < 0"),
        (lambda: torch.multinomial(torch.tensor([[1.0, 2.0], [1.0, math.inf]]).half(), 1), RuntimeError, "element < 0"),
        (lambda: torch.multinomial(torch.ones(3, dtype=torch.int64), 1), RuntimeError, "floating-point dtypes"),
        (lambda: torch.multinomial(torch.ones(1, 1, 1), 1), RuntimeError, "1 or 2 dim"),
        (lambda: torch.binomial(torch.tensor([3]), torch.tensor([0.5])), ValueError, "floating-point"),
    ],
)
def test_bad_arguments(function, error, message):
    with pytest.raises(error, match=message):
        t2j(function)(rng=KEY)


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.float64], ids=str)
def test_coins_are_written_to_any_dtype(dtype):
    def function(x):
        out = torch.full((4,), 2).to(dtype)
        return torch.bernoulli(x, out=out), out

    for got in t2j(function)(jnp.array([0.0, 1, 1, 0]), rng=KEY):
        assert got.dtype == canonical(dtype)
        np.testing.assert_array_equal(got, [0, 1, 1, 0])


def test_floats_warn_of_whole_numbers_that_they_do_not_hold():
    with pytest.warns(UserWarning, match=r"to - 1 is out of bounds \[-\(2\^24\), 2\^24\]"):
        t2j(lambda: torch.empty(2).random_(0, 2**24 + 3))(rng=KEY)


def test_weights_of_a_multinomial_from_outside():
    weights = torch.tensor([0.0, 1.0, 0.0])
    drawn = jax.jit(lambda key: t2j(lambda: torch.multinomial(weights, 1))(rng=key))(jax.random.key(0))
    np.testing.assert_array_equal(drawn, [1])
    with pytest.raises(RuntimeError, match="probability tensor"):
        jax.jit(lambda key: t2j(lambda: torch.multinomial(-weights, 1))(rng=key))(jax.random.key(0))
