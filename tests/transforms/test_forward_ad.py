"""`torch.autograd.forward_ad` in translated code, against PyTorch."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import torch.autograd.forward_ad as fwAD
from torch import nn

from torch2jax import t2j

X = torch.tensor([0.3, -1.2, 2.0])
V = torch.tensor([1.0, 0.5, -2.0])
MODEL = nn.Linear(3, 2)
CASES = {}


def case(function):
    CASES[function.__name__] = function
    return function


@case
def gradients_through_a_dual(x, v):
    x = x.clone().requires_grad_()
    with fwAD.dual_level():
        dual = fwAD.make_dual(x, v)
        y = dual.sin() * dual
        (gradient,) = torch.autograd.grad(y, x, fwAD.make_dual(torch.ones_like(y), v))
        return fwAD.unpack_dual(gradient)


@case
def tangents(x, v):
    with fwAD.dual_level():
        y = fwAD.make_dual(x, v).sin() * 2
        primal, tangent = fwAD.unpack_dual(y)
        constant = fwAD.unpack_dual(x * 3)
        assert constant.tangent is None
        return primal, tangent


@case
def through_writes_and_views(x, v):
    with fwAD.dual_level():
        y = torch.zeros(2, 3)
        y[0] = fwAD.make_dual(x, v)
        y[1].add_(y[0] ** 2)
        return fwAD.unpack_dual(y.mT)


@case
def values_after_the_level(x, v):
    with fwAD.dual_level():
        y = fwAD.make_dual(x, v) ** 3
        row = y[1:]
    with fwAD.dual_level():
        assert fwAD.unpack_dual(y).tangent is None
        return y + 1, row * 2, fwAD.unpack_dual(fwAD.make_dual(y, v) * x).tangent


@case
def complex_numbers(x, v):
    with fwAD.dual_level():
        z = fwAD.make_dual(torch.complex(x, v), torch.complex(v, x))
        return fwAD.unpack_dual(z * z.conj() + z.exp()).tangent


@case
def parameters(x, v):
    model = MODEL
    with fwAD.dual_level():
        weight = fwAD.make_dual(model.weight, v.expand(2, 3))
        result = torch.func.functional_call(model, {"weight": weight}, (x,))
        return fwAD.unpack_dual(result).tangent


@case
def of_gradients(x, v):
    with fwAD.dual_level():
        dual = fwAD.make_dual(x.clone().requires_grad_(), v)
        (gradient,) = torch.autograd.grad((dual**3).sum(), dual, create_graph=True)
        return fwAD.unpack_dual(gradient)


@case
def of_gradients_along_other_tangents(x, v):
    found = []
    with fwAD.dual_level():
        dual, weight = fwAD.make_dual(x.clone(), torch.zeros_like(v)), x.clone()
        tangent = fwAD.unpack_dual(dual).tangent
        for i in range(2):
            tangent[i] = v[i]
            inputs = dual.requires_grad_(), weight.requires_grad_()
            given = torch.autograd.grad((dual**2 * weight).sum(), inputs, create_graph=True)
            found += [fwAD.unpack_dual(gradient).tangent for gradient in given]
    return found


@case
def gradients_of_tangents(x, v):
    x = x.clone().requires_grad_()
    with fwAD.dual_level():
        tangent = fwAD.unpack_dual(fwAD.make_dual(x, v).exp()).tangent
    return tangent, torch.autograd.grad(tangent.sum(), x)


@case
def gradients_of_what_is_used_beside_a_dual(x, v):
    x, weight = x.clone().requires_grad_(), torch.ones(3, requires_grad=True)
    with fwAD.dual_level():
        dual = fwAD.make_dual(x, v)
        (dual * x.exp() * weight[:]).sum().backward()
        y = weight * 2
    return x.grad, weight.grad, *torch.autograd.grad(y.sum(), weight)


@case
def gradients_of_unpacked_parts(x, v):
    with fwAD.dual_level():
        x, v = x.clone().requires_grad_(), v.clone().requires_grad_()
        value, tangent = fwAD.unpack_dual(fwAD.make_dual(x, v))
        of_value = torch.autograd.grad(value.sin().sum(), (x, v), allow_unused=True)
        of_tangent = torch.autograd.grad(tangent.sin().sum(), (x, v), allow_unused=True)
    assert of_value[1] is None
    assert of_tangent[0] is None
    return of_value[0], of_tangent[1]


@case
def tangents_without_gradients(x, v):
    x = x.clone().requires_grad_()
    with fwAD.dual_level():
        dual = fwAD.make_dual(x, v)
        written = dual * 1
        with torch.no_grad():
            results = [dual * dual, dual[:2], dual[:2] * 2, dual.clone(), dual.double().float(), written.mul_(dual)]
        (gradient,) = torch.autograd.grad((results[0] * dual).sum(), x)  # of the second factor
        return gradient, *[fwAD.unpack_dual(y).tangent for y in (*results, results[0] * dual)]


@case
def tangents_written_to(x, v):
    x, v = x.clone(), v.clone()
    with fwAD.dual_level():
        dual = fwAD.make_dual(x, v)
        assert fwAD.unpack_dual(dual).tangent is v
        v.mul_(3)
        first = fwAD.unpack_dual(dual.sin()).tangent
        dual.mul_(2)
        y = dual * dual
        tangent = fwAD.unpack_dual(y).tangent
        tangent[1] = 0.0
        return first, v, x, fwAD.unpack_dual(dual), fwAD.unpack_dual(y * 2), dual.detach()


class Cubed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        ctx.save_for_forward(x)
        return x**3

    @staticmethod
    def backward(ctx, gradient):
        return 3 * ctx.saved_tensors[0] ** 2 * gradient

    @staticmethod
    def jvp(ctx, tangent):
        return 3 * ctx.saved_tensors[0] ** 2 * tangent


@case
def derivatives_of_what_a_function_pushes(x, v):
    x = x.clone().requires_grad_()

    def tangent(v):
        with fwAD.dual_level():
            return fwAD.unpack_dual(Cubed.apply(fwAD.make_dual(x, v))).tangent

    (gradient,) = torch.autograd.grad(tangent(v).sum(), x)
    return gradient, torch._vmap_internals._vmap(tangent)(torch.stack([v, 2 * v])).detach()


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("jit", [False, True])
def test_against_pytorch(name, jit):
    function = CASES[name]
    translated = t2j(lambda x, v: tuple(jax.tree.leaves(function(x, v), is_leaf=lambda x: isinstance(x, torch.Tensor))))
    expected = jax.tree.leaves(function(X.clone(), V.clone()), is_leaf=lambda x: isinstance(x, torch.Tensor))
    actual = (jax.jit(translated) if jit else translated)(t2j(X), t2j(V))
    for got, want in zip(actual, expected, strict=True):
        np.testing.assert_allclose(got, want.detach(), rtol=1e-5)


def test_the_graph_is_that_of_jax_jvp():
    def names(function):
        return sorted(str(eqn.primitive) for eqn in jax.make_jaxpr(function)(t2j(X), t2j(V)).eqns)

    ours = names(t2j(CASES["tangents"]))
    by_hand = names(lambda x, v: jax.jvp(lambda x: jnp.sin(x) * 2, (x,), (v,)))
    assert ours == sorted([*by_hand, "mul"])  # the constant


def test_errors():
    def without_level(x, v):
        return fwAD.make_dual(x, v)

    def nested(x, v):
        with fwAD.dual_level(), fwAD.dual_level():
            return x

    def of_another_size(x, v):
        with fwAD.dual_level():
            return fwAD.make_dual(x, v[:2])

    for function, message in (
        (without_level, "no level exists"),
        (nested, "Nested forward mode AD is not supported"),
        (of_another_size, "forward gradient that has a different size"),
    ):
        for call in (lambda f=function: f(X, V), lambda f=function: t2j(f)(t2j(X), t2j(V))):
            with pytest.raises(RuntimeError, match=message):
                call()
    np.testing.assert_allclose(t2j(CASES["tangents"])(t2j(X), t2j(V))[0], (X.sin() * 2))


def test_several_duals_of_one_tensor():
    def function(x, v, of_dual=False):
        x = x.clone().requires_grad_()
        with fwAD.dual_level():
            first, second = fwAD.make_dual(x, v), fwAD.make_dual(x, 2 * v)
            (gradient,) = torch.autograd.grad((first.sin() * second).sum(), first if of_dual else x)
            return tuple(fwAD.unpack_dual(gradient))

    x, v = torch.tensor([0.3, -1.2, 2.0]), torch.tensor([1.0, 0.5, -2.0])
    for run in (t2j(function), jax.jit(t2j(function))):
        for got, wanted in zip(run(t2j(x), t2j(v)), function(x, v), strict=True):
            np.testing.assert_allclose(got, wanted, rtol=1e-5)
    with pytest.raises(NotImplementedError, match="one of several duals"):
        t2j(function)(t2j(x), t2j(v), of_dual=True)


ZEROS = {
    "floor": torch.floor,
    "sign": torch.sign,
    "bernoulli": lambda x: torch.bernoulli(x.sigmoid()),
    "poisson": lambda x: torch.poisson(x.abs()),
    "uniform_": lambda x: x.uniform_(),
    "zero_": lambda x: x.zero_(),
    "copy_": lambda x: x.copy_(torch.ones(3)),
    "none of comparisons": lambda x: (x > 0).float(),
    "none of the shape": torch.zeros_like,
    "none of indices": torch.argsort,
}


@pytest.mark.parametrize("function", ZEROS.values(), ids=ZEROS)
@pytest.mark.parametrize("requires_grad", [False, True])
def test_a_derivative_of_zero_is_a_tangent(function, requires_grad):
    def tangent(x, v):
        x = x.clone().requires_grad_(requires_grad)
        with fwAD.dual_level():
            return fwAD.unpack_dual(function(fwAD.make_dual(x * 1, v))).tangent

    expected, got = tangent(X, V), t2j(tangent)(t2j(X), t2j(V), rng=jax.random.key(0))
    assert (got is None) == (expected is None)
    if expected is not None:
        np.testing.assert_array_equal(got, expected.detach())


def test_detach_has_no_tangent():
    def function(x, v):
        with fwAD.dual_level():
            dual = fwAD.make_dual(x, v) * 2
            return [fwAD.unpack_dual(y).tangent is None for y in (dual.detach(), dual.data, dual.detach().sin())]

    assert function(X, V) == t2j(function)(t2j(X), t2j(V)) == [True] * 3
    assert all(jax.jit(t2j(function))(t2j(X), t2j(V)))


def switched_off(x, v):
    def inside(x):
        with fwAD._set_fwd_grad_enabled(False):
            constant, view = x**2, x.reshape(3, 1)
        return x**2 - constant + view[0]

    def outside(x):
        with fwAD._set_fwd_grad_enabled(False):
            return torch.func.jvp(torch.sin, (x,), (v,))[1]

    first = torch.func.jvp(inside, (x,), (v,))
    second = torch.func.jvp(lambda x: torch.func.jvp(inside, (x,), (v,))[1], (x,), (v,))
    return *first, *second, *torch.func.jvp(outside, (x,), (v,))


def switched_off_in_a_dual_level(x, v):
    x = x.clone().requires_grad_()
    with fwAD.dual_level():
        dual = fwAD.make_dual(x, v)
        y = dual * 3
        with fwAD._set_fwd_grad_enabled(False):
            y.mul_(dual)  # keeps the tangent that it had
            constant, made = dual.exp(), fwAD.make_dual(torch.ones(3), v)
        assert fwAD.unpack_dual(constant).tangent is None
        (gradient,) = torch.autograd.grad((y * constant).sum(), x)
        return gradient, fwAD.unpack_dual(y * constant).tangent, fwAD.unpack_dual(made * 2).tangent


@pytest.mark.parametrize("function", [switched_off, switched_off_in_a_dual_level])
def test_derivatives_forwards_that_are_switched_off(function):
    for run in (t2j(function), jax.jit(t2j(function))):
        for got, wanted in zip(run(t2j(X), t2j(V)), function(X, V), strict=True):
            np.testing.assert_allclose(got, wanted.detach(), rtol=1e-5)


def off_within_a_level(x):
    def inside(y):
        with fwAD._set_fwd_grad_enabled(False):
            constant = y * x
        return constant + y

    return torch.func.jvp(inside, (x,), (torch.ones_like(x),))[0]


def off_within_a_dual_level(x):
    with fwAD.dual_level():
        dual = fwAD.make_dual(x, torch.ones_like(x))
        with fwAD._set_fwd_grad_enabled(False):
            constant = dual * dual
        return fwAD.unpack_dual(constant + dual).primal


@pytest.mark.parametrize("function", [off_within_a_level, off_within_a_dual_level])
def test_a_derivative_forwards_of_jaxs_around_stays_on(function):
    run = t2j(function)
    value, tangent = jax.jvp(run, (3.0,), (1.0,))
    assert (value, tangent) == (12, 7)
    assert jax.jacfwd(jax.jit(run))(3.0) == jax.grad(run)(3.0) == 7
