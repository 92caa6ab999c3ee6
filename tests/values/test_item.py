"""What ``.item()`` gives of a traced tensor: a number among others, which is compared by following both answers."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from torch2jax import TracedValueError, t2j
from torch2jax.tensors.dtypes import canonical
from torch2jax.tensors.tensor import Torchish

INPUTS = [np.array(x, np.float32) for x in ([1, 2, 4], [-1, -2, -4])]


def checked(x):
    n = x.max().item()
    if n > 10:
        raise ValueError(f"{n:.2f} is too large")
    return x * 2


def compared(x):
    n, longest = x.sum().item(), x.long().max().item()
    if n > 0 and longest != 3:
        return x + n
    return x - longest if longest < n else x * longest


def computed(x):
    n, i = x.mean().item(), x.long().abs().min().item()
    i = i.to(x.device) if isinstance(i, torch.Tensor) else i  # as code asks that has tensors or numbers
    return 2 * n - 1, -n / 3 + i, abs(n) ** 2, n // 2 + n % 2, i // 2 - i % 2, i / 2, 7 - i, i * i, 1 / n, +i


def rounded(x):
    n, i = x.mean().item() / 7, x.long().max().item()
    return round(n, 3), round(n), round(n * 35, -1), round(n * 1e37, 3), round(i), round(i, 2)


def among_tensors(x):
    n, i = x.max().item(), x.long().max().item()
    half, whole, flag, scalar = x.half(), x.long(), x > 0, x[0]
    return (
        *(x * n, n - x, x / i, half * n, scalar.half() * n, whole + n, whole * i, whole.int() + i, flag * i, flag + n),
        *(scalar / n, torch.where(x > 0, x, n), torch.where(x > 0, half, i), x.clamp(max=n), torch.pow(x.abs(), i)),
        *(x > n, n >= whole, x == i, torch.maximum(x, x * n), torch.add(x, n), x.bfloat16() * n),
    )


def written(x):
    n, i, y = x.min().item(), x.long().min().item(), x.clone()
    y *= n
    y[0] = i
    y[1:].fill_(n)
    y.masked_fill_(x > 3, n - 1)
    return y, y.masked_fill(x < 2, i), torch.full((2,), n), torch.full((2,), i), torch.full((), n, dtype=torch.half)


def made(x):
    n, i = x.min().item(), x.long().min().item()
    return torch.tensor(n), torch.tensor([n, 2]), torch.tensor([i, 2]), torch.as_tensor(i), x.new_full((2,), i)


@pytest.mark.parametrize("function", [checked, compared, computed, rounded, among_tensors, written, made])
def test_values_and_dtypes(function):
    jitted = jax.jit(t2j(function))
    for x in INPUTS:
        actual, expected = jitted(x), function(torch.from_numpy(x.copy()))
        for got, want in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
            if isinstance(want, torch.Tensor):
                assert got.dtype == canonical(want.dtype)
                want = want.double().numpy()
            np.testing.assert_allclose(np.asarray(got, np.float64), want, 1e-6)


def test_in_double_precision():
    x = np.array([1 / 3, 2.0])
    with jax.enable_x64(True):
        for function in (lambda x: x.float() * x[0].item(), lambda x: x[0].item() * 3 == 1, lambda x: x[0].item()):
            np.testing.assert_array_equal(jax.jit(t2j(function))(x), function(torch.from_numpy(x)))


def test_it_has_no_gradient_and_a_batch_has_several():
    def function(x):
        n = x.max().item()
        return (x * n).sum() if n > 0 else x.sum() - n

    for x in INPUTS:
        leaf = torch.from_numpy(x.copy()).requires_grad_()
        function(leaf).backward()
        np.testing.assert_allclose(jax.jit(jax.grad(t2j(function)))(x), leaf.grad)
    batch = jax.jit(jax.vmap(t2j(function)))(jnp.stack(INPUTS))
    np.testing.assert_allclose(batch, [function(torch.from_numpy(x)) for x in INPUTS])


def test_it_is_a_number_and_a_branch_takes_it():
    def function(x):
        n, i = x.sum().item(), x.long().sum().item()
        assert isinstance(n, float)
        assert not isinstance(n, int)
        assert isinstance(i, int)
        return n if n > 0 else -n

    assert jax.jit(t2j(function))(INPUTS[0]) == 7


def test_a_check_costs_nothing():
    assert [str(step.primitive) for step in jax.make_jaxpr(t2j(checked))(INPUTS[0]).eqns] == ["mul"]


@pytest.mark.parametrize(
    "function",
    [
        lambda x, n: [*range(x.long()[0].item())],
        lambda x, n: int(n),
        lambda x, n: float(n),
        lambda x, n: math.floor(n),
        lambda x, n: round(x.long()[0].item(), -1),
        lambda x, n: f"{n}",
        lambda x, n: f"{n:.2f}",
        lambda x, n: str(n),
        lambda x, n: {n: 1},
        lambda x, n: torch.zeros(n),
        lambda x, n: x[: x.long()[0].item()],
        lambda x, n: x.sum(x.long()[0].item()),
        lambda x, n: torch.nn.functional.layer_norm(x, (3,), eps=n),
        lambda x, n: x.expand(n, 3),
        lambda x, n: torch.linspace(0, n, x.long()[0].item()),
        lambda x, n: torch.sqrt(n),
    ],
)
def test_where_somebody_has_to_know_it(function):
    with pytest.raises((TracedValueError, AttributeError)):
        jax.jit(t2j(lambda x: function(x, x[1].item()) and x))(INPUTS[0])


def test_where_no_answer_can_be_followed():
    for function, options in ((lambda x: x[0].item(), {"max_paths": 1}), (torch.vmap(lambda x: x * x.item()), {})):
        with pytest.raises(TracedValueError, match=r"Tensor\.item\(\)"):
            jax.jit(t2j(function, **options))(INPUTS[0])


def test_other_tensors_stand_for_themselves():
    assert Torchish.python_type is None
    assert jax.jit(t2j(lambda x: (x[0].double() * x.half()[0]).dtype == torch.float64 and x))(INPUTS[0]) is not None


def compared_with_floats(x):
    v, w = x[0].item(), 0.1 if x.sum() > 0 else 0.01
    answers = (
        v > 0.3,
        v >= 0.3,
        v < 0.3,
        v <= 0.3,
        v == 0.3,
        v != 0.3,
        v > 0.1,
        v <= 0.1,
        v == 0.5,
        v > 1e39,
        w == 0.1,
    )
    return torch.tensor([int(answer) for answer in answers])


@pytest.mark.parametrize("first", [0.3, 0.1, 0.5, 0.2, math.inf, math.nan, -1.0])
def test_a_float32_is_compared_with_floats_of_pythons_exactly(first):
    x = np.array([first, 1.0], np.float32)
    got = jax.jit(t2j(compared_with_floats))(x)
    np.testing.assert_array_equal(got, compared_with_floats(torch.from_numpy(x)))
