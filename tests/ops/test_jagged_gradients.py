"""Gradients of jagged tensors within a call: by `.backward()`, by `torch.autograd.grad` and through hooks."""

# `Tensor.grad` may be None, and is not where it was just computed.
# pyright: reportOptionalMemberAccess=false, reportOptionalOperand=false, reportOperatorIssue=false
# pyright: reportAttributeAccessIssue=false

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import torch.nn.functional as F

from torch2jax import t2j

pytestmark = pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")  # PyTorch's own attention uses it

torch.manual_seed(0)
PARTS = [torch.randn(3, 4), torch.randn(5, 4), torch.randn(2, 4)]
VALUES, OFFSETS = torch.cat(PARTS), torch.tensor([0, 3, 8, 10])
WEIGHTS = torch.arange(40.0).reshape(10, 4).cos()
LINEAR, NORM = torch.nn.Linear(4, 4), torch.nn.LayerNorm(4)
GIVEN = jnp.asarray(VALUES.numpy()), jnp.asarray(OFFSETS.numpy())
RUNS = {"eager": lambda f: f, "jit": jax.jit}


def _made(values, offsets, requires_grad=False):
    x = torch.nested.nested_tensor_from_jagged(values, offsets, min_seqlen=2, max_seqlen=5)
    return x.detach().requires_grad_() if requires_grad else x


def _attention(x):
    heads = x.unflatten(-1, (2, 2)).transpose(1, 2)
    return F.scaled_dot_product_attention(heads, heads, heads).transpose(1, 2).flatten(-2)


def _loss(x):
    return (x.values() * WEIGHTS).sum()


LOSSES = {
    "sum": lambda x: (x * x).sum(),
    "softmax": lambda x: _loss(x.softmax(-1)),
    "layer norm": lambda x: _loss(NORM(x)),
    "linear": lambda x: _loss(LINEAR(x).tanh()),
    "attention": lambda x: _loss(_attention(x)),
    "padded": lambda x: (x.to_padded_tensor(0.0).cumsum(1) ** 2).sum(),
}
LOSSES_OF_ROWS = {  # and what they are of a row: PyTorch has no derivative of these, or a wrong one
    "sums of rows": (lambda x: (x.sin().sum(1) ** 2).sum(), lambda row: (row.sin().sum(0) ** 2).sum()),
    "softmax of rows": (lambda x: (x.softmax(1) ** 2).sum(), lambda row: (row.softmax(0) ** 2).sum()),
    "largest of rows": (lambda x: x.amax(1).sin().sum(), lambda row: row.amax(0).sin().sum()),
    "means of rows": (lambda x: (x.mean(1) ** 2).sum(), lambda row: (row.mean(0) ** 2).sum()),
}


def _by_backward(loss, values, offsets):
    x = _made(values, offsets, requires_grad=True)
    loss(x).backward()
    return x.grad.values()


def _by_grad(loss, values, offsets):
    x = _made(values, offsets, requires_grad=True)
    (gradient,) = torch.autograd.grad(loss(x), x)
    assert gradient.is_nested
    return gradient.values()


def _of_values(loss, values, offsets):
    values = values.detach().requires_grad_()
    loss(_made(values, offsets)).backward()
    return values.grad


WAYS = {"backward": _by_backward, "grad": _by_grad, "of values": _of_values}


def _compare(program, expected=None):
    """What a program of values and offsets gives, with PyTorch's."""
    expected = _flat(program(VALUES, OFFSETS) if expected is None else expected)
    for run in RUNS.values():
        for actual, each in zip(_flat(run(t2j(program))(*GIVEN)), expected, strict=True):
            each = each.detach().numpy()
            assert actual.dtype == each.dtype
            assert np.shape(actual) == np.shape(each)
            np.testing.assert_allclose(actual, each, rtol=1e-4, atol=1e-5)


def _flat(result):
    return result if isinstance(result, tuple) else (result,)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", LOSSES)
def test_gradients(name, way):
    _compare(lambda values, offsets: WAYS[way](LOSSES[name], values, offsets))


def _by_rows(loss):
    """The gradient of the sum of a loss of each row."""
    values = VALUES.clone().requires_grad_()
    sum(map(loss, values.split([3, 5, 2]))).backward()
    return values.grad


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", LOSSES_OF_ROWS)
def test_gradients_over_rows(name, way):
    loss, of_row = LOSSES_OF_ROWS[name]
    _compare(lambda values, offsets: WAYS[way](loss, values, offsets), _by_rows(of_row))


@pytest.mark.parametrize("run", RUNS)
def test_from_a_list_that_requires_grad(run):
    def program(*parts):
        x = torch.nested.nested_tensor(list(parts), layout=torch.jagged, requires_grad=True)
        assert x.requires_grad
        assert x.is_leaf
        assert x.grad is None
        (x.softmax(-1) * torch.arange(4.0)).sum().backward()
        return x.grad.values()

    expected = program(*PARTS)
    found = RUNS[run](t2j(program))(*(jnp.asarray(x.numpy()) for x in PARTS))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_from_rows_that_require_grad():
    def program(values, offsets):
        rows = [row.detach().requires_grad_() for row in values.split([3, 5, 2])]
        x = torch.nested.as_nested_tensor(rows, layout=torch.jagged)
        (x.sin() * x).sum().backward()
        return tuple(row.grad for row in rows)

    _compare(program)


def test_gradient_of_a_jagged_result():
    def program(values, offsets):
        x = _made(values, offsets, requires_grad=True)
        y = x.sin()
        assert y.requires_grad
        assert not y.is_leaf
        assert y.grad_fn is not None
        y.retain_grad()
        (y * y).backward(y * 0 + 1)
        return x.grad.values(), y.grad.values()

    _compare(program)


def test_gradients_add_up_and_are_set():
    def program(values, offsets):
        x = _made(values, offsets, requires_grad=True)
        (x * x).sum().backward()
        x.sin().sum().backward()
        first, x.grad = x.grad.values().clone(), None
        assert x.grad is None
        x.cos().sum().backward()
        x.grad = x.grad * 2
        return first, x.grad.values()

    # PyTorch does not add to a jagged gradient: aten::stride does not exist
    _compare(program, (2 * VALUES + VALUES.cos(), -2 * VALUES.sin()))


def test_hooks():
    def program(values, offsets):
        seen = []
        x = _made(values, offsets, requires_grad=True)
        x.register_hook(lambda gradient: seen.append(gradient.values()))
        y = x.sin()
        y.register_hook(lambda gradient: gradient * 3)
        handle = y.register_hook(lambda gradient: gradient * 100)
        handle.remove()
        (y * y).sum().backward()
        return (*seen, x.grad.values())

    _compare(program)


def test_second_derivatives():
    def program(values, offsets):
        x = _made(values, offsets, requires_grad=True)
        (gradient,) = torch.autograd.grad((x * x * x).sum(), x, create_graph=True)
        (gradient * gradient).sum().backward()
        return x.grad.values()

    _compare(program)


def test_parameters_beside():
    def program(values, offsets):
        x = _made(values, offsets)
        weight = torch.ones(4, 4, requires_grad=True)
        assert not x.requires_grad
        (F.linear(x, weight).softmax(-1) * torch.arange(4.0)).sum().backward()
        assert x.grad is None
        return weight.grad

    _compare(program)


def test_what_requires_no_grad():
    def program(values, offsets):
        x = _made(values, offsets, requires_grad=True)
        with torch.no_grad():
            assert not (x * 2).requires_grad
        assert not x.detach().requires_grad
        return x.detach().values()

    _compare(program)
    with pytest.raises(RuntimeError, match="does not require grad"):
        t2j(lambda values, offsets: _made(values, offsets).sum().backward())(*GIVEN)


@pytest.mark.parametrize("run", RUNS)
def test_within_and_outside(run):
    def program(values, offsets):
        x = _made(values, offsets, requires_grad=True)
        (x.sin()).sum().backward()
        return (_made(values, offsets) * x.grad.detach()).sum()

    slope = RUNS[run](jax.grad(t2j(program)))(*GIVEN)
    np.testing.assert_allclose(slope, VALUES.cos(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("run", RUNS.values(), ids=RUNS.keys())
@pytest.mark.parametrize("name", ["softmax", "linear", "attention"])
def test_one_that_code_closes_over(name, run):
    loss, factor = LOSSES[name], torch.tensor(0.5)
    x = _made(VALUES, OFFSETS, requires_grad=True)
    (expected,) = torch.autograd.grad(loss(x * factor), x)

    def by_backward(factor):
        assert x.requires_grad
        assert x.is_leaf
        loss(x * factor).backward()
        return x.grad.values()

    def by_grad(factor):
        return torch.autograd.grad(loss(x * factor), [x])[0].values()

    for program in (by_backward, by_grad):
        found = run(t2j(program))(jnp.float32(0.5))
        np.testing.assert_allclose(found, expected.values(), rtol=1e-4, atol=1e-5)
    assert x.grad is None


def test_one_that_code_closes_over_has_the_gradient_that_it_had():
    x, plain = _made(VALUES, OFFSETS, requires_grad=True), VALUES.clone().requires_grad_()
    for leaf in (x, plain):
        (leaf * 2).sum().backward()

    def more(factor):
        for leaf in (x, plain):
            (leaf * factor).sum().backward()
        return x.grad.values(), plain.grad

    found, expected = jax.jit(t2j(more))(jnp.float32(3))
    np.testing.assert_array_equal(found, expected)
    assert (expected == 5).all()
