"""`torch.func`'s derivatives within translated code, against PyTorch's own, and as JAX's of the translated function."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch import nn
from torch.func import (
    functional_call,
    functionalize,
    grad,
    grad_and_value,
    hessian,
    jacfwd,
    jacrev,
    jvp,
    linearize,
    stack_module_state,
    vjp,
    vmap,
)
from torch.utils._pytree import tree_leaves, tree_map

from torch2jax import t2j

X = torch.linspace(-1, 2, 6).reshape(2, 3)
Y = torch.linspace(0.5, 1.5, 3)
Z = torch.complex(X, X.flip(0))


def agree(function, *args, rtol=1e-5, atol=1e-6):
    """The same values, dtypes and structure as PyTorch's, eagerly and under jit."""
    arrays = tree_map(lambda x: jnp.asarray(x.numpy()) if isinstance(x, torch.Tensor) else x, args)
    # In PyTorch on copies: functions may write to their arguments.
    copies = tree_map(lambda x: x.clone() if isinstance(x, torch.Tensor) else x, args)
    expected = tree_map(lambda x: x.detach().numpy() if isinstance(x, torch.Tensor) else x, function(*copies))
    for translated in (t2j(function), jax.jit(t2j(function))):
        got = translated(*arrays)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol, atol), got, expected)
        assert [jnp.asarray(x).dtype for x in jax.tree.leaves(got)] == [
            jax.dtypes.canonicalize_dtype(np.asarray(x).dtype) for x in tree_leaves(expected)
        ]


def operations(function, *args):
    """The operations of a function's graph, those left out that nothing needs."""
    jaxpr = jax.make_jaxpr(function)(*args).jaxpr
    jaxpr, _ = jax.interpreters.partial_eval.dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars))
    return sorted(str(equation.primitive) for equation in jaxpr.eqns)


def copied_where_it_is_not_dense(x):
    y = x.contiguous()
    y.mul_(3)
    return (x * x).sum() + y.sum()


NOT_DENSE = {
    "grad": lambda x: (grad(copied_where_it_is_not_dense)(x[:, ::2]), x),
    "vjp": lambda x: (vjp(copied_where_it_is_not_dense, x[:, 1:])[1](torch.ones(()))[0], x),
    "jvp": lambda x: (jvp(copied_where_it_is_not_dense, (x[:, ::2],), (x[:, ::2],)), x),
    "grad of another argument": lambda x: (grad(lambda y, x: copied_where_it_is_not_dense(x) * y)(x[0, 0], x.T), x),
}


@pytest.mark.parametrize("name", NOT_DENSE)
def test_an_argument_has_the_strides_that_it_has_outside(name):
    agree(NOT_DENSE[name], X)


class Round(torch.autograd.Function):
    """A straight-through estimator."""

    @staticmethod
    def forward(x):
        return torch.round(x)

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 3


def loss(x, y):
    return ((x * y).sin() * x.exp()).sum()


def energy(x):
    return (x.sin() * x).sum()


def with_writes(x):
    y = x * 1
    y[0] = y[0].exp()
    y[:, 1].mul_(x[:, 2])
    z = y.view(-1)
    z.add_(1)
    return (y * x).sum()


def with_no_grad(x):
    with torch.no_grad():
        c = x**2
    return (x * c).sum()


def outer_no_grad(x):
    with torch.no_grad():
        return grad(energy)(x), vjp(torch.sin, x)[1](x), jvp(torch.sin, (x,), (x,))


def both_orders(x, y):
    return jvp(lambda x: grad(loss)(x, y), (x,), (torch.ones_like(x),)), hessian(loss, (0, 1))(x, y)


def pulled(x, y):
    value, pull = vjp(lambda a, b: {"p": a * b, "s": (a + 1, b.sum())}, x, y)
    return value, pull(value), pull({"p": x, "s": (x * 2, y[0])})


def pulled_aux(x):
    value, pull, aux = vjp(lambda x: (x.cos(), (x.long(), x * 2)), x, has_aux=True)
    return value, pull(value), aux


def pushed_aux(x):
    return jvp(lambda x: ((x.exp(), x.round().int()), [x * 2, x > 0]), (x,), (x + 1,), has_aux=True)


def linear(x, y):
    value, push = linearize(lambda x, y: (x.sin() * y, y * 2), x, y)
    return value, push(x, y), push(x * 2, y + 1)


def written_argument(x, y):
    def scaled(x, y):
        y.mul_(2)
        return (x * y).sum()

    return grad(scaled)(x, y), y


def pushed_and_written(x):
    def squared(x):
        x.mul_(2)
        return x * x

    return jvp(squared, (x,), (torch.ones_like(x),)), x


def pure(x):
    def in_place(a):
        b = a + 1
        b.view(-1).add_(1)
        a.mul_(3)
        return b

    return functionalize(in_place)(x), functionalize(in_place, remove="mutations_and_views")(x), x


CASES = {
    "grad": (grad(loss), X, Y),
    "grad of the second": (grad(loss, argnums=1), X, Y),
    "grad of both": (grad(loss, argnums=(1, -2)), X, Y),
    "grad of a tree": (grad(lambda d, k: (d["a"] * d["b"][0] * k).sum()), {"a": X, "b": [Y]}, Y),
    "grad_and_value": (grad_and_value(loss), X, Y),
    "grad and aux": (grad(lambda x: (energy(x), {"a": x.long(), "b": (x * 2,)}), has_aux=True), X),
    "grad_and_value and aux": (grad_and_value(lambda x: (energy(x), x.exp()), has_aux=True), X),
    "keywords": (lambda x, y: grad(lambda x, *, w: (x * w).sum())(x, w=y), X, Y),
    "third derivative": (grad(grad(grad(lambda x: x**5))), torch.tensor(1.5)),
    "complex": (grad(lambda z: (z.abs() ** 2 * z.angle()).sum()), Z),
    "complex between": (grad(lambda x: ((x * (1 + 2j)) ** 3).real.sum()), X),
    "complex vjp": (lambda z: vjp(lambda z: z * z.conj() * (2 + 1j), z)[1](z * 1j), Z),
    "complex jvp": (lambda z: jvp(lambda z: z * z * (2 + 1j), (z,), (z * 1j,)), Z),
    "a constant": (grad(lambda x: torch.tensor(2.0)), X),
    "integers": (grad(lambda x: x.long().sum()), X),
    "detach": (grad(lambda x: (x * x.detach()).sum()), X),
    "no_grad inside": (grad(with_no_grad), X),
    "no_grad inside jvp": (lambda x: jvp(with_no_grad, (x,), (x,)), X),
    "no_grad outside": (outer_no_grad, X),
    "closure": (lambda x, y: grad(lambda a: (a * y).sum() * grad(lambda b: (b * a * y).sum())(x).sum())(x), X, Y),
    "writes": (grad(with_writes), X),
    "a written argument": (written_argument, X, Y),
    "pushed and written": (pushed_and_written, X),
    "vjp": (pulled, X, Y),
    "vjp and aux": (pulled_aux, X),
    "jvp": (lambda x, y: jvp(loss, (x, y), (y * x, y)), X, Y),
    "jvp and aux": (pushed_aux, X),
    "jacrev": (jacrev(lambda x, y: (x.sin() * y, x.sum()), argnums=(0, 1)), X, Y),
    "jacrev in chunks": (jacrev(lambda x: (x.sin(), x.sum()), chunk_size=3), X),
    "jacrev one by one": (jacrev(lambda x: (x.sin(), x.sum()), chunk_size=1), X),
    "jacrev copied": (jacrev(torch.sin, chunk_size=4, _preallocate_and_copy=True), X),
    "jacrev and aux": (jacrev(lambda x: (x.sin(), x * 2), has_aux=True), X),
    "jacfwd": (jacfwd(lambda x, y: (x.sin() * y, x.sum()), argnums=(0, 1)), X, Y),
    "jacfwd and aux": (jacfwd(lambda x: (x.sin(), x * 2), has_aux=True), X),
    "hessian": (hessian(energy), X),
    "jacrev of jacrev": (jacrev(jacrev(energy)), X),
    "jacfwd of jacfwd": (jacfwd(jacfwd(energy)), X),
    "both orders": (both_orders, X, Y),
    "linearize": (linear, X, Y),
    "functionalize": (pure, X),
    "a custom function": (lambda x: vjp(Round.apply, x)[1](x), X),
    "a custom function within": (grad(lambda x: (Round.apply(x * 2) * x).sum()), X),
    "vmap of grad": (vmap(grad(loss), in_dims=(0, None)), X, Y),
    "grad of vmap": (grad(lambda x, y: vmap(loss, in_dims=(0, None))(x, y).prod()), X, Y),
    "vmap of jacrev": (vmap(jacrev(torch.sin)), X),
    "vmap of hessian": (vmap(hessian(energy)), X),
    "hessian of vmap": (hessian(lambda x: vmap(energy)(x).prod()), X),
}


@pytest.mark.filterwarnings("ignore:Attempted to insert a get_attr Node")  # PyTorch's own linearize
@pytest.mark.parametrize("name", CASES)
def test_values(name):
    agree(*CASES[name])


def test_a_gradient_is_that_of_the_translated_function_and_so_is_its_graph():
    x, y = jnp.asarray(X), jnp.asarray(Y)
    assert operations(t2j(grad(loss)), x, y) == operations(jax.grad(t2j(loss)), x, y)
    assert operations(t2j(grad_and_value(loss)), x, y) == operations(jax.value_and_grad(t2j(loss)), x, y)
    tangents = (x, y)
    ours = t2j(lambda x, y: jvp(loss, (x, y), (x, y)))
    assert operations(ours, x, y) == operations(lambda *p: jax.jvp(t2j(loss), p, tangents), x, y)
    assert operations(t2j(vmap(grad(energy))), x) == operations(jax.vmap(jax.grad(t2j(energy))), x)


def test_jacobians_have_the_identity_and_nothing_to_move():
    x = jnp.asarray(Y)
    assert operations(t2j(jacrev(torch.sin)), x) == [
        "broadcast_in_dim", "convert_element_type", "cos", "eq", "iota", "iota", "mul",
    ]  # fmt: skip


def test_linearize_runs_the_function_once_for_all_tangents():
    def pushes(x):
        _, push = linearize(torch.exp, x)
        return [push(x * k) for k in range(3)]

    assert operations(t2j(pushes), jnp.asarray(Y)).count("exp") == 1


def test_derivatives_of_derivatives_from_outside():
    x, y = jnp.asarray(X), jnp.asarray(Y)
    ours = jax.grad(lambda x: (t2j(grad(loss))(x, y) ** 2).sum())(x)
    theirs = grad(lambda x: (grad(loss)(x, Y) ** 2).sum())(X)
    np.testing.assert_allclose(ours, theirs, rtol=1e-5)
    per_example = jax.vmap(t2j(grad(energy)))(x)
    np.testing.assert_allclose(per_example, vmap(grad(energy))(X), rtol=1e-5)


def test_a_gradient_under_no_grad_has_none_itself():
    def constant(x):
        with torch.no_grad():
            g = grad(energy)(x)
        return (g * x).sum()

    x = jnp.asarray(X)
    np.testing.assert_allclose(jax.grad(t2j(constant))(x), grad(energy)(X), rtol=1e-6)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, x):
        return self.second(torch.tanh(self.first(x)))


def test_per_sample_gradients():
    torch.manual_seed(0)
    net = Net()
    params = {name: p.detach() for name, p in net.named_parameters()}

    def of_one(params, x, target):
        prediction = functional_call(net, params, (x.unsqueeze(0),))
        return nn.functional.cross_entropy(prediction, target.unsqueeze(0))

    agree(vmap(grad(of_one), in_dims=(None, 0, 0)), params, X, torch.tensor([0, 1]))


def test_an_ensemble():
    torch.manual_seed(0)
    nets = [Net() for _ in range(3)]
    base = Net().to("meta")

    def ensemble(x):
        params, buffers = stack_module_state(nets)
        return vmap(lambda p, b, x: functional_call(base, (p, b), (x,)), in_dims=(0, 0, None))(params, buffers, x)

    agree(ensemble, X)


def test_hessian_vector_product():
    agree(lambda x, v: jvp(grad(energy), (x,), (v,))[1], X, X.flip(0))
    agree(lambda x, v: vjp(grad(energy), x)[1](v)[0], X, X.flip(0))


def test_wide_types_keep_their_names():
    seen = []

    def look(x):
        def inner(x):
            seen.append((x.dtype, x.requires_grad, torch.arange(3).dtype))
            return (x * 2).sum()

        g = grad(inner)(x.double())
        seen.append(g.dtype)
        return g.float()

    t2j(look)(jnp.asarray(X))
    assert seen == [(torch.float64, True, torch.int64), torch.float64]


def test_known_values_stay_known():
    def loops(x):
        def inner(x):
            total = x.sum() * 0
            for i in torch.arange(3):
                if i > 0:
                    total = total + x.sum() * i
            return total

        return grad(inner)(x), vmap(grad(inner))(x)

    agree(loops, X)


def first_read_inside(x):
    """Views and copies from outside, whose values are first asked for where a transformation is."""
    part, turned = x[0], x.t()
    scaled = (x * 2).detach()
    inside = grad(lambda a: (a * part).sum() * turned.sum() + (scaled[0] * a).sum())(x)
    pushed = vmap(lambda a: jvp(lambda b: b * part + scaled[1], (a,), (a,)))(x)
    x.add_(1)
    return inside, pushed, part + 1, turned + scaled.t()


def test_what_is_first_read_inside_a_transformation_outlives_it():
    agree(first_read_inside, X)
    jax.grad(lambda x: t2j(first_read_inside)(x)[3].sum())(jnp.asarray(X))


def captured(x, y):
    def inner(x):
        y.add_(1)
        return (x * y).sum()

    return grad(inner)(x)


def captured_forwards(x, y):
    def inner(x):
        y.add_(1)
        return (x * y).sum()

    return jvp(inner, (x,), (x,))


def leaf(x):
    def inner(x):
        x.mul_(2)
        return x.sum()

    return grad(inner)(x)


ERRORS = {
    "a captured tensor is written": (captured, (X, Y), "mutate a captured Tensor"),
    "a captured tensor is written, forwards": (captured_forwards, (X, Y), "mutate a captured Tensor"),
    "a leaf is written": (leaf, (X,), "a leaf Variable that requires grad"),
    "a view of a leaf is written": (grad(lambda x: x[0].mul_(2).sum()), (X,), "a view of a leaf Variable"),
    "no scalar": (grad(torch.sin), (X,), "to return a scalar Tensor, got tensor with 2 dims"),
    "no tensor": (grad(lambda x: 3.0), (X,), "to return a Tensor, got <class 'float'>"),
    "integers": (grad(torch.sum), (X.long(),), "floating point dtype can require"),
    "complex": (grad(lambda x: (x * 1j).sum()), (X,), "only for real scalar outputs"),
    "no aux": (grad(torch.sum, has_aux=True), (X,), "should be a tuple: \\(output, aux\\)"),
    "aux that is no tensor": (grad(lambda x: (x.sum(), 3), has_aux=True), (X,), "unsupported type <class 'int'>"),
    "argnums": (grad(torch.sum, argnums=2), (X,), "Got argnum=2, but only 1 positional inputs"),
    "no argnums": (grad(torch.sum, argnums=()), (X,), "argnums must be non-empty"),
    "cotangents": (lambda x: vjp(torch.sin, x)[1]((x, x)), (X,), "Expected pytree structure of cotangents"),
    "a cotangent's shape": (lambda x: vjp(torch.sin, x)[1](x[0]), (X,), "Mismatch in shape: grad_output\\[0\\]"),
    "integer outputs": (lambda x: vjp(lambda x: x.long(), x), (X,), "must be floating-point or complex"),
    "a tangent's shape": (lambda x: jvp(torch.sin, (x,), (x[0],)), (X,), "a different size than that"),
    "tangents": (lambda x: jvp(torch.sin, (x,), (x, x)), (X,), "to have the same python structure"),
    "strict": (lambda x: jvp(lambda x: torch.ones(2), (x,), (x,), strict=True), (X,), "independent of the inputs"),
    "complex jacobian": (jacrev(torch.sin), (Z,), "Expected all inputs to be real"),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors_are_those_of_pytorch(name):
    function, args, message = ERRORS[name]
    with pytest.raises(RuntimeError, match=message):
        function(*[x.clone() for x in args])
    with pytest.raises(RuntimeError, match=message):
        t2j(function)(*[jnp.asarray(x.numpy()) for x in args])


def test_pytorch_is_left_as_it_was():
    with pytest.raises(RuntimeError):
        t2j(leaf)(jnp.asarray(X))
    torch.testing.assert_close(grad(energy)(X), X.cos() * X + X.sin())
    torch.testing.assert_close(vmap(torch.sin)(X), X.sin())
