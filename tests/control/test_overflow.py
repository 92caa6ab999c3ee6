"""Python's integers in loops and behind: right, or results tell that the graph's do not hold them."""

import jax
import numpy as np
import pytest
import torch
from jax.experimental import checkify

from torch2jax import t2j


def factorial(x):
    n, k = 1, 0
    while x.sum() > 1:
        x = x - 1
        k += 1
        n *= k
    return n


def congruential(x):
    seed = 1
    while x.sum() > 1:
        x, seed = x - 1, (1103515245 * seed + 12345) % 1000003
    return seed


def fibonacci(x):
    a, b = 0, 1
    while x.sum() > 1:
        x = x - 1
        a, b = b, a + b
    return a


def doubled(x):
    n = 1
    while x.sum() > 1:
        x = x - 1
        n += n
    return n


def in_large_steps(x):
    n = 0
    while x.sum() > 1:
        x = x - 1
        n += 100_000_000
    return n


def in_large_steps_at_times(x):
    n = 0
    while x.sum() > 1:
        x = x - 1
        if x.sum() > 5:
            n -= 100_000_000
        else:
            n += 3
    return n


def to_a_power(x):
    n = 0
    while x.sum() > 1:
        x, n = x - 1, n + 1
    return n**9


def shifted(x):
    n = 1
    while x.sum() > 1:
        x = x - 1
        n <<= 2
    return n


def collatz(x):
    n, steps = x.long().sum().item() * 9002001, 0
    while n != 1:
        n = n // 2 if n % 2 == 0 else 3 * n + 1
        steps += 1
    return steps


def of_a_range(x):
    product = 1
    for i in range(1, int(x.sum()) + 1):
        product *= i
    return product


def until_it_is_large(x):
    product = 1
    for i in range(1, 100):
        product *= i
        if product > x.sum() * 1e8:
            break
    return product


def squared(x):
    n = int(x.sum() * 1000)
    return n * n


def of_a_large_float(x):
    return int(x.sum() * 1e8)


def rounded(x):
    return round(x.sum().item() * 1e8)


PROGRAMS = [factorial, congruential, fibonacci, doubled, in_large_steps, in_large_steps_at_times, to_a_power, shifted]
PROGRAMS += [collatz, of_a_range, until_it_is_large, squared, of_a_large_float, rounded]
INPUTS = [np.array([x, 0], np.float32) for x in (3, 20, 100)]


@pytest.mark.parametrize("function", PROGRAMS)
@pytest.mark.parametrize("bits", [32, 64])
def test_a_result_is_right_or_none(function, bits):
    outcomes = []
    with jax.enable_x64(bits == 64):
        jitted = jax.jit(t2j(lambda x: (function(x), x)))
        checked = jax.jit(checkify.checkify(t2j(function, checks="checkify")))
        for x in INPUTS:
            got, reals = jitted(x)
            wanted = function(torch.from_numpy(x))
            error = checked(x)[0].get()
            outcomes.append(int(got) == wanted)
            if outcomes[-1]:
                assert error is None
                assert not np.isnan(reals).any()
            else:
                assert got == -(2 ** (bits - 1))
                assert np.isnan(reals).all()
                assert "OverflowError" in error
                assert "test_overflow.py" in error
    assert outcomes[0]
    assert bits == 64 or not all(outcomes)


def counted(x):
    n = i = 0
    while x.sum() > 1:
        x = x - 1
        n += 1
        i = 4 * n - 2
    return n, i


def bisected(x):
    low, high = 0, 1000
    while low < high:
        middle = (low + high) // 2
        if middle < x.sum():
            low = middle + 1
        else:
            high = middle
    return low


def divisor(x):
    a, b, n = x.argmax().item() + 12, 8, 0
    while b:
        a, b, n = b, a % b, n + 1
    return a, n


def digits(x):
    n, count, last = x.argmax().item() + 1234, 0, 0
    while n > 0:
        n, last = divmod(n, 10)
        count += 1
    return count, last


def best(x):
    place, bad, i = -1, 0, 0
    while x[i] > 0 and bad < 3:
        if i % 2 == 0 or x[i] > 2:
            place, bad = i, 0
        else:
            bad += 1
        i += 1
    return place, bad


def in_pieces(x):
    total, i = torch.zeros(()), 0
    while i + 2 <= len(x) and total < 100:
        total = total + x[i : i + 2].sum()
        i += 2
    return total, i


def in_rows(x):
    i, place = 0, 0
    while i < 2000 and x[i // 400] > 0:
        place = place + 100
        i += 100
    return i, place


def of_bounded_turns(x):
    y = torch.zeros(64)
    for i in range(6):
        y[i * 8 : i * 8 + 2] = x[i]
        if x[i] > 4:
            break
    return y, i * 4


def after_a_selection(x):
    n = len(x[x > 0])
    return n * n + 2 * n, n**3, 2**n, sum([n, 1]), n << 2


@pytest.mark.parametrize(
    "function", [counted, bisected, divisor, digits, best, in_pieces, in_rows, of_bounded_turns, after_a_selection]
)
def test_what_fits_by_its_nature_is_not_checked(function):
    x = np.array([3, 1, 4, 1, 5, 0], np.float32)
    got, wanted = jax.jit(t2j(function))(x), function(torch.from_numpy(x))
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_array_equal(one, other)
    assert str(np.iinfo(np.int32).min) not in str(jax.make_jaxpr(t2j(function))(x))


@pytest.mark.parametrize("divide", [lambda a, b: a / b, lambda a, b: a // b, lambda a, b: a % b, divmod])
def test_a_division_by_zero_is_an_error_where_checks_are_made(divide):
    def function(x):
        return divide(7, x.long().sum().item()), divide(x.sum().item(), x.sum().item())

    checked = jax.jit(checkify.checkify(t2j(function, checks="checkify")))
    assert "ZeroDivisionError" in checked(np.zeros(2, np.float32))[0].get()
    error, found = checked(INPUTS[0])
    assert error.get() is None
    jax.tree.map(np.testing.assert_allclose, found, function(torch.from_numpy(INPUTS[0])))


def test_a_loop_ends_where_its_integers_do():
    def until_large(x):
        n = 1
        while n < x.sum() * 1e12:
            n *= 3
        return n

    for x in INPUTS:
        assert jax.jit(t2j(until_large))(x) == np.iinfo(np.int32).min
        with jax.enable_x64(True):
            assert jax.jit(t2j(until_large))(x) == until_large(torch.from_numpy(x))


def test_in_a_function_that_torch_differentiates():
    def function(x):
        n = x.long().sum().item()
        return torch.func.grad(lambda y: (y * (n * n)).sum())(x)

    with pytest.raises(TypeError, match=r"an integer of Python's, within a transformation"):
        jax.make_jaxpr(t2j(function))(INPUTS[0])


def test_numbers_of_64_bits():
    def function(x):
        n = int(x.sum())
        return (n << 30) >> 28, n >> 70, n & (2**63 - 1), n * 0.1, n / 10, n > 16777216.5, n + 0.1 < n

    with jax.enable_x64(True):
        for x in (np.full(3, 16777217.0), np.full(3, -5.0), np.full(3, 0.0)):
            found, wanted = jax.jit(t2j(function))(x), function(torch.from_numpy(x))
            np.testing.assert_allclose(np.array(found, np.float64), np.array(wanted, np.float64), 1e-15)
            assert found[3].dtype == found[4].dtype == np.float64
        for larger in (lambda n: n | 2**63, lambda n: n // 2**64, lambda n: n + 2**63):
            with pytest.raises(OverflowError, match="beside a number that data decide, which has 64 bits"):
                jax.jit(t2j(lambda x, larger=larger: larger(int(x.sum()))))(x)
