"""There and back: `t2j(j2t(g))`, `j2t(t2j(f))`, and JAX functions called within translated code."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from torch2jax import j2t, t2j, torch2jax, torch2jax_auto


def g(x, y):
    return jnp.sin(x) * y**2


def f(x, y):
    return x.sin() * y**2


def jaxpr(function, *arrays) -> str:
    return str(jax.make_jaxpr(function)(*arrays))


X, Y = np.linspace(0.1, 1, 6, dtype=np.float32).reshape(2, 3), np.linspace(1, 2, 6, dtype=np.float32).reshape(2, 3)


def test_t2j_of_j2t_is_the_function():
    assert t2j(j2t(g)) is g
    assert t2j(j2t(g, jit=False)) is g


TRANSFORMS = {
    "value": lambda f: f,
    "jit": jax.jit,
    "vmap": jax.vmap,
    "grad": lambda f: jax.grad(lambda x, y: f(x, y).sum(), argnums=(0, 1)),
    "jvp": lambda f: lambda x, y: jax.jvp(f, (x, y), (y, x)),
    "hessian": lambda f: jax.hessian(lambda x, y: f(x, y).sum()),
    "vmap_grad": lambda f: jax.vmap(jax.grad(lambda x, y: f(x, y).sum())),
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_calls_within_translated_code_leave_jaxs_own_graph(name):
    transform = TRANSFORMS[name]
    within, itself = transform(t2j(lambda x, y: j2t(g)(x, y))), transform(g)
    assert jaxpr(within, X, Y).replace("name=<lambda>", "name=g") == jaxpr(itself, X, Y)
    jax.tree.map(np.testing.assert_array_equal, within(X, Y), itself(X, Y))


def test_translated_code_around_it():
    inner = j2t(g)

    def outer(x, y):
        z = inner(x.exp(), y=y)
        assert isinstance(z, torch.Tensor)
        z.mul_(2)  # memory of its own
        return z + x

    def expected(x, y):
        return g(jnp.exp(x), y) * 2 + x

    np.testing.assert_allclose(jax.jit(t2j(outer))(X, Y), expected(X, Y), rtol=1e-6)
    gradients = [jax.grad(lambda x, f=f: f(x, Y).sum())(jnp.asarray(X)) for f in (t2j(outer), expected)]
    np.testing.assert_allclose(*gradients, rtol=1e-5)


@pytest.mark.parametrize("transform", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_trees_statics_and_dtypes_within_translated_code(transform):
    weight = torch.full((3,), 2.0)
    inner = j2t(lambda tree, *, scale, mode: {"y": tree["x"][0] * tree["w"] * scale, "n": tree["n"] + 1, "mode": mode})

    def outer(x, n):
        result = inner({"x": (x,), "w": weight, "n": n}, scale=3.0, mode="text")
        assert result["mode"] == "text"
        assert result["y"].dtype == torch.float32
        assert result["n"].dtype == torch.int64
        return result["y"], result["n"]

    y, n = transform(t2j(lambda x: outer(x, torch.arange(3))))(jnp.ones(3))
    np.testing.assert_array_equal(y, [6, 6, 6])
    np.testing.assert_array_equal(n, [1, 2, 3])


def test_results_of_known_values_are_known():
    inner = j2t(lambda n: n * 2)

    def outer(x):
        return x[: int(inner(torch.tensor(x.shape[0] // 4)))]

    assert jax.jit(t2j(outer))(jnp.ones(8)).shape == (4,)


def test_no_grad_and_requires_grad_within_translated_code():
    inner = j2t(jnp.sin)

    def outer(x):
        with torch.no_grad():
            still = inner(x)
        return still * x

    np.testing.assert_allclose(jax.grad(t2j(outer))(0.5), np.sin(0.5), rtol=1e-6)


def test_keys_within_translated_code():
    key = jax.random.key(0)
    inner = j2t(lambda x, key: x + jax.random.normal(key, x.shape))
    np.testing.assert_allclose(t2j(lambda x: inner(x, key))(jnp.zeros(3)), jax.random.normal(key, (3,)), rtol=1e-6)


def test_errors_within_translated_code_pass_through():
    def broken(x):
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        jax.jit(t2j(lambda x: j2t(broken)(x)))(X)
    assert type(torch.ones(2) + 1) is torch.Tensor


def test_modules_that_hold_jax_functions():
    class Block(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(3, 4)
            self.activation = j2t(jax.nn.gelu)

        def forward(self, x):
            return self.activation(self.linear(x))

    torch.manual_seed(0)
    block = Block()
    x = torch.randn(2, 3)
    params = t2j(dict(block.named_parameters()))
    translated = jax.jit(t2j(block))
    np.testing.assert_allclose(translated(t2j(x), state_dict=params), block(x).detach(), rtol=1e-5, atol=1e-6)
    found = jax.grad(lambda params: t2j(block)(t2j(x), state_dict=params).sum())(params)
    block(x).sum().backward()
    for name, parameter in block.named_parameters():
        np.testing.assert_allclose(found[name], parameter.grad, rtol=1e-5, atol=1e-6)


def test_j2t_of_a_translated_function():
    x, y = torch.from_numpy(X.copy()).requires_grad_(), torch.from_numpy(Y.copy()).requires_grad_()
    back = j2t(t2j(f))
    torch.testing.assert_close(back(x, y), f(x, y))
    for found, expected in zip(*[torch.autograd.grad(h(x, y).sum(), (x, y)) for h in (back, f)], strict=True):
        torch.testing.assert_close(found, expected)
    hessians = [torch.func.hessian(lambda x, h=h: h(x, y.detach()).sum())(x.detach()) for h in (back, f)]
    torch.testing.assert_close(*hessians)
    batched = [torch.func.vmap(torch.func.grad(lambda x, y, h=h: h(x, y).sum()))(x, y) for h in (back, f)]
    torch.testing.assert_close(*batched)


def test_j2t_of_a_translated_module():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.BatchNorm1d(8), torch.nn.Dropout(0.5))
    back = j2t(t2j(model))
    x, key = torch.randn(16, 3), jax.random.key(0)
    parameters = dict(model.named_parameters())
    state = {**parameters, **dict(model.named_buffers())}
    y, new = back(x, state_dict=state, rng=key, return_state_dict=True)
    assert new["1.num_batches_tracked"] == 1
    assert new["1.num_batches_tracked"].dtype == torch.int64
    assert model[1].num_batches_tracked == 0
    model(x)
    torch.testing.assert_close(new["1.running_mean"].detach(), model[1].running_mean)
    assert 0.2 < (y == 0).float().mean() < 0.8
    assert torch.equal(y, back(x, state_dict=state, rng=key))

    model.eval()
    y = j2t(t2j(model))(x, state_dict=state)
    expected = torch.func.functional_call(model, state, (x,))
    torch.testing.assert_close(y, expected, rtol=1e-4, atol=1e-5)
    gradients = [torch.autograd.grad(z.square().sum(), list(parameters.values())) for z in (y, expected)]
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-4)


def test_there_and_back_and_there_and_back():
    x, y = torch.from_numpy(X.copy()).requires_grad_(), torch.from_numpy(Y.copy())
    torch.testing.assert_close(j2t(t2j(j2t(t2j(f))))(x, y), f(x, y))
    deep = j2t(t2j(lambda x, y: j2t(t2j(lambda x, y: j2t(g)(x, y) + 1))(x, y) * 2))
    torch.testing.assert_close(deep(x, y), (f(x, y) + 1) * 2)
    (found,), (expected,) = [torch.autograd.grad(h(x, y).sum(), x) for h in (deep, lambda x, y: f(x, y) * 2)]
    torch.testing.assert_close(found, expected)


def test_translated_constants_within_a_jax_function_within_translated_code():
    weight = torch.arange(3.0)
    inner = j2t(lambda x: t2j(lambda x: x * weight[1:].sum())(x) + 1)

    @jax.jit
    @t2j
    def outer(x):
        return inner(x) + inner(x) + weight[1:].sum()

    np.testing.assert_allclose(outer(jnp.ones(2)), 11)


def test_a_jitted_jax_function_keeps_its_jit():
    @jax.jit
    def named(x):
        return x * 2

    assert "name=named" in jaxpr(t2j(lambda x: j2t(named)(x)), X)


def test_scipy_minimizes_a_pytorch_objective():
    scipy_optimize = pytest.importorskip("scipy.optimize")

    def rosenbrock(x):
        return (100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2).sum()

    with jax.enable_x64(True):
        value_and_grad = jax.jit(jax.value_and_grad(t2j(rosenbrock)))
        found = scipy_optimize.minimize(value_and_grad, np.zeros(10), method="BFGS", jac=True)
    np.testing.assert_allclose(found.x, 1, atol=1e-4)


class Tanh(torch.autograd.Function):
    """NumPy's function, which autograd cannot see into, and its derivative."""

    @staticmethod
    def forward(x):
        return torch.from_numpy(np.tanh(x.detach().numpy()))

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx, gradient):
        return gradient * (1 - ctx.saved_tensors[0] ** 2)


AT_ITS_FIRST_CALL = j2t(torch2jax_auto(Tanh.apply))
MADE_BEFORE = j2t(torch2jax(Tanh.apply, jax.ShapeDtypeStruct((3,), np.float32)))


@pytest.mark.parametrize(
    "called",
    [
        lambda x: j2t(torch2jax(Tanh.apply, x))(x),
        lambda x: j2t(torch2jax(Tanh.apply, x.new_zeros(3)))(x),
        AT_ITS_FIRST_CALL,
        MADE_BEFORE,
    ],
    ids=["a tensor of the call", "a constant of the call", "at its first call", "made before"],
)
def test_pytorch_is_called_within_translated_code(called):
    layer = torch.nn.Linear(3, 3)
    x, wanted = Y[0], torch.from_numpy(Y[0]).requires_grad_()
    torch.tanh(layer(wanted)).sum().backward()
    program = t2j(lambda x: called(layer(x)).sum())
    found = jax.jit(jax.grad(program))(x)
    np.testing.assert_allclose(found, wanted.grad, atol=1e-6)
    np.testing.assert_allclose(program(x), torch.tanh(layer(wanted)).sum().item(), atol=1e-6)
    np.testing.assert_allclose(jax.vmap(jax.grad(program))(np.stack([x, x]))[1], wanted.grad, atol=1e-6)


def test_pytorch_is_called_within_translated_code_in_double_precision():
    def called(x):
        return j2t(torch2jax(Tanh.apply, x))(x)

    with jax.enable_x64(True):
        x = jnp.asarray(Y[0], np.float64)
        for found in (t2j(called)(x), jax.jit(t2j(called))(x)):
            assert found.dtype == np.float64
            np.testing.assert_allclose(found, np.tanh(np.float64(Y[0])), 1e-14)
