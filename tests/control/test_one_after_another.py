"""Many conditions one after another, each of which is once in the graph: against PyTorch."""

import jax
import numpy as np
import pytest
import torch

from tests.control.test_conditions import QUICK
from torch2jax import t2j

X = np.array([0.5, -0.2, 0.8, -1.5, 1.1, -0.1, 0.3, -0.7], np.float32)


def one_after_another(x):
    y = x
    if x[0] > 0:
        y = y * 2
    if x[1] > 0:
        y = y + 1
    elif x[1] < 0:
        y = y - 1
    if x[2] > 0 and y.sum() < 3:
        y = y.sin()
    if y[3] > 0:
        y = y * y
    elif y[3] < -1:
        y = y - 3
    z = y + 3 if x[4] > 0 else y
    if z[5] > 0:
        z, y = y, z
    if z.sum() > 0:
        z = z * 3
    if max(z.sum(), y.sum()) > 2:
        z = z / 2
    return z, y


def in_a_loop_without_an_end_on_data(x):
    total = x * 0
    for i in range(8):
        if x[i] > 0:
            total = total + x * i
        elif x[i] < -1:
            if total.sum() > 0:
                total = total.flip(0)
            total = total - 1
    return total


def writes_in_place(x):
    y, first = x * 1, x[:2].clone()
    view = y[2:]
    for i in range(8):
        if x[i] > 0:
            y[i] += x[i].sin()
        else:
            view *= 0.9
            first[0] = y.sum()
    return y, view, first


class Counter:
    def __init__(self, best):
        self.best, self.n = best, 0


def counts(x):
    counter, state, parts, n = Counter(x), {"step": 0}, [x, x * 2], 0
    for i in range(6):
        if x[i] > 0:
            n += 1
            counter.best = counter.best * 2
        if x[i] > 0.6:
            counter.n += n
            parts[0] = parts[0] + n
        else:
            parts[1] = parts[1] - 1
        if counter.best.sum() > 0:
            state["step"] += 2
    if n > 2:
        x = x + n
    return x, n, counter.n, counter.best, parts, state


def the_best(x):
    best, other = x, x * 2
    for i in range(6):
        new = best.roll(i) * 0.9
        if new[0] > best[0]:
            best, other = new, best
        elif new[1] > 1:
            other = best
    return best, other


def exceptions(x):
    y = x
    for i in range(7):
        if x[i] > 5:
            raise ValueError("too large")
        try:
            if x[i] > 0:
                y = y + 1
            y = y * 2
        finally:
            y = y - 0.5
    return y


def different_shapes(x):
    """Each of these is of one shape on one path: they are followed to the end."""
    y = x
    if x[0] > 0:
        y = y[:4]
    if y.sum() > 0:
        y = y * 2
    for i in range(4):
        if x[i] > 0.1:
            y = y + 1
    return y.sum()


def a_list_that_grows(x):
    found = []
    for i in range(3):
        if x[i] > 0:
            found.append(x[i])
    for i in range(3):
        if x[i] > 0.1:
            x = x + 1
    return x, sum(found)


def asks_for_identity(x):
    y, z = x * 1, x * 2
    for i in range(5):
        if x[i] > 0:
            y = z
        z = z + 1 if y is z else z - 1
    return y, z


def written_after_an_alias(x):
    y, z = x * 1, x * 2
    for i in range(5):
        if x[i] > 0:
            y = z
        y += 1
    return y, z


class Experts(torch.nn.Module):
    """A mixture of experts as in DeepSeek's inference code: each is called for the tokens that have chosen it."""

    def __init__(self, count):
        super().__init__()
        self.experts = torch.nn.ModuleList([torch.nn.Linear(4, 4) for _ in range(count)])
        self.gate = torch.nn.Linear(4, count)

    def forward(self, x):
        weights, indices = self.gate(x).softmax(-1).topk(2, -1)
        y = torch.zeros_like(x)
        counts = torch.bincount(indices.flatten(), minlength=len(self.experts)).tolist()
        for i, expert in enumerate(self.experts):
            if counts[i] == 0:
                continue
            idx, top = torch.where(indices == i)
            y[idx] += expert(x[idx]) * weights[idx, top, None]
        return y


def compared(function, **options):

    def total(x):
        leaves = jax.tree.leaves(t2j(function, **options)(x))
        return sum(y.sum() for y in leaves if y.dtype.kind == "f"), leaves

    differentiated = jax.grad(total, has_aux=True)
    compiled = jax.jit(differentiated, compiler_options=QUICK)
    inputs = [X, -X, X[::-1].copy(), X * 3 + 0.5]
    rows = jax.jit(jax.vmap(differentiated), compiler_options=QUICK)(np.stack(inputs))
    for i, x in enumerate(inputs):
        given = torch.from_numpy(x.copy()).requires_grad_()
        wanted = jax.tree.leaves(function(given), is_leaf=lambda y: isinstance(y, torch.Tensor))
        sum(want.sum() for want in wanted if isinstance(want, torch.Tensor) and want.requires_grad).backward()
        wanted = [want.detach() if isinstance(want, torch.Tensor) else want for want in wanted]
        for gradient, found in (compiled(x), jax.tree.map(lambda row, i=i: row[i], rows)):
            np.testing.assert_allclose(gradient, given.grad, 1e-5, 1e-6)
            for got, want in zip(found, wanted, strict=True):
                np.testing.assert_allclose(got, want, 1e-5, 1e-6)


@pytest.mark.parametrize(
    "function", [one_after_another, in_a_loop_without_an_end_on_data, writes_in_place, counts, the_best, exceptions]
)
def test_agree(function):
    compared(function, max_paths=8)


@pytest.mark.parametrize("function", [different_shapes, a_list_that_grows, asks_for_identity, written_after_an_alias])
def test_sides_that_leave_no_one_value(function):
    compared(function)


def a_selection_stays(x):
    y = x[x > 0]
    for i in range(6):
        x = x + 1 if x[i] > 0 else x - 1
    return x, y.sum()


def a_sparse_tensor_stays(x):
    eye = torch.eye(8).to_sparse()
    for i in range(6):
        x = x + 1 if x[i] > 0 else eye @ x
    return x, eye.to_dense()


def numbers_of_tensors(x):
    largest, n = 0, 0
    for i in range(6):
        size = x.sum().item()
        if x[i] > 0:
            size = x[i].item()
            n = i
        largest = largest + size
    return x * largest, n


def dropped_out(x):
    for i in range(4):
        if x[i] > 0:
            x = torch.nn.functional.dropout(x, 0.5)
    return x


@pytest.mark.parametrize("function", [a_selection_stays, a_sparse_tensor_stays, numbers_of_tensors])
def test_tensors_of_other_kinds(function):
    compiled = jax.jit(t2j(function, max_paths=8), compiler_options=QUICK)
    for x in (X, -X, X[::-1].copy()):
        for got, want in zip(compiled(x), function(torch.from_numpy(x.copy())), strict=True):
            np.testing.assert_allclose(got, want, 1e-5, 1e-6)


def test_random_numbers_differ_from_condition_to_condition():
    x = np.arange(1.0, 257, dtype=np.float32)
    translated = lambda x, key: t2j(dropped_out)(x, rng=key)
    found = [jax.jit(translated)(x, jax.random.key(seed)) for seed in range(3)]
    eager = [translated(x, jax.random.key(seed)) for seed in range(3)]
    for one, other in zip(found, eager, strict=True):
        np.testing.assert_allclose(one, other)
    assert len({int((y == 0).sum()) for y in found}) > 1


def test_a_condition_is_once_in_the_graph():
    counted = []

    def ten(x):
        counted.append(None)
        for i in range(8):
            x = x.sin() if x[i] > 0 else x.cos()
        return x.exp()

    graph = str(jax.make_jaxpr(t2j(ten))(X))
    assert graph.count("cond[") == 8
    assert graph.count("exp") == 1


def test_experts_are_called_for_their_tokens():
    module = Experts(5)
    x = torch.randn(3, 4)
    wanted = module(x)
    translated = t2j(module)
    np.testing.assert_allclose(jax.jit(translated, compiler_options=QUICK)(x.numpy()), wanted.detach(), 1e-5, 1e-6)
    params, _ = translated.split()
    loss = lambda params: (translated(x.numpy(), state_dict=params) ** 2).sum()
    found = jax.jit(jax.grad(loss), compiler_options=QUICK)(params)
    (wanted**2).sum().backward()
    for name, param in module.named_parameters():
        wanted = torch.zeros_like(param) if param.grad is None else param.grad  # of an expert that nobody has chosen
        np.testing.assert_allclose(found[name], wanted, 1e-4, 1e-5)
