"""Hooks on gradients: each kind of hook, on each kind of tensor, with each way to change a gradient.

They act on a gradient that the code takes itself, and on one that JAX takes, in every way that it has.
"""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch.autograd.graph import register_multi_grad_hook
from torch.utils.checkpoint import checkpoint

from torch2jax import j2t, t2j

SCALE = torch.tensor([5.0, -7.0, 0.5])
X = [0.7, -1.5, 2.0]


# What hooks do with a gradient.


def look(gradient):
    gradient.sum()


def give(gradient):
    return gradient * 0.5 + 1


def clamp(gradient):
    gradient.clamp_(-1, 1)


def freeze(gradient):
    gradient[0] = 0
    return gradient


def through_view(gradient):
    gradient.view(-1)[1:].add_(3)


def unseen(gradient):
    gradient.detach().mul_(3)


def both(gradient):
    gradient.mul_(2)
    return gradient + 1


HOOKS = [look, give, clamp, freeze, through_view, unseen, both]


def of_node(hook):
    """The hook for a node, of which the first gradient is looked at."""

    def of_first(gradients, *outputs):
        found = hook(gradients[0])
        return None if found is None else (found, *gradients[1:])

    return of_first


def writes_only(hook):
    """The hook where nothing may be returned."""

    def without_result(gradient):
        hook(gradient)

    return without_result


# What has hooks: each gives a loss.


def leaf(x, hook):
    x.register_hook(hook)
    return (x * SCALE).sum()


def used_before(x, hook):
    loss = (x * x).sum()
    x.register_hook(hook)
    return loss + (x * SCALE).sum()


def inner(x, hook):
    y = x * 2
    loss = (y * y).sum()
    y.register_hook(hook)
    return loss + (y * SCALE).sum()


def twice(x, hook):
    y = x * 2
    y.register_hook(hook)
    y.register_hook(lambda gradient: gradient * gradient)
    return (y * y).sum()


def view(x, hook):
    v = (x * 2)[:2]
    v.register_hook(hook)
    return (v * v).sum()


def written(x, hook):
    y = x * 2
    y.mul_(3)
    y.register_hook(hook)
    return (y * y).sum()


def output(x, hook):
    loss = (x * x).sum().reshape(1)
    loss.register_hook(hook)
    return loss.sum()


def removed(x, hook):
    y = x * 2
    y.register_hook(hook).remove()
    return (y * y).sum()


TENSORS = [leaf, used_before, inner, twice, view, written, output, removed]


def prehook(x, hook):
    y = x * 2
    y.grad_fn.register_prehook(of_node(hook))
    return (y * y).sum()


def of_function(x, hook):
    y = Doubled.apply(x)
    y.grad_fn.register_prehook(of_node(hook))
    y.grad_fn.register_hook(of_node(hook))
    return (y * y).sum()


def multi(x, hook):
    y = x.sin()
    register_multi_grad_hook([y], lambda gradients: writes_only(hook)(gradients[0]), mode="all")
    return (y * y).sum()


def any_of_several(x, hook):
    a, b = x * 2, x.sin()
    register_multi_grad_hook([a, b], writes_only(hook), mode="any")
    return (a * b).sum()


NODES = [prehook, of_function, multi, any_of_several]


def of_a_tensor_of_the_call(x, hook):
    """A hook that uses what the call has computed."""
    y = x.sin()
    y.register_hook(lambda gradient: gradient * x.exp() + y)
    y.register_hook(hook)
    return (y * y).sum()


def all_of_several(x, hook):
    """A hook that uses other gradients."""
    a, b, found = x * 2, x.sin(), []
    register_multi_grad_hook([a, b], found.append)
    x.register_hook(lambda gradient: gradient + found[0][0] * found[0][1])
    a.register_hook(hook)
    return (a * b).sum()


def checkpointed(x, hook):
    def within(x):
        y = x.sin()
        y.register_hook(hook)
        return y * y

    return checkpoint(within, x * 2, use_reentrant=False).sum()


def reentrant(x, hook):
    def within(x):
        y = x.sin()
        if y.requires_grad:  # there PyTorch runs this once without gradients
            y.register_hook(hook)
        return y * y

    return checkpoint(within, x * 2, use_reentrant=True).sum()


def on_a_branch(x, hook):
    y = x * 2
    if x.sum() > 0:
        y.register_hook(hook)
        return (y * y).sum()
    return y.sin().sum()


def asks_in_a_hook(x, hook):
    y = x * 2

    def ask(gradient):
        return gradient * 2 if gradient.sum() > 0 else gradient

    y.register_hook(ask)
    y.register_hook(hook)
    return (y * y).sum()


def accumulated(x, hook):
    if x.is_leaf:
        x.register_post_accumulate_grad_hook(lambda x: writes_only(hook)(x.grad))
    return (x * x).sum()


def before_it_is_accumulated(x, hook):
    x = x.view_as(x)
    x.grad_fn.next_functions[0][0].register_prehook(of_node(hook))
    return (x * x).sum()


def differentiates_within(x, hook):
    y = x * 2
    y.register_hook(hook)
    (slope,) = torch.autograd.grad((y**3).sum(), x, create_graph=True)
    return slope.square().sum()


def retains(x, hook):
    y = x * 2
    y.retain_grad()
    y.register_hook(hook)
    x.register_hook(lambda gradient: gradient * y.grad)
    return (y * y).sum()


OTHERS = [of_a_tensor_of_the_call, all_of_several, checkpointed, reentrant, on_a_branch, asks_in_a_hook, accumulated]
OTHERS += [before_it_is_accumulated, differentiates_within, retains]


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2


class Hooked(torch.nn.Module):
    """A layer, of which a part has a hook."""

    def __init__(self, kind, hook):
        super().__init__()
        self.layer = torch.nn.Linear(3, 2)
        self.layer.load_state_dict({"weight": torch.arange(6.0).view(2, 3) / 3, "bias": torch.ones(2)})
        if kind == "weight":
            self.layer.weight.register_hook(hook)
        elif kind == "full":
            self.layer.register_full_backward_hook(lambda module, inputs, outputs: of_node(hook)(inputs, outputs))
        else:
            self.layer.register_full_backward_pre_hook(lambda module, outputs: of_node(hook)(outputs))

    def forward(self, x):
        return self.layer(x * 2).square().sum()


PARTS = ["full", "pre"]


def differentiated(loss, hook):
    """The gradient that a function takes within."""

    def inside(x):
        x = x.detach().clone().requires_grad_()
        loss(x, hook).backward()
        return x.grad

    return inside


def expect_same(got, wanted):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b.detach().numpy(), rtol=1e-5, atol=1e-6), got, wanted)


@pytest.mark.parametrize("loss", TENSORS + NODES)
def test_inside(loss):
    for hook in HOOKS:
        if loss is output and hook is through_view:
            continue
        function = differentiated(loss, hook)
        wanted = function(torch.tensor(X))
        expect_same(t2j(function)(jnp.array(X)), wanted)
    expect_same(jax.jit(t2j(function))(jnp.array(X)), wanted)


@pytest.mark.parametrize("kind", PARTS)
def test_modules_inside(kind):
    for hook in HOOKS:
        module = Hooked(kind, hook)

        def gradients(x, module=module):
            x = x.detach().clone().requires_grad_()
            module.zero_grad()
            module(x).backward()
            return x.grad, module.layer.weight.grad

        wanted = gradients(torch.tensor(X))
        expect_same(t2j(gradients)(jnp.array(X)), wanted)


def test_what_hooks_write_is_seen_by_others_that_get_the_gradient():
    for hook in HOOKS:

        def several(x, hook=hook):
            x = x.detach().clone().requires_grad_()
            y = x * 2
            y.retain_grad()
            y.register_hook(hook)
            found = torch.autograd.grad((y * y).sum(), [x, y], retain_graph=True)
            (y * y).sum().backward()
            return *found, x.grad, y.grad

        expect_same(t2j(several)(jnp.array(X)), several(torch.tensor(X)))


def test_of_accumulated_gradients():
    for hook in HOOKS:

        def accumulated(x, hook=hook):
            x = x.detach().clone().requires_grad_()
            node = (x * 2).grad_fn.next_functions[0][0]  # PyTorch forgets it, and its hooks, if nobody has it
            node.register_prehook(of_node(hook))
            x.register_post_accumulate_grad_hook(lambda x: writes_only(hook)(x.grad))
            (x * x).sum().backward()
            (x * SCALE).sum().backward()
            return x.grad

        expect_same(t2j(accumulated)(jnp.array(X)), accumulated(torch.tensor(X)))


def test_second_derivatives_inside():
    for hook in HOOKS:

        def second(x, hook=hook):
            x = x.detach().clone().requires_grad_()
            y = x * 2
            y.register_hook(hook)
            (slope,) = torch.autograd.grad((y * y * y).sum(), x, create_graph=True)
            slope.square().sum().backward()
            return x.grad

        expect_same(t2j(second)(jnp.array(X)), second(torch.tensor(X)))


# Where JAX takes the gradient.


def scanned(f):
    return jax.grad(lambda x: jax.lax.scan(lambda total, _: (total + f(x), None), 0.0, None, length=1)[0])


def carried(f):
    return jax.grad(lambda x: jax.lax.scan(lambda total, x: (total + f(x), None), 0.0, x[None])[0])


def in_cond(f):
    return jax.grad(lambda x: jax.lax.cond(x[0] < 100, f, jnp.sum, x))


def each(gradient):
    return lambda x: jax.vmap(gradient)(jnp.stack([x, 2 * x]))[0]


def of_all(f):
    return lambda x: jax.grad(lambda x: jax.vmap(f)(x).sum())(jnp.stack([x, 2 * x]))[0]


def with_others(f):
    """Beside other results and arguments."""

    def loss(x, n):
        return f(x), {"n": n + 1, "x": x}

    return lambda x: jax.value_and_grad(loss, has_aux=True)(x, jnp.arange(2))[1]


WAYS = {
    "grad": jax.grad,
    "jit(grad)": lambda f: jax.jit(jax.grad(f)),
    "grad(jit)": lambda f: jax.grad(jax.jit(f)),
    "vjp": lambda f: lambda x: jax.vjp(f, x)[1](jnp.ones(()))[0],
    "vjp(jit)": lambda f: lambda x: jax.jit(lambda x: jax.vjp(jax.jit(f), x)[1](jnp.ones(()))[0])(x),
    "jacrev": jax.jacrev,
    "transposed": lambda f: lambda x: jax.linear_transpose(jax.linearize(f, x)[1], x)(jnp.ones(()))[0],
    "transposed(jit)": lambda f: lambda x: jax.linear_transpose(jax.linearize(jax.jit(f), x)[1], x)(jnp.ones(()))[0],
    "value_and_grad": with_others,
    "jit(value_and_grad)": lambda f: jax.jit(with_others(f)),
    "vmap(grad)": lambda f: each(jax.grad(f)),
    "jit(vmap(grad))": lambda f: jax.jit(each(jax.grad(f))),
    "vmap(grad(jit))": lambda f: each(jax.grad(jax.jit(f))),
    "grad(vmap)": of_all,
    "grad(vmap(jit))": lambda f: of_all(jax.jit(f)),
    "jit(grad(vmap))": lambda f: jax.jit(of_all(f)),
    "grad(checkpoint)": lambda f: jax.grad(jax.checkpoint(f)),
    "jit(grad(checkpoint))": lambda f: jax.jit(jax.grad(jax.checkpoint(f))),
    "grad(scan)": scanned,
    "jit(grad(scan))": lambda f: jax.jit(carried(f)),
    "grad(cond)": in_cond,
}
KINDS = {kind.__name__: kind for kind in (*TENSORS, *NODES, *OTHERS)}


def pytorchs(loss, hook):
    x = torch.tensor(X, requires_grad=True)
    loss(x, hook).backward()
    return x.grad


def check(kind, hook, way):
    loss = KINDS[kind]
    expect_same(WAYS[way](t2j(lambda x: loss(x, hook)))(jnp.array(X)), pytorchs(loss, hook))


def cases():
    fails = (output, through_view), (reentrant, look)  # views of what has one element; PyTorch's own
    for (kind, loss), hook, way in itertools.product(KINDS.items(), HOOKS, WAYS):
        is_of_batches = "vmap" in way and loss in (on_a_branch, asks_in_a_hook)  # a branch that examples differ in
        if (loss, hook) not in fails and not is_of_batches:
            yield kind, hook, way


def sampled():
    """Each kind of hook in four ways, so that all ways meet many; `python -m tests.transforms.test_hooks` tries all."""
    every = {kind: [case for case in cases() if case[0] == kind] for kind in KINDS}
    for i, found in enumerate(every.values()):
        yield from (found[(7 * i + 41 * j) % len(found)] for j in range(4))


@pytest.mark.parametrize(("kind", "hook", "way"), list(sampled()))
def test_where_jax_takes_the_gradient(kind, hook, way):
    check(kind, hook, way)


@pytest.mark.parametrize("way", WAYS)
def test_every_way_of_jax(way):
    check("of_a_tensor_of_the_call", both, way)


@pytest.mark.parametrize("way", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_examples_that_share_an_input(way):
    """Hooks see the gradients of each example; the input has their sum."""

    def loss(x, w):
        x.register_hook(give)
        y = x * w
        y.register_hook(clamp)
        return (y * y).sum()

    weights, wanted = torch.tensor([2.0, 0.1, -1.0]), torch.zeros(3)
    for w in weights:
        x = torch.tensor(X, requires_grad=True)
        loss(x, w).backward()
        wanted += x.grad
    f = way(jax.vmap(way(t2j(loss)), (None, 0)))
    expect_same(jax.grad(lambda x: f(x, t2j(weights)).sum())(jnp.array(X)), wanted)


def test_the_gradient_with_respect_to_an_array_of_numpy():
    """JAX has it as it is until something is computed from it."""

    def doubled(x):
        y = x * 0.5
        if y.requires_grad:
            y.register_hook(lambda gradient: gradient * 2)
        return (y * 3).sum()

    np.testing.assert_allclose(jax.grad(t2j(doubled))(np.ones(3, np.float32)), 3)


@pytest.mark.parametrize("kind", ["weight", *PARTS])
def test_modules_where_jax_takes_the_gradient(kind):
    """Also by one argument alone."""
    module = Hooked(kind, both)
    x = torch.tensor(X, requires_grad=True)
    module(x).backward()
    wanted = x.grad, {name: parameter.grad for name, parameter in module.named_parameters()}
    f, state = t2j(module), {name: t2j(parameter.detach()) for name, parameter in module.named_parameters()}

    def loss(x, state):
        return f(x, state_dict=state)

    for gradient in (jax.grad(loss, (0, 1)), jax.jit(jax.grad(loss, (0, 1))), jax.grad(jax.jit(loss), (0, 1))):
        expect_same(gradient(jnp.array(X), state), wanted)
    for gradient in (jax.grad(loss), jax.grad(jax.jit(loss))):
        expect_same(gradient(jnp.array(X), state), wanted[0])
    np.testing.assert_allclose(jax.jit(loss)(jnp.array(X), state), module(x).detach(), rtol=1e-5)


@pytest.mark.parametrize("kind", ["leaf", "used_before", "inner", "view", "output", "of_function", "multi"])
def test_second_derivatives_where_jax_takes_both(kind):
    """Backwards twice, hooks are called twice, as PyTorch does with `create_graph`."""
    for hook in (give, lambda gradient: gradient * gradient):

        def loss(x, hook=hook):
            return KINDS[kind](x, hook) + (x**3).sum()

        x = torch.tensor(X, requires_grad=True)
        (slope,) = torch.autograd.grad(loss(x), x, create_graph=True)
        slope.square().sum().backward()
        f = t2j(loss)
        expect_same(jax.grad(lambda x, f=f: jnp.square(jax.grad(f)(x)).sum())(jnp.array(X)), x.grad)
    inner = jax.jit(lambda x: jnp.square(jax.grad(jax.jit(f))(x)).sum())
    expect_same(jax.grad(inner)(jnp.array(X)), x.grad)


HESSIANS = {
    "hessian": jax.hessian,
    "jit(hessian)": lambda f: jax.jit(jax.hessian(f)),
    "hessian(jit)": lambda f: jax.hessian(jax.jit(f)),
    "jacfwd(jit(grad))": lambda f: jax.jacfwd(jax.jit(jax.grad(f))),
    "linearize(grad)": lambda f: lambda x: jnp.stack([jax.linearize(jax.grad(f), x)[1](e) for e in jnp.eye(3)]),
}


@pytest.mark.parametrize("way", HESSIANS)
def test_derivatives_of_gradients_forwards_go_through_the_hooks(way):
    def loss(x):
        y = x**2
        y.register_hook(lambda gradient: gradient * gradient * x)
        return (y * y).sum()  # with a gradient of (2 * x**2)**2 * x * 2 * x

    expect_same(HESSIANS[way](t2j(loss))(jnp.array(X)), torch.diag(48 * torch.tensor(X) ** 5))


def test_no_hook_sees_a_derivative_forwards():
    def loss(x):
        x.register_hook(lambda gradient: gradient * 0)
        y = x.sin()
        if y.grad_fn is not None:
            y.grad_fn.register_prehook(lambda gradients: (gradients[0] * 0,))
        return (y * y).sum()

    module = Hooked("full", lambda gradient: gradient * 0)
    x, direction = jnp.array(X), jnp.arange(3.0)
    plain = Hooked("weight", look)
    wanted = jax.jvp(t2j(plain), (x,), (direction,))[1]
    for way in (lambda f: f, jax.jit, jax.vmap):
        given = ((x[None],), (direction[None],)) if way is jax.vmap else ((x,), (direction,))
        tangent = jax.jvp(way(t2j(loss)), *given)[1].sum()
        np.testing.assert_allclose(tangent, (np.sin(2 * x) * direction).sum(), rtol=1e-5)
        np.testing.assert_allclose(jax.jvp(way(t2j(module)), *given)[1].sum(), wanted, rtol=1e-5)


@pytest.mark.filterwarnings("ignore:Using backward")
def test_gradients_of_inner_gradients_go_through_hooks():
    """From outside, nothing is detached that the code has not detached: also without `create_graph`."""

    def inside(create_graph):
        def loss(x):
            x.requires_grad_()
            y = x * 2
            y.register_hook(lambda gradient: gradient * x)
            (y**3).sum().backward(create_graph=create_graph)
            (x**2).sum().backward(create_graph=create_graph)
            return x.grad

        return loss

    for way in (jax.jacfwd, jax.jacrev, lambda f: jax.jit(jax.jacfwd(f)), lambda f: jax.jacrev(jax.jit(f))):
        with_graph, without = (way(t2j(inside(create)))(jnp.array(X)) for create in (True, False))
        np.testing.assert_allclose(without, with_graph, rtol=1e-5)
        assert np.count_nonzero(without) == 3


def test_results_that_have_no_gradient_call_no_hooks():
    def several(x):
        y, z = x * 2, x.sin()
        y.register_hook(give)
        z.register_hook(give)
        return y.sum(), z.sum()

    f = t2j(several)
    for way in (lambda f: f, jax.jit):
        np.testing.assert_allclose(jax.grad(lambda x, way=way: way(f)(x)[0])(jnp.array(X)), [3, 3, 3])
        np.testing.assert_allclose(jax.grad(way(f), has_aux=True)(jnp.array(X))[0], [3, 3, 3])


def test_one_array_for_two_arguments():
    def loss(x, y):
        x.register_hook(give)
        y.register_hook(clamp)
        return (x * y * y).sum()

    x, y = torch.tensor(X, requires_grad=True), torch.tensor(X, requires_grad=True)
    loss(x, y).backward()
    f = t2j(loss)
    for way in (f, jax.jit(f)):
        expect_same(jax.grad(lambda x, way=way: way(x, x))(jnp.array(X)), x.grad + y.grad)
        expect_same(jax.grad(way, (0, 1))(jnp.array(X), jnp.array(X)), (x.grad, y.grad))


def test_complex_gradients():
    def loss(z):
        w = z * z
        w.register_hook(lambda gradient: gradient * (2 + 1j) + w)
        return w.abs().square().sum()

    z = torch.tensor([1 + 2j, -0.5j], requires_grad=True)
    loss(z).backward()
    for way in (jax.grad(t2j(loss)), jax.grad(jax.jit(t2j(loss)))):
        np.testing.assert_allclose(np.conj(way(t2j(z.detach()))), z.grad, rtol=1e-5)


def test_random_numbers_are_the_same_on_the_way_back():
    def loss(x):
        y = x * torch.rand(3)
        y.register_hook(lambda gradient: gradient * 2)
        return (y * x).sum()

    f, x, key = t2j(loss), jnp.array(X), jax.random.key(0)
    noise = t2j(lambda: torch.rand(3))(rng=key)
    for way in (jax.grad(f), jax.jit(jax.grad(f)), jax.grad(jax.jit(f))):
        np.testing.assert_allclose(way(x, rng=key), 3 * x * noise, rtol=1e-5)


def test_hooks_from_outside_on_gradients_that_the_code_takes():
    """A weight has them, as in PyTorch."""
    module = Hooked("weight", both)
    module.layer.bias.register_post_accumulate_grad_hook(lambda bias: writes_only(clamp)(bias.grad))

    def gradients(x):
        module.zero_grad()
        module(x).backward()
        return module.layer.weight.grad, module.layer.bias.grad

    wanted = [x.clone() for x in gradients(torch.tensor(X))]
    expect_same(list(t2j(gradients)(jnp.array(X))), wanted)


def test_hooks_of_several_weights():
    layer, seen = torch.nn.Linear(3, 2), []
    register_multi_grad_hook([*layer.parameters()], lambda found: seen.append([x is not None for x in found]))
    f, state = t2j(layer), t2j(layer.state_dict())
    jax.jit(jax.grad(lambda state: f(jnp.array(X), state_dict=state).sum()))(state)
    assert seen == [[True, True]]
    seen.clear()
    jax.jit(jax.grad(lambda bias: f(jnp.array(X), state_dict={**state, "bias": bias}).sum()))(state["bias"])
    assert seen == [[False, True]]  # the other is not on the way


def test_hooks_that_abandoned_runs_have_put_on_modules_are_gone():
    layer = torch.nn.Linear(3, 2)

    def loss(x):
        layer.register_forward_hook(lambda module, args, output: output * 2)
        y = layer(x)
        y.register_hook(lambda gradient: gradient * 2)
        return y.sum()

    for way in (jax.grad, lambda f: jax.jit(jax.grad(f)), lambda f: jax.grad(jax.jit(f))):
        expect_same(way(t2j(loss))(jnp.array(X)), 4 * layer.weight.sum(0))
        assert not layer._forward_hooks


def test_code_with_a_state():
    model = Hooked("weight", both)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(model, optimizer, x, scale):
        optimizer.zero_grad()
        loss = model(x * scale)
        loss.backward()
        optimizer.step()
        return loss

    f = t2j(step, state=(model, optimizer))
    state = f.init(jnp.array(X), 1.0)
    for way in (f, jax.jit(f)):
        weight = way(state, jnp.array(X), 1.0)[1]["model"]["layer.weight"]
        gradient = (state["model"]["layer.weight"] - weight) / 0.1
        x = torch.tensor(X)
        model.zero_grad()
        model(x).backward()
        np.testing.assert_allclose(gradient, model.layer.weight.grad, rtol=1e-4)


def undifferentiated(x):
    y = x * 2
    y.register_hook(give)
    return (y * y).sum()


def test_a_program_that_is_never_differentiated_has_pytorchs_error():
    """Under `jit` nobody knows that before the program is compiled."""
    f, message = t2j(undifferentiated), "cannot register a hook on a tensor that doesn't require gradient"
    for way in (f, jax.jit(f), jax.vmap(f), jax.jit(jax.vmap(f))):
        with pytest.raises(RuntimeError, match=message):
            way(jnp.array([X]))
    jax.eval_shape(jax.value_and_grad(jax.jit(f)), jnp.array(X))

    def asserts(x):
        assert x.requires_grad
        return (x * x).sum()

    np.testing.assert_allclose(jax.grad(jax.jit(t2j(asserts)))(jnp.array(X)), 2 * np.array(X), rtol=1e-6)
    with pytest.raises(AssertionError):
        jax.jit(t2j(asserts))(jnp.array(X))


def test_a_graph_without_derivatives_is_as_without_hooks():
    def of(hooks):
        layer = Hooked("weight", look)
        if not hooks:
            layer.layer.weight._backward_hooks = None

        def function(x):
            y = layer(x)
            if hooks and y.requires_grad:
                y.register_hook(give)
            return y * y

        return jax.jit(t2j(function)).lower(jnp.array(X)).as_text()

    assert of(hooks=True) == of(hooks=False)


@pytest.mark.parametrize("inner", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_hooks_use_arrays_from_around(inner):
    x = jnp.array(X)

    def of(scale):
        def loss(x):
            x.register_hook(lambda gradient: gradient * j2t(scale))
            return (x * x).sum()

        return jax.grad(inner(t2j(loss)))(x).sum()

    layer = torch.nn.Identity()

    def of_module(scale):
        def loss(x):
            handle = layer.register_full_backward_hook(lambda *given: (given[1][0] * j2t(scale),))
            with handle:
                return (layer(x) ** 2).sum()

        return jax.grad(inner(t2j(loss)))(x).sum()

    for function in (of, of_module):
        for way in (function, jax.jit(function), lambda s, f=function: jax.vmap(f)(s[None])[0]):
            np.testing.assert_allclose(way(jnp.array(3.0)), 6 * x.sum(), rtol=1e-5)
        for way in (jax.grad(function), jax.jit(jax.grad(function)), jax.grad(jax.jit(function))):
            np.testing.assert_allclose(way(jnp.array(3.0)), 2 * x.sum(), rtol=1e-5)


around = []


def test_what_is_refused():
    x = jnp.array(X)

    def of_a_global_array(scale):
        def loss(x):
            x.register_hook(lambda gradient: gradient * j2t(around[0]))
            return (x * x).sum()

        around[:] = [scale]
        return jax.grad(t2j(loss))(x).sum()

    with pytest.raises(NotImplementedError, match=r"in a hook: .* wanted that array as an argument"):
        jax.jit(of_a_global_array)(jnp.array(3.0))

    def within_torch_func(x):
        def loss(x):
            y = x.sin()
            y.register_hook(give)
            return (y * y).sum()

        return torch.func.grad(loss)(x).sum()

    for way in (lambda f: f, jax.grad, lambda f: jax.grad(jax.jit(f))):
        with pytest.raises(NotImplementedError, match=r"wanted torch.autograd.grad"):
            way(t2j(within_torch_func))(x)
    module = Hooked("weight", give)  # whose weight has one, of which no gradient is taken there
    t2j(lambda x: torch.func.grad(module)(x))(x)

    def takes_it_away(x):
        x.register_post_accumulate_grad_hook(lambda x: setattr(x, "grad", None))
        return (x * x).sum()

    with pytest.raises(NotImplementedError, match="wanted a hook that keeps it"):
        jax.grad(t2j(takes_it_away))(x)


def test_no_tracer_is_kept():
    f = t2j(lambda x: of_a_tensor_of_the_call(x, give))
    with jax.checking_leaks():
        jax.grad(jax.jit(f))(jnp.array(X))
        jax.jit(jax.grad(f))(jnp.array(X))


if __name__ == "__main__":
    failed = 0
    for case in cases():
        try:
            check(*case)
        except Exception as error:  # all of them are wanted
            failed += 1
            print(f"{case}: {type(error).__name__}: {' '.join(str(error).split())[:200]}")
    print(f"{failed} failed")
