"""`.backward()`, `torch.autograd.grad` and what goes with them, in translated code, against PyTorch."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from torch2jax import t2j

X = torch.tensor([0.3, -1.2, 2.0, 0.7])
CASES = {}


def case(function):
    CASES[function.__name__] = function
    return function


def leaf(x):
    return x.clone().requires_grad_()


def network():
    """The same small network wherever it is built."""
    model = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 1))
    with torch.no_grad():
        for i, parameter in enumerate(model.parameters()):
            parameter.copy_(torch.linspace(-1, 1, parameter.numel()).view_as(parameter) * (i + 1))
    return model


MODEL = network()


def double_gradient(tensor):
    tensor.grad.mul_(2)


@case
def forces(x):
    x = leaf(x)
    energy = (x.sin() * x).sum()
    return torch.autograd.grad(energy, x)


@case
def third_derivative(x):
    x = leaf(x)
    first = torch.autograd.grad((x**5).sum(), x, create_graph=True)[0]
    second = torch.autograd.grad(first.sum(), x, create_graph=True)[0]
    (second * x + first).sum().backward()
    return first, second, x.grad


@case
def penalty_on_gradients(x):
    w = leaf(x)
    x = leaf(x + 1)
    loss = (w * x).tanh().sum()
    (gradient,) = torch.autograd.grad(loss, x, create_graph=True)
    (loss + gradient.square().sum()).backward()
    return w.grad, x.grad


@case
def hooks(x):
    x, seen = leaf(x), []
    h = x * 2
    h.register_hook(lambda g: g * 3)
    h.retain_grad()
    x.register_hook(lambda g: seen.append(g) or g + 1)
    removed = x.register_hook(lambda g: g * 100)
    removed.remove()
    h.sin().sum().backward()
    return x.grad, h.grad, seen


@case
def hooks_registered_late(x):
    x = leaf(x)
    h = x * 2
    loss = (h.sin() + x).sum()
    h.register_hook(lambda g: g * 3)
    x.register_post_accumulate_grad_hook(double_gradient)
    loss.backward()
    return x.grad


@case
def hooks_of_nodes(x):
    x, seen = leaf(x), []
    y = x.exp()
    accumulate = x.view_as(x).grad_fn.next_functions[0][0]

    def after(inputs, outputs):
        seen.append(x.grad.clone() + outputs[0])

    y.grad_fn.register_prehook(lambda gradients: (gradients[0] * 2,))
    y.register_hook(lambda gradient: gradient + 1)
    x.register_hook(lambda gradient: gradient - 2)
    accumulate.register_prehook(lambda gradients: (gradients[0] / 5,))
    x.register_post_accumulate_grad_hook(double_gradient)
    accumulate.register_hook(after)
    y.sum().backward(retain_graph=True)
    edge = torch.autograd.graph.get_gradient_edge(y)
    return x.grad, seen, torch.autograd.grad(y.square().sum(), [edge, x])


@case
def hooks_on_several(x):
    a, b, c, seen = leaf(x), leaf(x * 2), leaf(x), []
    torch.autograd.graph.register_multi_grad_hook((a, b, c), lambda gradients: seen.append(gradients[:2]))
    (a * b).sum().backward()
    return seen


@case
def hooks_of_modules(x):
    model, seen = network(), []
    model[0].register_full_backward_hook(lambda m, inputs, outputs: seen.append((inputs[0], outputs[0])))
    model[2].register_full_backward_pre_hook(lambda m, outputs: (outputs[0] * 2,))
    x = leaf(x)
    model(x).square().sum().backward()
    return seen, x.grad, [p.grad for p in model.parameters()]


@case
def accumulation(x):
    w = leaf(x)
    for i in range(3):
        (w * w * i).sum().backward()
    before = w.grad
    (w**3).sum().backward()
    return w.grad, before is w.grad


@case
def gradients_set_by_hand(x):
    w = leaf(x)
    w.grad = x * 2
    (w * 3).sum().backward()
    first = w.grad.clone()
    w.grad = None
    (w * 4).sum().backward()
    return first, w.grad


@case
def writes_through_views(x):
    w = leaf(x)
    y = w * 1.0
    y[1:3].mul_(w[0])
    v = y[2:]
    v.add_(w[1])
    y[0] = w[3] ** 2
    return torch.autograd.grad((y**2).sum() + v.sum(), w)


@case
def writes_into_zeros(x):
    w = leaf(x)
    buffer = torch.zeros(2, 4)
    row = buffer[0]
    row.copy_(w.exp())
    buffer[1, ::2] = w[:2] * 3
    return torch.autograd.grad((buffer * buffer).sum(), w), buffer.requires_grad, row.requires_grad


@case
def intermediate_tensors(x):
    w = leaf(x)
    h = w * 2
    copy, view = h.clone(), h.view(2, 2)
    loss = (h * 2 + copy * 3).sum() + (view**2).sum()
    return torch.autograd.grad(loss, [h, copy, view, w])


@case
def transposed(x):
    w = leaf(x.view(2, 2))
    t = w.mT
    u = t * 1
    loss = (t**2 * torch.tensor([[1.0, 2.0], [3.0, 4.0]])).sum() + (w * 3).sum() + (u.mT**3).sum()
    return torch.autograd.grad(loss, [t, w, u])


@case
def channels_last(x):
    image = leaf(x.view(1, 2, 2, 1).expand(1, 2, 2, 2))
    out = F.conv2d(image, torch.linspace(0, 1, 24).view(3, 2, 2, 2), padding=1)
    out.retain_grad()
    F.relu(out).square().sum().backward()
    return image.grad, out.grad


@case
def whole_views(x):
    base = leaf(x).clone()
    view, other = base[:], base[:]
    view.retain_grad()
    other.retain_grad()
    view.mul_(2)
    (view + other * 3).sum().backward()
    return view.grad, other.grad


@case
def unused_inputs(x):
    a, b = leaf(x), leaf(x)
    first = torch.autograd.grad((a * 2).sum(), [a, b], allow_unused=True)
    second = torch.autograd.grad((a * 2).sum(), [a, b], materialize_grads=True)
    return first[0], first[1] is None, second


@case
def zero_derivatives(x):
    a = leaf(x)
    return torch.autograd.grad(a.floor().sum(), a)


@case
def tensors_that_depend_on_nothing_any_more(x):
    w = leaf(x)
    h, whole = w * 0.5, w.floor()
    view = h.view_as(h)
    h.copy_(x)
    return torch.autograd.grad((view**2).sum() + (whole**3).sum(), [view, h, whole], allow_unused=True)


@case
def several_outputs(x):
    a = leaf(x)
    b = a * 2
    return torch.autograd.grad([b, a**2], [a, b], [torch.ones(4), x])


@case
def where_nothing_is_recorded(x):
    a = leaf(x)
    with torch.no_grad():
        b = a * 2
        with torch.enable_grad():
            c = a * 3
    d = a.detach() * 3
    with torch.set_grad_enabled(False):
        e = a * 4
    with torch.inference_mode():
        f = x * 5
    flags = [t.requires_grad for t in (a, b, c, d, e, f, a * 2)] + [t.is_leaf for t in (a, b, c, d)]
    return torch.autograd.grad((a * b * c * d * e).sum(), a), flags


@case
def steps_without_gradients(x):
    w = leaf(x)
    for _ in range(3):
        (w**2 * x).sum().backward()
        with torch.no_grad():
            w -= 0.1 * w.grad
            w.grad.zero_()
    w.data.mul_(2)
    (w**3).sum().backward()
    return w.detach(), w.grad


@case
def data_replaced(x):
    w = leaf(x)
    w.data = x * 2
    (w**2).sum().backward()
    return w.grad, w.detach(), w.is_leaf


@case
def parameters_from_outside(x):
    MODEL.zero_grad()
    loss = MODEL(x).square().sum()
    loss.backward()
    gradients = [p.grad for p in MODEL.parameters()]
    norm = nn.utils.clip_grad_norm_(MODEL.parameters(), 0.5)
    return loss.detach(), norm, gradients, [p.grad for p in MODEL.parameters()]


@case
def parameters_made_inside(x):
    weight = nn.Parameter(x * 2)
    other = torch.ones(4, requires_grad=True)
    (weight * other * x).sum().backward()
    return weight.grad, other.grad


@case
def complex_numbers(x):
    z = leaf(torch.complex(x, x * 2))
    first = torch.autograd.grad((z * z * (1 + 2j)).abs().sum(), z, create_graph=True)[0]
    second = torch.autograd.grad(first.abs().sum(), z)
    return first.detach(), second


@case
def functional(x):
    def scalar(x):
        return (x**3).sum() * x[0]

    def vector(x):
        return x.sin() * x.sum()

    functional, v = torch.autograd.functional, torch.ones(4)
    return (
        functional.jacobian(vector, x),
        functional.hessian(scalar, x),
        functional.vjp(vector, x, v),
        functional.jvp(vector, x, v),
        functional.hvp(scalar, x, v),
        functional.vhp(scalar, x, v),
    )


@case
def variables_of_old(x):
    w = torch.autograd.Variable(x, requires_grad=True)
    (w**2).sum().backward()
    return w.grad, torch.autograd.Variable(x).requires_grad


@case
def grad_fn(x):
    w = leaf(x)
    y = w * 2
    accumulate = w.view_as(w).grad_fn.next_functions[0][0]
    return w.grad_fn is None, y.grad_fn is not None, accumulate.variable is w, accumulate.name()


@case
def recurrent(x):
    cell = nn.GRU(2, 3, batch_first=True)
    with torch.no_grad():
        for parameter in cell.parameters():
            parameter.copy_(torch.linspace(-1, 1, parameter.numel()).view_as(parameter))
    inputs = leaf(x.view(1, 2, 2))
    cell(inputs)[0].square().sum().backward()
    return inputs.grad, [p.grad for p in cell.parameters()]


def run(function, *arrays):
    """PyTorch's own answer, without a trace of its graph."""
    for parameter in MODEL.parameters():
        parameter.grad = None
    result = function(*[array.clone() for array in arrays])
    for parameter in MODEL.parameters():
        parameter.grad = None
    return jax.tree.map(lambda x: x.detach().numpy() if isinstance(x, torch.Tensor) else x, result)


def compare(actual, expected):
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    for got, want in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        if isinstance(want, (str, bool)):
            assert got == want
        else:
            assert (got.shape, got.dtype) == (want.shape, want.dtype)
            np.testing.assert_allclose(got, want, rtol=2e-5, atol=1e-5)


@case
def a_module_of_another_dtype(x):
    model = network().double().float()
    model(x).sum().backward()
    return [parameter.grad for parameter in model.parameters()]


@pytest.mark.filterwarnings("ignore:Full backward hook is firing")
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("jit", [False, True])
def test_against_pytorch(name, jit):
    static = {}

    def function(x):
        result = CASES[name](x)
        leaves, structure = jax.tree.flatten(result, is_leaf=lambda x: isinstance(x, torch.Tensor))
        static.update(structure=structure, rest=[None if isinstance(x, torch.Tensor) else x for x in leaves])
        return [x for x in leaves if isinstance(x, torch.Tensor)]

    translated = t2j(function)
    tensors = iter((jax.jit(translated) if jit else translated)(t2j(X), rng=jax.random.key(0)))
    leaves = [next(tensors) if x is None else x for x in static["rest"]]
    compare(jax.tree.unflatten(static["structure"], leaves), run(CASES[name], X))


@pytest.mark.parametrize(
    ("name", "by_hand"),
    [
        ("forces", lambda x: jax.grad(lambda x: (jnp.sin(x) * x).sum())(x)),
        (
            "penalty_on_gradients",
            lambda x: jax.grad(
                lambda w, x: jnp.tanh(w * x).sum() + jnp.square(jax.grad(lambda x: jnp.tanh(w * x).sum())(x)).sum(),
                (0, 1),
            )(x, x + 1),
        ),
    ],
)
def test_graphs_are_those_of_jax_grad(name, by_hand):
    def operations(function):
        return sorted(str(eqn.primitive) for eqn in jax.make_jaxpr(function)(t2j(X)).eqns)

    ours, theirs = operations(t2j(CASES[name])), operations(by_hand)
    assert len(ours) <= len(theirs) + 2, (ours, theirs)


def test_jax_differentiates_and_batches_what_differentiates():
    force = t2j(CASES["forces"])
    np.testing.assert_allclose(
        jax.jacobian(lambda x: force(x)[0])(t2j(X)),
        jax.hessian(lambda x: (jnp.sin(x) * x).sum())(t2j(X)),
        rtol=1e-5,
    )
    batch = jnp.stack([t2j(X), 2 * t2j(X)])
    np.testing.assert_allclose(jax.vmap(lambda x: force(x)[0])(batch)[1], force(2 * t2j(X))[0], rtol=1e-5)
    scanned = jax.lax.scan(lambda x, _: (x - 0.1 * force(x)[0], x), t2j(X), length=3)[0]
    assert scanned.shape == (4,)


def test_modules_that_differentiate_themselves():
    class Potential(nn.Module):
        def __init__(self):
            super().__init__()
            self.energy = network()

        def forward(self, x):
            x = x.requires_grad_()
            energy = self.energy(x).sum()
            return energy, -torch.autograd.grad(energy, x, create_graph=self.training)[0]

    model = Potential()
    _, expected = model(X.clone())
    params = t2j(dict(model.named_parameters()))

    def loss(params):
        return jnp.square(t2j(model)(t2j(X), state_dict=params)[1]).sum()

    value, gradients = jax.jit(jax.value_and_grad(loss))(params)
    expected.square().sum().backward()
    np.testing.assert_allclose(value, expected.square().sum().detach(), rtol=1e-5)
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            np.testing.assert_allclose(gradients[name], parameter.grad, rtol=2e-4, atol=1e-5)


def test_the_user_module_is_left_as_it_was():
    for parameter in MODEL.parameters():
        parameter.grad = torch.ones_like(parameter)

    def function(x):
        MODEL(x).sum().backward()
        return MODEL[0].bias.grad

    with_one = t2j(function)(t2j(X))
    assert all((p.grad == 1).all() and p.requires_grad for p in MODEL.parameters())
    for parameter in MODEL.parameters():
        parameter.grad = None
    np.testing.assert_allclose(with_one, t2j(function)(t2j(X)) + 1, rtol=1e-5)
    assert all(p.grad is None for p in MODEL.parameters())


def test_known_values_stay_known_under_jit():
    @jax.jit
    @t2j
    def function(x):
        grid = torch.linspace(0, 1, 3).requires_grad_()
        gradient = torch.autograd.grad((grid**2).sum(), grid)[0]
        return x * (2 if grid.sum() > 1 else 3), gradient

    scaled, gradient = function(t2j(X))
    np.testing.assert_allclose(scaled, 2 * X)
    np.testing.assert_allclose(gradient, [0, 1, 2])


def test_eager_code_asks_for_values_of_what_requires_grad():
    def function(x):
        x = leaf(x)
        loss = (x**2).sum()
        loss.backward()
        return x.grad * (1 if loss.item() > 1 else 2), x.nonzero()

    np.testing.assert_allclose(t2j(function)(t2j(X))[0], 2 * X)


def test_gradcheck():
    def function(x):
        x = x.double().requires_grad_()
        checks = torch.autograd.gradcheck(lambda a: a.sin() * a, x), torch.autograd.gradgradcheck(torch.tanh, x)
        wrong = torch.autograd.gradcheck(lambda a: a * a.detach(), x, raise_exception=False, check_batched_grad=False)
        return checks, wrong

    with jax.enable_x64(True):
        assert t2j(function)(jnp.asarray(X.numpy(), jnp.float64), rng=jax.random.key(0)) == ((True, True), False)


def second_backward(x):
    loss = (leaf(x) ** 2).sum()
    loss.backward()
    loss.backward()


def changed_flag(x):
    (leaf(x) * 2).requires_grad_(False)


ERRORS = {
    "a graph used twice": (second_backward, "backward through the graph a second time"),
    "a leaf written to": (lambda x: leaf(x).add_(1), "a leaf Variable that requires grad"),
    "a view of a leaf written to": (lambda x: leaf(x)[0].mul_(2), "a view of a leaf Variable that requires grad"),
    "nothing requires grad": (lambda x: x.sum().backward(), "does not require grad and does not have a grad_fn"),
    "no scalar": (lambda x: (leaf(x) * 2).backward(), "grad can be implicitly created only for scalar outputs"),
    "an input without grad": (
        lambda x: torch.autograd.grad(leaf(x).sum(), x),
        "One of the differentiated Tensors does not require grad",
    ),
    "an unused input": (
        lambda x: torch.autograd.grad(leaf(x).sum(), leaf(x)),
        "appears to not have been used in the graph",
    ),
    "integers": (lambda x: x.long().requires_grad_(), "floating point"),
    "a flag of what is no leaf": (changed_flag, "you can only change requires_grad flags of leaf variables"),
    "a hook without grad": (lambda x: x.register_hook(print), "that doesn't require gradient"),
    "a gradient of another shape": (lambda x: setattr(leaf(x), "grad", x[:2]), "size"),
    "out= of what requires grad": (
        lambda x: torch.add(leaf(x), 1, out=torch.empty(4)),
        "functions with out=... arguments don't support automatic differentiation",
    ),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors_are_pytorchs(name):
    function, message = ERRORS[name]
    for call in (lambda: function(X.clone()), lambda: t2j(function)(t2j(X)), lambda: jax.jit(t2j(function))(t2j(X))):
        with pytest.raises(RuntimeError, match=message.replace("(", r"\(").replace(")", r"\)")):
            call()


def test_a_graph_kept_is_used_again():
    def function(x):
        x = leaf(x)
        loss = (x**2).sum()
        loss.backward(retain_graph=True)
        loss.backward()
        return x.grad

    np.testing.assert_allclose(t2j(function)(t2j(X)), 4 * X)


def test_code_that_names_its_derivatives_runs_once():
    runs = []

    def function(x, differentiate):
        runs.append(x)
        y = (x.requires_grad_() ** 2).sum()
        return torch.autograd.grad(y, x)[0] if differentiate else y

    translated = t2j(function)
    translated(t2j(X), False)
    assert len(runs) == 1
    translated(t2j(X), True)
    assert len(runs) == 2  # on a tape
    translated(t2j(X), True)
    assert len(runs) == 3


@pytest.mark.parametrize("depth", [1, 2])
def test_a_leaf_that_an_abandoned_run_put_aside(depth):
    """The first runs of a function find out that it needs a tape; what they keep in Python stays there."""
    kept = {}

    def f(x):
        if not kept:
            kept["leaf"] = torch.full((4,), 2.0, requires_grad=True)
            base = torch.stack([x, kept["leaf"].detach()], 1)
            kept["view"] = base.select(1, 1).detach().requires_grad_()
        loss = (kept["leaf"] ** 3 * kept["view"] * x).sum()
        if depth == 1:
            loss.backward()
            return kept["leaf"].grad, kept["view"].grad
        (gradient,) = torch.autograd.grad(loss, kept["leaf"], create_graph=True)
        gradient.sum().backward()
        return kept["leaf"].grad, kept["view"].grad

    wanted = f(X)
    kept.clear()
    for got, want in zip(t2j(f)(jnp.asarray(X.numpy())), wanted, strict=True):
        np.testing.assert_allclose(got, want.numpy(), rtol=1e-6)


def test_a_parameter_that_is_gone_when_a_run_is_abandoned():
    """What it shares its memory with may outlive it."""

    def f(x):
        torch.nn.Linear(3, 3)
        x.requires_grad_().square().sum().backward()
        return x.grad

    got = t2j(f)(jnp.asarray(X.numpy()), rng=jax.random.key(0))
    np.testing.assert_allclose(got, 2 * X.numpy(), rtol=1e-6)


VIEWS = {
    "slice": lambda x: x[1:],
    "transpose": lambda x: x.T,
    "reshape": lambda x: x.reshape(6),
    "copy": lambda x: x.T.reshape(6),
    "chunk": lambda x: x.chunk(2)[0],
    "unbind": lambda x: x.unbind()[0],
    "expand": lambda x: x.expand(2, 3, 2),
    "view of a view": lambda x: x[1:][0],
    "detached": lambda x: x.detach(),
    "view of what is detached": lambda x: x.detach()[1:],
    "product": lambda x: x * 2,
}


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("is_leaf", [True, False])
def test_views_without_gradients_say_what_their_tensor_does(mode, is_leaf):
    def asked(x):
        w = torch.ones(3, 2, requires_grad=True)
        w = w if is_leaf else w * 3
        with mode():
            shown = {name: view(w) for name, view in VIEWS.items()}
            within = {name: (x.requires_grad, x.is_leaf, x.grad_fn) for name, x in shown.items()}
        after = {name: (x.requires_grad, x.is_leaf) for name, x in shown.items()}
        said.append((within, after, x[1:].requires_grad))
        return x

    said: list = []
    asked(torch.ones(2))
    t2j(asked)(jnp.ones(2))
    assert said[0] == said[1]
