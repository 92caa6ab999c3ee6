"""What code is told of its inputs' `requires_grad`, and what follows from it, in every way that JAX differentiates.

Each case asks one of these questions, and has another derivative where the answer is wrong.
"""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch.utils.checkpoint import checkpoint

from torch2jax import j2t, t2j


class Distances(torch.autograd.Function):
    """As GPyTorch's kernels: what the backward needs is kept only where it will be asked for."""

    @staticmethod
    def forward(ctx, x, y):
        difference = x - y
        if any(ctx.needs_input_grad):
            ctx.save_for_backward(difference)
        return difference.square()

    @staticmethod
    def backward(ctx, gradient):
        (difference,) = ctx.saved_tensors
        found = 2 * difference * gradient
        return (found if ctx.needs_input_grad[0] else None), (-found if ctx.needs_input_grad[1] else None)


class InForward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, y):
        ctx.scale = 2.0 if ctx.needs_input_grad[0] else 0.0
        return x * ctx.scale + y

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.scale, gradient


class InSetup(torch.autograd.Function):
    @staticmethod
    def forward(x, y):
        return x.sin() + y

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.slope = inputs[0].cos() if ctx.needs_input_grad[0] else None

    @staticmethod
    def backward(ctx, gradient):
        return (None if ctx.slope is None else gradient * ctx.slope), gradient


class Rounded(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.round()

    @staticmethod
    def backward(ctx, gradient):
        return gradient


def kernel(x, y):
    """As `gpytorch.kernels.RBFKernel`."""
    if x.requires_grad or y.requires_grad:
        return (-(x - y).square() / 2).exp()
    return (-Distances.apply(x.detach(), y.detach()) / 2).exp()


def straight_through(x, y):
    rounded = x.round()
    return (x + (rounded - x).detach() if rounded.requires_grad else rounded) * y


def straight_through_by_function(x, y):
    return (Rounded.apply(x) if x.requires_grad else x.round()) * y


def checkpointed(x, y):
    if x.requires_grad:
        return checkpoint(lambda x: torch.sin(x) * y, x, use_reentrant=False)
    with torch.no_grad():
        return torch.sin(x) * y


def in_checkpoint(x, y):
    return checkpoint(lambda a: a * 2 if a.requires_grad else a.detach() * 2, x * y, use_reentrant=False)


def by_leaf(x, y):
    z = x * y
    return x.detach() * 2 if z.is_leaf else z * 2


def of_grad_fn(x, y):
    z = x * y
    return z.detach() if z.grad_fn is None else z.sin()


def of_both(x, y):
    """Differs where x alone, y alone, or both are differentiated."""
    both = x.requires_grad and y.requires_grad
    return torch.sin(x) * y.detach() + (x * y if both else x.detach() * y * 3)


def begins_itself(x, y):
    if not x.requires_grad:
        x = x.detach().requires_grad_()
    (slope,) = torch.autograd.grad((x**3).sum(), x, create_graph=True)
    return slope * y


def takes_gradients(x, y):
    """Asks for a gradient that PyTorch has if the caller wants one too."""
    if not (x.requires_grad and y.requires_grad):
        return torch.zeros_like(x) * y
    slopes = torch.autograd.grad((x**2 * y).sum(), (x, y), create_graph=True)
    return slopes[0] * slopes[1]


def no_grad_within(x, y):
    with torch.no_grad():
        scale = x.abs().max() + 1
    assert not scale.requires_grad
    return x / scale * y if (x / scale).requires_grad else x.detach() * y


def written_in_place(x, y):
    z = x.clone()
    z.mul_(y)
    z[0] = 1.0
    return z * 2 if z.requires_grad else z.detach()


def writes_to_itself(x, y):
    x = x * 1
    x.add_(y)
    return x * 2 if x.requires_grad else x.detach()


def of_a_view(x, y):
    first = x[:2]
    return torch.cat([first * 2 if first.requires_grad else first.detach(), x[2:] * y[2:]])


def switches_off(x, y):
    if x.requires_grad and x.is_leaf:
        x = x.detach()
    return x * y


def ends(x, y):
    x.requires_grad_(False)
    return x**2 * y


def ends_for_a_while(x, y):
    """As code that trains one of two networks at a time."""
    was, before = x.requires_grad, x * y
    x.requires_grad_(False)
    assert not x.requires_grad
    between = x**2 * y
    x.requires_grad_(was)
    return before + between + x.sin()


def reentrant(x, y):
    """PyTorch has no derivative by what is closed over; JAX has, and code is told so."""
    z = checkpoint(lambda a: a.detach() * x, y.detach(), use_reentrant=True)
    return z * 2 if z.requires_grad else z.detach()


def with_random_numbers(x, y):
    noise = torch.rand_like(x)
    return (x * noise if x.requires_grad else x.detach() * noise) * y


def of_a_number(x, y):
    """Both answers to a question about values are followed, and within each the other is asked."""
    if x.sum() > 1:
        return x.sin() * y if x.requires_grad else x.detach() * y
    return x.cos() * y if (x * y).requires_grad else x.detach()


CASES = {
    function.__name__: function
    for function in (
        *(kernel, straight_through, straight_through_by_function, checkpointed, in_checkpoint, by_leaf, of_grad_fn),
        *(of_both, begins_itself, takes_gradients, no_grad_within, written_in_place, writes_to_itself, of_a_view),
        *(switches_off, ends, ends_for_a_while, with_random_numbers, of_a_number),
    )
}
CASES |= {
    f"{function.__name__}.apply": lambda x, y, function=function: function.apply(x * 1, y)
    for function in (Distances, InForward, InSetup)
}
ONLY_BACKWARDS = {"straight_through_by_function", "Distances.apply", "InForward.apply", "InSetup.apply"}


def forwards(f, argnums):
    one = isinstance(argnums, int)
    found = jax.jacfwd(f, argnums)
    return found if one else lambda x, y: tuple(found(x, y))


def linearized(f, argnums):
    def gradient(x, y):
        at = (x, y)
        places = (argnums,) if isinstance(argnums, int) else argnums

        def of(*given):
            return f(*[given[places.index(i)] if i in places else at[i] for i in range(2)])

        _, push = jax.linearize(of, *[at[i] for i in places])
        found = [
            jnp.stack([push(*[e if i == j else jnp.zeros(3) for i in range(len(places))]) for e in jnp.eye(3)])
            for j in range(len(places))
        ]
        return found[0] if isinstance(argnums, int) else tuple(found)

    return gradient


def mapped(f, argnums):
    def gradient(x, y):
        return jax.tree.map(lambda a: a[0], jax.vmap(jax.grad(f, argnums))(jnp.stack([x, -x]), jnp.stack([y, y])))

    return gradient


def of_both_rows(f, x, y):
    return jax.vmap(f)(jnp.stack([x, x]), jnp.stack([y, y])).sum() / 2


def of_mapped(f, argnums):
    return jax.grad(lambda x, y: of_both_rows(f, x, y), argnums)


def scanned(f, argnums):
    def total(x, y):
        return jax.lax.scan(lambda sum, _: (sum + f(x, y), None), 0.0, None, length=2)[0] / 2

    return jax.grad(total, argnums)


def carried(f, argnums):
    def total(x, y):
        return jax.lax.scan(lambda sum, at: (sum + f(*at), None), 0.0, (x[None], y[None]))[0]

    return jax.grad(total, argnums)


def in_cond(f, argnums):
    return jax.grad(lambda x, y: jax.lax.cond(x[0] < 100, f, lambda x, y: x.sum(), x, y), argnums)


WAYS = {
    "grad": jax.grad,
    "jit(grad)": lambda f, argnums: jax.jit(jax.grad(f, argnums)),
    "grad(jit)": lambda f, argnums: jax.grad(jax.jit(f), argnums),
    "jacfwd": forwards,
    "jit(jacfwd)": lambda f, argnums: jax.jit(forwards(f, argnums)),
    "jacfwd(jit)": lambda f, argnums: forwards(jax.jit(f), argnums),
    "linearize": linearized,
    "linearize(jit)": lambda f, argnums: linearized(jax.jit(f), argnums),
    "vmap(grad)": mapped,
    "jit(vmap(grad))": lambda f, argnums: jax.jit(mapped(f, argnums)),
    "grad(vmap(jit))": lambda f, argnums: of_mapped(jax.jit(f), argnums),
    "vmap(grad(jit))": lambda f, argnums: mapped(jax.jit(f), argnums),
    "grad(vmap)": of_mapped,
    "jit(grad(vmap))": lambda f, argnums: jax.jit(of_mapped(f, argnums)),
    "grad(jit(vmap))": lambda f, argnums: jax.grad(jax.jit(lambda x, y: of_both_rows(f, x, y)), argnums),
    "grad(checkpoint)": lambda f, argnums: jax.grad(jax.checkpoint(f), argnums),
    "jit(grad(checkpoint))": lambda f, argnums: jax.jit(jax.grad(jax.checkpoint(f), argnums)),
    "grad(scan)": scanned,
    "jit(grad(scan))": lambda f, argnums: jax.jit(carried(f, argnums)),
    "grad(cond)": in_cond,
}
FORWARDS = {"jacfwd", "jit(jacfwd)", "jacfwd(jit)", "linearize", "linearize(jit)"}
ARGNUMS = [0, 1, (0, 1)]
X, Y = np.array([0.3, -1.2, 2.6], np.float32), np.array([1.5, 0.7, -0.4], np.float32)
KEY = jax.random.key(3)


def wanted(function, argnums):
    """PyTorch's gradients; zero where it has none."""
    places = (argnums,) if isinstance(argnums, int) else argnums
    given = [torch.tensor(v).requires_grad_(i in places) for i, v in enumerate((X, Y))]
    total = function(*given).sum()
    if total.requires_grad:
        total.backward()
    found = [torch.zeros(3) if given[i].grad is None else given[i].grad for i in places]
    return found[0].numpy() if isinstance(argnums, int) else [x.numpy() for x in found]


def translated(function):
    f = t2j(lambda x, y: function(x, y).sum())
    return lambda x, y: f(x, y, rng=KEY)


def check(name, way, argnums):
    function = CASES[name]
    found = WAYS[way](translated(function), argnums)(jnp.array(X), jnp.array(Y))
    if name == "with_random_numbers":
        noise = t2j(lambda x: torch.rand_like(x))(jnp.array(X), rng=KEY)
        slopes = [np.asarray(noise * Y), np.asarray(noise * X)]
        expected = slopes[argnums] if isinstance(argnums, int) else slopes
    else:
        expected = wanted(function, argnums)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-4, atol=1e-5), tuple(found), tuple(expected))


def sampled():
    """Each case in a few ways, so that all ways meet many; `python -m tests.transforms.test_inputs` tries them all."""
    ways = itertools.cycle(WAYS)
    for name in CASES:
        chosen = [next(ways) for _ in range(4)]
        for way, argnums in zip(chosen, itertools.cycle(ARGNUMS), strict=False):
            if not (name in ONLY_BACKWARDS and way in FORWARDS):
                yield name, way, argnums


@pytest.mark.parametrize(("name", "way", "argnums"), list(sampled()))
def test_gradients_are_those_of_the_way_that_pytorch_goes(name, way, argnums):
    check(name, way, argnums)


@pytest.mark.parametrize("way", WAYS)
def test_every_way_of_jax(way):
    check("of_both", way, 0)
    check("of_both", way, (0, 1))


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
@pytest.mark.parametrize("way", ["grad", "jit(grad)", "grad(jit)", "jacfwd"])
def test_what_a_reentrant_checkpoint_closes_over_requires_grad_where_jax_differentiates_it(way):
    gradient = WAYS[way](translated(reentrant), 0)(jnp.array(X), jnp.array(Y))
    np.testing.assert_allclose(gradient, 2 * Y, rtol=1e-6)


def asks(x):
    return x**3 if x.requires_grad else x.detach() * 5


def test_code_that_is_not_differentiated_has_pytorchs_answer():
    f, x = t2j(asks), jnp.array(X)
    for way in (f, jax.jit(f), jax.vmap(f), jax.jit(jax.vmap(f))):
        np.testing.assert_allclose(way(x), 5 * X, rtol=1e-6)
    value, gradient = jax.value_and_grad(lambda x: f(x).sum())(x)
    np.testing.assert_allclose(value, (X**3).sum(), rtol=1e-5)
    np.testing.assert_allclose(gradient, 3 * X**2, rtol=1e-5)


HESSIANS = {
    "hessian": jax.hessian,
    "jit(hessian)": lambda f: jax.jit(jax.hessian(f)),
    "hessian(jit)": lambda f: jax.hessian(jax.jit(f)),
    "jvp of grad": lambda f: jax.jacfwd(jax.jit(jax.grad(f))),
    "grad of jvp": lambda f: jax.jacrev(jax.jacfwd(jax.jit(f))),
    "grad of grad": lambda f: jax.jacrev(jax.jit(jax.jacrev(jax.jit(f)))),
    "jvp of jvp": lambda f: jax.jacfwd(jax.jit(jax.jacfwd(jax.jit(f)))),
}


@pytest.mark.parametrize("way", HESSIANS)
def test_derivatives_of_derivatives(way):
    f = t2j(lambda x: asks(x).sum())
    np.testing.assert_allclose(HESSIANS[way](f)(jnp.array(X)), np.diag(6 * X), rtol=1e-5)


def test_mixed_derivatives():
    f = t2j(lambda x, y: of_both(x, y).sum())
    x, y = jnp.array(X), jnp.array(Y)
    given = [torch.tensor(v, requires_grad=True) for v in (X, Y)]
    (slope,) = torch.autograd.grad(of_both(*given).sum(), given[0], create_graph=True)
    (expected,) = torch.autograd.grad(slope.sum(), given[1])
    for way in (jax.jacfwd(jax.grad(f), 1), jax.jit(jax.jacfwd(jax.grad(f), 1)), jax.hessian(jax.jit(f), (0, 1))):
        found = way(x, y)
        found = found[0][1] if isinstance(found, tuple) else found
        np.testing.assert_allclose(np.diag(found), expected, rtol=1e-5)


def test_a_derivative_that_comes_too_late_is_an_error():
    """Not a wrong number: the inner derivative has gone the way that is not differentiated with respect to y."""
    f = t2j(lambda x, y: of_both(x, y).sum())
    with pytest.raises(NotImplementedError, match=r"got a derivative .* Wanted jax.jit around all"):
        jax.jacfwd(jax.jit(jax.grad(f)), 1)(jnp.array(X), jnp.array(Y))
    f = t2j(lambda x, y: (asks(x) * y).sum())  # asks nothing of y
    found = jax.jacfwd(jax.jit(jax.grad(f)), 1)(jnp.array(X), jnp.array(Y))
    np.testing.assert_allclose(found, np.diag(3 * X**2), rtol=1e-5)


class Gate(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.tensor([1.0, -2.0, 0.5]))
        self.frozen = torch.nn.Parameter(torch.tensor([0.5, 1.0, 2.0]), requires_grad=False)
        self.register_buffer("scale", torch.tensor([2.0, 2.0, 2.0]))
        self.register_buffer("count", torch.tensor(0))

    def forward(self, x):
        assert not self.count.requires_grad
        with torch.no_grad():
            self.count += 1
        w, f, s = (p * p if p.requires_grad else p.detach() for p in (self.weight, self.frozen, self.scale))
        return (w * f * s * (x if x.requires_grad else x.detach())).sum()


@pytest.mark.parametrize("transform", [lambda g: g, jax.jit], ids=["eager", "jit"])
def test_modules(transform):
    """What is given as `state_dict` requires grad where JAX differentiates it, and parameters as they say."""
    module = Gate()
    f, x = t2j(module), jnp.array(X)
    whole = t2j(module.state_dict())
    floats = {name: array for name, array in whole.items() if name != "count"}

    def total(part, x):
        result, state = f(x, state_dict={**whole, **part}, return_state_dict=True)
        return result, state["count"]

    for names in (("weight",), ("frozen",), ("scale",), ("weight", "scale"), tuple(floats)):
        part = {name: floats[name] for name in names}
        gradients, count = transform(jax.grad(total, has_aux=True))(part, x)
        assert count == 1
        physical = {name: module.state_dict()[name].clone().requires_grad_() for name in {*names, "weight"}}
        torch.func.functional_call(module, {**module.state_dict(), **physical}, torch.tensor(X)).backward()
        for name in names:
            np.testing.assert_allclose(gradients[name], physical[name].grad, rtol=1e-5)
    found = transform(jax.grad(lambda x: total({}, x)[0]))(x)
    wanted_ = (module.weight**2 * module.frozen * module.scale).detach()
    np.testing.assert_allclose(found, wanted_, rtol=1e-5)


def test_trees_of_arguments_and_other_results():
    def f(tree, *, name):
        total = sum(asks(x).sum() for x in tree["xs"]) + tree["n"].sum()
        return {"total": total, "name": name, "n": tree["n"], "none": None}

    tree = {"xs": [jnp.array(X), jnp.array(Y)], "n": jnp.arange(3)}

    def total(xs):
        found = t2j(f)({**tree, "xs": xs}, name="a")
        assert (found["name"], found["none"]) == ("a", None)
        return found["total"], found["n"]

    for way in (jax.grad(total, has_aux=True), jax.jit(jax.grad(total, has_aux=True))):
        gradients, n = way(tree["xs"])
        assert (n == tree["n"]).all()
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, 3 * b**2, rtol=1e-5), gradients, [X, Y])


def test_arrays_from_around():
    """A function that closes over what JAX differentiates."""
    x = jnp.array(X)

    def closes(w):
        return t2j(lambda x: (asks(j2t(w)) * x).sum())(x)

    ways = jax.grad(closes), jax.jit(jax.grad(closes)), jax.grad(jax.jit(closes)), jax.grad(jax.checkpoint(closes))
    for way in ways:
        np.testing.assert_allclose(way(x), 3 * X**3, rtol=1e-5)


def test_random_numbers_are_those_of_the_undifferentiated_run():
    f = t2j(lambda x: ((x if x.requires_grad else x.detach()) * torch.rand_like(x)).sum())
    x, noise = jnp.array(X), t2j(lambda x: torch.rand_like(x))(jnp.array(X), rng=KEY)
    for way in (jax.grad(f), jax.jit(jax.grad(f)), jax.grad(jax.jit(f))):
        np.testing.assert_allclose(way(x, rng=KEY), noise, rtol=1e-6)


def test_an_argument_may_be_written_to():
    """A leaf of PyTorch's may not; an argument of a function of arrays is no tensor of the user's."""

    def f(x):
        needed = x.requires_grad
        x.mul_(2)
        return (x if needed else x.detach()).sum()

    for way in (jax.grad(t2j(f)), jax.jit(jax.grad(t2j(f)))):
        np.testing.assert_allclose(way(jnp.array(X)), [2, 2, 2])


def test_a_step_with_state():
    model = torch.nn.Linear(3, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def step(model, optimizer, x, rate):
        scale = rate * 2 if rate.requires_grad else rate.detach()
        loss = (model(x) * scale).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    f, x = t2j(step, state=(model, optimizer)), jnp.ones((4, 3))
    state = f.init(x, jnp.array(1.0))

    def loss(rate):
        return f(state, x, rate)[0]

    wanted = jax.grad(lambda rate: ((x @ state["model"]["weight"].T * rate * 2) ** 2).mean())(1.5)
    for way in (jax.grad(loss), jax.jit(jax.grad(loss)), jax.grad(jax.jit(loss))):
        np.testing.assert_allclose(way(1.5), wanted, rtol=1e-4)


def test_results_of_another_structure_are_an_error():
    f = t2j(lambda x: (x, x) if x.requires_grad else x)
    with pytest.raises(TypeError, match="wanted the same"):
        jax.grad(jax.jit(lambda x: jax.tree.leaves(f(x))[0].sum()))(jnp.array(X))


def test_code_that_does_not_ask_has_the_graph_that_it_had():
    f = t2j(lambda x: (x * 2).sum())
    assert "run_anew" not in str(jax.make_jaxpr(f)(jnp.array(X)))
    inside = t2j(lambda x: torch.zeros(2).requires_grad_().requires_grad + x.sum())  # is no question about an input
    assert "run_anew" not in str(jax.make_jaxpr(inside)(jnp.array(X)))


def test_the_undifferentiated_way_is_all_that_a_program_has():
    text = jax.jit(t2j(asks)).lower(jnp.array(X)).as_text()
    assert "multiply" in text
    assert "power" not in text


def test_no_tracer_is_kept():
    f = t2j(lambda x: asks(x).sum())
    with jax.checking_leaks():
        jax.grad(jax.jit(f))(jnp.array(X))
        jax.jit(jax.grad(f))(jnp.array(X))


if __name__ == "__main__":
    failed = 0
    for name, way, argnums in itertools.product(CASES, WAYS, ARGNUMS):
        if name in ONLY_BACKWARDS and way in FORWARDS:
            continue
        try:
            check(name, way, argnums)
        except Exception as error:  # all of them are wanted
            failed += 1
            print(f"{name}, {way}, {argnums}: {type(error).__name__}: {' '.join(str(error).split())[:200]}")
    print(f"{failed} failed")
