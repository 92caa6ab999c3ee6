"""What writes in place leave in the graph, and who sees them: other views, detached tensors, memory that grows."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from torch2jax import t2j

X = jnp.arange(12.0).reshape(3, 4)


def primitives(function, *arrays) -> list[str]:
    """The names of the operations in the graph of a translated function."""
    return [equation.primitive.name for equation in jax.make_jaxpr(t2j(function))(*arrays).eqns]


# What the graph shows.


def add_to_row(x):
    x[0].add_(1)
    return x


def assign_columns(x, v):
    x[:, 1:3] = v
    return x


def assign_row(x):
    x[1] = 2.0
    return x


def write_cache(cache, k):
    cache[:, :, 2:3] = k
    return cache * 2


def add_to_transposed(x):
    x.t().add_(1)
    return x


def read_after_write(x):
    row = x[0]
    row.add_(1)
    return row * 2


def write_all(x):
    x[...] = x * 2
    return x


def write_flat(x):
    x.view(-1).mul_(2)
    return x


def write_twice(x):
    x.add_(1).mul_(2)
    return x


def write_expanded_row(x):
    x.expand(2, 3, 4)[0].add_(1)
    return x


def no_aliasing(x):
    return (x + 1).sin()


def no_gradient(x):
    with torch.no_grad():
        y = x * 2
        return (y + 1).sin()


UPDATE = ["broadcast_in_dim", "dynamic_update_slice"]


@pytest.mark.parametrize(
    ("function", "arrays", "wanted"),
    [
        (add_to_row, [X], ["slice", "squeeze", "add", *UPDATE]),
        (assign_columns, [X, X[:, 1:3]], ["dynamic_update_slice"]),
        (assign_row, [X], ["broadcast_in_dim", *UPDATE]),
        (write_cache, [jnp.zeros((1, 2, 4, 3)), jnp.ones((1, 2, 1, 3))], ["dynamic_update_slice", "mul"]),
        (add_to_transposed, [X], ["add"]),
        (read_after_write, [X], ["slice", "squeeze", "add", *UPDATE, "mul"]),
        (write_all, [X], ["mul"]),
        (write_flat, [X], ["reshape", "mul", "reshape"]),
        (write_twice, [X], ["add", "mul"]),
        (write_expanded_row, [X], ["broadcast_in_dim", "slice", "squeeze", "add", "reshape", "reshape"]),
        (no_aliasing, [X], ["add", "sin"]),
        (no_gradient, [X], ["mul", "stop_gradient", "add", "sin"]),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_graph_of(function, arrays, wanted):
    assert primitives(function, *arrays) == wanted


# Under JAX's transformations.


def mixed(x):
    rows = x[1:]
    x[0] = rows.sum(0)
    rows.mul_(x[0].clone())
    return x.t().contiguous()


def test_writes_under_jit_grad_and_vmap():
    tensor = torch.arange(12.0).reshape(3, 4).requires_grad_()
    expected = mixed(tensor.clone())
    (gradient,) = torch.autograd.grad(expected.sin().sum(), tensor)
    f = t2j(mixed)
    np.testing.assert_allclose(jax.jit(f)(X), expected.detach(), rtol=1e-6)
    np.testing.assert_allclose(jax.jit(jax.grad(lambda x: jnp.sin(f(x)).sum()))(X), gradient, rtol=1e-4, atol=1e-4)
    batch = jnp.stack([X, X + 1])
    np.testing.assert_allclose(jax.vmap(f)(batch), jnp.stack([f(X), f(X + 1)]), rtol=1e-6)


def test_the_callers_arrays_stay():
    before = X.copy()
    t2j(add_to_row)(X)
    np.testing.assert_array_equal(X, before)


# Detached tensors: the same values, other derivatives.


def through_detach(x, w):
    y = x.detach()
    y.mul_(w)
    return x * 1, y * 1


def under_no_grad(x, w):
    with torch.no_grad():
        x.mul_(w)
    return x * 1, x * w


def to_view_under_no_grad(x, w):
    with torch.no_grad():
        x[1].mul_(w[1])
    return x * 1, x * w


def both_ways(x, w):
    y = x.detach()
    y[0] = w[0] * 2
    x[1] = w[1] * 3
    y.t().mul_(2)
    return x * 1, y * 1


def through_bytes(x, w):
    x.view(torch.int32)[0].fill_(0)
    return x * 1, x * w


@pytest.mark.parametrize("function", [through_detach, under_no_grad, to_view_under_no_grad, both_ways, through_bytes])
def test_derivatives_stay_where_autograd_does_not_look(function):
    tensors = [
        torch.arange(12.0).reshape(3, 4).requires_grad_(),
        torch.linspace(1, 2, 12).reshape(3, 4).requires_grad_(),
    ]
    expected = function(tensors[0].clone(), tensors[1])
    total = sum((i + 1) * part.sum() for i, part in enumerate(expected) if part.requires_grad)
    wanted = torch.autograd.grad(total, tensors, allow_unused=True)

    def scalar(x, w):
        parts = t2j(function)(x, w)
        return sum((i + 1) * part.sum() for i, part in enumerate(parts) if expected[i].requires_grad), parts

    arrays = [t2j(tensor.detach()) for tensor in tensors]
    for transform in (lambda f: f, jax.jit):
        found, parts = transform(jax.grad(scalar, argnums=(0, 1), has_aux=True))(*arrays)
        for got, want in zip(parts, expected, strict=True):
            np.testing.assert_allclose(got, want.detach(), rtol=1e-6)
        for got, want in zip(found, wanted, strict=True):
            np.testing.assert_allclose(got, 0 if want is None else want, rtol=1e-6)


# Memory that grows.


def test_what_was_on_memory_that_grows_stays_on_it():
    def function(x):
        row, detached = x[0], x.detach()
        x.resize_(5, 4)
        x[4] = 1
        row.add_(10)
        detached[1] = 7
        x.resize_(6, 4)
        x[0, 0] = -1
        return x[:5], row, detached

    for got, want in zip(jax.jit(t2j(function))(X), function(torch.arange(12.0).reshape(3, 4)), strict=True):
        shown = slice(0, 3) if got.shape == (5, 4) else ...
        np.testing.assert_array_equal(got[shown], want[shown])


# Tensors from outside.


def test_closed_over_tensors_on_one_storage_are_aliases():
    def function(x):
        column.add_(10)
        row.mul_(x)
        whole[2, 2] = -1
        real[0, 0] = 5
        return [whole, row, column, transposed, expanded, numbers, conjugate, real]

    def tensors():
        whole = torch.arange(12.0).reshape(3, 4)
        numbers = torch.arange(4) * (1 + 2j)
        yield from (whole, whole[0], whole[:, 1], whole.t(), torch.zeros(1).expand(3))
        yield from (numbers, numbers.conj(), torch.view_as_real(numbers))

    whole, row, column, transposed, expanded, numbers, conjugate, real = tensors()
    before = [tensor.clone() for tensor in tensors()]
    for call in (t2j(function), jax.jit(t2j(function))):
        with pytest.warns(UserWarning, match=r"test_storage.py:\d+") as caught:
            results = call(jnp.float32(2))
        assert len([w for w in caught if "from outside the call" in str(w.message)]) == 2  # one for each memory
        for tensor, unchanged in zip((whole, row, column, numbers), (before[0], *before[1:3], before[5]), strict=True):
            assert torch.equal(tensor, unchanged)
    for got, want in zip(results, function(torch.tensor(2.0)), strict=True):
        np.testing.assert_allclose(got, want.resolve_conj())


def test_a_closed_over_tensor_is_written_inside_only():
    weight = torch.ones(3)

    def function(x):
        weight.add_(x)
        return weight * 2, weight.sum()

    with pytest.warns(UserWarning, match="writes in place to a tensor from outside the call"):
        doubled, total = t2j(function)(jnp.ones(3))
    np.testing.assert_array_equal(doubled, [4, 4, 4])
    assert total == 6
    assert torch.equal(weight, torch.ones(3))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        t2j(lambda x: weight + x)(jnp.ones(3))
