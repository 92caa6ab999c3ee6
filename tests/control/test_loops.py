"""Loops that end when traced values say so, against PyTorch: under jit, in a batch, and their derivatives."""

from typing import NamedTuple

import jax
import numpy as np
import pytest
import torch
from jax.experimental import checkify

from tests.control.test_conditions import QUICK
from torch2jax import t2j
from torch2jax.runtime.errors import BranchError

X = np.array([30, 40, 5], np.float32)
A = np.array([[4, 1, 0.5], [1, 3, 0.2], [0.5, 0.2, 2]], np.float32)


def plain(tree):
    return [np.asarray(leaf) for leaf in jax.tree.leaves(jax.tree.map(_numpy, tree))]


def _numpy(leaf):
    return leaf.detach().numpy() if isinstance(leaf, torch.Tensor) else leaf


def loops(function, *args, **options) -> int:
    return str(jax.make_jaxpr(t2j(function, **options))(*args)).count(" while[")


def agree(function, *args, least=1):
    """PyTorch's values under jit and in a batch, by so many loops of the graph or more."""
    translated = t2j(function)
    assert loops(function, *args) >= least
    batch = [np.stack([x, x * np.float32(1.5), x * np.float32(0.02)]) for x in args]
    mapped = plain(jax.jit(jax.vmap(translated), compiler_options=QUICK)(*batch))
    for i in range(3):
        wanted = plain(function(*(torch.from_numpy(x[i].copy()) for x in batch)))
        for leaf, want in zip(mapped, wanted, strict=True):
            np.testing.assert_allclose(leaf[i], want, 1e-4, 1e-5)
    got = plain(jax.jit(translated, compiler_options=QUICK)(*args))
    for leaf, want in zip(got, plain(function(*(torch.from_numpy(x.copy()) for x in args))), strict=True):
        np.testing.assert_allclose(leaf, want, 1e-4, 1e-5)
        assert leaf.dtype == jax.dtypes.canonicalize_dtype(want.dtype)


def newton(a):
    x = a.clone()
    while ((x * x - a).abs() > 1e-4 * a).any():
        x = 0.5 * (x + a / x)
    return x


def conjugate_gradients(a, b):
    x = torch.zeros_like(b)
    r = b - a @ x
    p, before, n = r, r @ r, 0
    while before.sqrt() > 1e-3:
        step = before / (p @ (a @ p))
        x, r = x + step * p, r - step * (a @ p)
        now = r @ r
        p, before = r + now / before * p, now
        n += 1
        if n > 100:
            raise RuntimeError("no convergence")
    return x, n


def conjugate_gradients_of_so_many_steps(a, b, steps=12):
    x, r = torch.zeros_like(b), b.clone()
    p, before = r.clone(), torch.dot(r, r)
    for n in range(steps):
        step = before / (p @ (a @ p))
        x += step * p
        r -= step * (a @ p)
        now = torch.dot(r, r)
        if now.sqrt() < 1e-3:
            return x, n
        p, before = r + now / before * p, now
    return x, steps


def sinkhorn(cost):
    kernel, error = torch.exp(-cost), float("inf")
    u, v = torch.ones(cost.shape[0]), torch.ones(cost.shape[1])
    while error > 1e-4:
        before, u = u, 1 / (kernel @ v)
        v = 1 / (kernel.T @ u)
        error = (u - before).abs().max().item()
    return u, v


def power_iteration(a):
    v, value = torch.ones(3) / 3**0.5, None
    while True:
        w = a @ v
        now = w.norm()
        v = w / now
        if value is not None and (now - value).abs() < 1e-4 * now:
            return now, v
        value = now


def bisection(c):
    low, high = torch.zeros_like(c), c + 1
    while (high - low).max() > 1e-3:
        middle = (low + high) / 2
        if (middle * middle).sum() > c.sum():
            high = middle
        else:
            low = middle
    return low


def line_search(x):
    g, t = 2 * x, 8.0
    while ((x - t * g) ** 2).sum() > (x**2).sum() - 0.5 * t * (g @ g):
        t *= 0.5
    return x - t * g, t


class Solver:
    def __init__(self, x):
        self.x, self.iterations, self.history = x, 0, {"norm": x.norm()}

    def step(self):
        self.x, self.iterations = self.x / 2, self.iterations + 1
        self.history["norm"] = self.x.norm()

    def is_done(self):
        norm = self.x.norm()
        return norm < 1


def solver(x):
    own = Solver(x)
    while not own.is_done():
        own.step()
    return own.x, own.iterations, own.history


def nested(x):
    count = 0
    while x.norm() > 1:
        y = x
        while y.sum() > 3:
            y = y - 0.3
            count += 1
        x = (x + y) / 3
    return x, count


def iterations_with_choices(x):
    for i in range(12):
        x = x - 0.7 * i if x[i % 3] > 0 else x + 0.5
    return x


def leaves_in_many_paths(x):
    n = 0
    while n < 30:
        n += 1
        if x.sum() > 10:
            x = x - 1
            continue
        x = x + 3
        if x.max() > 20:
            return x, n
        if x.min() > 18:
            break
    return x * 2, n


def writes(x):
    x = x.clone()
    row, out, at = x[0], torch.zeros(32), torch.zeros((), dtype=torch.long)
    while x.norm() > 1:
        x.mul_(0.5)
        out[at] = row
        at += 1
        if x.sum() > 3:
            x.sub_(1)
    return x, row, out, at


def aliases(x):
    a, b, c = x, x + 1, x
    while a.norm() > 1:
        a, b = b * 0.5, a * 0.6
    return a, b, c


def closures(x):
    n, done = 0, False

    def count():
        nonlocal n
        n += 1
        return n * 0.01

    while not done:
        x = x / 2 + count()
        if x.norm() < 1:
            done = True
    return x, n


def tuples(x):
    state = (x, {"n": torch.zeros(())})
    while state[0].norm() > 1:
        state = (state[0] * 0.7, {"n": state[1]["n"] + 1})
    return state


def ends_within_with(x):
    """Python puts what leaves a ``with`` by an exception behind the whole function."""
    for n in range(40):
        if x.norm() < 1:
            with torch.no_grad():
                break
        if x[0] > 20:
            with torch.no_grad():
                x = x / 3
                continue
        try:
            x = x * (0.6 + 0.001 * n)
        finally:
            x = x - 0.01
        with torch.no_grad():
            x = x * 0.9
    while x.norm() > 0.1:
        with torch.no_grad():
            x = x / 2
    return x, n


HALF, ONES = torch.tensor([0.5, 0.4, 0.6]), [torch.ones(3)]


def reads_constants(x):
    """Tensors of PyTorch's own, from outside of the call."""
    n = torch.zeros(3)
    while x.norm() > 1:
        x, n = x * HALF, n + ONES[0]
    return x, n


def nms(scores):
    """The best box is kept, and those that overlap it are dropped, until none is left."""
    left = torch.arange(3) * 4.0
    boxes = torch.stack([left, left + 6], 1)
    kept, alive = torch.zeros(3, dtype=torch.bool), scores > 0.5
    while alive.any():
        best = torch.where(alive, scores, -1.0).argmax()
        kept[best] = True
        overlap = torch.minimum(boxes[:, 1], boxes[best, 1]) - torch.maximum(boxes[:, 0], boxes[best, 0])
        alive = alive & (overlap <= 1)
    return kept


def shortest_paths(costs):
    """Distances are relaxed until none changes."""
    distances = torch.full((3,), float("inf")).index_fill(0, torch.tensor([0]), 0.0)
    while True:
        relaxed = torch.minimum(distances, (distances[:, None] + costs).amin(0))
        if torch.equal(relaxed, distances):
            return distances
        distances = relaxed


def asks_in_a_function(x):
    for _ in range(12):
        x = smaller(x)
    return x


def smaller(x):
    return x / 2 if x.sum() > 1 else x / 3


def begins_with_a_loop(x):
    """The first instruction of an iteration is where another loop begins, and the last one where a third does."""
    for n in range(12):
        while x.norm() > 40 - 3 * n:
            x, n = x * 0.9, n - 1
        x = x + 0.3
        if x.sum() < 3:
            break
    while x.norm() > 1:
        x = x / 2
    return x


def differs_behind_the_first_iteration(x):
    """Whether a number is Python's or a tensor's there, and what shares memory, depends on the way."""
    share, other, n = 0.5, x, 0
    while x.norm() > 1:
        if x.sum() > 20:
            share = x.mean().item() / (x.mean().item() + 1)
            other = x * 0.5
        x = x * (0.5 + 0.1 * share)
        n += 1
    return x, other, share, n


def changes_its_strides(x):
    y = x[:, None] * x
    while y.norm() > 1:
        y = (y * 0.5).T
    return y


def breaks_in_a_loop(x):
    """The iterations of the inner loop are counted in a run that has left it early before."""
    n = 0
    while x.norm() > 1:
        for _ in range(9):
            if x.abs().sum() > 20:
                x = x - 1.5
                break
            x = x * 0.9
            n += 1
        x = x * 0.8
    return x, n


def writes_what_it_has_returned(x):
    w, n = x.clone(), 0
    while True:
        if w.norm() < 1e-1:
            return w.view(-1), n
        w.sub_(0.3 * w)
        n += 1


@pytest.mark.parametrize(
    ("function", "args", "least"),
    [
        (newton, (X,), 1),
        (writes_what_it_has_returned, (X,), 1),
        (conjugate_gradients, (A, X), 1),
        (conjugate_gradients_of_so_many_steps, (A, X), 1),
        (sinkhorn, (A,), 1),
        (power_iteration, (A,), 1),
        (bisection, (X,), 1),
        (line_search, (X,), 1),
        (solver, (X,), 1),
        (nested, (X,), 2),
        (iterations_with_choices, (X,), 0),
        (leaves_in_many_paths, (X,), 1),
        (writes, (X,), 1),
        (aliases, (X,), 1),
        (closures, (X,), 1),
        (tuples, (X,), 1),
        (ends_within_with, (X,), 2),
        (begins_with_a_loop, (X,), 4),
        (asks_in_a_function, (X,), 0),
        (reads_constants, (X,), 1),
        (nms, (X,), 1),
        (shortest_paths, (A,), 1),
        (changes_its_strides, (X,), 1),
        (differs_behind_the_first_iteration, (X,), 1),
        (breaks_in_a_loop, (X,), 1),
    ],
)
def test_loops(function, args, least):
    agree(function, *args, least=least)


def leaves_anew(x):
    w, a = x, x.clone().requires_grad_()
    while True:
        w = w.detach().requires_grad_()
        (g,) = torch.autograd.grad(((w - 1) ** 2).sum() + (w * a).sum() * 0.01, w)
        if g.norm() < 1e-2:
            return w.detach(), g
        w = w - 0.3 * g


def differentiates_by_func(x):
    n = 0
    while True:
        g = torch.func.grad(lambda w: ((w - 1) ** 2).sum())(x)
        if g.norm() < 1e-2:
            return x, n
        x, n = x - 0.3 * g, n + 1


@pytest.mark.parametrize(
    "function",
    [
        leaves_anew,
        differentiates_by_func,
    ],
)
def test_iterations_that_take_derivatives(function):
    agree(function, X)


def test_derivatives_that_lead_through_iterations_keep_branches():
    def function(x):
        y = x = x.clone().requires_grad_()
        for _ in range(20):
            if y.norm() < 1:
                break
            y = y / 2
        y.sum().backward()
        return x.grad

    agree(function, X, least=0)


def test_the_graph_is_that_of_a_loop_by_hand():
    def halved(x):
        while x.sum() > 1:
            x = x / 2
        return x

    (_, _, call) = jax.make_jaxpr(t2j(halved))(X).eqns
    (loop,) = call.params["call_jaxpr"].eqns
    assert [str(step.primitive) for step in loop.params["body_jaxpr"].eqns] == ["div", "reduce_sum", "gt"]


def test_iterations_draw_random_numbers_of_their_own():
    def rejected(x):
        n = 0
        while True:
            y = torch.rand(3)
            n += 1
            if y.sum() > x.sum():
                return y, torch.rand(()), n

    translated = t2j(rejected)
    compiled = jax.jit(translated, compiler_options=QUICK)
    counts = set()
    for seed in range(4):
        x, key = np.full(3, 0.7, np.float32), jax.random.key(seed)
        for got, want in zip(compiled(x, rng=key), translated(x, rng=key), strict=True):
            np.testing.assert_allclose(got, want, 1e-6)
        counts.add(int(want))
    assert len(counts) > 1


class Equilibrium(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(3, 3, bias=False)
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))
        with torch.no_grad():
            self.linear.weight.copy_(torch.from_numpy(A) / 10)

    def forward(self, x):
        z = torch.zeros_like(x)
        while True:
            before, z = z, torch.tanh(self.linear(z) + x)
            self.steps += 1
            if (z - before).norm() < 1e-4:
                return z


def writer():
    kept = torch.ones(3)

    def writes(x):
        while x.norm() > 1:
            x = x * 0.5
            kept.mul_(0.75).add_(x)
        return x, kept * 2

    return writes


@pytest.mark.filterwarnings("ignore:translated code writes in place")
def test_iterations_that_write_to_constants():
    for leaf, want in zip(jax.jit(t2j(writer()))(X), writer()(torch.from_numpy(X.copy())), strict=True):
        np.testing.assert_allclose(leaf, want, 1e-5)
    assert loops(writer(), X) == 1


def test_modules_with_buffers():
    module = Equilibrium()
    translated = t2j(module, max_steps=40)
    params, buffers = translated.split()

    @jax.jit
    def loss(params, x):
        result, state = translated(x, state_dict=params | buffers, return_state_dict=True)
        return result.sum(), (result, state["steps"])

    (_, (result, steps)), grads = jax.value_and_grad(loss, has_aux=True)(params, X / 50)
    wanted = module(torch.from_numpy(X / 50))
    wanted.sum().backward()
    np.testing.assert_allclose(result, wanted.detach(), 1e-5)
    np.testing.assert_allclose(grads["linear.weight"], module.linear.weight.grad, 1e-4)
    assert int(steps) == int(module.steps) > 3


def shrunk(x):
    y = x
    while x.norm() > 1:
        x = x / 2 + 0.01 * y.sin()
    return x.sum()


def shrunk_in_so_many_iterations(x):
    for i in range(20):
        x = x * 0.7 + 0.01 * i
        if x.norm() < 1:
            break
    return x.sum()


@pytest.mark.parametrize(("function", "options"), [(shrunk, {"max_steps": 24}), (shrunk_in_so_many_iterations, {})])
def test_derivatives(function, options):
    translated = t2j(function, **options)
    leaf = torch.from_numpy(X.copy()).requires_grad_()
    (wanted,) = torch.autograd.grad(function(leaf), leaf)
    np.testing.assert_allclose(jax.jit(jax.jacfwd(translated), compiler_options=QUICK)(X), wanted, 1e-4)
    mapped = jax.jit(jax.vmap(jax.grad(translated)), compiler_options=QUICK)(np.stack([X, X / 100]))
    np.testing.assert_allclose(mapped[0], wanted, 1e-4)
    if options:
        np.testing.assert_allclose(jax.grad(jax.jit(translated))(X), wanted, 1e-4)


def test_a_gradient_needs_a_bound_that_holds():
    with pytest.raises(BranchError, match=r"test_loops.py:\d+ in shrunk .*max_steps=N"):
        jax.grad(jax.jit(t2j(shrunk)))(X)
    few = jax.jit(t2j(shrunk, max_steps=3))
    assert np.isnan(jax.grad(few)(X)).all()
    np.testing.assert_allclose(few(X), shrunk(torch.from_numpy(X)), 1e-5)
    with pytest.raises(ValueError, match="max_steps got 0"):
        t2j(shrunk, max_steps=0)


def test_checks_in_iterations():
    def function(x):
        n = 0
        while x.norm() > 1:
            x, n = x / 2, n + 1
            if n > 10:
                raise RuntimeError("no convergence")
        return x

    checked = jax.jit(checkify.checkify(t2j(function, checks="checkify")))
    assert checked(X)[0].get() is None
    assert "no convergence" in checked(X * 1000)[0].get()
    assert loops(function, X) == 1


def grows(x):
    found = []
    while x.norm() > 1:
        x = x / 2
        found.append(x)
    return found[-1]


def toggles(x):
    direction = "down"
    while x.norm() > 1:
        x = x / 2 + (0.1 if direction == "up" else 0)
        direction = "down" if direction == "up" else "up"
    return x


def advances(x):
    numbers = (0.01 * i for i in range(200))
    while x.norm() > 1:
        x = x / 2 + next(numbers)
    return x


def changes_its_shape(x):
    while x.norm() > 1:
        x = (x / 2)[None]
    return x.norm()


def compares_tenths(x):
    t = 0.0
    while x.norm() > 1:
        x, t = x / 2, t + 0.1
        if t + 0.05 > 0.3:
            x = x + 1e-3
    return x


def until_ten(x):
    t, count = 0.0, 0
    while x.norm() > 1e-30 and t < 10.0:
        x, t, count = x * 0.9, t + 0.1, count + 1
    return x, t, count


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (compares_tenths, "the comparison got t, a Python float that the loop at .* changes in steps"),
        (until_ten, "the comparison got t, a Python float that the loop at .* changes in steps"),
        (grows, "a list of length 0 where the loop begins, a list of length 1 behind an iteration of the loop at .*"),
        (toggles, "direction is 'down' where the loop begins, 'up' behind an iteration of the loop at .*"),
        (advances, r"\(generator\) from outside is read on one side of a condition"),
        (changes_its_shape, r"bool\(tensor\) at .*in changes_its_shape"),
    ],
)
def test_what_iterations_cannot_change(function, reason):
    with pytest.raises(BranchError, match=reason):
        jax.make_jaxpr(t2j(function))(X)


@pytest.mark.parametrize(("iterations", "found"), [(27, 0), (28, 1)])
def test_conditions_in_a_row_and_24_iterations_left(iterations, found):
    def largest(x):
        best = x[0]
        for i in range(iterations):
            if x[i] > best:
                best = x[i]
        return best

    assert loops(largest, np.arange(30, dtype=np.float32)) == found


def in_halves(x):
    t, error = 0.0, 1e10
    while error > 1:
        x, t = x / 2, t + 0.5
        error = min(error, x.norm().item())
        if t > 1.5:
            x = x - 0.1
    return x, t


def in_tenths(x):
    t = 0.0
    while x.norm() > 1:
        x, t = x / (2 + t), t + 0.1
    return x, t


def test_python_floats_are_carried_where_nothing_depends_on_their_rounding():
    agree(in_halves, X)
    agree(in_tenths, X)
    with jax.enable_x64(True):
        got = jax.jit(t2j(compares_tenths))(X)
    np.testing.assert_allclose(got, compares_tenths(torch.from_numpy(X)), rtol=1e-6)


def asked_before(x):
    """What is asked first decides the beginning alone, and nothing behind it."""
    x = x * 2 if x.sum() > 10 else x + 1
    if x.max() > 20:
        pass
    while x.norm() > 1:
        x = x / 2
    return x


def test_sides_of_a_branch_with_the_same_loop_are_one():
    agree(asked_before, X)
    assert str(jax.make_jaxpr(t2j(asked_before))(X)).count(" cond[") <= 1


def rows_until(x, n):
    y, i = torch.zeros(()), 0
    while i < n:
        y = torch.sin(y + x[i])
        i += 1
    return y


def rows_until_number(x, n):
    y, i, n = x[0], torch.tensor(0), n.item()
    while i < n:
        y = y + x[i] * 2
        i = i + 1
    return y, i


@pytest.mark.parametrize("function", [rows_until, rows_until_number])
@pytest.mark.parametrize("rows", [2, 3, 8])
def test_rows_that_a_tensor_has_not_are_never_reached(function, rows):
    """Followed iteration by iteration, the path that goes on comes to a row that is not there."""
    x = np.arange(1, rows + 1, dtype=np.float32)
    translated = t2j(function)
    assert loops(function, x, np.int32(1)) >= 1
    for n in range(rows + 1):
        got = plain(jax.jit(translated, compiler_options=QUICK)(x, np.int32(n)))
        for leaf, want in zip(got, plain(function(torch.from_numpy(x), torch.tensor(n))), strict=True):
            np.testing.assert_allclose(leaf, want, 1e-5, 1e-6)


def on_one_line(x):
    n = 0
    while x.norm() > 1 and n < 20: x = x * 0.5; n += 1  # noqa: E701, E702  # fmt: skip
    return x, n


def test_loops_on_one_line():
    """Python 3.13 makes one instruction of the end of such a body and the beginning of the condition."""
    x = np.array([3000, 4000], np.float32)
    translated = t2j(on_one_line)
    assert loops(on_one_line, x) == 1
    for scale in (1, 0.001, 1e-6):
        given = (x * scale).astype(np.float32)
        got = jax.jit(translated, compiler_options=QUICK)(given)
        for leaf, want in zip(plain(got), plain(on_one_line(torch.from_numpy(given))), strict=True):
            np.testing.assert_allclose(leaf, want)
    np.testing.assert_allclose(jax.grad(jax.jit(lambda x: translated(x)[0].sum()))(x), 2.0**-13)


def test_the_first_iterations_of_a_loop_are_before_it():
    """A `for` that data may end, and one whose iterations ask, are loops of the graph behind one and four of them."""

    def ended(x):
        for _ in range(100):
            x = (torch.from_numpy(A) @ x / 8).sin()
            if x.sum() < 1:
                break
        return x

    def asks(x):
        for _ in range(100):
            x = (torch.from_numpy(A) @ x / 8).sin() if x.sum() > 0 else x.cos()
        return x

    for function, before in ((ended, 1), (asks, 4)):
        assert loops(function, X) == 1
        assert str(jax.make_jaxpr(t2j(function))(X)).count("dot_general[") == before + 1
        got = jax.jit(t2j(function), compiler_options=QUICK)(X)
        np.testing.assert_allclose(got, function(torch.from_numpy(X)), 1e-4, 1e-5)


class _Step(NamedTuple):
    x: torch.Tensor
    done: bool


def test_methods_of_containers_tell_keys_apart_and_not_values():
    def halved(x):
        state, kept = _Step(x, False), {}
        while not state.done:
            state = state._replace(done=True) if state.x.norm() < 1 else state._replace(x=state.x / 2)
            kept["last"] = kept.get("first", state.x)
        return kept["last"]

    agree(halved, X)
