"""Functions that ask, and return one thing or another: against PyTorch."""

import gc
import linecache

import jax
import numpy as np
import pytest
import torch

from tests.control.test_conditions import QUICK
from torch2jax import t2j

X = np.array([0.5, -0.2, 0.8], np.float32)


def smaller(x):
    if x.sum() > 1:
        x = x / 2
    return x + 1 if x[0] > 0.3 else x * 2


def itself_or_another(x):
    if x.max() > 2:
        return x
    return x.abs() if x.min() < 0 else x.sin()


def asks_in_functions(x):
    for _ in range(6):
        x = itself_or_another(smaller(x) - 0.5)
    return x


def steps(x):
    """As a solver does: a step is accepted or not, and its results are new or those before."""
    state, size, n = (x, x * 0.5, [x, x]), torch.tensor(0.5), 0
    while state[0].norm() > 0.3:
        state, size = step(state, size)
        n += 1
    return state, size, n


def step(state, size):
    x, slope, parts = state
    new = x - size * (x + 0.1 * slope)
    error = (new - x).norm()
    accepted = error <= 0.4
    if size > 2:
        accepted = False
    if size <= 0.01:
        accepted = True
    if accepted:
        parts, x, slope = [x, new * 2], new, new * 0.5
    return (x, slope, parts), other_size(size, error)


def other_size(size, error):
    if error == 0:
        return size * 2
    return size * 0.6 if error > 0.4 else (size * 1.3).clamp(max=0.9)


def values(tree):
    return [np.asarray(leaf.detach() if isinstance(leaf, torch.Tensor) else leaf) for leaf in jax.tree.leaves(tree)]


def agree(function, x=X):
    batch = np.stack([x, x * 3, -x])
    mapped = jax.jit(jax.vmap(t2j(function)), compiler_options=QUICK)(batch)
    for i, row in enumerate(batch):
        wanted = values(function(torch.from_numpy(row.copy())))
        for leaf, want in zip(jax.tree.leaves(mapped), wanted, strict=True):
            np.testing.assert_allclose(leaf[i], want, 1e-4, 1e-5)


@pytest.mark.parametrize("function", [asks_in_functions, steps])
def test_agree(function):
    agree(function)


def test_gradients():
    def loss(x):
        return (asks_in_functions(x) ** 2).sum()

    x = torch.tensor(X, requires_grad=True)
    (wanted,) = torch.autograd.grad(loss(x), x)
    np.testing.assert_allclose(jax.jit(jax.grad(t2j(loss)), compiler_options=QUICK)(X), wanted, 1e-4)


class Counted(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return smaller(x) * self.calls if x[1] > 0 else x


def writes_to_a_result(x):
    for _ in range(3):
        y = itself_or_another(smaller(x))
        y += 0.25
        x = x + y
    return x


def writes_to_an_argument(x):
    kept = []
    for _ in range(3):
        x = smaller(x)
        kept.append(itself_or_another(x))
        x.mul_(0.9)
    return torch.stack(kept)


def writes_in_a_loop(x):
    """What an iteration writes shows in what the iteration before has got from a function, on some paths."""
    last, total, n = x, x, 0
    while n < 3 and x.norm() < 50:
        x.add_(0.25)
        total = total + last
        last, n = itself_or_another(x), n + 1
    return last, total, x, n


def changes_an_attribute(x):
    module = Counted()
    for _ in range(3):
        x = module(x)
    return x, module.calls


def changes_a_variable(x):
    count = 0

    def counted(x):
        nonlocal count
        if x[0] > 0.3:
            count += 1
        return smaller(x)

    for _ in range(2):
        x = counted(x)
    return x * count


def changes_a_list(x):
    found = []

    def listed(x):
        y = smaller(x)
        found.append(y if y[0] > 0.5 else x)
        return y

    for _ in range(3):
        x = listed(x)
    return torch.stack(found)


def handles_an_exception(x):
    def checked(x):
        if x.sum() > 1:
            raise ValueError("too large")
        return smaller(x)

    for _ in range(4):
        try:
            x = checked(x)
        except ValueError:
            x = x * 0.4
    return x


def takes_a_derivative(x):
    x = x.clone().requires_grad_()
    y = x
    for _ in range(3):
        y = smaller(y)
    (y**2).sum().backward()
    return x.grad


@pytest.mark.parametrize(
    "function",
    [
        writes_to_a_result,
        writes_to_an_argument,
        writes_in_a_loop,
        changes_an_attribute,
        changes_a_variable,
        changes_a_list,
        handles_an_exception,
        takes_a_derivative,
    ],
)
def test_what_functions_change(function):
    translated = jax.jit(t2j(function, max_paths=256), compiler_options=QUICK)
    for x in (X, X * 3, -X):
        wanted = values(function(torch.from_numpy(x.copy())))
        for got, want in zip(jax.tree.leaves(translated(x.copy())), wanted, strict=True):
            np.testing.assert_allclose(got, want, 1e-4, 1e-5)


def one_or_two(x):
    new = x * 2
    if x.sum() > 1:
        return new, new
    return (new, x - 1) if x[0] > 0.3 else (x + 1, new)


def shares_on_a_path(x):
    for _ in range(3):
        y, z = one_or_two(x)
        x = y.sin() - z
    return x, y, z


def itself_or_new(x):
    if x.sum() > 1:
        return x
    return x * 2 if x[0] > 0.3 else x + 1


def gives_an_argument_without_grad(x):
    """What a function gives under ``no_grad`` has a gradient where it is the argument."""
    for _ in range(3):
        with torch.no_grad():
            y = itself_or_new(x)
        x = x * 0.7 + y * 0.2
    return x


def asks_for_identity(x):
    n = 0
    for _ in range(3):
        y = itself_or_new(x)
        n += 1 if y is x else 0
        x = y * 0.8
    return x, n


@pytest.mark.parametrize("function", [shares_on_a_path, gives_an_argument_without_grad, asks_for_identity])
def test_tensors_that_are_one_on_some_paths(function):
    translated = t2j(function, max_paths=256)
    total = lambda x: sum(y.sum() for y in jax.tree.leaves(translated(x)) if y.dtype.kind == "f")
    compiled = jax.jit(translated, compiler_options=QUICK)
    gradient = jax.jit(jax.grad(total), compiler_options=QUICK)
    for x in (X, X * 3, -X, X * 1.2, X * 0.7):
        given = torch.from_numpy(x.copy()).requires_grad_()
        wanted = jax.tree.leaves(function(given), is_leaf=lambda y: isinstance(y, torch.Tensor))
        for got, want in zip(jax.tree.leaves(compiled(x)), wanted, strict=True):
            np.testing.assert_allclose(got, want.detach() if isinstance(want, torch.Tensor) else want, 1e-4, 1e-5)
        sum(y.sum() for y in wanted if isinstance(y, torch.Tensor)).backward()
        np.testing.assert_allclose(gradient(x), given.grad, 1e-4, 1e-5)


class _Descent(torch.autograd.Function):
    """Its backward asks in functions that take derivatives themselves, as an adjoint does."""

    @staticmethod
    def forward(ctx, w, x):
        ctx.save_for_backward(w, x)
        return (w * x).sum()

    @staticmethod
    def backward(ctx, grad):
        w, x = ctx.saved_tensors
        with torch.no_grad():
            for _ in range(5):
                x = chosen_gradient(w, x) * 0.3
        return x * 2, x * grad


def largest(*numbers):
    return max(numbers)


def chosen_gradient(w, x):
    x = x / largest(x.abs().max(), w.abs().mean(), w.norm())
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        by_x, by_w = torch.autograd.grad((w * x.sin()).sum(), (x, w))
    if by_x.norm() > 0.5:
        by_x = by_x * 0.5
    return by_x + by_w + 1 if by_w.sum() > 0 else by_x + by_w


def test_functions_that_take_derivatives():
    w, x = torch.tensor(X[::-1].copy(), requires_grad=True), torch.tensor(X, requires_grad=True)
    wanted = torch.autograd.grad(_Descent.apply(w, x), (w, x))
    found = jax.jit(jax.grad(t2j(_Descent.apply), (0, 1)), compiler_options=QUICK)(X[::-1], X)
    for got, want in zip(found, wanted, strict=True):
        np.testing.assert_allclose(got, want, 1e-5)


def test_a_callback_of_the_garbage_collector_is_no_part_of_a_side():
    """The collector may begin anywhere, and tells others."""
    phases = []

    def told(phase, info):
        phases.append(phase)

    def function(x):
        if x.sum() > 0:
            pairs = list(zip(range(150_000), range(150_000), strict=True))  # which the collector counts
            return x * len(pairs)
        return x

    gc.callbacks.append(told)
    try:
        np.testing.assert_array_equal(jax.jit(t2j(function), compiler_options=QUICK)(X), X * 150_000)
    finally:
        gc.callbacks.remove(told)
    assert phases


CELLS = {
    "<ipython-input-1-0abc>": """
def halved(x):
    while x.sum() > 1:
        x = x / 2
    return x

class Halving(torch.nn.Module):
    def forward(self, x):
        if x.sum() > 0:
            return halved(x)
        return x
""",
    "<python-input-7>": "def both(x): return Halving()(x) + halved(x)",
}


def test_code_of_cells_and_prompts_is_converted():
    names = {"torch": torch}
    for file, text in CELLS.items():
        linecache.cache[file] = len(text), None, text.splitlines(keepends=True), file
        exec(compile(text, file, "exec"), names)
    try:
        np.testing.assert_allclose(jax.jit(t2j(names["both"]))(X), names["both"](torch.tensor(X)), 1e-6)
    finally:
        for file in CELLS:
            del linecache.cache[file]
