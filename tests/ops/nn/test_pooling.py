"""Pooling."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch.nn import functional as F

from tests.ops.database import compare
from torch2jax import t2j


def _same(function, *tensors):
    """The function gives PyTorch's results and its gradient of the first tensor."""
    first, *rest = tensors
    first = first.clone().requires_grad_()
    expected = function(first, *rest)
    actual = jax.jit(t2j(function))(*map(t2j, tensors))
    for got, want in zip(
        jax.tree.leaves(actual), expected if isinstance(expected, tuple) else (expected,), strict=True
    ):
        np.testing.assert_allclose(got, want.detach(), rtol=1e-5, atol=1e-6)
    output = expected[0] if isinstance(expected, tuple) else expected
    cotangent = torch.randn_like(output)
    (grad,) = torch.autograd.grad(output, first, cotangent)
    _, pull = jax.vjp(lambda x: jax.tree.leaves(t2j(function)(x, *map(t2j, rest)))[0], t2j(tensors[0]))
    compare(pull(t2j(cotangent))[0], grad)


TIES = torch.tensor([[[[1.0, 1.0, 0.0, 2.0], [1.0, 1.0, 2.0, 2.0], [0.0, 0.0, -1.0, 3.0], [0.0, 0.0, 3.0, 3.0]]]])


@pytest.mark.parametrize(
    "options",
    [
        {"kernel_size": 2},
        {"kernel_size": 3, "stride": 1, "padding": 1},
        {"kernel_size": 2, "stride": 1, "dilation": 2},
        {"kernel_size": 3, "stride": 2, "ceil_mode": True},
        {"kernel_size": 4, "stride": 1, "padding": 2},
        {"kernel_size": 5, "stride": 1, "padding": 2},
    ],
)
@pytest.mark.parametrize("return_indices", [False, True])
def test_the_first_of_several_largest_takes_the_gradient(options, return_indices):
    _same(lambda x: F.max_pool2d(x, **options, return_indices=return_indices), TIES)


@pytest.mark.parametrize(("count", "window"), [(1, (3, 2, 1)), (1, (5, 1, 2, 2)), (2, (2, 1, 1)), (2, (5, 2, 2))])
def test_padding_takes_nothing_from_an_element_that_is_minus_infinity(count, window):
    x = torch.tensor([-torch.inf, 1, 2])[torch.randint(-2, 3, (1, 2, *[9] * count), generator=seeded()).clamp(min=0)]
    for ceil_mode, return_indices in ((False, True), (True, False)):
        options = {"ceil_mode": ceil_mode, "return_indices": return_indices}
        _same(lambda x, options=options: getattr(F, f"max_pool{count}d")(x, *window, **options), x)


def seeded():
    return torch.Generator().manual_seed(0)


def test_large_windows():
    _same(lambda x: F.max_pool2d(x, 9, 1, 4), torch.randn(1, 2, 12, 11))
    _same(lambda x: F.avg_pool2d(x, 7, 2, 3, ceil_mode=True, count_include_pad=False), torch.randn(1, 2, 12, 11))


def test_nan_is_largest():
    x = jnp.array([[[[1.0, jnp.nan], [2.0, 0.0]]]])
    assert jnp.isnan(t2j(lambda x: F.max_pool2d(x, 2))(x)).all()
    assert t2j(lambda x: F.max_pool2d(x, 2, return_indices=True))(x)[1].item() == 1


def test_pooling_follows_channels_last_order():
    weight = torch.randn(3, 2, 1, 1)
    for pool in (
        lambda x: F.max_pool2d(x, 3, 2, 1),
        lambda x: F.max_pool2d(x, 3, 2, 1, return_indices=True),
        lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True, count_include_pad=False),
        lambda x: F.adaptive_avg_pool2d(x, (2, 3)),
        lambda x: F.adaptive_avg_pool2d(x, 1),
    ):
        _same(lambda x, pool=pool: pool(F.conv2d(x, weight)), torch.randn(2, 2, 8, 7))


@pytest.mark.parametrize("dimensions", [2, 3])
def test_fractional_max_pool(dimensions):
    pool = getattr(F, f"fractional_max_pool{dimensions}d")
    x, given = torch.randn(2, 3, *(7, 8, 6)[:dimensions]), torch.rand(2, 3, dimensions)
    _same(lambda x, given: pool(x, 2, output_size=3, return_indices=True, _random_samples=given), x, given)
    drawn = t2j(lambda x: pool(x, 2, output_ratio=(0.5,) * dimensions))(t2j(x), rng=jax.random.key(0))
    assert drawn.shape == (2, 3, *(int(size * 0.5) for size in x.shape[2:]))


@pytest.mark.parametrize("dimensions", [2, 3])
def test_fractional_max_pool_takes_the_first_of_more_samples(dimensions):
    pool = getattr(F, f"fractional_max_pool{dimensions}d")
    x, given = torch.randn(3, *(7, 8, 6)[:dimensions]), torch.rand(2, 3, dimensions)
    _same(lambda x, given: pool(x, 2, output_size=3, _random_samples=given), x, given)


@pytest.mark.parametrize("shape", [(1, 3, 2), (2, 4, 2), (2, 3, 3), (3, 2)])
def test_fractional_max_pool_refuses_other_samples(shape):
    x, given = torch.randn(2, 3, 7, 8), torch.rand(shape)
    with pytest.raises(RuntimeError, match="_random_samples"):
        t2j(lambda x, given: F.fractional_max_pool2d(x, 2, output_size=3, _random_samples=given))(t2j(x), t2j(given))


@pytest.mark.parametrize("norm", [1, 2, 3.0])
def test_lp_pool(norm):
    _same(lambda x: F.lp_pool2d(x, norm, 2, stride=1), torch.rand(1, 2, 4, 5) + 0.1)


def test_unpooling_undoes_pooling():
    def there_and_back(x):
        pooled, indices = F.max_pool2d(x, 2, 2, return_indices=True)
        return F.max_unpool2d(pooled, indices, 2, 2, output_size=x.shape)

    _same(there_and_back, torch.randn(2, 3, 5, 6))


def test_higher_derivatives():
    def loss(x):
        return (F.max_pool2d(x, 2, 1) ** 3).sum()

    x = torch.randn(1, 1, 3, 3)
    expected = torch.autograd.functional.hessian(loss, x)
    np.testing.assert_allclose(jax.hessian(t2j(loss))(t2j(x)), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "options", [{"kernel_size": 2, "padding": 2}, {"kernel_size": 9}, {"kernel_size": 2, "stride": 0}]
)
def test_bad_windows_are_refused(options):
    with pytest.raises(RuntimeError):
        t2j(lambda x: F.max_pool2d(x, **options))(jnp.ones((1, 1, 4, 4)))


def awkward(kind: str, *shape: int) -> torch.Tensor:
    x = torch.randn(shape, generator=seeded())
    if kind == "ties":
        return x.round()
    if kind == "nan":
        return x.masked_fill(x > 0.5, torch.nan)
    return torch.full_like(x, -torch.inf) if kind == "infinite" else x


@pytest.mark.parametrize("kind", ["distinct", "ties", "nan", "infinite"])
@pytest.mark.parametrize(
    "pool",
    [
        lambda x: F.adaptive_max_pool2d(x, (4, 3), return_indices=True),
        lambda x: F.adaptive_max_pool2d(x, (12, 4), return_indices=True),
        lambda x: F.max_pool2d(x, 5, 2, 2, return_indices=True),
        lambda x: F.max_pool2d(x, (3, 2), (2, 1), dilation=2, return_indices=True),
    ],
)
def test_which_of_a_window_is_the_largest(pool, kind):
    x = awkward(kind, 2, 3, 9, 8)
    for got, want in zip(jax.jit(t2j(pool))(t2j(x)), pool(x), strict=True):
        compare(got, want)
    if kind == "ties":
        x.requires_grad_()
        wanted = torch.autograd.grad(pool(x)[0].sin().sum(), x)[0]
        compare(jax.grad(lambda x: jnp.sin(t2j(pool)(x)[0]).sum())(t2j(x.detach())), wanted)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_large_windows_have_small_graphs(count):
    def pool(x):
        adaptive, indices = adaptive_pool(x, 3, return_indices=True)
        return adaptive, indices, max_pool(x, 6, return_indices=True)

    adaptive_pool, max_pool = getattr(F, f"adaptive_max_pool{count}d"), getattr(F, f"max_pool{count}d")
    graph = jax.make_jaxpr(t2j(pool))(jnp.zeros((1, 2, *([20] * count))))
    assert len(graph.eqns) <= 100 * count


@pytest.mark.parametrize("name", ["avg", "max"])
def test_no_windows(name):
    pool, x = getattr(F, f"adaptive_{name}_pool2d"), torch.ones(1, 4, 10, 9)
    compare(t2j(pool)(t2j(x), (3, 0)), pool(x, (3, 0)))


@pytest.mark.parametrize("dims", [1, 2, 3])
def test_unpooling_says_that_it_is_not_deterministic(dims):
    def unpool(x):
        return getattr(torch.nn, f"MaxUnpool{dims}d")(2)(x, torch.zeros_like(x, dtype=torch.int64))

    x, before = torch.ones((1, 1) + (2,) * dims), torch.are_deterministic_algorithms_enabled()
    t2j(unpool)(x)
    try:
        torch.use_deterministic_algorithms(True)
        for run in (unpool, t2j(unpool)):
            with pytest.raises(RuntimeError, match=r"max_unpooling[23]d_forward_out does not have a deterministic"):
                run(x)
    finally:
        torch.use_deterministic_algorithms(before)


WIDE = {
    "mean of all": (lambda x: F.avg_pool2d(x, 2560, ceil_mode=True), 40),
    "means": (lambda x: F.avg_pool1d(x[0], 2560, 2, 1280), 40),
    "largest of all": (lambda x: F.max_pool2d(x, 900, padding=450), 40),
}


@pytest.mark.parametrize(("pool", "most"), WIDE.values(), ids=WIDE)
def test_windows_wider_than_the_input_take_what_is_there(pool, most):
    x = torch.arange(2 * 3 * 7 * 7.0).reshape(2, 3, 7, 7).sin()
    np.testing.assert_allclose(jax.jit(t2j(pool))(t2j(x)), pool(x).numpy(), rtol=1e-5, atol=1e-6)
    assert len(jax.make_jaxpr(t2j(pool))(t2j(x)).eqns) < most
