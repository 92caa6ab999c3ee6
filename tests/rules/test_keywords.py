"""Arguments by keyword, by PyTorch's names and by numpy's, and numbers by place, as PyTorch once wanted them."""

import functools

import jax
import numpy as np
import pytest
import torch
from torch.nn import functional as F

from tests.ops.database import compare
from torch2jax import t2j
from torch2jax.rules.options import BodyParameters

X, Y = torch.tensor([[1.0, -2.0], [0.5, 3.0]]), torch.tensor([[2.0, 1.0], [1.0, 2.0]])


@pytest.mark.parametrize(
    "function",
    [
        lambda x, y: torch.pow(x, exponent=2),
        lambda x, y: torch.pow(exponent=y, input=x.abs()),
        lambda x, y: torch.pow(self=2, exponent=y),
        lambda x, y: torch.addmm(input=x, mat1=y, mat2=x, beta=2),
        lambda x, y: x[None].baddbmm(batch1=y[None], batch2=x[None]),
        lambda x, y: torch.linalg.vector_norm(x=x, ord=1),
        lambda x, y: x.sum(axis=1, keepdims=True),
        lambda x, y: torch.add(x=x, x2=y, alpha=2),
        lambda x, y: x.add_(other=y),
        lambda x, y: torch.max(input=x, axis=1)[1],
        lambda x, y: torch.max(x=x, x2=y),
        lambda x, y: torch.where(condition=x > 0, input=x, other=y),
        lambda x, y: x.view(size=(4,)),
        lambda x, y: x.permute(dims=(1, 0)),
        lambda x, y: x.to(dtype=torch.float64, copy=True),
        lambda x, y: F.elu(input=x, alpha=2.0, inplace=True) + x,
        lambda x, y: F.linear(weight=y, input=x),
        lambda x, y: torch.ops.aten.addmm.default(self=x, mat1=y, mat2=x, alpha=2),
        lambda x, y: torch.ops.aten.sum.dim_IntList(self=x, keepdim=True, dim=[0]),
    ],
)
def test_arguments_by_keyword(function):
    wanted = function(X.clone(), Y.clone())
    for translated in (t2j(function), jax.jit(t2j(function))):
        compare(translated(t2j(X), t2j(Y)), wanted)


@pytest.mark.parametrize(
    "call",
    [
        lambda x: torch.pow(x, exponent=2, other=3),
        lambda x: torch.sum(x, axis=0, dim=1),
        lambda x: torch.add(x, x, other=x),
        lambda x: torch.addmm(x, x, x, mat2=x),
    ],
)
def test_what_pytorch_refuses(call):
    with pytest.raises(TypeError):
        call(X)
    with pytest.raises(TypeError):
        t2j(call)(t2j(X))


def test_names_of_a_body():
    def body(first, second, *, option=None):
        pass

    names = BodyParameters.of(body)
    assert names.placed(torch.addmm, (1,), {"mat1": 2, "option": 3}) == ((1, 2), {"option": 3})
    assert names.placed(torch.addmm, (), {"mat1": 2, "x": 1}) == ((1, 2), {})
    assert names.placed(torch.addmm, (), {"mat1": 2, "mat2": 3}) == ((), {"second": 2, "option": 3})
    assert names.placed(torch.addmm, (1,), {"strange": 2}) == ((1,), {"strange": 2})


def _spread(first, /, second, *rest, third=1, **more): ...


@pytest.mark.parametrize("body", [_spread, lambda: 0, lambda x, *, flag: x, lambda *x: x, lambda **x: x])
def test_names_of_a_function_are_those_of_its_signature(body):
    @functools.wraps(body)
    def wrapping(*args, **kwargs): ...

    for skipped in (0, 1):
        assert BodyParameters.of(body, ("out",), skipped) == BodyParameters.of(wrapping, ("out",), skipped)


matrix, vector, batch = torch.randn(3, 3), torch.randn(3), torch.randn(2, 3, 3)
PRODUCTS = {
    "addmm": (matrix, matrix, matrix),
    "addmv": (vector, matrix, vector),
    "addr": (matrix, vector, vector),
    "addbmm": (matrix, batch, batch),
    "baddbmm": (batch, batch, batch),
}
OLD = [
    *((name, numbers, operands) for name, operands in PRODUCTS.items() for numbers in ((2,), (2, 3))),
    *((name, (2,), (matrix, matrix.T)) for name in ("add", "sub")),
    *((name, (2,), (matrix, matrix.T, matrix.exp())) for name in ("addcmul", "addcdiv")),
]


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(("name", "numbers", "operands"), OLD, ids=[f"{name}-{len(n)}" for name, n, _ in OLD])
def test_numbers_by_place(name, numbers, operands):
    def function(x, y, *z):
        if name in PRODUCTS:
            first = getattr(torch, name)(numbers[0], x, *numbers[1:], y, *z)
        else:
            first = getattr(torch, name)(x, *numbers, y, *z)
        second = getattr(x, name)(*numbers, y, *z)
        third = getattr(x.clone(), f"{name}_")(*numbers, y, *z)
        return torch.stack([first, second, third])

    expected = function(*operands).numpy()
    for run in (t2j(function), jax.jit(t2j(function))):
        np.testing.assert_allclose(run(*map(t2j, operands)), expected, rtol=1e-4, atol=1e-5)
