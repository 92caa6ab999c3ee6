"""Pointwise operators: PyTorch's derivatives at kinks, errors, and plain graphs."""

import operator

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from tests.ops.database import compare
from torch2jax import j2t, t2j


def test_derivatives_of_a_power_at_zero():
    base, exponent = torch.tensor([0.0, 0.0, 0.0, 0.0, 2.0]), torch.tensor([-1.0, 0.0, 0.5, 1.0, 1.5])
    wanted = torch.func.grad(lambda x, y: (x**y).sum(), argnums=(0, 1))(base, exponent)
    found = jax.grad(lambda x, y: t2j(operator.pow)(x, y).sum(), argnums=(0, 1))(t2j(base), t2j(exponent))
    for got, want in zip(found, wanted, strict=True):
        np.testing.assert_allclose(got, want.numpy())


@pytest.mark.parametrize(
    "function",
    [
        torch.abs,
        torch.sgn,
        lambda x: x.clamp(-1, 1),
        lambda x: x.clamp(min=0),
        lambda x: x.clamp(max=torch.tensor([0.0, 0.0, 0.0, 0.0])),
        lambda x: torch.maximum(x, torch.zeros(4)),
        lambda x: torch.fmax(x, torch.zeros(4)),
        lambda x: torch.nan_to_num(x),
        lambda x: torch.where(x > 0, x, 0.0),
        lambda x: x**2 + x**1.0,
    ],
)
def test_derivative_at_a_kink(function):
    x = torch.tensor([-1.0, 0.0, 1.0, 2.0], requires_grad=True)
    function(x).sum().backward()
    gradient = jax.grad(lambda array: t2j(lambda x: function(x).sum())(array))(t2j(x.detach()))
    compare(gradient, x.grad)


@pytest.mark.parametrize("eps", [0.2, 0.5, 0.6, 1.0])
def test_bounds_of_logit_that_change_places(eps):
    x = torch.tensor([0.0, 0.1, 0.5, 0.55, 0.7, 1.0, torch.nan])
    compare(t2j(lambda x: torch.logit(x, eps))(t2j(x)), torch.logit(x, eps))
    inside = x[1:5].requires_grad_()
    (wanted,) = torch.autograd.grad(torch.logit(inside, eps).sum(), inside)
    compare(jax.grad(lambda x: t2j(lambda x: torch.logit(x, eps))(x).sum())(t2j(inside.detach())), wanted)


def test_bounds_get_the_gradient_beyond_them():
    # Where the bounds are equal and beyond x, PyTorch's gradient goes nowhere; the upper bound gets it here.
    tensors = [torch.tensor(values, requires_grad=True) for values in ([0.0, 1, 2, 3], [1.0, 1, 1, 1], [4.0, 1, 0, 2])]
    expected = torch.autograd.grad(torch.clamp(*tensors).sum(), tensors)
    actual = jax.grad(lambda *x: t2j(torch.clamp)(*x).sum(), (0, 1, 2))(*(t2j(x.detach()) for x in tensors))
    for got, want in zip(actual, expected, strict=True):
        compare(got, want)


SPECIAL = torch.tensor([float("nan"), float("inf"), -float("inf"), -0.0, 0.0, 1.5, -1.5])


@pytest.mark.parametrize(
    "function",
    [
        torch.sign,
        torch.signbit,
        torch.isfinite,
        torch.nan_to_num,
        torch.round,
        torch.frac,
        torch.digamma,
        lambda x: torch.clamp(x, -1, 1),
        lambda x: torch.heaviside(x, torch.tensor(2.0)),
        lambda x: torch.fmax(x, x.flip(0)),
        lambda x: torch.maximum(x, x.flip(0)),
        lambda x: torch.isclose(x, x, equal_nan=True),
        lambda x: torch.isclose(x, x.flip(0)),
        lambda x: x.where(x > 0, 7),
        lambda x: x**0.5,
    ],
)
def test_special_values(function):
    compare(t2j(function)(SPECIAL), function(SPECIAL))


@pytest.mark.parametrize("function", [torch.floor_divide, torch.remainder, torch.fmod, torch.div])
@pytest.mark.parametrize("dtype", [torch.int32, torch.uint8, torch.float32])
def test_quotients(function, dtype):
    x = torch.tensor([-7, -6, -1, 0, 1, 6, 7]).to(dtype)
    for other in (torch.tensor([3, 3, 3, 3, 5, 5, 5]).to(dtype), 3, 2.5):
        compare(t2j(function)(x, other), function(x, other))
    if dtype != torch.uint8:
        for other in (torch.full((7,), -3).to(dtype), -3, -2.5):
            compare(t2j(function)(x, other), function(x, other))


def test_integer_powers():
    base, exponent = torch.tensor([1, -1, -1, 2, 0, -3]), torch.tensor([-2, -3, -2, -1, 2, 3])
    compare(t2j(torch.pow)(base, exponent), torch.pow(base, exponent))


@pytest.mark.parametrize("x64", [False, True])
def test_large_integer_powers(x64):
    base, exponent = torch.tensor([1, -1, -1, 2, 0, -6]), torch.tensor([99, 65, 100, 64, 70, 1001])
    with jax.enable_x64(x64):
        compare(t2j(torch.pow)(base, exponent), torch.pow(base, exponent))
        compare(t2j(lambda x: x**100)(base), base**100)


@pytest.mark.parametrize("scalar", [2.0, 0.1, 1, 3, 1e-9, 1000])
@pytest.mark.parametrize("function", [operator.add, operator.mul, operator.truediv, operator.sub])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_right_to_a_unit_in_the_last_place(function, dtype, scalar):
    # Not to the bit: whether PyTorch rounds the scalar first depends on the processor.
    x = torch.randn(1000).to(dtype)
    tolerance = {"rtol": torch.finfo(dtype).eps, "atol": torch.finfo(dtype).eps * min(scalar, 1)}
    np.testing.assert_allclose(t2j(lambda x: function(x, scalar).float())(x), function(x, scalar).float(), **tolerance)
    flipped = function(x, x.flip(0)).float()
    np.testing.assert_allclose(t2j(lambda x: function(x, x.flip(0)).float())(x), flipped, **tolerance)


@pytest.mark.parametrize(
    ("function", "error"),
    [
        (lambda: torch.ones(2, dtype=torch.bool) - torch.ones(2, dtype=torch.bool), RuntimeError),
        (lambda: -torch.ones(2, dtype=torch.bool), RuntimeError),
        (lambda: torch.ones(2, dtype=torch.int64) ** -1, RuntimeError),
        (lambda: torch.ones(2, dtype=torch.int64) // 0, RuntimeError),
        (lambda: torch.add(torch.ones(2, dtype=torch.int64), 1, alpha=0.5), RuntimeError),
        (lambda: torch.clamp(torch.ones(2)), RuntimeError),
        (lambda: torch.ones(2, dtype=torch.complex64) < 1, RuntimeError),
        (lambda: torch.maximum(torch.ones(2, dtype=torch.complex64), torch.ones(2)), RuntimeError),
        (lambda: torch.ones(2) & torch.ones(2), RuntimeError),
        (lambda: torch.div(torch.ones(2), 2, rounding_mode="up"), RuntimeError),
        (lambda: torch.complex(torch.ones(2), torch.ones(2, dtype=torch.float16)), RuntimeError),
        (lambda: torch.isclose(torch.ones(2), torch.ones(2), rtol=-1), RuntimeError),
        (lambda: torch.ones(2) + torch.ones(3), (RuntimeError, ValueError)),
    ],
)
def test_errors(function, error):
    with pytest.raises(error):
        function()
    with pytest.raises(error):
        t2j(function)()


def _primitives(jaxpr) -> list[str]:
    names = []
    for equation in jaxpr.eqns:
        inner = equation.params.get("call_jaxpr") or equation.params.get("jaxpr")
        names += (
            [equation.primitive.name] if inner is None or "jvp" not in equation.primitive.name else _primitives(inner)
        )
    return names


@pytest.mark.parametrize(
    ("function", "primitives"),
    [
        (lambda x: x + 1, ["add"]),
        (lambda x: x.clamp(0, 1), ["max", "min"]),
        (lambda x: x.abs(), ["abs"]),
        (lambda x: x.isnan(), ["ne"]),
        (lambda x: x**2, ["integer_pow"]),
        (lambda x: x.sqrt(), ["sqrt"]),
        (lambda x: torch.where(x > 0, x, 0.0), ["gt", "broadcast_in_dim", "select_n"]),
        (lambda x: x % 2, ["rem", "lt", "add", "select_n"]),
        (lambda x: (x + x).to(torch.bfloat16) * 2, ["add", "convert_element_type", "mul"]),
    ],
)
def test_graph(function, primitives):
    assert _primitives(jax.make_jaxpr(t2j(function))(jnp.ones(3)).jaxpr) == primitives


def test_where_with_one_argument_finds_elements():
    mask = torch.tensor([[True, False], [True, True]])
    for got, want in zip(t2j(torch.where)(mask), torch.where(mask), strict=True):
        compare(got, want)


@pytest.mark.parametrize("numbers", [(2, 3), (2.5, 3), (3, 2.5), (2j, 1)])
@pytest.mark.parametrize("function", [torch.add, torch.sub, torch.mul, torch.div], ids=lambda f: f.__name__)
def test_numbers_alone(function, numbers):
    expected = function(*numbers)
    compare(t2j(function)(*numbers), expected)
    seen = []

    def f(x):
        total = function(*numbers)
        seen.append((total.dtype, total.item()))
        return x * total

    jax.jit(t2j(f))(jnp.ones(2))
    assert seen == [(expected.dtype, expected.item())]


def test_derivatives_of_directions_at_zero_and_of_tiny_numbers():
    x = torch.tensor([0, 1e-30 + 1e-30j, 3 - 4j], requires_grad=True)
    tangent = torch.tensor([1 + 2j, 2 - 1j, 0.5j])
    of_sgn = torch.autograd.grad(torch.sgn(x), x, tangent)[0]
    of_abs = torch.autograd.grad(torch.abs(x), x, torch.ones(3), create_graph=True)[0]
    second = torch.autograd.grad(of_abs, x, tangent)[0]

    def pulled(function, cotangent):
        return lambda x: jnp.conj(jax.vjp(function, x)[1](jnp.conj(t2j(cotangent)))[0])

    gradient = pulled(t2j(torch.abs), torch.ones(3))
    np.testing.assert_allclose(pulled(t2j(torch.sgn), tangent)(t2j(x)), of_sgn.numpy(), 1e-5)
    np.testing.assert_allclose(gradient(t2j(x)), of_abs.detach().numpy(), 1e-5)
    np.testing.assert_allclose(pulled(gradient, tangent)(t2j(x)), second.numpy(), 1e-5)


@pytest.mark.parametrize("function", [torch.abs_, torch.Tensor.abs_, torch.Tensor.absolute_])
def test_a_complex_tensor_does_not_become_its_magnitude(function):
    with pytest.raises(RuntimeError, match="In-place abs is not supported for complex tensors"):
        t2j(lambda x: function(x.clone()))(jnp.ones(2, jnp.complex64))
    assert t2j(lambda x: function(x.clone()))(-jnp.ones(2)).tolist() == [1, 1]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_exp2_of_whole_numbers_is_exact(dtype):
    x = torch.arange(-14, 16).to(dtype)
    for function in (t2j(torch.exp2), jax.jit(t2j(torch.special.exp2))):
        assert j2t(function(t2j(x))).equal(torch.exp2(x))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_frexp_of_every_kind_of_number(dtype):
    whole = {2: torch.int16, 4: torch.int32, 8: torch.int64}[dtype.itemsize]
    limits = torch.iinfo(whole)
    bits = torch.randint(limits.min, limits.max, (2000,), dtype=whole)
    below = torch.cat([torch.arange(64), torch.arange(64) + limits.min]).to(whole)  # the least normal number
    x = torch.cat([bits, below, torch.tensor([0.0, -0.0, 1, torch.inf, -torch.inf], dtype=dtype).view(whole)]).view(
        dtype
    )
    x = x[~x.isnan()]
    mantissa, exponent = torch.frexp(x)
    with jax.enable_x64(True):
        ours = jax.jit(t2j(torch.frexp))(t2j(x))
        np.testing.assert_array_equal(j2t(ours[0]).view(whole), mantissa.view(whole))
        np.testing.assert_array_equal(ours[1], exponent)
        leaf = x[(x.abs() > 1e-30) & (x.abs() < 1e30)].double().requires_grad_()  # powers of two that PyTorch computes
        (slope,) = torch.autograd.grad(torch.frexp(leaf)[0].sum(), leaf)
        np.testing.assert_allclose(jax.grad(lambda x: t2j(torch.frexp)(x)[0].sum())(t2j(leaf.detach())), slope, 1e-12)


def test_a_string_is_no_operand():
    def f(x):
        assert (x == "a") is False
        assert ("a" == x) is False
        assert "a" not in [x]
        for operation in (operator.sub, operator.pow, operator.add):
            for operands in ((x, "a"), ("a", x)):
                with pytest.raises(TypeError):
                    operation(*operands)
        return x

    f(torch.ones(2))
    for run in (t2j(f), jax.jit(t2j(f))):
        run(jnp.ones(2))
