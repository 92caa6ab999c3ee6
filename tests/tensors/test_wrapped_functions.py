"""Derivatives of tensors that wrap others, where code rounds what they wrap: of the whole, as PyTorch's."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch.utils._pytree import tree_map

from torch2jax import t2j


class Eighths(torch.Tensor):
    """Multiples of an eighth, as integers of 8 bits and what they are multiplied by; it is computed with as floats."""

    @staticmethod
    def __new__(cls, codes, scale):
        return torch.Tensor._make_wrapper_subclass(cls, codes.shape, dtype=scale.dtype)  # pyright: ignore

    def __init__(self, codes, scale):
        self.codes, self.scale = codes, scale

    @classmethod
    def of(cls, x):
        scale = x.detach().abs().amax() / 8
        return cls((x.detach() / scale).round().to(torch.int8), scale)

    def plain(self):
        return self.codes.to(self.scale.dtype) * self.scale

    def __tensor_flatten__(self):
        return ["codes", "scale"], None

    @classmethod
    def __tensor_unflatten__(cls, inner, context, size, stride):
        return cls(inner["codes"], inner["scale"])

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        aten = torch.ops.aten
        if func in (aten.detach.default, aten.t.default, aten.view.default, aten.clone.default):
            return cls(func(args[0].codes, *args[1:]), args[0].scale)
        given = tree_map(lambda x: x.plain() if isinstance(x, cls) else x, args)
        if func in (aten.add_.Tensor, aten.copy_.default):  # an optimizer's step; a state that is loaded
            made = args[1] if func is aten.copy_.default else cls.of(torch.add(*given, **(kwargs or {})))
            args[0].codes.copy_(made.codes)
            args[0].scale.copy_(made.scale)
            return args[0]
        if func in (aten.neg.default, aten.add.Tensor, aten.div.Tensor):
            return cls.of(func(*given))
        return func(*given, **(kwargs or {}))


class Rounded(torch.autograd.Function):
    """Numbers as eighths; the gradient goes through as it is."""

    @staticmethod
    def forward(ctx, x):
        return Eighths.of(x)

    @staticmethod
    def backward(ctx, gradient):
        return gradient


class Linear(torch.autograd.Function):
    """A layer whose weight wraps others, and is kept for the backward."""

    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x @ weight.plain().t()

    @staticmethod
    def backward(ctx, gradient):
        x, weight = ctx.saved_tensors
        of_weight = gradient.t() @ x if ctx.needs_input_grad[1] else None
        return gradient @ weight.plain(), of_weight


PROGRAMS = {
    "product": lambda x, y: Rounded.apply(x) @ y,
    "views": lambda x, y: (Rounded.apply(x).view(9) * y.t().reshape(9)).sin(),
    "both": lambda x, y: torch.mm(Rounded.apply(x), Rounded.apply(y.cos())),
    "rounded twice": lambda x, y: torch.mm(Rounded.apply(x) + y, y),
    "rounded in a dispatch": lambda x, y: torch.mm(Eighths.of(torch.arange(9.0).view(3, 3)) + x, y),
    "negative": lambda x, y: (-(Rounded.apply(x))).sum() * y,
    "an argument": lambda x, y: Linear.apply(y, Rounded.apply(x.tanh())),
    "constant": lambda x, y: Linear.apply(x.tanh() * y, Eighths.of(torch.arange(9.0).view(3, 3))),
    "unused": lambda x, y: Rounded.apply(x).detach() @ y,
}


@pytest.mark.parametrize("f", PROGRAMS.values(), ids=PROGRAMS)
def test_derivatives_are_those_of_the_whole(f):
    torch.manual_seed(0)
    x, y = torch.randn(3, 3, requires_grad=True), torch.randn(3, 3, requires_grad=True)
    expected = f(x, y)
    factor = torch.randn(expected.shape)
    slopes = torch.autograd.grad((expected * factor).sum(), (x, y), allow_unused=True)
    slopes = [torch.zeros(3, 3) if slope is None else slope for slope in slopes]

    def inside(x, y):
        x, y = x.clone().requires_grad_(), y.clone().requires_grad_()
        found = torch.autograd.grad((f(x, y) * factor).sum(), (x, y), allow_unused=True)
        return [torch.zeros(3, 3) if slope is None else slope for slope in found]

    arrays = t2j((x.detach(), y.detach()))
    outside = jax.grad(lambda x, y: (t2j(f)(x, y) * t2j(factor)).sum(), (0, 1))
    for run in (lambda g: g, jax.jit):
        np.testing.assert_allclose(run(t2j(f))(*arrays), expected.detach(), rtol=1e-5, atol=1e-6)
        for found in (run(outside)(*arrays), run(t2j(inside))(*arrays)):
            for slope, wanted in zip(found, slopes, strict=True):
                np.testing.assert_allclose(slope, wanted, rtol=1e-4, atol=1e-5)
    mapped = jax.jit(jax.vmap(outside))(*(jnp.stack([array, array]) for array in arrays))
    np.testing.assert_allclose(mapped[0][1], slopes[0], rtol=1e-4, atol=1e-5)


def test_second_derivatives():
    def penalty(x, y):
        return torch.autograd.grad(Linear.apply(y, Rounded.apply(x)).square().sum(), y, create_graph=True)[0]

    x, y = torch.randn(3, 3), torch.randn(3, 3, requires_grad=True)
    (expected,) = torch.autograd.grad(penalty(x, y).square().sum(), y)

    def inside(x, y):
        y = y.clone().requires_grad_()
        return torch.autograd.grad(penalty(x, y).square().sum(), y)[0]

    np.testing.assert_allclose(jax.jit(t2j(inside))(t2j(x), t2j(y.detach())), expected, rtol=1e-4)


def test_inner_tensors_have_no_derivatives_of_zero():
    x = jnp.arange(1.0, 10.0).reshape(3, 3)
    for f in (lambda x: Rounded.apply(x).scale * 2, lambda x: (Eighths.of(x) + x).t().scale):
        assert np.isfinite(jax.jit(t2j(f))(x))
        with pytest.raises(NotImplementedError, match="through an inner tensor of a Eighths"):
            jax.jit(jax.grad(t2j(f)))(x)
    noted = jax.grad(t2j(lambda x: (whole := Rounded.apply(x)).sum() + whole.scale.detach()))(x)
    np.testing.assert_allclose(noted, jnp.ones((3, 3)))


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, gradient):
        return 3 * gradient


def test_a_jagged_result_of_a_function_has_no_derivative_of_zero():
    offsets = torch.tensor([0, 2, 6])

    def of_values(x):
        return Doubled.apply(torch.nested.nested_tensor_from_jagged(x, offsets, max_seqlen=4)).values()

    x = jnp.arange(18.0).reshape(6, 3)
    for run in (lambda f: f, jax.jit):
        np.testing.assert_array_equal(run(t2j(of_values))(x), 2 * x)
        with pytest.raises(NotImplementedError, match=r"Doubled\.apply, which gave a jagged tensor"):
            run(jax.grad(lambda x: t2j(of_values)(x).sum()))(x)


def test_a_gradient_that_wraps_others():
    x, weight = jnp.ones((3, 3)), t2j(Eighths.of(torch.ones(3, 3)))
    with pytest.raises(NotImplementedError, match="got a Eighths as the gradient of an operand"):
        jax.grad(lambda x: t2j(lambda x, weight: (x / weight).sum())(x, weight))(x)


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(Eighths.of(torch.randn(3, 3)))
        self.bias = torch.nn.Parameter(torch.randn(3))

    def forward(self, x):
        return Linear.apply(x, self.weight) + self.bias

    def gradients(self, x):
        self(x).square().sum().backward()
        return self.weight.grad, self.bias.grad


def test_a_parameter_that_a_function_takes():
    torch.manual_seed(0)
    model, x = Model(), torch.randn(2, 3)
    expected = [gradient.clone() for gradient in model.gradients(x)]
    model.zero_grad()
    for run in (t2j(model.gradients), jax.jit(t2j(model.gradients))):
        for found, wanted in zip(run(t2j(x)), expected, strict=True):
            np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
    state, function = dict(t2j(model.state_dict())), t2j(model)

    def loss(some):
        return jnp.square(function(t2j(x), state_dict={**state, **some})).sum()

    np.testing.assert_allclose(jax.grad(loss)({"bias": state["bias"]})["bias"], expected[1], rtol=1e-5)
    with pytest.raises(NotImplementedError, match=r"inner tensors of a Eighths, through Linear\.apply"):
        jax.grad(loss, allow_int=True)({"weight": state["weight"]})


def test_training_steps_keep_them_in_their_state():
    torch.manual_seed(0)
    model, x = Model(), torch.randn(8, 3)
    copied = Model()
    copied.load_state_dict(model.state_dict())

    def step(model, optimizer, x):
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    def optimizer(model):
        return torch.optim.SGD([{"params": [model.bias]}, {"params": [model.weight], "lr": 0.5}], lr=0.1)

    function = t2j(step, state=(model, optimizer(model)))
    state = function.init(t2j(x))
    assert state["model"]["weight"].codes.dtype == jnp.int8
    before = optimizer(copied)
    for _ in range(3):
        found, state = jax.jit(function)(state, t2j(x))
        np.testing.assert_allclose(found, step(copied, before, x).detach(), rtol=1e-5)
    np.testing.assert_array_equal(state["model"]["weight"].codes, copied.weight.codes)
    function.load(state)
    assert torch.equal(model.weight.codes, copied.weight.codes)
