"""What depends on no traced input has a value that Python may ask for, also under `jax.jit`."""

import inspect
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch import nn

from tests.ops.database import compare
from torch2jax import t2j
from torch2jax.runtime.errors import TracedValueError

X = jnp.arange(4.0)


def scalars(x):
    assert torch.tensor(x.shape).max().item() == 4
    assert int(torch.tensor(3)) == 3
    assert float(torch.tensor(1.5)) == 1.5
    assert [10, 20, 30][torch.tensor(1)] == 20
    assert list(range(torch.tensor(3))) == [0, 1, 2]
    assert torch.zeros(2, 3).sum().item() == 0
    assert torch.tensor([x.shape[0], torch.tensor(5)]).tolist() == [4, 5]
    assert f"{torch.tensor(0.25):.1f}" == "0.2"


def iteration(x):
    assert [int(i) for i in torch.arange(3)] == [0, 1, 2]
    assert [row.tolist() for row in torch.arange(4).view(2, 2)] == [[0, 1], [2, 3]]
    assert torch.cumsum(torch.tensor([1, 2, 3]), 0).tolist() == [1, 3, 6]
    lengths = torch.tensor([1, 3]).tolist()
    assert [part.shape[0] for part in torch.split(x, lengths)] == lengths


def branches(x):
    mask = torch.arange(x.shape[0]) < 4
    assert mask.all()
    mask[1] = False
    assert not mask.all()
    assert mask.any()
    assert 2 in torch.arange(3)
    assert torch.equal(torch.arange(3), torch.tensor([0, 1, 2]))
    assert torch.allclose(torch.linspace(0, 1, 3), torch.tensor([0.0, 0.5, 1.0]))
    if torch.tensor(x.shape[0]) > 2:
        return
    raise AssertionError


def shapes(x):
    mask = torch.tensor([True, False, True, False])
    assert torch.nonzero(mask).tolist() == [[0], [2]]
    assert x[mask].shape == (2,)
    assert x[torch.arange(3)].shape == (3,)
    assert x[: torch.tensor(2)].shape == (2,)
    assert x[torch.tensor(1)].shape == ()
    assert torch.masked_select(torch.arange(4), mask).tolist() == [0, 2]
    assert torch.zeros(torch.tensor(2), 3).shape == (2, 3)


def writes(x):
    values = torch.tensor([1, 2, 3])
    values += 1
    assert values.tolist() == [2, 3, 4]
    values[values > 2] = 0
    assert values.tolist() == [2, 0, 0]
    values[1:].add_(4)
    assert values.tolist() == [2, 4, 4]
    values[0].fill_(9)
    assert values.tolist() == [9, 4, 4]
    values.copy_(torch.arange(3))
    assert values.tolist() == [0, 1, 2]
    grid = torch.zeros(2, 2)
    grid[torch.tensor([0, 1]), torch.tensor([1, 0])] = 1.0
    assert grid.tolist() == [[0, 1], [1, 0]]
    grid.t_().mul_(2)[0] = torch.arange(2)
    assert grid.tolist() == [[0, 1], [2, 0]]
    assert torch.empty(2).fill_(3).zero_().tolist() == [0, 0]


def views(x):
    base = torch.arange(6)
    assert base.view(2, 3).transpose(0, 1).reshape(-1).tolist() == [0, 3, 1, 4, 2, 5]
    assert base[::2].tolist() == [0, 2, 4]
    assert base.expand(2, 6)[1, 3].item() == 3
    assert base.double().to(torch.int64).clone().tolist() == list(range(6))
    assert torch.meshgrid(torch.arange(2), torch.arange(3), indexing="ij")[0].flatten().tolist() == [0, 0, 0, 1, 1, 1]
    assert torch.where(torch.arange(3) > 1, 1.0, 2.0).tolist() == [2, 2, 1]


def constants(x):
    assert (CLOSED_OVER + 1).tolist() == [2, 3]
    assert torch.as_tensor(np.arange(2)).sum().item() == 1
    assert torch.linalg.solve(2 * torch.eye(2), torch.ones(2)).tolist() == [0.5, 0.5]
    assert repr(torch.arange(2)) == "tensor([0, 1])"


CLOSED_OVER = torch.tensor([1, 2])
QUESTIONS = [scalars, iteration, branches, shapes, writes, views, constants]


@pytest.mark.parametrize("ask", QUESTIONS, ids=lambda ask: ask.__name__)
@pytest.mark.parametrize("transform", [lambda f: f, jax.jit, jax.grad, jax.vmap, lambda f: jax.jit(jax.grad(f))])
def test_known_values_answer(ask, transform):
    def f(x):
        ask(x)
        return (x * x).sum()

    x = X[None] if transform is jax.vmap else X
    transform(t2j(f))(x)


def test_long_chains_of_known_values():
    def f(x):
        total = torch.zeros(())
        for _ in range(500):
            total = total + 1
        assert total.item() == 500
        return x

    jax.jit(t2j(f))(X)


def test_randomness_from_a_seed_in_the_code_is_known():
    def f(x):
        torch.manual_seed(0)
        assert sorted(torch.randperm(4).tolist()) == [0, 1, 2, 3]
        generator = torch.Generator().manual_seed(1)
        return x[torch.randint(4, (2,), generator=generator)[0].item() :]

    jax.jit(t2j(f))(X)


def from_written_input(x):
    y = torch.zeros(99)
    y[0] = x[0]
    return y.tolist()


def from_mask(x):
    return x[x > 1].tolist()


def from_number(x):
    return x if str(x.max().item()) > "1" else -x


def from_key(x):
    return torch.rand(99).tolist()


def from_shape(x):
    return torch.zeros(int(x[0]))


def from_numpy(x):
    return x.numpy()


@pytest.mark.parametrize("ask", [from_written_input, from_mask, from_number, from_shape, from_numpy])
def test_traced_values_raise_one_error_at_the_users_line(ask):
    with pytest.raises(TracedValueError, match=r"depends on a traced input, at .*\.py:\d+ in from_") as error:
        jax.jit(t2j(ask))(X)
    lines, first = inspect.getsourcelines(ask)
    number = int(str(error.value).split(".py:")[1].split()[0])
    assert first < number < first + len(lines)
    assert __file__ in str(error.value)
    t2j(ask)(X)  # without jit every value is there


def test_a_library_named_like_torch_is_not_taken_for_it():
    place = f"{Path(torch.__file__).parent}vision/boxes.py"
    scope = {}
    exec(compile("def f(x):\n    return float(x)", place, "exec"), scope)
    with pytest.raises(TracedValueError, match=rf"{re.escape(place)}:2 in f"):
        jax.jit(t2j(scope["f"]))(jnp.zeros(()))


def test_a_traced_key_gives_traced_numbers():
    with pytest.raises(TracedValueError, match="in from_key"):
        jax.jit(t2j(from_key))(X, rng=jax.random.key(0))
    assert len(t2j(from_key)(X, rng=jax.random.key(0))) == 99


def test_values_are_there_under_grad_alone():
    def f(x):
        return (x * int(x.sum()) if x[1] > 0 else x).sum() * x[1].item()

    np.testing.assert_array_equal(jax.grad(t2j(f))(X), [6, 6, 6, 6])


TWO = torch.tensor(2)
NUMBERS = {
    "pad": lambda x: torch.nn.functional.pad(x, (0, TWO, 1, 0)),
    "interpolate": lambda x: torch.nn.functional.interpolate(x, size=(TWO * 3, TWO)),
    "max_pool2d": lambda x: torch.nn.functional.max_pool2d(x, TWO),
    "softmax": lambda x: torch.softmax(x, dim=TWO),
    "sum": lambda x: x.sum((1, TWO)),
    "roll": lambda x: torch.roll(x, TWO, 1),
    "topk": lambda x: torch.topk(x, TWO).values,
    "cat": lambda x: torch.cat([x, x], TWO),
    "one_hot": lambda x: torch.nn.functional.one_hot(torch.tensor([0, 1]), TWO),
    "tensordot": lambda x: torch.tensordot(x, x, torch.tensor([[1, 2], [1, 2]])),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_known_tensors_stand_for_the_integers_they_hold(name):
    x = torch.randn(2, 4, 6, 8)
    compare(jax.jit(t2j(NUMBERS[name]))(t2j(x)), NUMBERS[name](x))


def test_traced_tensors_cannot_stand_for_integers():
    with pytest.raises(TracedValueError, match=r"Tensor\.item"):
        jax.jit(t2j(lambda x, size: torch.nn.functional.pad(x, (0, size))))(X, 2)


@pytest.mark.parametrize("strides", [(0,), (0, 1), (1, 0)], ids=str)
def test_known_numbers_fill_memory_that_shows_them_more_than_once(strides):
    def function():
        x = torch.empty_strided((3,) * len(strides), strides).fill_(2)
        return x, x.sum().item(), x.untyped_storage().nbytes()

    x, total, size = t2j(function)()
    expected = function()
    np.testing.assert_array_equal(x, expected[0])
    assert (total, size) == expected[1:]


@pytest.mark.parametrize("x", [True, 3])
def test_constants_without_dimensions_in_the_graph(x):
    def function(x):
        infinite = torch.isinf(x)  # of an integer a constant, which JAX holds as Python's False
        return (
            infinite & (x > 0),
            torch.where(infinite, 0, x.float()),
            infinite.sum(),
            torch.stack([infinite, ~infinite]),
        )

    wanted = function(torch.tensor(x))
    for run in (
        t2j(function),
        jax.jit(t2j(function)),
        jax.jit(jax.vmap(t2j(function), axis_size=1, in_axes=None, out_axes=None)),
    ):
        jax.tree.map(np.testing.assert_array_equal, run(jnp.asarray(x)), t2j(wanted))


GRU = nn.GRU(3, 4, batch_first=True)


def packed(x, n):
    return GRU(nn.utils.rnn.pack_padded_sequence(x, n, batch_first=True))[1]


OF_WRITTEN_DOWN = {
    "lengths": packed,
    "list": lambda x, n: x * sum(n.tolist()),
    "item": lambda x, n: x * n[0].item(),
    "int": lambda x, n: x * int(n.sum()),
    "iterations": lambda x, n: torch.stack([x for _ in range(int(n[2]))]),
    "numpy": lambda x, n: x * float(np.asarray(n).sum()),
    "condition": lambda x, n: x if n.sum() > 3 else -x,
    "subscript": lambda x, n: x[:, n[2] - 2],
    "by a mask": lambda x, n: n[n > 2],
    "dtype": lambda x, n: x * n.to(torch.float64).mean().item(),
    "size": lambda x, n: torch.arange(n[0]),
    "write": lambda x, n: torch.tensor(n.clone().add_(1).tolist()) * x.sum(),
    "view": lambda x, n: x * n.view(3, 1)[1, 0].item(),
    "unique": lambda x, n: torch.unique(n),
    "places": lambda x, n: n.nonzero(),
    "counts": lambda x, n: torch.bincount(n),
    "transposed": lambda x, n: x[0] * n.expand(2, 3).t()[1, 1].item(),
}


@pytest.mark.parametrize("x64", [False, True])
@pytest.mark.parametrize("name", OF_WRITTEN_DOWN)
def test_arrays_written_down_under_jit_are_known(name, x64):
    function = OF_WRITTEN_DOWN[name]
    wanted = function(torch.ones(3, 4, 3), torch.tensor([4, 3, 3]))
    with jax.enable_x64(x64):
        x = jnp.ones((3, 4, 3), "float32")
        found = jax.jit(lambda x: t2j(function)(x, jnp.array([4, 3, 3])))(x)
    np.testing.assert_allclose(found, wanted.detach(), rtol=1e-5)


@pytest.mark.parametrize("number", [3, 2.5, True, np.int32(3), np.float32(2.5)])
def test_numbers_written_down_under_jit_are_known(number):
    found = jax.jit(lambda x: t2j(lambda x, n: x * n.item() * len(range(int(n))))(x, jnp.asarray(number)))(jnp.ones(2))
    np.testing.assert_allclose(found, np.ones(2) * number * int(number))


def test_arrays_written_down_serve_in_the_graph():
    f = t2j(lambda x, n: (x * n).sum() + x[n.long() % 2].sum())
    gradient = jax.jit(jax.grad(lambda x: f(x, jnp.array([1.0, 2.0, 3.0]))))(jnp.ones(3))
    np.testing.assert_allclose(gradient, [2.0, 4.0, 3.0])
