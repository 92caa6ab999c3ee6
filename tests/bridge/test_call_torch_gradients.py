"""PyTorch inside JAX: gradients to any depth, and batching."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from torch2jax import torch2jax


def spec(*shape, dtype=jnp.float32):
    return jax.ShapeDtypeStruct(shape, dtype)


def cubic(x, y):
    return (x**3 * y).sum()


X, Y = jnp.array([1.0, 2.0, 3.0]), jnp.array([0.5, -1.0, 2.0])


def jax_cubic(x, y):
    return (x**3 * y).sum()


class OldSquare(torch.autograd.Function):
    """In the style that torch.func refuses."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return 2 * x * gradient


@pytest.mark.parametrize("options", [{}, {"use_torch_vjp": False}], ids=["func.vjp", "autograd.grad"])
@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_first_and_second_order(wrap, options):
    f = torch2jax(cubic, spec(3), spec(3), **options)
    for argnums in (0, 1, (0, 1)):
        actual = wrap(jax.value_and_grad(f, argnums))(X, Y)
        jax.tree.map(np.testing.assert_allclose, actual, jax.value_and_grad(jax_cubic, argnums)(X, Y))
    actual = wrap(jax.jacobian(jax.jacobian(f, (0, 1)), (0, 1)))(X, Y)
    expected = jax.jacobian(jax.jacobian(jax_cubic, (0, 1)), (0, 1))(X, Y)
    jax.tree.map(np.testing.assert_allclose, actual, expected)


@pytest.mark.parametrize("options", [{}, {"use_torch_vjp": False}], ids=["func.vjp", "autograd.grad"])
def test_depth_three(options):
    f = torch2jax(lambda x: (x**4).sum(), spec(), depth=3, **options)
    third = jax.grad(jax.grad(jax.grad(f)))
    np.testing.assert_allclose(third(2.0), 48)
    with pytest.raises(TypeError, match="no gradient of this order"):
        jax.grad(third)(2.0)


def test_depth_zero_is_forward_only():
    f = torch2jax(cubic, spec(3), spec(3), depth=0)
    np.testing.assert_allclose(f(X, Y), jax_cubic(X, Y))
    with pytest.raises(TypeError, match=r"cubic defines no gradient of this order: pass a larger depth="):
        jax.grad(f)(X, Y)
    assert jax.grad(lambda x: x * jax.lax.stop_gradient(f(x * X, Y)))(1.0) == f(X, Y)


@pytest.mark.parametrize(
    "transform",
    [lambda f: jax.jvp(f, (X, Y), (X, Y)), lambda f: jax.hessian(f)(X, Y), lambda f: jax.jacfwd(f)(X, Y)],
    ids=["jvp", "hessian", "jacfwd"],
)
@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_forward_mode_says_why_not(transform, wrap):
    with pytest.raises(
        TypeError, match=r"cubic runs in PyTorch and has reverse-mode gradients only.*jax.jacobian\(jax"
    ):
        transform(wrap(torch2jax(cubic, spec(3), spec(3))))


def test_an_old_autograd_function_falls_back_with_one_warning():
    f = torch2jax(lambda x: OldSquare.apply(x).sum(), spec(3))
    with pytest.warns(
        UserWarning, match=r"torch.func.vjp cannot differentiate <lambda>.*use_torch_vjp=False"
    ) as caught:
        gradients = [jax.grad(f)(X) for _ in range(3)]
    np.testing.assert_allclose(gradients, [2 * X] * 3)
    assert [warning.filename for warning in caught] == [__file__]
    quiet = torch2jax(lambda x: (OldSquare.apply(x) * x).sum(), spec(3), use_torch_vjp=False)
    np.testing.assert_allclose(jax.grad(quiet)(X), 3 * X**2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        np.testing.assert_allclose(jax.jacobian(jax.jacobian(quiet))(X), np.diag(6 * X), rtol=1e-6)


def test_an_error_in_the_gradient_is_the_functions_own():
    def fn(x):
        if torch._C._functorch.peek_interpreter_stack() is not None or x.requires_grad:
            raise LookupError("only forward")
        return x * 2

    f = torch2jax(fn, spec(3))
    with pytest.raises(jax.errors.JaxRuntimeError, match="LookupError: only forward"):
        jax.block_until_ready(jax.grad(lambda x: f(x).sum())(X))
    np.testing.assert_allclose(f(X), 2 * X)


@pytest.mark.parametrize("use_zeros", [True, False])
def test_constants_in_gradients(use_zeros):
    f = torch2jax(cubic, spec(3), spec(3), nondiff_argnums=(1,), use_zeros=use_zeros)
    gx, gy = jax.grad(f, (0, 1))(X, Y)
    np.testing.assert_allclose(gx, 3 * X**2 * Y)
    np.testing.assert_array_equal(gy, 0)
    mask = ({"a": True, "b": False}, True)
    tree = torch2jax(lambda p, y: cubic(p["a"], y) + p["b"].sum(), {"a": X, "b": X}, Y, nondiff_mask=mask)
    gradients = jax.grad(tree, (0, 1))({"a": X, "b": X}, Y)
    np.testing.assert_array_equal(gradients[0]["a"], 0)
    np.testing.assert_array_equal(gradients[0]["b"], 1)
    np.testing.assert_array_equal(gradients[1], 0)
    prefix = torch2jax(lambda p: cubic(p["a"], p["b"]), {"a": X, "b": X}, nondiff_mask=(True,))
    assert not np.any(jax.grad(prefix)({"a": X, "b": Y})["a"])


def test_integers_and_bools_are_never_differentiated():
    def fn(x, index, keep):
        return (x[index] * keep).sum(), index * 2, keep

    f = torch2jax(fn, spec(3), spec(2, dtype=jnp.int32), spec(2, dtype=bool))
    index, keep = jnp.array([0, 2]), jnp.array([True, False])
    gradient = jax.grad(lambda x: f(x, index, keep)[0])(X)
    np.testing.assert_allclose(gradient, [1, 0, 0])
    _, pull = jax.vjp(f, X, index, keep)
    nothing = np.zeros(2, jax.dtypes.float0)
    assert pull((jnp.float32(1), nothing, nothing))[1].dtype == jax.dtypes.float0


def test_keyword_arguments_are_differentiable_at_every_depth():
    f = torch2jax(lambda x, *, w: (x * w**3).sum(), spec(3), example_kw={"w": spec(3)})
    np.testing.assert_allclose(jax.grad(lambda w: f(X, w=w))(Y), 3 * X * Y**2)
    second = jax.jacobian(jax.jacobian(lambda w: f(X, w=w)))(Y)
    np.testing.assert_allclose(second, np.diag(6 * X * Y), rtol=1e-6)


def test_complex_gradients_follow_jax():
    f = torch2jax(lambda z: ((z * (1 + 2j)) ** 2).real.sum() + z.abs().sum(), spec(3, dtype=jnp.complex64))
    z = X + 1j * Y
    expected = jax.grad(lambda z: ((z * (1 + 2j)) ** 2).real.sum() + jnp.abs(z).sum())(z)
    np.testing.assert_allclose(jax.grad(f)(z), expected, rtol=1e-5)
    g = torch2jax(lambda z: z**3, spec(3, dtype=jnp.complex64))
    np.testing.assert_allclose(jax.vjp(g, z)[1](z * 2j)[0], jax.vjp(lambda z: z**3, z)[1](z * 2j)[0], rtol=1e-5)


def test_unused_inputs_and_outputs():
    f = torch2jax(lambda x, y: (x * 2, torch.ones(3)), spec(3), spec(3))
    gradients = jax.grad(lambda x, y: sum(result.sum() for result in f(x, y)), (0, 1))(X, Y)
    np.testing.assert_allclose(gradients[0], 2)
    np.testing.assert_array_equal(gradients[1], 0)


def test_a_function_that_writes_to_its_input():
    x = jnp.array(X)
    for options in ({}, {"use_torch_vjp": False}):
        f = torch2jax(lambda x: x.mul_(2).sin_().sum(), spec(3), **options)
        np.testing.assert_allclose(jax.grad(f)(x), 2 * jnp.cos(2 * X), rtol=1e-5)
        np.testing.assert_array_equal(x, X)


def test_gradients_through_control_flow_and_checkpoint():
    f = torch2jax(lambda x: torch.sin(x) * 2, spec(3))
    g = lambda x: jnp.sin(x) * 2

    def loss(f):
        def run(x):
            x, ys = jax.lax.scan(lambda c, _: (f(c), f(c).sum()), x, length=3)
            x = jax.lax.cond(x[0] > 0, f, lambda x: x, x)
            return (jax.checkpoint(f)(x) * ys.sum()).sum()

        return run

    np.testing.assert_allclose(jax.jit(jax.grad(loss(f)))(X), jax.grad(loss(g))(X), rtol=1e-5)


METHODS = ["sequential", "sequential_unrolled", "expand_dims", "broadcast_all", "torch_vmap"]


@pytest.mark.parametrize("method", METHODS)
def test_vmap(method):
    f = torch2jax(lambda x, y: torch.sin(x) * y, spec(3), spec(3), vmap_method=method)
    xs = jnp.arange(12.0).reshape(4, 3)
    np.testing.assert_allclose(jax.vmap(f, (0, None))(xs, Y), jnp.sin(xs) * Y, rtol=1e-5)
    np.testing.assert_allclose(jax.jit(jax.vmap(f, (1, 0)))(xs.T, xs), jnp.sin(xs) * xs, rtol=1e-5)
    nested = jax.vmap(jax.vmap(f, (None, 0)), (0, None))(xs, xs)
    np.testing.assert_allclose(nested, jnp.sin(xs)[:, None] * xs, rtol=1e-5)


@pytest.mark.parametrize("method", METHODS)
def test_vmap_and_gradients_in_any_order(method):
    f = torch2jax(lambda x, y: torch.sin(x) * y**2, spec(3), spec(3), vmap_method=method)
    g = lambda x, y: jnp.sin(x) * y**2
    xs = jnp.arange(12.0).reshape(4, 3)

    def check(make):
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), make(f), make(g))

    check(lambda f: jax.vmap(jax.grad(lambda x, y: f(x, y).sum(), (0, 1)), (0, None))(xs, Y))
    check(lambda f: jax.grad(lambda xs, y: jax.vmap(f, (0, None))(xs, y).sum(), (0, 1))(xs, Y))
    check(lambda f: jax.jacobian(jax.jacobian(f, (0, 1)), (0, 1))(X, Y))
    check(lambda f: jax.vmap(jax.jacobian(f), (0, None))(xs, Y))


def test_methods_see_the_shapes_of_jax_ffi():
    shapes = []

    def fn(x, y):
        shapes.append((tuple(x.shape), tuple(y.shape)))
        return x + y

    for method, expected in [("expand_dims", ((4, 3), (1, 3))), ("broadcast_all", ((4, 3), (4, 3)))]:
        f = torch2jax(fn, spec(3), spec(3), vmap_method=method)
        jax.block_until_ready(jax.vmap(f, (0, None))(jnp.ones((4, 3)), Y))
        assert shapes[-1] == expected


def test_models_with_parameters():
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    parameters = {name: jnp.asarray(value.detach().numpy()) for name, value in model.named_parameters()}
    x = jnp.ones((5, 4))
    f = torch2jax(lambda p, x: torch.func.functional_call(model, p, x).square().mean(), parameters, x, lock=True)
    value, gradients = jax.jit(jax.value_and_grad(f))(parameters, x)
    loss = model(torch.ones(5, 4)).square().mean()
    loss.backward()
    np.testing.assert_allclose(value, loss.item(), rtol=1e-5)
    for name, parameter in model.named_parameters():
        np.testing.assert_allclose(gradients[name], parameter.grad, rtol=1e-4, atol=1e-6)
