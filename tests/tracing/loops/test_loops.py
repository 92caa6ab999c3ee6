"""Loops of translated code, as one `lax.scan`: values and derivatives are those of the iterations, and of PyTorch."""

import functools
import gc
import os
import sys
import weakref

import jax
import jax.experimental
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from jax.tree_util import tree_leaves, tree_map

import torch2jax
from tests.tracing.loops.programs import count, scans
from torch2jax import EndedCallError, j2t
from torch2jax.tracing import loops, rolling

t2j = functools.partial(torch2jax.t2j, loops="rolled")

T = 24
KEY = jax.random.key(0)
X = jax.random.normal(KEY, (2, T, 3))
W = jax.random.normal(jax.random.key(1), (3, 3)) * 0.4
LAYERS = jax.random.normal(jax.random.key(2), (16, 3, 3)) * 0.4


def cells(x, w):
    h, found = torch.zeros(x.shape[0], 3), []
    for t in range(x.shape[1]):
        h = torch.tanh(x[:, t] + h @ w) * 0.9 + h.sigmoid() * 0.1
        found.append(h)
    return torch.stack(found, 1), h


def cells_backwards(x, w):
    h, found = torch.zeros(x.shape[0], 3), []
    for t in reversed(range(x.shape[1])):
        h = torch.tanh(x[:, t] + h @ w) * 0.9 + h.sigmoid() * 0.1
        found.insert(0, h)
    return torch.cat(found, 1)


def written(x, w):
    found, h = torch.zeros_like(x), 0
    for t, row in enumerate(x.unbind(1)):
        h = F.gelu(row + h) @ w
        found[:, t] = h
    return found


def numbers(x, w):
    for t in range(T):
        x = torch.sin(x * (t + 1) / 20) + (t % 3) * x.cos() @ w * 0.1
    return x


def table(x, w):
    sizes = torch.linspace(0.1, 1.0, T)
    for size in sizes:
        x = x - size * torch.sin(x) @ w
        x = x / (1 + x.abs())
    return x


def leapfrog(x, w):
    q, p, path = x[:, 0], x[:, 1], []
    for _ in range(T):
        p = p - 0.05 * torch.sin(q) @ w
        q = q + 0.1 * p
        p = p - 0.05 * torch.sin(q) @ w
        path.append(q)
    return torch.stack(path), p


def two_steps(x, w):
    y, before, slope = x[:, 0], None, lambda y: -y * torch.cos(y @ w)
    for _ in range(T):
        now = slope(y)
        y = y + (0.1 * now if before is None else 0.15 * now - 0.05 * before)
        before = now
    return y


def depth(x, layers):
    x, outs = x[:, :4], [x[:, :4]]
    causal = torch.ones(4, 4).tril().bool()
    for i in range(layers.shape[0]):
        hidden = F.layer_norm(x, (3,)) @ layers[i]
        scores = (hidden @ hidden.mT).masked_fill(~causal, -1e9)
        x = x + torch.softmax(scores, -1) @ hidden
        x = x + F.silu(x)
        outs.append(x)
    return x, outs


def alternating(x, layers):
    for i in range(layers.shape[0]):
        x = x + (torch.tanh(x @ layers[i]) if i % 2 else F.softplus(x.flip(-1) @ layers[i] - 1))
        x = F.layer_norm(x, (3,))
    return x


def nested(x, w):
    for _ in range(6):
        for _ in range(8):
            x = torch.tanh(x @ w) + torch.sin(x)
            x = x * 0.5
        x = x - x.mean() + x.cos()
    return x


def inner_gradients(x, w):
    def loss(w):
        return ((x @ w).tanh() ** 2).mean()

    for _ in range(T):
        w = w - 0.1 * torch.func.grad(loss)(w)
    return w


def carried_as_a_view(x, w):
    state = torch.zeros(x.shape[0], 4, 3)
    for t in range(x.shape[1]):
        state = torch.cat([state[:, 1:], (x[:, t] + state.mean(1) @ w)[:, None]], 1)
        state = torch.tanh(state)
    return state


def windows(x, w):
    total = torch.zeros(x.shape[0], 3)
    for t in range(x.shape[1] - 3):
        total = torch.tanh(total + x[:, t : t + 4].mean(1) @ w)
        total = total * total.cos()
    return total


def backwards(x, w):
    x, w = x.clone().requires_grad_(), w.clone().requires_grad_()
    h, found = torch.zeros(x.shape[0], 3), []
    for t in range(x.shape[1]):
        h = torch.tanh(x[:, t] + h @ w) * 0.9 + x[:, t].sin() * h
        found.append(h)
    torch.stack(found, 1).square().sum().backward()
    return x.grad, w.grad


def backwards_from_the_middle(x, w):
    x = x.clone().requires_grad_()
    h = torch.zeros(x.shape[0], 3)
    for t in range(2, x.shape[1] - 1):
        h = torch.tanh(x[:, t] + h @ w) * 0.9 + h.sigmoid() * x[:, t].cos()
    (h.sum() + x.square().sum()).backward()
    return x.grad


PROGRAMS = {
    cells: (X, W),
    cells_backwards: (X, W),
    written: (X, W),
    numbers: (X, W),
    table: (X, W),
    leapfrog: (X, W),
    two_steps: (X, W),
    depth: (X, LAYERS),
    alternating: (X, jnp.concatenate([LAYERS, LAYERS[:4]])),
    nested: (X, W),
    inner_gradients: (X, W),
    carried_as_a_view: (X, W),
    windows: (X, W),
    backwards: (X, W),
    backwards_from_the_middle: (X, W),
}
BACKWARDS = (backwards, backwards_from_the_middle)


def _close(got, want, tolerance=3e-5):
    got, want = tree_leaves(got), tree_leaves(want)
    assert len(got) == len(want)
    for x, y in zip(got, want, strict=True):
        assert (x.shape, x.dtype) == (y.shape, y.dtype)
        np.testing.assert_allclose(x, y, rtol=tolerance, atol=tolerance)


def _tensors(args, *, requires_grad=False):
    return [torch.tensor(np.asarray(x), requires_grad=requires_grad) for x in args]


def _loss(f):
    return lambda *args: sum(jnp.sum(jnp.sin(x)) for x in tree_leaves(f(*args)))


@pytest.mark.parametrize("f", PROGRAMS, ids=lambda f: f.__name__)
def test_values_and_derivatives(f):
    args = PROGRAMS[f]
    rolled, unrolled = t2j(f), t2j(f, loops="unrolled")
    lengths = scans(rolled, *args)
    assert lengths
    assert lengths[0] >= (
        len(args[1]) // 2 if f is alternating else 6 if f is nested else len(args[1]) if f is depth else T - 5
    )
    assert len(lengths) >= 1 + (f in BACKWARDS)
    assert count(jax.make_jaxpr(rolled)(*args)) < 0.5 * count(jax.make_jaxpr(unrolled)(*args))
    want = tree_map(lambda x: jnp.asarray(x.detach().numpy()), f(*_tensors(args)))
    if f in BACKWARDS:
        _close(jax.jit(rolled)(*args), want, 2e-4)
        return
    tensors = _tensors(args, requires_grad=True)
    sum(x.sin().sum() for x in tree_leaves(f(*tensors))).backward()
    values, grads = jax.jit(lambda *args: (rolled(*args), jax.grad(_loss(rolled), (0, 1))(*args)))(*args)
    _close(values, want)
    if f is depth:  # whose rows of three that are normed amplify the last digits
        want = jax.jit(jax.grad(_loss(unrolled), (0, 1)))(*args)
    else:
        want = tuple(jnp.asarray(x.grad.numpy()) for x in tensors)
    _close(grads, want, 2e-4)
    assert scans(jax.grad(_loss(rolled), (0, 1)), *args)


def test_a_derivative_of_what_is_jitted():
    want = jax.jit(jax.grad(_loss(t2j(cells)), (0, 1)))(X, W)
    _close(jax.grad(jax.jit(_loss(t2j(cells))), (0, 1))(X, W), want)


def test_a_differentiated_scan_leaves_calls_without_results():
    targets, sizes = torch.tensor([[1, 2, 3], [3, 1, 2]]), torch.tensor([8, 7])

    def losses(x, lengths):
        x = x.log_softmax(2)
        return [F.ctc_loss(x, targets, sizes, lengths, zero_infinity=z, reduction="sum") for z in (False, True)]

    gradient = jax.grad(lambda x, lengths: sum(t2j(losses)(x, lengths)))
    x, lengths = jnp.sin(jnp.arange(8.0 * 2 * 4)).reshape(8, 2, 4), jnp.array([3, 2])
    _close(jax.jit(gradient)(x, lengths), gradient(x, lengths))


def test_a_gradient_within_is_differentiated():
    x, w = X[:, :16], W
    rolled, unrolled = (jax.jit(jax.grad(_loss(torch2jax.t2j(backwards, loops=k)))) for k in ("rolled", "unrolled"))
    assert scans(rolled, x, w)
    _close(rolled(x, w), unrolled(x, w), 2e-4)


def test_vmap_and_jvp():
    def f(x, w):
        return tree_map(lambda x: x[0], t2j(cells)(x[None], w))

    want = t2j(cells, loops="unrolled")(X, W)
    _close(jax.jit(jax.vmap(f, (0, None)))(X, W), want)
    _close(jax.vmap(jax.jit(f), (0, None))(X, W), want)
    assert scans(jax.vmap(f, (0, None)), X, W) == [T]

    def pushed(f):
        return lambda x, w: jax.jvp(f, (x, w), (x, w))

    want = jax.jit(pushed(t2j(cells, loops="unrolled")))(X, W)
    _close(jax.jit(pushed(t2j(cells)))(X, W), want)
    assert scans(pushed(t2j(cells)), X, W) == [T]


def test_random_keys_are_those_of_the_iterations():
    def f(x, w):
        for _ in range(T):
            x = F.dropout(torch.tanh(x @ w) + x, 0.3)
        return x

    def run(loops):
        return jax.jit(lambda x, w: t2j(f, loops=loops)(x, w, rng=KEY))

    assert scans(run("rolled"), X, W)[0] >= T - 1
    _close(run("rolled")(X, W), run("unrolled")(X, W))


def test_eager_calls_run_iteration_by_iteration():
    _close(t2j(cells)(X, W), t2j(cells, loops="unrolled")(X, W), 0)


def test_modules_and_training_steps():
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.cell = torch.nn.GRUCell(3, 3)

        def forward(self, x):
            h = x.new_zeros(x.shape[0], 3)
            for t in range(x.shape[1]):
                h = self.cell(x[:, t], h)
            return h

    torch.manual_seed(0)
    net = Net()
    f = t2j(net)
    params, _ = f.split()
    assert scans(lambda p, x: f(x, state_dict=p), params, X) == [T]
    _close(jax.jit(f)(X), jnp.asarray(net(torch.tensor(np.asarray(X))).detach().numpy()))

    def step(net, optimizer, x):
        loss = net(x).square().sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    translated = t2j(step, state=(net, optimizer))
    state = translated.init(X)
    assert scans(translated, state, X)[0] >= T - 2
    loss, after = jax.jit(translated)(state, X)
    want = step(net, optimizer, torch.tensor(np.asarray(X)))
    _close((loss, after["net"]), (jnp.asarray(want), dict(torch2jax.t2j(net.state_dict()))), 1e-4)


def test_a_graph_without_a_period_is_as_it_was():
    def f(x, w):
        for _ in range(T):
            x = torch.cat([x, x[:, -1:] @ w], 1)  # every iteration has other shapes
        return x

    def several(x, w):
        for k, each in enumerate((torch.sin, torch.cos, torch.tanh, torch.exp, torch.sigmoid, torch.atan)):
            for other in (torch.abs, torch.neg, torch.square, torch.relu, torch.erf):
                x = other(each(x @ w) * (k + 1)) + each(other(x))
        return x

    for code in (f, several):
        graphs = [jax.make_jaxpr(t2j(code, loops=loops))(X, W).jaxpr.eqns for loops in ("rolled", "unrolled")]
        steps = [[(x.primitive, [str(y.aval) for y in [*x.invars, *x.outvars]]) for x in graph] for graph in graphs]
        assert steps[0] == steps[1]


def test_layers_with_weights_of_their_own_stay():
    weights = [jnp.eye(80) * 0.1 * i for i in range(16)]

    def f(x, weights):
        for w in weights:
            x = torch.tanh(x @ w).cos().sin().exp() - F.layer_norm(x, (80,))
        return x

    assert not scans(t2j(f), jnp.ones((2, 80)), weights)


def test_what_code_puts_aside_has_ended():
    aside = []

    def f(x, w):
        for t in range(T):
            x = torch.tanh(x @ w) + x.sin()
            x = x.cos() * 0.5 + x
            if t == 3:
                aside.append(x)
        return x

    def run(x, w):
        result = t2j(f)(x, w)
        with pytest.raises(EndedCallError, match="a translated call that has ended"):
            t2j(aside.pop())
        return result

    _close(jax.jit(run)(X, W), t2j(f, loops="unrolled")(X, W))


def test_effects_stay_once_for_each_iteration():
    seen = []

    def f(x, w):
        for _ in range(T):
            x = torch.tanh(x @ w) + x.sin().cos() * 0.5 - x.abs().sqrt() * 0.1
        return x

    def run(x, w):
        jax.debug.callback(seen.append, x.sum())
        return t2j(f)(x, w)

    jax.block_until_ready(jax.jit(run)(X, W))
    jax.effects_barrier()
    assert len(seen) == 1


def test_conditions_in_a_loop_are_answered():
    def f(x, w):
        if x.sum() > 0:
            x = x * 2
        for _ in range(T):
            x = torch.tanh(x @ w) + x.sin().cos() * 0.5 - x.abs().sqrt() * 0.1
        return x

    for x in (X.at[0, 0, 0].set(30.0), X.at[0, 0, 0].set(-30.0)):
        _close(jax.jit(t2j(f))(x, W), t2j(f)(x, W), 1e-4)


def test_half_precision_and_integers():
    def f(x, n):
        for t in range(T):
            x = (x * 0.5 + torch.sin(x)).to(torch.bfloat16)
            n = (n * 3 + t) % 1000
            n = n + (x > 0).sum()
        return x, n

    x, n = X.astype(jnp.bfloat16), jnp.arange(3)
    assert scans(t2j(f), x, n)
    got, want = jax.jit(t2j(f))(x, n), jax.jit(t2j(f, loops="unrolled"))(x, n)
    assert [each.dtype for each in got] == [each.dtype for each in want]
    _close((got[0].astype(jnp.float32), got[1]), (want[0].astype(jnp.float32), want[1]), 2e-2)


def steps(x, w):
    for _ in range(T):
        x = torch.tanh(x @ w) + x.sin().cos() * 0.5 - x.abs().sqrt() * 0.1
    return x


def test_a_result_may_be_what_came_in():
    def f(x, w, y, z):
        return steps(x, w), y, z, w

    def run(x, w, y):
        return t2j(f)(x, w, y * 2, jnp.arange(3))

    assert scans(run, X, W, X)
    _close(jax.jit(run)(X, W, X), (t2j(steps)(X, W), X * 2, jnp.arange(3), W), 1e-4)
    _close(jax.jit(jax.grad(lambda x, y: sum(map(jnp.sum, run(x, W, y))), 1))(X, X), jnp.full_like(X, 2))


def test_a_run_ends_when_it_has_shown_a_loop():
    def stepped(x, w):
        return torch.tanh(x @ w) + x.sin() * 0.5

    def f(x, w):
        for _ in range(200):
            x = stepped(x, w)
        return x.sum()

    rolled, counts = t2j(f), []
    for _ in range(2):
        ran = 0

        def entered(frame, event, _):
            nonlocal ran
            ran += event == "call" and frame.f_code.co_name == "stepped"

        sys.setprofile(entered)
        try:
            assert scans(jax.grad(rolled), X, W)
        finally:
            sys.setprofile(None)
        counts.append(ran)
    assert 200 < counts[0] < 300
    assert counts[1] == 200


def test_a_run_is_over_with_its_arrays():
    module = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Tanh())
    f, alive = t2j(module), []

    def run(state, x):
        alive.extend(map(weakref.ref, state.values()))
        return f(x, state_dict=state)

    gc.collect()
    gc.disable()
    try:
        jax.make_jaxpr(run)(torch2jax.t2j(module.state_dict()), X)
        assert not any(ref() is not None for ref in alive)
    finally:
        gc.enable()


def test_what_is_rolled_by_default():
    few, many = functools.partial(_iterations, 20), functools.partial(_iterations, 60)
    assert not scans(torch2jax.t2j(few), X, W)
    assert scans(torch2jax.t2j(many), X, W) == [60]
    assert not scans(t2j(many, loops="unrolled"), X, W)

    def convolved(x, w):
        for _ in range(60):
            x = torch.tanh(F.conv1d(x.mT, w[..., None])).mT + x.sin() * 0.5 - x.cos() * 0.1
        return x

    assert not scans(torch2jax.t2j(convolved), X, W)
    assert scans(t2j(convolved), X, W)


def _iterations(count, x, w):
    for _ in range(count):
        x = torch.tanh(x @ w) + x.sin() * 0.5
    return x


def test_what_has_effects_and_results_stays():
    def f(x, w):
        x = j2t(lambda x: jax.experimental.io_callback(lambda x: x, x, x))(x)
        return steps(x, w)

    _close(jax.jit(t2j(f))(X, W), t2j(steps)(X, W), 1e-4)


def test_the_option_is_checked():
    with pytest.raises(ValueError, match="loops got 'maybe'; wanted 'rolled'"):
        t2j(torch.sin, loops="maybe")


def test_what_becomes_of_iterations_is_told(caplog):
    def layers(x, weights):
        for w in weights:
            x = torch.tanh(x @ w).cos().sin().exp() - F.layer_norm(x, (80,))
        return x

    with caplog.at_level("INFO", "torch2jax.loops"):
        jax.make_jaxpr(jax.grad(lambda x, w: t2j(cells)(x, w)[1].sum()))(X, W)
        jax.make_jaxpr(t2j(layers))(jnp.ones((2, 80)), [jnp.eye(80) * i for i in range(20)])
    assert [record.getMessage() for record in caplog.records] == [
        f"{T} iterations of 7 equations are one loop",
        "20 iterations of 18 equations stay unrolled: "
        "dot_general takes a different array of float32[80,80] in each iteration",
    ]


def _calls(run):
    """How many Python functions are called, and how many of these look for loops."""
    counts = {False: 0, True: 0}
    rooms = [*(part + os.sep for part in loops.__path__), *(each.__file__ for each in (rolling, rolling, rolling))]

    def note(frame, event, _):
        if event == "call":
            counts[frame.f_code.co_filename.startswith(tuple(rooms))] += 1

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        run()
    finally:
        sys.setprofile(before)
    return sum(counts.values()), counts[True]


@pytest.mark.parametrize("differentiate", [lambda f: f, jax.grad], ids=["value", "gradient"])
def test_to_look_for_loops_costs_little(differentiate):
    def f(x):
        for i in range(60):  # every iteration has other shapes
            x = F.gelu(torch.cat([x, x[:1]]) * (i + 1) - x.mean()).sin()
        return x.square().mean()

    x = jnp.ones((2, 3))
    jax.make_jaxpr(differentiate(t2j(f)))(x)
    every, looking = _calls(lambda: jax.make_jaxpr(differentiate(t2j(f)))(x))
    assert 0 < looking < 0.05 * every
