"""Gradients of code that leaves autograd: PyTorch's error where none of it is differentiable, else its gradient."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from torch2jax import t2j, torch2jax

pytestmark = pytest.mark.filterwarnings(
    "ignore:t2j runs in PyTorch itself", "ignore:torch.func.vjp cannot differentiate"
)

X, W = jnp.array([0.5, -1.0, 2.0]), jnp.array([1.0, 2.0, 3.0])
ERROR = r"element 0 of tensors does not require grad.*JAX differentiates .* for its input.*stop_gradient"


def by_numpy(x):
    return torch.from_numpy(np.sin(x.detach().numpy()))


@torch.no_grad()
def without_grad(x):
    return x.sin()


def of_gradients(x):
    with torch.enable_grad():
        y = x.detach().requires_grad_()
        return torch.autograd.grad(-y.cos().sum(), y)[0]


def constant(x):
    return torch.ones(3)


def raises():
    return pytest.raises(RuntimeError, match=ERROR)


def grad_of(f, **options):
    return jax.grad(lambda *args: f(*args).sum(), **options)


FORMS = {
    "grad": lambda f: grad_of(f)(X),
    "jit(grad)": lambda f: jax.jit(grad_of(f))(X),
    "grad(jit)": lambda f: grad_of(jax.jit(f))(X),
    "vjp": lambda f: jax.vjp(f, X)[1](X)[0],
    "jacobian": lambda f: jax.jacobian(f)(X),
    "vmap(grad)": lambda f: jax.vmap(grad_of(f))(jnp.stack([X, X])),
    "grad(vmap)": lambda f: grad_of(jax.vmap(f))(jnp.stack([X, X])),
    "checkpoint": lambda f: grad_of(jax.checkpoint(f))(X),
    "cond": lambda f: grad_of(lambda x: jax.lax.cond(x[0] > 0, f, jnp.tanh, x))(X),
    "scan": lambda f: grad_of(lambda x: jax.lax.scan(lambda c, _: (f(c), None), x, length=2)[0])(X),
}


@pytest.mark.parametrize("use_torch_vjp", [True, False])
@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_a_gradient(form, use_torch_vjp):
    f = torch2jax(by_numpy, X, use_torch_vjp=use_torch_vjp)
    with warnings.catch_warnings(), raises():
        warnings.simplefilter("error")  # also none about speed, which is not what is wrong
        jax.block_until_ready(FORMS[form](f))


@pytest.mark.parametrize("use_torch_vjp", [True, False])
@pytest.mark.parametrize("method", ["sequential_unrolled", "expand_dims", "broadcast_all"])
def test_every_way_to_batch(method, use_torch_vjp):
    f = torch2jax(by_numpy, X, vmap_method=method, use_torch_vjp=use_torch_vjp)
    with raises():
        jax.block_until_ready(FORMS["vmap(grad)"](f))
    if use_torch_vjp:
        batched = torch2jax(without_grad, X, vmap_method="torch_vmap")
        with raises():
            jax.block_until_ready(FORMS["vmap(grad)"](batched))


@pytest.mark.parametrize("fn", [by_numpy, without_grad, of_gradients, constant, lambda x: x.detach().sin()])
@pytest.mark.parametrize("use_torch_vjp", [True, False])
def test_every_way_to_leave(fn, use_torch_vjp):
    f = torch2jax(fn, X, use_torch_vjp=use_torch_vjp)
    np.testing.assert_allclose(f(X), fn(torch.tensor(np.array(X))), rtol=1e-6)
    with raises():
        jax.block_until_ready(grad_of(f)(X))
    np.testing.assert_array_equal(grad_of(lambda x: x * jax.lax.stop_gradient(f(x)))(X), f(X))


@pytest.mark.parametrize("use_torch_vjp", [True, False])
def test_several_inputs(use_torch_vjp):
    f = torch2jax(lambda x, w: by_numpy(x) * w, X, W, use_torch_vjp=use_torch_vjp)
    np.testing.assert_allclose(grad_of(f, argnums=1)(X, W), jnp.sin(X), rtol=1e-6)
    both = grad_of(f, argnums=(0, 1))(X, W)  # as in PyTorch, whose x.grad is None
    np.testing.assert_allclose(both, [jnp.zeros(3), jnp.sin(X)], rtol=1e-6)
    with raises():
        jax.block_until_ready(grad_of(f, argnums=0)(X, W))
    constants = torch2jax(lambda x, w: by_numpy(x) * w, X, W, nondiff_argnums=0, use_torch_vjp=use_torch_vjp)
    np.testing.assert_array_equal(grad_of(constants, argnums=0)(X, W), 0)


@pytest.mark.parametrize("use_torch_vjp", [True, False])
@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_several_results(wrap, use_torch_vjp):
    def fn(x):
        return x * 2, x.detach() * 3, (x > 0).int()

    f = wrap(torch2jax(fn, X, use_torch_vjp=use_torch_vjp))
    np.testing.assert_array_equal(wrap(grad_of(lambda x: f(x)[0]))(X), 2)
    np.testing.assert_array_equal(wrap(grad_of(lambda x: f(x)[0] * f(x)[2]))(X), [2, 0, 2])
    np.testing.assert_array_equal(grad_of(lambda x: sum(f(x)[:2]))(X), 2)  # PyTorch's, too
    with raises():
        jax.block_until_ready(grad_of(lambda x: f(x)[1])(X))
    values, gradient = jax.value_and_grad(lambda x: (f(x)[0].sum(), f(x)[1:]), has_aux=True)(X)
    np.testing.assert_array_equal(values[1][0], 3 * X)
    np.testing.assert_array_equal(gradient, 2)
    jacobians = jax.jacobian(lambda x: f(x)[:2])(X)
    np.testing.assert_array_equal(jacobians[0], 2 * jnp.eye(3))
    np.testing.assert_array_equal(jacobians[1], 0)


def test_a_cotangent_of_zero_asks_for_nothing():
    f = torch2jax(lambda x, w: (by_numpy(x), x * w), X, W)

    def loss(x):  # what the scan carries is not asked for at its end, which JAX tells by zeros
        _, ys = jax.lax.scan(lambda c, _: f(c, W), x, length=2)
        return ys.sum()

    x = torch.tensor(np.array(X), requires_grad=True)
    (x * torch.tensor(np.array(W))).sum().backward()
    np.testing.assert_allclose(jax.grad(loss)(X), x.grad)
    alone = torch2jax(by_numpy, X)
    np.testing.assert_array_equal(grad_of(lambda x: jnp.where(x == 7, alone(x), x * 2))(X), 2)


def test_tensors_from_outside_that_require_grad():
    weight = torch.ones(3, requires_grad=True)
    for use_torch_vjp in (True, False):
        for fn in (lambda x: weight * x.detach(), lambda x: weight):
            with raises():
                jax.block_until_ready(grad_of(torch2jax(fn, X, use_torch_vjp=use_torch_vjp))(X))
        f = torch2jax(lambda x: (weight, x * weight), X, use_torch_vjp=use_torch_vjp)
        np.testing.assert_array_equal(grad_of(lambda x, f=f: sum(f(x)))(X), 1)


def custom(derivative):
    class Custom(torch.autograd.Function):
        @staticmethod
        def forward(x):
            return by_numpy(x)

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.save_for_backward(*inputs)

        @staticmethod
        def backward(ctx, gradient):
            return derivative(gradient, *ctx.saved_tensors)

    return Custom.apply


@pytest.mark.parametrize("use_torch_vjp", [True, False])
def test_custom_functions(use_torch_vjp):
    cosine = lambda g, x: g * torch.from_numpy(np.cos(x.detach().numpy()))
    f = torch2jax(custom(cosine), X, use_torch_vjp=use_torch_vjp)
    np.testing.assert_allclose(grad_of(f)(X), jnp.cos(X), rtol=1e-6)
    with raises():
        jax.block_until_ready(jax.jacobian(grad_of(f))(X))
    twice = torch2jax(custom(lambda g, x: g * x.cos()), X, use_torch_vjp=use_torch_vjp)
    np.testing.assert_allclose(jax.jacobian(grad_of(twice))(X), -jnp.diag(jnp.sin(X)), rtol=1e-6)
    nothing = torch2jax(custom(lambda g, x: None), X, use_torch_vjp=use_torch_vjp)
    np.testing.assert_array_equal(grad_of(nothing)(X), 0)  # its author's word


@pytest.mark.parametrize("use_torch_vjp", [True, False])
def test_second_derivatives_of_what_is_linear_are_zero(use_torch_vjp):
    f = torch2jax(lambda x, w: (3 * x * w).sum(), X, W, use_torch_vjp=use_torch_vjp)
    np.testing.assert_array_equal(jax.jacobian(jax.jacobian(f))(X, W), 0)
    np.testing.assert_array_equal(jax.jit(jax.jacobian(jax.grad(f)))(X, W), 0)
    np.testing.assert_array_equal(jax.jacobian(jax.grad(f), 1)(X, W), 3 * jnp.eye(3))


# --- Parts of what t2j translates


class Sines(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.tensor(2.0))

    def forward(self, x):
        return self.scale * by_numpy(x)


class Around(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(3, 3)
        self.part = Sines()

    def forward(self, x):
        return self.part(self.first(x))


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_parts_of_a_module(wrap):
    module = Around()
    f, state = t2j(module, call_torch=["part"]), t2j(module.state_dict())
    loss = lambda state, x: f(x, state_dict=state).sum()
    gradients = wrap(jax.grad(loss))(state, X)
    module(torch.tensor(np.array(X))).sum().backward()
    np.testing.assert_allclose(gradients["part.scale"], module.part.scale.grad, rtol=1e-5)
    assert module.first.weight.grad is None
    np.testing.assert_array_equal(gradients["first.weight"], 0)
    with raises():
        jax.block_until_ready(wrap(jax.grad(loss, 1))(state, X))
    with raises():
        rest = {name: value for name, value in state.items() if name != "part.scale"}
        jax.block_until_ready(wrap(jax.grad(lambda rest: loss({**state, **rest}, X)))(rest))


def test_operators():
    detached = torch.library.Library("disconnected", "FRAGMENT")
    detached.define("sine(Tensor x) -> Tensor")
    detached.impl("sine", lambda x: by_numpy(x), "CompositeImplicitAutograd")
    f = t2j(lambda x: torch.ops.disconnected.sine(x), call_torch=["disconnected::sine"])
    np.testing.assert_allclose(jax.jit(f)(X), jnp.sin(X), rtol=1e-6)
    with raises():
        jax.block_until_ready(grad_of(f)(X))
    cut = t2j(lambda x: torch.ops.disconnected.sine(x).detach() + x, call_torch=["disconnected::sine"])
    np.testing.assert_array_equal(grad_of(cut)(X), 1)
