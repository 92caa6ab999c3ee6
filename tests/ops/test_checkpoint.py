"""`torch.utils.checkpoint` is `jax.checkpoint`: the same gradients as PyTorch's, and less memory."""

import functools
import gc
import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    checkpoint_sequential,
    create_selective_checkpoint_contexts,
)

from torch2jax import t2j

SHAPE = (3, 4)
aten = torch.ops.aten
once = functools.partial(checkpoint, use_reentrant=False)  # bound before any call, as Hugging Face's models have it
reentrant = functools.partial(checkpoint, use_reentrant=True)


def mlp():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 4))


NET, X = mlp(), torch.randn(SHAPE, generator=torch.Generator().manual_seed(1))


def closes_over_tensors(once, x):
    w, scale = x.mean(0), torch.arange(4.0)
    return once(lambda y: NET(y) * w + scale, x.sin())


def writes_outside(once, x):
    total, seen = torch.zeros(4) + x[0], torch.zeros((), dtype=torch.int64)
    row = total[1:]

    def body(y):
        row.mul_(y[1, 1:])
        total.add_(y.sum(0))
        seen.add_(1)
        return y.cos() * row.sum()

    return once(body, x) * total + row.sum() * seen


def reads_outside(once, x):
    y = x.sin()
    row, turned, (left, right) = y[0], y.t(), y.chunk(2, 1)

    def body(z):
        return z * row + turned.t() * left.sum() * right.mean()

    return once(body, x) + row + (turned @ y).sum() * right.sum() + left.sum()


def gives_views(once, x):
    def body(y):
        z = y.exp()
        return {
            "row": z[1],
            "all": z,
            "turned": z.t(),
            "parts": [z[:, :2], z[:, 2:]],
            "same": y,
            "text": "a",
            "number": 3,
        }

    found = once(body, x)
    assert (found["text"], found["number"]) == ("a", 3)
    found["row"].add_(found["turned"][:, 0])
    return found["all"].sin() + found["turned"].t() * found["parts"][0].sum() + found["same"]


def puts_aside(once, x):
    kept = []

    def body(y):
        kept.append(y.square().mean())
        return y.sin()

    return once(body, x) * kept[0]


def nests(once, x):
    return once(lambda y: once(NET, y.sin()) + once(lambda z: z * x.cos(), y), x)


def keyword_arguments(once, x):
    return once(lambda y, *, factor, parts: y * factor + parts["shift"], x, factor=2.5, parts={"shift": x.sin()})


def writes_through_detached(once, x):
    y = x * 2

    def body(z):
        y.detach().mul_(z.sum().detach())
        return z.sin() * y

    return once(body, x) + y * x


def without_gradients_within(once, x):
    def body(y):
        with torch.no_grad():
            scale = y.norm()
            y = y * scale
        return y * x + x.detach() * y

    return once(body, x)


def differentiates_within(once, x):
    def body(y):
        at = y.detach().requires_grad_()
        (force,) = torch.autograd.grad((at.sin() * y).sum(), at, create_graph=True)
        return force + y.square()

    return once(body, x)


def raises_and_goes_on(once, x):
    total = torch.zeros(4)

    def body(y):
        total.add_(y[0])
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        once(body, x)
    return total * x


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.saved_tensors[0] * 10


def custom_functions(once, x):
    return once(lambda y: Doubled.apply(Doubled.apply(y).sin()), Doubled.apply(x))


def chooses_by_a_mask(once, x):
    y = once(lambda y: y[y > 0].exp(), x.sin()).sum()
    return y + once(lambda y: y[y < 0].square().sum() * y, x)


def known_values(once, x):
    def body(y):
        for i in torch.arange(3):
            y = y.sin() + int(i)
        return y, torch.arange(4)

    y, order = once(body, x)
    return y[:, [int(i) for i in order]] * y


CASES = {
    "a module": lambda once, x: once(NET, x),
    "closes over tensors": closes_over_tensors,
    "writes outside": writes_outside,
    "reads outside": reads_outside,
    "gives views": gives_views,
    "gives its argument": lambda once, x: once(lambda y: y, x.sin()) * x,
    "puts aside": puts_aside,
    "nests": nests,
    "keyword arguments": keyword_arguments,
    "writes through a detached tensor": writes_through_detached,
    "without gradients within": without_gradients_within,
    "differentiates within": differentiates_within,
    "raises and goes on": raises_and_goes_on,
    "known values": known_values,
    "chooses by a mask": chooses_by_a_mask,
}
WRITES = {"writes outside", "writes through a detached tensor"}  # PyTorch writes again on the way back
TRANSFORMS = pytest.mark.parametrize("transform", [lambda f: f, jax.jit], ids=["eager", "jit"])


def simply(function, *args, **kwargs):
    return function(*args, **kwargs)


def gradients(function):
    """A function that gives the value and the gradients which PyTorch's engine finds, of `x` and the net."""

    def run(x):
        x = x.clone().requires_grad_()
        value = function(x).sum()
        return value, torch.autograd.grad(value, [x, *NET.parameters()], allow_unused=True, materialize_grads=True)

    return run


def expected_of(name):
    reference = simply if name in WRITES else once
    return gradients(lambda x: CASES[name](reference, x))(X)


def agree(actual, expected):
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, np.asarray(b.detach()), rtol=1e-4, atol=1e-5),
        actual,
        expected,
        is_leaf=lambda x: isinstance(x, torch.Tensor),
    )


@pytest.mark.parametrize("name", CASES)
@TRANSFORMS
def test_jax_differentiates_it(name, transform):
    function = t2j(lambda x: CASES[name](once, x).sum())
    value, (of_x, *_) = expected_of(name)
    agree(transform(jax.value_and_grad(function))(t2j(X)), (value, of_x))


@pytest.mark.parametrize("name", CASES)
@TRANSFORMS
def test_translated_code_differentiates_it(name, transform):
    run = gradients(lambda x: CASES[name](once, x))
    agree(transform(t2j(run))(t2j(X)), expected_of(name))


@pytest.mark.parametrize("name", CASES)
def test_the_graph_shows_it(name):
    jaxpr = jax.make_jaxpr(jax.grad(t2j(lambda x: CASES[name](once, x).sum())))(t2j(X))
    assert "remat" in str(jaxpr)


REENTRANT = {
    "reentrant": lambda x: reentrant(NET, x.sin()),
    "in sequence": lambda x: checkpoint_sequential([*NET, torch.sin, torch.cos], 3, x.sin(), use_reentrant=False),
    "in sequence, reentrant": lambda x: checkpoint_sequential(NET, 2, x.sin(), use_reentrant=True),
}


@pytest.mark.parametrize("name", REENTRANT)
@TRANSFORMS
def test_other_variants(name, transform):
    function = REENTRANT[name]

    def run(x):
        x = x.clone().requires_grad_()
        value = function(x).sum()
        value.backward()
        gradients = [x.grad, *(parameter.grad for parameter in NET.parameters())]
        for parameter in NET.parameters():
            parameter.grad = None
        return value, gradients

    value, expected = run(X)
    agree(transform(t2j(run))(t2j(X)), (value, expected))
    agree(transform(jax.value_and_grad(t2j(lambda x: function(x).sum())))(t2j(X)), (value, expected[0]))
    assert "remat" in str(jax.make_jaxpr(t2j(run))(t2j(X)))


def test_what_pytorch_gives_no_gradients():
    def run(x):
        value = reentrant(NET, x)  # no argument requires grad
        assert not value.requires_grad
        return value + torch.autograd.grad(x.requires_grad_().sum(), x)[0]

    assert NET[0].weight.requires_grad
    with pytest.warns(UserWarning, match="None of the inputs have requires_grad=True"):
        expected = run(X.clone())
    with pytest.warns(UserWarning, match="None of the inputs have requires_grad=True"):
        actual = t2j(run)(t2j(X))
    agree(actual, expected)
    assert jnp.abs(jax.grad(t2j(lambda x: reentrant(NET, x).sum()))(t2j(X))).max() > 0


def keeping(policy):
    return functools.partial(once, context_fn=functools.partial(create_selective_checkpoint_contexts, policy))


def attention(x):
    w = torch.eye(4) * 1.5
    q, k, v = (torch.nn.functional.linear(x, w * (i + 1)) for i in range(3))
    y = torch.nn.functional.scaled_dot_product_attention(*(t.reshape(1, 1, *SHAPE) for t in (q, k, v)))
    return torch.mm(y.reshape(SHAPE).tanh(), w)


class EverySecond:
    """Counts, as policies do, and looks at what is computed."""

    def __init__(self):
        self.shapes = []

    def __call__(self, ctx, op, *args, **kwargs):
        if op is not aten.mm.default:
            return False
        output = getattr(ctx, "op_output", args[0])  # PyTorch 2.11 does not tell of it
        self.shapes.append((tuple(output.shape), tuple(args[0].shape)))
        return len(self.shapes) % 2 == 1


def recompute(ctx, op, *args, **kwargs):
    return CheckpointPolicy.PREFER_RECOMPUTE


def count(jaxpr, name):
    """How many operations of a name a graph has, also within others."""
    parts = [part for eqn in jaxpr.eqns for part in jax.tree.leaves(eqn.params) if hasattr(part, "eqns")]
    return sum(eqn.primitive.name == name for eqn in jaxpr.eqns) + sum(count(part, name) for part in parts)


@pytest.mark.parametrize(
    ("policy", "names", "again"),
    [
        ([aten.mm.default], 4, 2),
        ([aten._scaled_dot_product_flash_attention_for_cpu.default, aten.mm.default], 5, 2),
        ([aten.convolution.default], 0, 5),
        (EverySecond(), 2, 3),
        (recompute, 0, 5),
    ],
    ids=["products", "attention", "nothing of it", "every second product", "none"],
)
def test_selections_are_kept(policy, names, again):
    """`again` is how many products are computed again on the way back."""
    run = gradients(lambda x: keeping(policy)(attention, x))
    agree(jax.jit(t2j(run))(t2j(X)), run(X))
    if isinstance(policy, EverySecond):
        assert policy.shapes[:4] == policy.shapes[-4:]  # in JAX as in PyTorch
        policy.shapes.clear()
    loss = t2j(lambda x: keeping(policy)(attention, x).sum())
    assert count(jax.make_jaxpr(loss)(t2j(X)).jaxpr, "name") == names
    products = [
        count(jax.make_jaxpr(jax.grad(loss))(t2j(X)).jaxpr, "dot_general")
        for loss in (loss, t2j(lambda x: attention(x).sum()))
    ]
    assert products[0] - products[1] == again


def offload_products(ctx, op, *args, **kwargs):
    return CheckpointPolicy.MUST_CPU_OFFLOAD if op is aten.mm.default else CheckpointPolicy.PREFER_RECOMPUTE


def test_offloaded_values_wait_in_the_hosts_memory():
    loss = t2j(lambda x: keeping(offload_products)(attention, x).sum())
    assert "<host>" in str(jax.make_jaxpr(jax.grad(loss))(t2j(X)))
    x = X.clone().requires_grad_()
    (expected,) = torch.autograd.grad(attention(x).sum(), x)
    agree(jax.jit(jax.grad(loss))(t2j(X)), expected)


# Modules: state, randomness, memory


class Block(nn.Module):
    def __init__(self, checkpoints=True):
        super().__init__()
        self.norm, self.linear, self.dropout = nn.BatchNorm1d(4), nn.Linear(4, 4), nn.Dropout(0.5)
        self.checkpoints = checkpoints

    def body(self, x):
        return self.dropout(self.linear(self.norm(x)).tanh()) + torch.rand(())

    def forward(self, x):
        x = (once if self.checkpoints else simply)(self.body, x * torch.rand(()))
        return self.dropout(x)


def test_state_and_keys_are_as_without():
    torch.manual_seed(0)
    module = Block()
    module.double()
    params = t2j({name: p.detach().float() for name, p in module.named_parameters()})
    found = []
    for checkpoints in (True, False):
        module.checkpoints = checkpoints
        run = t2j(module.float())

        def loss(params, x, run=run):
            y, state = run(x, state_dict=params, rng=jax.random.key(3), return_state_dict=True)
            return y.sum(), state

        found.append(jax.jit(jax.value_and_grad(loss, argnums=(0, 1), has_aux=True))(params, t2j(X)))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), *found)
    state = found[0][0][1]
    assert state["norm.num_batches_tracked"] == 1
    assert jnp.abs(state["norm.running_mean"]).max() > 0


def test_the_stream_may_start_anew_within():
    def run(once, x):
        def body(x):
            y = x * torch.rand(())
            state = torch.get_rng_state()
            return y + torch.rand(()), state

        y, state = once(body, x)
        after = torch.rand(4)
        torch.set_rng_state(state)
        return (y * torch.rand(4) + after).sum()

    found = [
        jax.jit(jax.value_and_grad(functools.partial(t2j(functools.partial(run, how)), rng=jax.random.key(1))))(t2j(X))
        for how in (once, simply)
    ]
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), *found)


@pytest.mark.parametrize("inside", [False, True], ids=["of jax.grad", "of backward"])
def test_memory_is_saved(inside):
    torch.manual_seed(0)
    layers = [
        nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 16)) for _ in range(12)
    ]

    def loss(x, how):
        for layer in layers:
            x = x + how(layer, x)
        return x.square().mean()

    def gradient(x, how):
        x = x.clone().requires_grad_()
        loss(x, how).backward()
        return x.grad, layers[0][0].weight.grad

    def memory(how):
        function = t2j(lambda x: (gradient if inside else loss)(x, how))
        step = jax.jit(function if inside else jax.grad(function))
        # XLA's compiler for CPUs forgets what is to be computed again before it looks for what is computed twice.
        compiled = step.lower(jnp.ones((512, 16))).compile({"xla_disable_hlo_passes": "cse_barrier_expander"})
        return compiled.memory_analysis().temp_size_in_bytes

    assert memory(once) < memory(simply) / 3


def test_vmap():
    batch = jnp.stack([t2j(X), t2j(X) * 2])
    function = t2j(lambda x: closes_over_tensors(once, x).sum())
    expected = jnp.stack([jax.grad(function)(x) for x in batch])
    np.testing.assert_allclose(jax.jit(jax.vmap(jax.grad(function)))(batch), expected, rtol=1e-5)
    run = t2j(gradients(lambda x: closes_over_tensors(once, x)))
    np.testing.assert_allclose(jax.vmap(run)(batch)[1][0], expected, rtol=1e-5)


def test_second_derivatives():
    def run(x):
        x = x.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(once(NET, x.sin()).square().sum(), x, create_graph=True)
        return torch.autograd.grad(gradient.square().sum(), x)[0]

    agree(jax.jit(t2j(run))(t2j(X)), run(X))


# Where there is nothing to keep


def test_custom_functions_within():
    value, (of_x, *_) = gradients(lambda x: custom_functions(once, x))(X)
    function = t2j(lambda x: custom_functions(once, x).sum())
    agree(jax.jit(jax.value_and_grad(function))(t2j(X)), (value, of_x))


def test_without_gradients_it_is_a_call():
    for function in (torch.no_grad()(lambda x: once(NET, x)), torch.inference_mode()(lambda x: once(NET, x))):
        assert "remat" not in str(jax.make_jaxpr(t2j(function))(t2j(X)))
    assert "remat" in str(jax.make_jaxpr(t2j(lambda x: once(NET, x)))(t2j(X)))


def test_values_that_code_asks_for():
    """What needs values runs as it is, where there are any."""

    def body(x):
        return x * x.sum().item() if bool(x.sum() > 0) else x

    def run(x):
        x = x.clone().requires_grad_()
        value = once(lambda x: once(body, x).sin(), x).sum()
        return torch.autograd.grad(value, x)[0]

    agree(t2j(lambda x: once(body, x))(t2j(X)), body(X))
    agree(t2j(run)(t2j(X)), run(X))


def test_hooks_within():
    def run(x):
        x = x.clone().requires_grad_()

        def body(x):
            y = x.sin()
            y.register_hook(lambda gradient: gradient * 3)
            return y * y

        return torch.autograd.grad(once(body, x).sum(), x)[0]

    agree(t2j(run)(t2j(X)), run(X))


def test_leaves_that_begin_within():
    def run(x):
        leaves = []

        def body(x):
            leaves.append(torch.ones(4, requires_grad=True))
            return x * leaves[0]

        return torch.autograd.grad(once(body, x).sum(), leaves[0])[0]

    with pytest.raises(RuntimeError, match="began to require grad inside"):
        t2j(run)(t2j(X))


WRONG = {
    "keyword arguments of a reentrant one": lambda x: reentrant(NET, x, other=1),
    "context_fn of a reentrant one": lambda x: reentrant(NET, x, context_fn=lambda: None),
    "debug and context_fn": lambda x: once(NET, x, debug=True, context_fn=lambda: None),
    "determinism_check": lambda x: once(NET, x, determinism_check="all"),
    "an operator without overload": lambda x: keeping([aten.mm])(NET, x),
    "a policy that is none": lambda x: keeping(3)(NET, x),
}


@pytest.mark.parametrize("name", WRONG)
def test_errors_are_pytorchs(name):
    with pytest.raises((ValueError, TypeError)) as expected:
        WRONG[name](X)
    with pytest.raises(type(expected.value)) as actual:
        t2j(WRONG[name])(t2j(X))
    assert str(actual.value) == str(expected.value)


def test_arguments_of_the_variant_without_reentrance():
    entered = []

    class Context:
        def __enter__(self):
            entered.append(True)

        def __exit__(self, *exc_info):
            pass

    def run(x):
        return once(NET, x, preserve_rng_state=False, determinism_check="none", early_stop=False) + once(
            NET, x, context_fn=lambda: (Context(), Context())
        )

    agree(jax.jit(t2j(run))(t2j(X)), run(X))
    assert len(entered) == 2


def test_pytorch_is_left_as_it_was():
    before = dict(vars(checkpoint.__wrapped__))
    jax.grad(t2j(lambda x: once(NET, x).sum()))(t2j(X))
    assert vars(checkpoint.__wrapped__) == before
    x = X.clone().requires_grad_()
    once(NET, x).sum().backward()
    assert x.grad is not None


def test_storages_are_freed_without_garbage_collection():
    """So that a checkpoint gives back what is still in use, and nothing else."""

    def body(x):
        y = x.sin()
        y[0].mul_(2)
        return y.exp().cos()

    gc.disable()
    try:
        jaxpr = jax.make_jaxpr(t2j(lambda x: once(body, x)))(t2j(X))
    finally:
        gc.enable()
    (step,) = jaxpr.eqns
    assert len(step.outvars) == 1


class Asking(torch.nn.Module):
    """Asks within a checkpoint, draws random numbers and counts."""

    def __init__(self):
        super().__init__()
        self.register_buffer("count", torch.zeros(()))

    def part(self, x):
        y = torch.sin(x) * (1 + 0 * torch.rand(3))
        self.count += 1
        if y.sum() > 0:
            return torch.cos(y) * 2
        return torch.exp(y) if y.min() < -0.9 else y

    def forward(self, x):
        return checkpoint(self.part, x, use_reentrant=False).sum()


@pytest.mark.parametrize("value", [1.0, -1.0, -0.5])
def test_questions_are_asked_of_checkpointed_code(value):
    module, x = Asking(), torch.full((3,), value, requires_grad=True)
    (wanted,) = torch.autograd.grad(module(x), x)
    function = t2j(module)

    def loss(x, state):
        return function(x, state_dict=state, rng=jax.random.key(0), return_state_dict=True)

    gradient = jax.grad(loss, has_aux=True)
    state = {"count": jnp.zeros(())}
    got, new = jax.jit(gradient)(t2j(x.detach()), state)
    np.testing.assert_allclose(got, wanted, 1e-5)
    assert new["count"] == 1
    graph = str(jax.make_jaxpr(gradient)(t2j(x.detach()), state))
    assert graph.count("remat2") == 1  # around both conditions


DECORATES = inspect.signature(checkpoint).parameters["function"].default is None


@pytest.mark.skipif(not DECORATES, reason="PyTorch 2.14 has the first checkpoint that decorates")
@TRANSFORMS
def test_functions_that_it_decorates(transform):
    decorated = checkpoint(use_reentrant=False, preserve_rng_state=False)(lambda x: NET(x).sin())  # before any call

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = NET

        @checkpoint(use_reentrant=False)
        def forward(self, x, *, scale):
            return self.net(x) * scale

    layer = Layer()

    def run(x):
        within = checkpoint(use_reentrant=False)(lambda y: y * x.sum())
        return (decorated(x) + layer(x, scale=x[0]) + within(x.cos())).sum()

    value, (of_x, *_) = gradients(run)(X)
    agree(transform(jax.value_and_grad(t2j(run)))(t2j(X)), (value, of_x))
    assert str(jax.make_jaxpr(jax.grad(t2j(run)))(t2j(X))).count("remat") >= 3
