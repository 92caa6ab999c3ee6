"""Custom `torch.autograd.Function`s: their own backward is what JAX differentiates with."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from torch2jax import t2j


class Round(torch.autograd.Function):
    """A straight-through estimator."""

    @staticmethod
    def forward(ctx, x):
        return torch.round(x)

    @staticmethod
    def backward(ctx, gradient):
        return gradient


class Scaled(torch.autograd.Function):
    """Saves inputs and a result, keeps a number, and takes other arguments than tensors."""

    @staticmethod
    def forward(ctx, x, scale, w, indices):
        y = torch.exp(x * scale) * w
        ctx.save_for_backward(x, y, w)
        ctx.scale = scale
        return y, x[indices], indices + 1

    @staticmethod
    def backward(ctx, of_y, of_part, of_indices):
        x, y, _ = ctx.saved_tensors
        return of_y * y * ctx.scale * 10, None, (of_y * torch.exp(x * ctx.scale)).sum() * 100, None


class Separate(torch.autograd.Function):
    """The newer style, with a context of its own, and tensors among its attributes."""

    @staticmethod
    def forward(x, y):
        return x * y, x + y

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.both = {"inputs": inputs, "sum": output[1]}
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx, of_product, of_sum):
        x, y = ctx.both["inputs"]
        return of_product * y * 2 + of_sum * ctx.both["sum"], of_product * x * 3


class Same(torch.autograd.Function):
    """Returns its input as it is, and reverses the gradient."""

    @staticmethod
    def forward(ctx, x):
        return x

    @staticmethod
    def backward(ctx, gradient):
        return -gradient


class Conjugating(torch.autograd.Function):
    @staticmethod
    def forward(ctx, z):
        return z * (1 + 2j)

    @staticmethod
    def backward(ctx, gradient):
        return gradient * (3 - 1j)


class Reopening(torch.autograd.Function):
    """Turns gradients on within its forward, as activation checkpointing does."""

    @staticmethod
    def forward(ctx, x):
        with torch.enable_grad():
            y = x.sin()
        return y * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 5


round_through = Round.apply  # bound before any call, as code often has it
X = torch.tensor([0.3, 1.4, -2.6])
INDICES = torch.tensor([2, 0])


def scaled(x):
    y, part, indices = Scaled.apply(x, 3, x.mean(), INDICES)
    return y.sum() + part.sum() * indices.sum()


def separate(x):
    product, total = Separate.apply(x, x.cos())
    return (product * total).sum()


CASES = {
    "straight through": lambda x: (round_through(x) * x).sum(),
    "saved tensors": scaled,
    "setup_context": separate,
    "input as it is": lambda x: (Same.apply(x) * x).sum(),
    "one after the other": lambda x: Same.apply(round_through(x * 2)).square().sum(),
    "one in the other's place": lambda x: round_through(round_through(x)).sum(),
    "gradients on within": lambda x: Reopening.apply(x).sum(),
    "a view of it": lambda x: Same.apply(x)[1:].sum(),
    "written to after": lambda x: round_through(x).mul_(2).add_(x).sum(),
    "without gradients": lambda x: (torch.no_grad()(round_through)(x) * x).sum(),
    "with gradients again": lambda x: (torch.no_grad()(torch.enable_grad()(round_through))(x) * x).sum(),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("jit", [False, True])
def test_gradients_are_the_functions_own(name, jit):
    function = CASES[name]
    x = X.clone().requires_grad_()
    value = function(x)
    (expected,) = torch.autograd.grad(value, x)
    transform = jax.value_and_grad(t2j(function))
    actual = (jax.jit(transform) if jit else transform)(t2j(X))
    np.testing.assert_allclose(actual[0], value.detach(), rtol=1e-5)
    np.testing.assert_allclose(actual[1], expected, rtol=1e-5)


def test_complex_gradients():
    z = torch.tensor([1 + 2j, -1j]).requires_grad_()
    (expected,) = torch.autograd.grad(Conjugating.apply(z).abs().sum(), z)
    actual = jax.grad(t2j(lambda z: Conjugating.apply(z).abs().sum()))(t2j(z.detach()))
    np.testing.assert_allclose(np.conj(actual), expected, rtol=1e-5)


def test_second_order_goes_through_the_backward():
    class Cube(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x**3

        @staticmethod
        def backward(ctx, gradient):
            (x,) = ctx.saved_tensors
            return gradient * 3 * x**2

    second = jax.grad(jax.grad(t2j(Cube.apply)))
    np.testing.assert_allclose(second(jnp.float32(2)), 12)


def test_vmap_and_parameters():
    class Quantized(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.tensor([[0.4, 1.6, 2.2]]))

        def forward(self, x):
            return (x @ Round.apply(self.weight).mT).sum()

    model, x = Quantized(), torch.randn(5, 3)
    gradients = jax.vmap(jax.grad(lambda p, x: t2j(model)(x, state_dict=p)), (None, 0))(t2j(model.state_dict()), t2j(x))
    np.testing.assert_allclose(gradients["weight"][:, 0], x)


def test_functions_outside_keep_pytorchs_autograd():
    t2j(Round.apply)(t2j(X))
    x = X.clone().requires_grad_()
    Round.apply(x).sum().backward()
    assert (x.grad == 1).all()


def test_reentrant_checkpoints_have_gradients():
    layer = torch.nn.Linear(3, 3)
    checkpoint = torch.utils.checkpoint.checkpoint

    def function(x):
        return checkpoint(layer, x, use_reentrant=True).square().sum() + checkpoint(layer, x, use_reentrant=False).sum()

    x = X.clone().requires_grad_()
    (expected,) = torch.autograd.grad(layer(x).square().sum() + layer(x).sum(), x)
    np.testing.assert_allclose(jax.grad(t2j(function))(t2j(X)), expected, rtol=1e-5)


def test_scalars_are_differentiated_and_stay_numbers_to_pytorch():
    class Times(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, scale):
            ctx.save_for_backward(x)
            return x * scale

        @staticmethod
        def backward(ctx, gradient):
            (x,) = ctx.saved_tensors
            return gradient, 7 * (gradient * x).sum()

    def function(x, scale):
        y = Times.apply(x, scale).sum()
        return y + torch.full((2,), scale).sum()

    gradient = jax.grad(t2j(function), 1)(t2j(X), jnp.float32(2))
    np.testing.assert_allclose(gradient, 7 * X.sum(), rtol=1e-5)  # what is filled with a number has none


class Cube(torch.autograd.Function):
    """Its second derivative is that of its backward: twice that of the cube's."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return gradient * 6 * x**2


class SavedResult(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = x.exp()
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.saved_tensors[0] * 2


class InPlace(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        return x.mul_(2)

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 5


class Partial(torch.autograd.Function):
    """A result without derivative, gradients that may be missing, and an input without one."""

    @staticmethod
    def forward(x, y, factor):
        return x * factor, y * 2, x.round()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.mark_non_differentiable(output[2])
        ctx.set_materialize_grads(False)
        ctx.factor = inputs[2]

    @staticmethod
    def backward(ctx, first, second, third):
        assert second is None
        return first * ctx.factor * 10, None, None


class Reentrant(torch.autograd.Function):
    """Keeps a graph of its own."""

    @staticmethod
    def forward(ctx, x):
        with torch.enable_grad():
            ctx.x = x.detach().requires_grad_()
            ctx.y = ctx.x.sin() * 3
        return ctx.y.detach()

    @staticmethod
    def backward(ctx, gradient):
        (mine,) = torch.autograd.grad(ctx.y, ctx.x, gradient)
        return mine


class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, gradient):
        return gradient * 7


class Needing(torch.autograd.Function):
    seen = None

    @staticmethod
    def forward(ctx, x, weight):
        Needing.seen = ctx.needs_input_grad
        ctx.save_for_backward(x, weight)
        return x * weight

    @staticmethod
    def backward(ctx, gradient):
        x, weight = ctx.saved_tensors
        return (
            gradient * weight if ctx.needs_input_grad[0] else None,
            gradient * x if ctx.needs_input_grad[1] else None,
        )


def twice(function, x):
    x = x.clone().requires_grad_()
    (first,) = torch.autograd.grad(function(x).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.square().sum(), x)
    return first.detach(), second


def in_place(x):
    x = x.clone().requires_grad_()
    y = x * 1
    z = InPlace.apply(y)
    assert z is y
    (y * z).sum().backward()
    return x.grad


def partial(x):
    x, y = x.clone().requires_grad_(), x.clone().requires_grad_()
    results = Partial.apply(x, y, 3)
    flags = [r.requires_grad for r in results]
    assert flags == [True, True, False]
    assert results[0].grad_fn.name() == "PartialBackward"
    return torch.autograd.grad(results[0].sum(), [x, y], allow_unused=True)[0]


def hooked(x):
    x = x.clone().requires_grad_()
    y = Cube.apply(x)
    y.grad_fn.register_hook(lambda inputs, outputs: (inputs[0] + outputs[0],))
    y.grad_fn.register_prehook(lambda outputs: (outputs[0] * 2,))
    return torch.autograd.grad(y.sum(), x)


def through_a_module(x):
    layer = torch.nn.Parameter(x * 2)
    Needing.apply(x, layer).sum().backward()
    assert Needing.seen == (False, True)
    return layer.grad


def backward_of_all(x):
    x = x.clone().requires_grad_()
    Reentrant.apply(x).sum().backward()
    return x.grad


ON_THE_TAPE = {
    **{name: lambda x, f=f: torch.autograd.grad(f(y := x.clone().requires_grad_()), y) for name, f in CASES.items()},
    "second order": lambda x: twice(Cube.apply, x),
    "second order by the result": lambda x: twice(SavedResult.apply, x),
    "second order of many": lambda x: twice(lambda x: SavedResult.apply(Cube.apply(x * 0.5).sin()), x),
    "in place": in_place,
    "parts": partial,
    "a graph of its own": lambda x: torch.autograd.grad(Reentrant.apply(y := x.clone().requires_grad_()).sum(), y),
    "a graph of its own that no result leads to": backward_of_all,
    "differentiable once": lambda x: torch.autograd.grad(Twice.apply(y := x.clone().requires_grad_()).sum(), y),
    "hooks": hooked,
    "what is needed": through_a_module,
}


@pytest.mark.parametrize("name", ON_THE_TAPE)
@pytest.mark.parametrize("jit", [False, True])
def test_on_the_tape(name, jit):
    function = ON_THE_TAPE[name]
    expected = jax.tree.leaves(function(X.clone()))
    actual = jax.tree.leaves((jax.jit if jit else lambda f: f)(t2j(function))(t2j(X)))
    for got, want in zip(actual, expected, strict=True):
        np.testing.assert_allclose(got, want.detach(), rtol=1e-5)


def test_differentiable_once_is_no_more():
    with pytest.raises(RuntimeError, match="once_differentiable"):
        t2j(lambda x: twice(lambda x: Twice.apply(x).square(), x))(t2j(X))
    once = jax.grad(lambda x: (t2j(Twice.apply)(x) ** 2).sum() / 2)
    np.testing.assert_allclose(once(t2j(X)), 14 * X, rtol=1e-6)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        jax.grad(lambda x: once(x).sum())(t2j(X))


def test_differentiable_once_where_code_is_converted():
    def second(x):
        y = x + 1 if x.sum() > 0 else x
        return twice(lambda x: Twice.apply(x).square(), y)[1]

    with pytest.raises(RuntimeError, match="once_differentiable"):
        jax.jit(t2j(second))(t2j(X))


def test_what_jax_wants_is_needed():
    x, weight = t2j(X), t2j(X) + 1
    function = t2j(lambda x, weight: Needing.apply(x, weight).sum())
    np.testing.assert_allclose(jax.grad(function)(x, weight), weight)
    model = torch.nn.Linear(3, 1)
    nested = t2j(lambda x: Needing.apply(x, model.weight[0]).sum())
    np.testing.assert_allclose(jax.grad(nested)(x), model.weight[0].detach(), rtol=1e-6)


def test_forward_mode_is_the_functions_own():
    class Both(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_forward(x)
            ctx.save_for_backward(x)
            return x**2

        @staticmethod
        def backward(ctx, gradient):
            return gradient * 10

        @staticmethod
        def jvp(ctx, tangent):
            return tangent * ctx.saved_tensors[0] * 100

    function, x = t2j(Both.apply), t2j(X)
    _, tangent = jax.jvp(jax.jit(function), (x,), (jnp.ones(3),))
    np.testing.assert_allclose(tangent, 100 * X, rtol=1e-6)
    np.testing.assert_allclose(jax.grad(lambda x: function(x).sum())(x), 10 * np.ones(3))


def test_wrong_gradients_are_errors():
    class Wrong(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, count):
            ctx.count = count
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            return (gradient,) if ctx.count else (gradient.new_ones(5), None)

    for count, message in ((1, "an incorrect number of gradients"), (0, "an invalid gradient at index 0")):
        with pytest.raises(RuntimeError, match=message):
            jax.grad(lambda x, count=count: t2j(Wrong.apply)(x, count).sum())(t2j(X))


def test_the_frames_of_a_function_can_be_looked_at():
    class Failing(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            raise ValueError("not today")

    with pytest.raises(ValueError, match="not today") as error:
        t2j(Failing.apply)(jnp.ones(3))
    trace, names = error.tb, set()
    while trace is not None:  # as debuggers do
        names |= set(trace.tb_frame.f_locals)
        trace = trace.tb_next
    assert "ctx" in names


class Marked(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, how):
        if how == "not given":
            ctx.mark_dirty(x.mul_(2))
            return x.clone()
        if how == "view":
            ctx.mark_dirty(x.mul_(2))
            return x, x + 1
        result = x * 2
        ctx.mark_dirty(result)
        return result

    @staticmethod
    def backward(ctx, *gradients):
        return gradients[0], None


def test_what_is_marked_as_written_to():
    def function(x, how):
        x = x.clone().requires_grad_().clone()
        return Marked.apply(x.view_as(x), how)

    for run in (function, t2j(function)):
        for how, message in (("not given", "were not returned as output"), ("view", "modifies inplace an input that")):
            with pytest.raises(RuntimeError, match=message):
                run(torch.ones(2), how)
        with pytest.warns(UserWarning, match="received a tensor that was not an input"):
            run(torch.ones(2), "result")


def test_saved_variables():
    class Function(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x.sin()

        @staticmethod
        def backward(ctx, gradient):
            with pytest.warns(DeprecationWarning, match="saved_variables"):
                (x,) = ctx.saved_variables
            return gradient * x.cos()

    def function(x):
        x = x.clone().requires_grad_()
        Function.apply(x).sum().backward()
        return x.grad

    np.testing.assert_allclose(t2j(function)(jnp.ones(2)), np.cos(np.ones(2)), rtol=1e-6)


def test_backward_looks_at_saved_values_that_no_input_decides():
    class Grown(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, times):
            ctx.save_for_backward(x, times)
            ctx.twice = times * 2
            return x * times.sum()

        @staticmethod
        def backward(ctx, grad):
            x, times = ctx.saved_tensors
            for _ in range(int(times[-1].item()) + int(ctx.twice[1])):
                grad = grad * 2
            return grad * x, None

    function = t2j(lambda x: Grown.apply(x, torch.linspace(0, 2, 3)))
    x = jnp.arange(3.0)
    slope = jax.grad(lambda x: function(x).sum())
    np.testing.assert_array_equal(slope(x), 16 * x)
    np.testing.assert_array_equal(jax.jit(slope)(x), 16 * x)
    np.testing.assert_array_equal(jax.jit(jax.grad(lambda x: slope(x).sum()))(x), jnp.full(3, 16.0))


class AsksWhatRequiresGrad(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        y = x @ w
        ctx.save_for_backward(x, w, y)
        return y

    @staticmethod
    def backward(ctx, g):
        x, w, y = ctx.saved_tensors
        assert y.requires_grad
        return g @ w.t() if x.requires_grad else None, x.t() @ g if w.requires_grad else None


class DifferentiatesAgain(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x @ w

    @staticmethod
    def backward(ctx, g):
        with torch.enable_grad():
            given = [x.detach().requires_grad_(x.requires_grad) for x in ctx.saved_tensors]
            product = given[0] @ given[1]
        found = iter(torch.autograd.grad(product, [x for x in given if x.requires_grad], g))
        return tuple(next(found) if x.requires_grad else None for x in given)


@pytest.mark.parametrize("function", [AsksWhatRequiresGrad, DifferentiatesAgain])
@pytest.mark.parametrize("wanted", [(0, 1), (0,), (1,)])
def test_saved_inputs_require_grad_where_a_gradient_is_wanted(function, wanted):
    def loss(x, w):
        return function.apply(x, w).square().sum()

    def inside(*tensors):
        leaves = [x.detach().requires_grad_(i in wanted) for i, x in enumerate(tensors)]
        return torch.autograd.grad(loss(*leaves), [leaves[i] for i in wanted])

    tensors = torch.randn(3, 4), torch.randn(4, 5)
    expected, arrays = inside(*tensors), t2j(tensors)
    outside = jax.grad(t2j(loss), wanted)
    for gradient in (outside, jax.jit(outside), t2j(inside), jax.jit(t2j(inside))):
        for found, one in zip(gradient(*arrays), expected, strict=True):
            np.testing.assert_allclose(found, one, rtol=1e-5, atol=1e-5)


class DifferentiatesSaved(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        with torch.enable_grad():
            (slope,) = torch.autograd.grad(x.sin().sum(), x, create_graph=True)
        return g * slope


def test_saved_inputs_can_be_differentiated_with_respect_to():
    def loss(x):
        return DifferentiatesSaved.apply(x).sum()

    def inside(x):
        x = x.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(loss(x), x, create_graph=True)
        return gradient, torch.autograd.grad(gradient.sum(), x)[0]

    x = jnp.linspace(-1, 1, 5)
    gradient, second = t2j(inside)(x)
    np.testing.assert_allclose(gradient, jnp.cos(x), rtol=1e-6)
    np.testing.assert_allclose(second, -jnp.sin(x), rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(jax.grad(t2j(loss))(x), jnp.cos(x), rtol=1e-6)
    np.testing.assert_allclose(jax.jacrev(jax.grad(t2j(loss)))(x), -jnp.diag(jnp.sin(x)), rtol=1e-6, atol=1e-6)


def test_a_backward_that_computes_with_what_was_saved_itself_is_refused():
    layer = torch.nn.Linear(3, 3)

    class Adjoint(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, *params):
            ctx.save_for_backward(x, *params)
            return layer(x)

        @staticmethod
        def backward(ctx, g):
            x, *params = ctx.saved_tensors
            with torch.enable_grad():
                x = x.detach().requires_grad_()
                return torch.autograd.grad(layer(x), (x, *params), g, allow_unused=True)

    def loss(x, *params):
        return Adjoint.apply(x, *params).sum()

    with pytest.raises(RuntimeError, match="does not use it"):
        jax.grad(t2j(loss), (0, 1, 2))(jnp.ones((2, 3)), *t2j(tuple(layer.parameters())))


class _OfModule(torch.autograd.Function):
    """What a module computes, by a backward that comes by the module's own parameters."""

    @staticmethod
    def forward(ctx, module, x, *parameters):
        ctx.module = module
        ctx.save_for_backward(x, *parameters)
        return module.inner(x)


class Differentiated(_OfModule):
    """As adjoints of differential equations are: the parameters that were saved are those that the module has."""

    @staticmethod
    def backward(ctx, gradient):
        x, *parameters = ctx.saved_tensors
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            return None, *torch.autograd.grad(ctx.module.inner(x), (x, *parameters), gradient)


class ByHand(_OfModule):
    @staticmethod
    def backward(ctx, gradient):
        x, *_ = ctx.saved_tensors
        return None, gradient @ ctx.module.inner.weight, gradient.T @ x, gradient.sum(0)


class Given(_OfModule):
    """Whose gradients are tensors that were saved."""

    @staticmethod
    def backward(ctx, gradient):
        return None, *ctx.saved_tensors


class OfModule(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function, self.inner = function, torch.nn.Linear(3, 2)
        self.inner.weight = torch.nn.Parameter(torch.randn(3, 2).T)  # strides that a copy would not have

    def forward(self, x):
        assert self.inner.weight.stride() == (1, 2)
        return self.function.apply(self, x, self.inner.weight, self.inner.bias)


@pytest.mark.parametrize("function", [Differentiated, ByHand, Given])
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "jit"])
def test_inputs_that_were_saved_are_what_the_module_has(function, compiled):
    module, other, x = OfModule(function), OfModule(function), torch.randn(4, 3, requires_grad=True)
    other(x).square().sum().backward()
    expected = {name: t2j(p.grad) for name, p in other.named_parameters()}, t2j(x.grad)
    state = t2j({name: p.detach() for name, p in other.named_parameters()})
    gradients = jax.grad(lambda p, x: jnp.sum(t2j(module)(x, state_dict=p) ** 2), (0, 1))
    found = (jax.jit(gradients) if compiled else gradients)(state, t2j(x.detach()))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5), found, expected)

    def inside(x):
        x = x.clone().requires_grad_()
        result = other(x).square().sum()
        return (*torch.autograd.grad(result, (x, *other.parameters())), other.inner.weight)

    found = (jax.jit(t2j(inside)) if compiled else t2j(inside))(t2j(x.detach()))
    wanted = [t2j(y.detach()) for y in inside(x.detach())]
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


def test_what_a_backward_sets_on_an_input_that_was_saved():
    class Noting(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx, gradient):
            (x,) = ctx.saved_tensors
            assert x.note == "mine"
            x.seen = True
            return gradient * 2 * x

    def gradient(x):
        x = x.clone().requires_grad_()
        x.note = "mine"
        Noting.apply(x).sum().backward()
        assert x.seen
        return x.grad

    np.testing.assert_array_equal(t2j(gradient)(jnp.ones(3)), [2, 2, 2])


def test_a_backward_that_writes_to_out():
    layer, x = torch.nn.CrossMapLRN2d(3), torch.rand(1, 5, 4, 4)

    def gradient(x):
        x = x.clone().requires_grad_()
        layer(x).square().sum().backward()
        return x.grad

    expected = gradient(x).numpy()
    np.testing.assert_allclose(t2j(gradient)(t2j(x)), expected, rtol=1e-6)
    outside = jax.jit(jax.grad(lambda x: (t2j(layer)(x) ** 2).sum()))
    np.testing.assert_allclose(outside(t2j(x)), expected, rtol=1e-6)


class _Marked(torch.Tensor):
    """Its results are of its class, as PyTorch has it."""


class _AsItIs(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 3


@pytest.mark.parametrize("jit", [False, True])
def test_an_input_that_is_given_back_is_of_its_class(jit):
    def function(x):
        y = _AsItIs.apply(x.as_subclass(_Marked))
        return (y * y).sum() if isinstance(y, _Marked) else y.sum() * 100

    x = torch.tensor([1.0, 2.0], requires_grad=True)
    function(x).backward()
    gradient = jax.grad(t2j(function))
    np.testing.assert_allclose((jax.jit(gradient) if jit else gradient)(jnp.array([1.0, 2.0])), x.grad)


class Flat(torch.autograd.Function):
    """Gives a view of its input."""

    @staticmethod
    def forward(ctx, x):
        return x.view(-1)

    @staticmethod
    def backward(ctx, gradient):
        return gradient.reshape(2, 3) * 3


class Detached(torch.autograd.Function):
    """Gives its input's memory without a view that autograd knows of."""

    @staticmethod
    def forward(ctx, x):
        return x.detach()

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 3


class Row(torch.autograd.Function):
    """Gives a part of its input's memory."""

    @staticmethod
    def forward(ctx, x):
        return x[1]

    @staticmethod
    def backward(ctx, gradient):
        return torch.stack([gradient * 0, gradient * 3])


def _written(function, x, by_result: bool):
    x = x * 1
    y = function.apply(x)
    with torch.no_grad():
        (y if by_result else x).add_(1)
    return x * 2, y * 2, y.data_ptr() == x.data_ptr(), y._is_view(), y._version


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("by_result", [False, True])
@pytest.mark.parametrize("function", [Same, Flat, Detached, Row])
def test_results_share_memory_with_inputs(function, by_result, compiled):
    x = torch.arange(6.0).reshape(2, 3)
    wanted = _written(function, x, by_result)
    found = t2j(lambda x: _written(function, x, by_result))
    arrays = jax.jit(lambda x: found(x)[:2])(x.numpy()) if compiled else found(x.numpy())[:2]
    for got, want in zip(arrays, wanted, strict=False):
        np.testing.assert_array_equal(got, want)
    assert found(x.numpy())[2:] == wanted[2:]


@pytest.mark.parametrize("function", [Same, Flat, Row])
def test_results_whose_memory_was_written_to_have_no_history(function):
    def run(x):
        x = x * torch.ones(3, requires_grad=True)
        y = function.apply(x)
        with torch.no_grad():
            x.add_(1)
        return y.grad_fn

    for each in (run, t2j(run)):
        with pytest.raises(RuntimeError, match="its base or another view of its base has been modified inplace"):
            each(torch.ones(2, 3) if each is run else jnp.ones((2, 3)))


@pytest.mark.parametrize("function", [Same, Flat, Detached, Row])
def test_results_that_share_memory_have_the_derivatives_of_their_function(function):
    x, w = torch.arange(6.0).reshape(2, 3), torch.ones(3, requires_grad=True)
    wanted = x.clone().requires_grad_()
    function.apply(wanted * 1).sin().sum().backward()
    translated = t2j(lambda x: function.apply(x * 1).sin().sum())
    for run in (jax.grad(translated), jax.jit(jax.grad(translated))):
        np.testing.assert_allclose(run(x.numpy()), wanted.grad, rtol=1e-5)

    def inside(x):
        y = function.apply(x * w)
        return torch.autograd.grad(y.cos().sum(), w)[0]

    np.testing.assert_allclose(jax.jit(t2j(inside))(x.numpy()), inside(x), rtol=1e-5)


class Field:
    def __init__(self, function):
        self.function = function


class FieldModule(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function


class Along(torch.autograd.Function):
    @staticmethod
    def forward(ctx, field, y):
        ctx.field = field
        ctx.save_for_backward(y)
        return y.detach()

    @staticmethod
    def backward(ctx, *grads):
        (y,) = ctx.saved_tensors
        return None, grads[0] * ctx.field.function(y)


@pytest.mark.parametrize("kind", [Field, FieldModule])
def test_backward_finds_traced_values_that_objects_close_over(kind):
    def function(y, w):
        return Along.apply(kind(lambda y: torch.tanh(y * w)), y).sum()

    y, w = np.array([3, 4], np.float32), np.float32(0.2)
    np.testing.assert_allclose(jax.jit(jax.grad(t2j(function)))(y, w), np.tanh(y * w), 1e-5)
