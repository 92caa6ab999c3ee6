"""Operations on small known values by the short way: what PyTorch gives, and what the graph has of it."""

import jax
import jax.numpy as jnp
import pytest
import torch

from torch2jax import t2j


def _numbers():
    x = torch.full((), 3.7)
    truth = torch.where(x > 3, x, 1.0)
    return [
        *((x + 1).item(), (2 - x).item(), (x**0.5).item(), (-x).item(), truth.item(), (x // 2).item()),
        *(x.to(torch.int64).item(), x.to(torch.float32) is x, bool(x), int(x), float(x), (x == x).item()),
        *((torch.tensor(2**40) + 1).item(), (torch.tensor(7) / 2).item(), torch.tensor(True).logical_not().item()),
    ]


def _writes():
    x, vector, matrix = torch.full((), 3.7), torch.zeros(4), torch.zeros(2, 3, dtype=torch.int32)
    before = x + 0
    x.add_(1)
    x *= 2
    tail = vector[1:]
    vector[2] = 5
    tail[0] = 1.5
    vector[torch.tensor(-1)] = True
    matrix[1, 2] = 7.9
    matrix.t()[0, 1] = 3
    return [before.item(), x.item(), vector.tolist(), tail.tolist(), matrix.tolist(), x.dtype, matrix.dtype]


def _vectors():
    x = torch.arange(6.0)
    return [
        x.clamp(1, 4).tolist(),
        (x * x[2]).tolist(),
        x.sum().item(),
        x.reshape(2, 3).sum(0).tolist(),
        (x[1:] > 2).tolist(),
    ]


def _refused():
    words = []
    for write in (
        lambda: torch.tensor(0, dtype=torch.uint8).add_(1.5),
        lambda: torch.zeros(2).__setitem__(9, 1),
        lambda: torch.tensor(True) - torch.tensor(True),
    ):
        with pytest.raises((RuntimeError, IndexError)) as refused:
            write()
        words.append(str(refused.value).partition("\n")[0])
    return words


@pytest.mark.parametrize("code", [_numbers, _writes, _vectors, _refused])
def test_answers_are_pytorchs(code):
    found = []

    def function(x):
        found.append(code())
        return x

    jax.jit(t2j(function)).trace(jnp.ones(()))
    assert found == [code()]


def test_a_number_is_written_into_the_operation_that_takes_it():
    def scaled(x):
        for i in torch.arange(1, 4):
            x = (1 - 1 / i.sqrt()) * x
        return x

    traced = jax.jit(t2j(scaled)).trace(jnp.ones(3)).jaxpr
    assert [step.primitive.name for step in traced.eqns] == ["mul"] * 3
    assert not traced.consts
    assert jnp.array_equal(jax.jit(t2j(scaled))(jnp.ones(3)), scaled(torch.ones(3)).numpy())


def test_a_write_to_an_element_is_in_the_graph_only_where_it_is_used():
    def written(x):
        table = torch.zeros(4)
        for i in range(3):
            table[i] = i
        return x * table[2] if x.ndim else x + table

    names = [step.primitive.name for step in jax.make_jaxpr(t2j(written))(jnp.ones(2)).eqns]
    assert names == ["mul"]
    assert jnp.array_equal(jax.jit(t2j(written))(jnp.ones(())), jnp.array([1.0, 2, 3, 1]))


def test_gradients_and_regions_take_the_long_way():
    def function(x):
        weight = torch.full((), 2.0, requires_grad=True)
        (weight * weight * x).backward()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert torch.mm(torch.ones(1, 1), torch.ones(1, 1)).dtype is torch.bfloat16
        return weight.grad

    assert jax.jit(t2j(function))(jnp.float32(3.0)) == 12
