"""What a backward pass calls, gives and refuses, in translated code, against PyTorch."""

import gc
import random
import weakref
from typing import ClassVar

import jax
import numpy as np
import pytest
import torch
from torch.autograd import Function, Variable
from torch.autograd.graph import GradientEdge, Node

from torch2jax import t2j

X = torch.tensor([0.3, -1.2, 2.0])


def hooks_on_operations(x):
    x, seen = x.clone().requires_grad_(), []
    y = x.sin() * x
    z = y * 3
    product = z.grad_fn.next_functions[0][0]
    z.grad_fn.register_prehook(seen.extend)
    product.register_prehook(lambda outputs: (outputs[0] * 2,))
    assert isinstance(product, Node)
    assert product._sequence_nr() < z.grad_fn._sequence_nr()
    z.sum().backward()
    return x.grad, seen


def edges(x):
    x = x.clone().requires_grad_()
    y = x.sin()
    edge = GradientEdge(y.grad_fn, 0)
    y = y * 2
    z = y.exp()
    (gradient,) = torch.autograd.grad(z.sum(), edge, retain_graph=True)
    return gradient, torch.autograd.grad(edge, x, gradient)


class Both(Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2, x * 3

    @staticmethod
    def backward(ctx, first, second):
        return first * 2 + second * 3


def edges_of_several_results(x):
    a, b = Both.apply(x.clone().requires_grad_())
    assert [y.output_nr for y in (x, a, b)] == [0, 0, 1]
    c, d = Both.apply(b)
    assert [number for y in (b.exp(), d) for _, number in y.grad_fn.next_functions] == [1, 1]
    ends = [GradientEdge(y.grad_fn, y.output_nr) for y in (a, b, c, d)]
    return torch.autograd.grad((a * b * c + d.exp()).sum(), ends)


class Calling(Function):
    called: ClassVar[list] = []

    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        engine, called = Variable._execution_engine, Calling.called
        engine.queue_callback(lambda: (called.append("first"), engine.queue_callback(lambda: called.append("second"))))
        called.append("backward")
        return gradient * 2


def callbacks(x):
    x = x.clone().requires_grad_()
    Calling.called = []
    Calling.apply(x).sum().backward()
    assert Calling.called == ["backward", "first", "second"]
    return x.grad


class NoGradient(Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return None


def undefined_gradients(x):
    x = x.clone().requires_grad_()
    NoGradient.apply(x**2).sum().backward()
    assert x.grad is None
    (NoGradient.apply(x) + x).sum().backward()
    return x.grad


def gradients_that_depend_on_nothing(x):
    x = x.clone().requires_grad_()
    (linear,) = torch.autograd.grad((2 * x).sum(), x, create_graph=True)
    (squared,) = torch.autograd.grad((x * x).sum(), x, create_graph=True)
    assert (linear.requires_grad, squared.requires_grad) == (False, True)
    return linear, torch.autograd.grad(squared.sum(), x)


def hooks_on_gradients_of_zero(x):
    x, w, seen, others = x.clone().requires_grad_(), x.clone().requires_grad_(), [], []
    y, v = x * 2, w * 3
    z = y.floor()
    y.retain_grad(), z.retain_grad()
    z.register_hook(lambda gradient: gradient * 2)
    y.register_hook(lambda gradient: seen.append(gradient) or gradient + 1)
    y.grad_fn.register_prehook(seen.extend)
    v.register_hook(others.append)
    (z * v).sum().backward(retain_graph=True)
    count = len(seen)
    torch.autograd.grad(z.sum(), z)
    (only,) = torch.autograd.grad((z * v).sum(), w)
    assert len(seen) == count
    return x.grad, w.grad, y.grad, z.grad, only, seen, others


def hooks_on_gradients_that_are_undefined(x):
    x, seen = x.clone().requires_grad_(), []
    a, b = x.sin(), x.cos()
    a.retain_grad(), b.retain_grad()
    a.register_hook(lambda gradient: seen.append(gradient is None))
    b.register_hook(lambda gradient: seen.append(gradient is None))
    OnlyOne.apply(a, b).sum().backward()
    first = x.grad
    torch._C._functions.UndefinedGrad()(x.exp()).sum().backward()
    assert sorted(seen) == [False, True]
    assert b.grad is None
    return first, a.grad


class OnlyOne(Function):
    @staticmethod
    def forward(ctx, a, b):
        return a * b

    @staticmethod
    def backward(ctx, gradient):  # type: ignore[override]
        return gradient, None


CASES = [
    hooks_on_gradients_of_zero,
    hooks_on_gradients_that_are_undefined,
    hooks_on_operations,
    edges,
    edges_of_several_results,
    callbacks,
    undefined_gradients,
    gradients_that_depend_on_nothing,
]


@pytest.mark.parametrize("function", CASES)
@pytest.mark.parametrize("jit", [False, True])
def test_against_pytorch(function, jit):
    translated = t2j(function)
    found = (jax.jit(translated) if jit else translated)(jax.numpy.asarray(X.numpy()))
    wanted = torch.utils._pytree.tree_leaves(function(X))
    for a, b in zip(jax.tree.leaves(found), wanted, strict=True):
        np.testing.assert_allclose(a, b.detach().numpy(), rtol=1e-5)


def asked_at_random(x, seed):
    """Gradients asked for by each of PyTorch's functions, of tensors some of which retain theirs and have hooks."""
    chosen, gradients = random.Random(seed), []
    tensors = [x.clone().requires_grad_(), torch.tensor(3.0, requires_grad=True)]
    for _ in range(3):
        a, b = chosen.choice(tensors), chosen.choice(tensors)
        made = chosen.choice(
            [lambda a, b: a * b, lambda a, b: a + 2 * b, lambda a, b: a.sin() + 0 * b, lambda a, b: a.floor() * b]
        )(a, b)
        if chosen.random() < 0.5:
            made.retain_grad()
        if chosen.random() < 0.25:
            made.register_hook(lambda gradient: gradient * 2 + 1)
        if chosen.random() < 0.2:
            made.add_(b)
        tensors.append(made)
    for _ in range(2):
        inputs, outputs = chosen.sample(tensors, 2), chosen.sample(tensors, 2)
        ask = chosen.choice(["grad", "backward", "inputs"])
        options = {"retain_graph": True, "create_graph": chosen.random() < 0.2}
        if ask == "grad":
            gradients += torch.autograd.grad(outputs, inputs, allow_unused=True, **options)
        else:
            torch.autograd.backward(outputs, inputs=inputs if ask == "inputs" else None, **options)
        gradients += [x.grad if x.retains_grad or x.is_leaf else None for x in tensors]
    return [torch.tensor(-100.0) if x is None else x.detach().clone() for x in gradients]


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.filterwarnings("ignore:Using backward")
def test_which_gradients_are_kept(seed):
    found = t2j(asked_at_random)(jax.numpy.float32(1.5), seed)
    wanted = asked_at_random(torch.tensor(1.5), seed)
    np.testing.assert_allclose(found, torch.stack(wanted).numpy(), rtol=1e-5, atol=1e-5)


def test_a_retained_gradient_stays_as_it_was():
    def twice(x):
        y = x.clone().requires_grad_() * 2
        y.retain_grad()
        y.sum().backward(retain_graph=True)
        before = y.grad
        torch.autograd.grad(y.sum(), y)
        return before, y.grad

    for a, b in zip(t2j(twice)(X), twice(X), strict=True):
        np.testing.assert_allclose(a, b.numpy())


def test_a_hook_on_the_inputs_of_an_operator_is_refused():
    def hooked(x):
        x.requires_grad_()
        x.sin().grad_fn.register_hook(lambda inputs, outputs: None)

    with pytest.raises(NotImplementedError, match=r"Tensor\.register_hook"):
        t2j(hooked)(X.numpy())


def test_an_input_given_back_as_not_differentiable():
    class GivenBack(Function):
        @staticmethod
        def forward(ctx, x, y):
            ctx.mark_non_differentiable(y)
            return x, y

        @staticmethod
        def backward(ctx, of_x, of_y):
            return of_x * 2, None

    def run(x):
        x = x.clone().requires_grad_()
        a, b = GivenBack.apply(x, x.detach())
        assert (a.requires_grad, b.requires_grad) == (True, False)
        return torch.autograd.grad((a * b).sum(), x)[0]

    np.testing.assert_allclose(t2j(run)(X.numpy()), run(X).numpy())


def test_a_leaf_is_freed_with_its_graph():
    def run():
        leaf = torch.ones(2, requires_grad=True)
        graph, reference = leaf * 2, weakref.ref(leaf)
        source = graph.grad_fn.next_functions[0][0]
        del leaf
        assert source.variable is reference() is not None
        del graph
        assert reference() is None

    gc.disable()
    try:
        t2j(run)()
    finally:
        gc.enable()


RESTRICTED = {
    "no_grad": (lambda x: _within(torch.no_grad, x), "created in no_grad mode"),
    "inference": (lambda x: _within(torch.inference_mode, x), "created in inference mode"),
    "unbind": (lambda x: x.unbind()[0], "Output 0 of Unbind"),
    "split": (lambda x: x.split(1)[1], "Output 1 of Split"),
    "custom": (lambda x: Viewing.apply(x), "created inside a custom Function"),
}


class Viewing(Function):
    @staticmethod
    def forward(ctx, x):
        return x[:1]

    @staticmethod
    def backward(ctx, gradient):
        return torch.cat([gradient, gradient * 0, gradient * 0])


def _within(mode, x):
    with mode():
        return x[:1]


@pytest.mark.parametrize("name", RESTRICTED)
def test_views_that_are_not_written_to(name):
    view, message = RESTRICTED[name]

    def run():
        x = X.clone().requires_grad_() * 1
        view(x).add_(x.sum())

    for function in (run, t2j(run)):
        with pytest.raises(RuntimeError, match=message):
            function()
    t2j(lambda: view(X.clone()).add_(1.0))()  # without gradients it is in order


@pytest.mark.parametrize("name", RESTRICTED)
def test_what_is_detached_of_them_is(name):
    view, _ = RESTRICTED[name]

    def run():
        x, w = X.clone(), torch.ones((), requires_grad=True)
        written = view(x.requires_grad_() * 1).detach()
        written.add_(w * 2)
        written.sum().backward()
        return w.grad

    assert t2j(run)() == run().item()


def test_inference_mode():
    def run():
        normal = X.clone()
        with torch.inference_mode():
            made, view = X * 2, normal[:1]
            made.add_(1)
            normal.add_(1)
        assert [x.is_inference() for x in (made, made[0], normal, view, made * 2)] == [True, True, False, False, False]
        assert torch.is_inference(made)
        results = made.clone(), normal
        for write in (lambda: made.add_(1), lambda: made.requires_grad_()):
            with pytest.raises(RuntimeError, match="outside InferenceMode is not allowed"):
                write()
        return results

    for a, b in zip(t2j(run)(), run(), strict=True):
        np.testing.assert_allclose(a, b.numpy())


def test_the_gradient_of_a_checkpointed_gradient():
    def second(x):
        x = x.clone().requires_grad_()
        y = torch.utils.checkpoint.checkpoint(lambda x: x.sin().exp(), x, use_reentrant=False)
        (gradient,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        return torch.autograd.grad(gradient.sum(), x)[0]

    np.testing.assert_allclose(t2j(second)(X.numpy()), second(X).numpy(), rtol=1e-5)


def test_checkpoints_of_gradients_of_checkpoints():
    def inner(x):
        return x.sin().exp()

    def grad(function):
        return lambda x: torch.autograd.grad(function(x).sum(), x, create_graph=True)[0]

    def checkpointed(function):
        return lambda x: torch.utils.checkpoint.checkpoint(function, x, use_reentrant=False)

    def nested(x):
        x = x.clone().requires_grad_()
        once = checkpointed(grad(checkpointed(inner)))(x)
        return once, grad(checkpointed(grad(checkpointed(inner))))(x)

    for a, b in zip(t2j(nested)(X.numpy()), nested(X), strict=True):
        np.testing.assert_allclose(a, b.detach().numpy(), rtol=1e-5)


def test_gradient_of_a_view_of_a_leaf_that_leads_nowhere():
    def function(x):
        leaf = x.detach().requires_grad_()
        first, second = leaf.split([1, 2])
        return torch.autograd.grad(first.sin().sum(), (second, leaf), allow_unused=True, retain_graph=True)[1]

    x = torch.tensor([0.3, -1.2, 2.0])
    for run in (t2j(function), jax.jit(t2j(function))):
        np.testing.assert_allclose(run(t2j(x)), function(x), rtol=1e-6)


def test_derivatives_that_are_errors():
    def delayed(x, of_y):
        x = x.clone().requires_grad_()
        y = torch._C._functions.DelayedError("not this way", 1)(x)
        z = y.view(-1) * 2
        z += y
        return torch.autograd.grad(z.sum(), y if of_y else x)[0]

    def unused(x):
        x = x.clone().requires_grad_()
        with torch.no_grad():
            y = torch.utils.checkpoint.checkpoint(torch.sin, x, use_reentrant=True)

        def without_gradient(x):
            with torch.no_grad():
                return x.sin()

        y = y + torch.utils.checkpoint.checkpoint(without_gradient, x, use_reentrant=True)
        (y + x).sum().backward()

    x = torch.tensor([0.3, -1.2])
    np.testing.assert_allclose(t2j(delayed)(t2j(x), True), delayed(x, True))
    for run in (lambda function, *args: function(*args), lambda function, *args: t2j(function)(*args)):
        with pytest.raises(RuntimeError, match="not this way"):
            run(delayed, x, False)
        with pytest.raises(RuntimeError, match="none of output has requires_grad=True"):
            run(unused, x)


def test_nodes_cannot_be_called():
    with pytest.raises(NotImplementedError, match=r"cannot be called; wanted torch\.autograd\.grad"):
        t2j(lambda x: (x.clone().requires_grad_() * 2).grad_fn(x))(np.ones(2, np.float32))


def test_prehooks_of_what_gradients_are_added_to():
    def function(x):
        counts = []
        y = x.clone().requires_grad_().clone()
        y.grad_fn.register_prehook(lambda gradients: counts.append("prehook"))
        y.register_hook(lambda gradient: 3 * gradient)
        torch.autograd.grad(y.sum(), y, retain_graph=True)
        y.sum().backward(inputs=(y,))
        return len(counts), y.grad

    x = torch.tensor([0.3, -1.2])
    counts, gradient = t2j(function)(t2j(x))
    assert counts == function(x)[0] == 1
    np.testing.assert_allclose(gradient, function(x)[1])


def test_a_leaf_that_is_set_to_other_memory():
    def function(x):
        x = x.clone().requires_grad_()
        edge = torch.autograd.graph.get_gradient_edge(x)
        y = x * 3
        with torch.no_grad():
            x.set_(torch.ones(2))
        assert x.requires_grad
        assert torch.autograd.grad(y.sum(), x, allow_unused=True, retain_graph=True)[0] is None
        return torch.autograd.grad(y.sum(), edge)[0]

    x = torch.tensor([0.3, -1.2])
    np.testing.assert_allclose(t2j(function)(t2j(x)), function(x), rtol=1e-6)


SECOND = {
    "mul": lambda x, a: x * a,
    "constant": lambda x, a: x * 3.0,
    "add": lambda x, a: x + a,
    "square": lambda x, a: x * x,
    "exp": lambda x, a: x.exp(),
    "div": lambda x, a: x / a,
    "mean": lambda x, a: (x * a).mean() * 3,
    "chain": lambda x, a: (x * a) * a,
    "relu": lambda x, a: torch.relu(x),
    "where": lambda x, a: torch.where(x > 0, x * a, x),
    "matmul": lambda x, a: (x.view(1, 1) @ a.view(1, 1)).sum(),
    "difference": lambda x, a: (x - a) ** 2,
    "written": lambda x, a: torch.ones(()).mul_(x).mul_(a),
}


@pytest.mark.parametrize("function", SECOND.values(), ids=SECOND)
def test_second_derivatives_are_none_where_nothing_leads_there(function):
    def run():
        x, a = torch.tensor(0.5, requires_grad=True), torch.tensor(2.0, requires_grad=True)
        found = []
        for wanted in ((x,), (a,), (x, a)):
            first = torch.autograd.grad(function(x, a), wanted, create_graph=True, allow_unused=True)
            found.append([None if y is None else y.requires_grad for y in first])
            for y in first:
                if y is not None and y.requires_grad:
                    second = torch.autograd.grad(y, (x, a), retain_graph=True, allow_unused=True)
                    found.append([None if z is None else round(float(z), 4) for z in second])
        return found

    found = []
    t2j(lambda: found.append(run()))()
    assert found[-1] == run()


class Reentrant(Function):
    """One less, down to zero, for whose gradient the rest of the way is differentiated."""

    @staticmethod
    def forward(ctx, x):
        with torch.enable_grad():
            ctx.x = x.detach().requires_grad_() - 1
        return ctx.x.detach()

    @staticmethod
    def backward(ctx, gradient):  # type: ignore[override]
        if ctx.x > 0:
            with torch.enable_grad():
                Reentrant.apply(ctx.x).backward()
        return gradient


def test_backward_passes_within_one_another():
    def deep():
        x = torch.tensor(26.0, requires_grad=True)
        Reentrant.apply(x).backward()
        return x.grad

    assert t2j(deep)() == 1


def test_hooks_are_called_in_pytorchs_order():
    def order():
        called = []
        x, w = torch.tensor([1.5, 2.5], requires_grad=True), torch.tensor([0.5, 2.5], requires_grad=True)
        a, b = x * 2, w.sin()
        c, d = a.exp(), b * 3
        for name, tensor in {"a": a, "b": b, "c": c, "d": d}.items():
            tensor.register_hook(lambda _, name=name: called.append(name))
        ((a + b) * c + d).sum().backward()
        leaves = [torch.tensor(float(i), requires_grad=True) for i in range(8)]
        for i, leaf in enumerate(leaves):
            leaf.register_post_accumulate_grad_hook(lambda _, i=i: called.append(i))
        total = torch.tensor(0.0)
        for i in (3, 1, 0, 2, 7, 6, 4, 5):
            total = total + leaves[i].sin()
        total.backward()
        return called

    found = []
    t2j(lambda: found.extend(order()))()
    assert found == order()


@pytest.mark.parametrize(
    "function",
    [
        lambda x: (x + x).sum(),
        lambda x: x.clone().reshape(3, 1).expand(3, 2).sum(),
        lambda x: torch.cat([x, x]).flip(0)[1:].sum(),
    ],
)
def test_what_keeps_nothing_is_gone_back_through_twice(function):
    """A rule's body leaves its own steps in the linear program, also where it was compiled: those tell what is kept."""

    def twice(x):
        x = x.clone().requires_grad_()
        for _ in range(5):  # so that bodies recur
            loss = function(x)
        loss.backward()
        loss.backward()
        return x.grad

    for run in (t2j(twice), jax.jit(t2j(twice))):
        np.testing.assert_allclose(run(t2j(X)), twice(X), rtol=1e-6)


def test_the_way_back_has_no_nested_calls():
    def function(x):
        x = x.clone().requires_grad_()
        for _ in range(5):
            loss = torch.nn.functional.gelu(x).softmax(0).square().sum()
        return torch.autograd.grad(loss, x)[0]

    assert "jit[" not in str(jax.make_jaxpr(t2j(function))(t2j(X)))


def test_hooks_of_saved_tensors_are_refused():
    def hooked(x):
        with torch.autograd.graph.saved_tensors_hooks(lambda kept: kept.half(), lambda kept: kept.float()):
            return x.sin()

    def on_cpu(x):
        x = x.clone().requires_grad_()
        with torch.autograd.graph.save_on_cpu():
            loss = x.sin().sum()
        return torch.autograd.grad(loss, x)[0]

    with pytest.raises(NotImplementedError, match=r"got saved_tensors_hooks .*; wanted torch\.utils\.checkpoint"):
        t2j(hooked)(t2j(X))
    np.testing.assert_allclose(jax.jit(t2j(on_cpu))(t2j(X)), on_cpu(X), rtol=1e-6)
