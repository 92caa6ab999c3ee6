"""Rows of what parts have written, put in another order around them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from torch2jax import t2j
from torch2jax.calls.compiled.reordered import Reordered, RowOrder

from .test_host_tensors import Module, compare


class Cache:
    """Two tensors, which a part writes to, and code around it puts others in the place of."""

    def __init__(self, x):
        self.first, self.second = x * 1.0, x * 2.0


def written(cache):
    cache.first.add_(1)
    cache.second.mul_(cache.first)
    return cache.first.sum()


def by_method(x, rows):
    return x.index_select(0, rows)


def by_function(x, rows):
    return torch.index_select(x, -2, rows)


def by_index(x, rows):
    return x[rows]


def by_index_and_ellipsis(x, rows):
    return x[rows, ...]


def waits(x) -> bool:
    return isinstance(x._node.lazy(None, None), Reordered)


_found: list = []  # which no part can reach
X = torch.arange(12.0).reshape(3, 4)
REORDER = [by_method, by_function, by_index, by_index_and_ellipsis]


@pytest.mark.parametrize("reorder", REORDER)
def test_caches_go_on_with_chosen_rows(reorder):
    def code(part, x, *orders):
        cache, sums = Cache(x), []
        for rows in orders:
            sums.append(part(cache))
            rows = rows + 0  # one of PyTorch's own
            cache.first, cache.second = reorder(cache.first, rows), reorder(cache.second, rows)
        return *sums, cache.first, cache.second

    orders = [torch.tensor(rows) for rows in ([0, 0, 1], [2, 1, 0], [1, 1, 1], [0, 1, 2], [2, 0, 0])]
    compare(Module(code, written), X, *orders)


@pytest.mark.parametrize("reorder", REORDER)
def test_the_order_is_the_part_s(reorder, caplog):
    """The program takes what was written before as it is; nothing is compiled for the rows."""

    def code(part, x, rows):
        cache = Cache(x)
        _found.clear()
        for _ in range(4):
            part(cache)
            rows = rows + 0
            cache.first, cache.second = reorder(cache.first, rows), reorder(cache.second, rows)
            cache.first[1].sum().item(), cache.second.max().item()  # PyTorch answers
            _found.append(waits(cache.first) and waits(cache.second))
        return part(cache)

    translated = t2j(Module(code, written), compile=["part"])
    with jax.log_compiles(), caplog.at_level("WARNING"):
        translated(t2j(X), jnp.array([2, 0, 1]))
    assert _found == [True] * 4
    assert not [message for message in caplog.messages if "index_select" in message and "Compiling" in message]
    caplog.clear()
    with jax.log_compiles(), caplog.at_level("WARNING"):
        translated(t2j(X), jnp.array([1, 0, 1]))
    assert not [message for message in caplog.messages if "Compiling" in message]


def test_what_is_asked_meanwhile_is_there():
    def code(part, x, rows):
        cache = Cache(x)
        part(cache)
        rows, before = rows + 0, cache.first
        cache.first = before.index_select(0, rows)
        row, total = cache.first[1], cache.first.sum().item()
        again = cache.first.index_select(0, rows)
        part(cache)  # which writes to the rows, and to none of those before
        cache.second = cache.second.index_select(0, rows)
        cache.second[0] = 7.0
        cache.second.index_select(1, torch.arange(4))
        view = cache.second.t()
        part(cache)
        return row, total, again, before, view, cache.first, cache.second

    compare(Module(code, written), X, torch.tensor([2, 0, 0]))


def test_what_only_is_read_is_put_in_order_once():
    def code(part, x, rows):
        cache = Cache(x)
        written(cache)
        part(cache)
        rows = rows + 0
        cache.first = cache.first.index_select(0, rows)
        return part(cache), part(cache), cache.first

    def does(cache):
        cache.second.add_(1)
        return cache.first * 2

    compare(Module(code, does), X, torch.tensor([2, 0, 0]))


def test_fewer_or_more_rows_are_another_cache():
    def code(part, x, rows):
        cache = Cache(x)
        part(cache)
        rows = rows + 0
        cache.first, cache.second = cache.first.index_select(0, rows), cache.second.index_select(0, rows)
        return part(cache), cache.first, cache.second

    for rows in ([1], [0, 1, 2, 2, 1]):
        compare(Module(code, written), X, torch.tensor(rows))


def test_rows_from_behind():
    def code(part, x, rows):
        cache = Cache(x)
        part(cache)
        cache.first = cache.first[rows + 0]
        return part(cache), cache.first

    compare(Module(code, written), X, torch.tensor([-1, 0, -2]))


@pytest.mark.parametrize("rows", [[0, 1, 3], [0, -4, 0]])
@pytest.mark.parametrize("reorder", REORDER)
def test_rows_that_are_not_there(reorder, rows):
    def code(part, x, rows):
        cache = Cache(x)
        part(cache)
        cache.first = reorder(cache.first, rows + 0)
        return part(cache)

    with pytest.raises(IndexError):
        code(written, X, torch.tensor(rows))
    with pytest.raises(IndexError):
        t2j(Module(code, written), compile=["part"])(t2j(X), jnp.array(rows))


def test_kept_arrays_are_not_destroyed():
    """What a program takes in another order is its own only if nobody else has it."""
    kept = []

    def code(part, x, rows):
        cache = Cache(x)
        for _ in range(3):
            part(cache)
            kept.append((cache.first, cache.first.clone()))
            cache.first = cache.first.index_select(0, rows + 0)
        part(cache)
        return [tensor for pair in kept for tensor in pair]

    found = t2j(Module(code, written), compile=["part"])(t2j(X), jnp.array([2, 2, 0]))
    for tensor, copy in zip(found[::2], found[1::2], strict=True):
        np.testing.assert_array_equal(tensor, copy)


def test_a_program_takes_a_few_combinations_of_orders(caplog):
    class Many:
        def __init__(self, x):
            self.caches = [x + i for i in range(5)]

    def add(many):
        for cache in many.caches:
            cache.add_(1)

    def code(part, x, rows):
        many = Many(x)
        part(many)
        rows = rows + 0
        for number in range(1, 32):
            for i in range(5):
                if number >> i & 1:
                    many.caches[i] = many.caches[i].index_select(0, rows)
            part(many)
        return tuple(many.caches)

    with jax.log_compiles(), caplog.at_level("WARNING"):
        compare(Module(code, add), X, torch.tensor([2, 0, 0]))
    assert len([message for message in caplog.messages if "Compiling jit(part)" in message]) <= 6


def test_in_order():
    array, rows = jnp.arange(6.0).reshape(2, 3), jnp.array([1, 0])

    def code(x):
        waiting = Reordered(array, RowOrder(rows, 0))
        assert waiting.shape == (2, 3)
        assert waiting.size == 6
        np.testing.assert_array_equal(waiting.values(torch.float64), array[rows])
        assert waiting.buffer.array is waiting.buffer.array
        np.testing.assert_array_equal(waiting.buffer.array, array[rows])
        assert waiting.values(torch.float64).dtype is torch.float64
        return x

    t2j(code)(rows)
