"""Functions of integers, over all pairs of eight bits, and at the edges of wider ones, against PyTorch."""

import math

import jax
import numpy as np
import pytest
import torch

from torch2jax import t2j

DTYPES = [torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64]
DIVIDES = {
    "floor_divide": torch.floor_divide,
    "remainder": torch.remainder,
    "fmod": torch.fmod,
    "div, trunc": lambda a, b: torch.div(a, b, rounding_mode="trunc"),
    "div, floor": lambda a, b: torch.div(a, b, rounding_mode="floor"),
    "in-place //": lambda a, b: a.clone().floor_divide_(b),
}
FUNCTIONS = {
    **DIVIDES,
    "pow": torch.pow,
    "in-place pow": lambda a, b: a.clone().pow_(b),
    "div": torch.div,
    "gcd": torch.gcd,
    "lcm": torch.lcm,
    "and": torch.bitwise_and,
    "xor": torch.bitwise_xor,
    "add": lambda a, b: torch.add(a, b, alpha=3),
    "sub": torch.sub,
    "mul": torch.mul,
    "lt": torch.lt,
    "maximum": torch.maximum,
    "clamp": lambda a, b: torch.clamp(a, min=b),
    "float_power": torch.float_power,
    "abs": lambda a, b: a.abs() + b.neg() * a.sign(),
    "square": lambda a, b: torch.square(a) - b.square(),
    "cumsum": lambda a, b: torch.cumsum(a, 0) + torch.cumprod(b, 0),
    "addcmul": lambda a, b: torch.addcmul(a, a, b, value=3),
}
GROWING = ("mul", "add", "sub", "lcm", "square", "abs", "cumsum", "addcmul", "pow", "in-place pow")
SHIFTS = {"left shift": torch.bitwise_left_shift, "right shift": torch.bitwise_right_shift}
CASTS = [torch.int8, torch.uint8, torch.int16, torch.int32, torch.float16, torch.float32, torch.bool]


def pairs(dtype: torch.dtype, bits: int = 32) -> tuple[torch.Tensor, torch.Tensor]:
    """All pairs of eight bits; of wider integers those of edges, of 64 bits as of as many as arrays have."""
    info = torch.iinfo(dtype)
    if info.bits == 8:
        values = torch.arange(info.min, info.max + 1)
    else:
        most = min(2 ** (bits - 1) - 1, info.max) if info.bits == 64 else info.max
        near = [0, 1, 2, 3, 7, 31, 32, 63, 64, 127, 128, 250, 255, most - 1, most]
        values = torch.tensor([*near, *(-x for x in near if x and info.min)])
    values = values.to(dtype)
    return values.repeat_interleave(len(values)), values.repeat(len(values))


def as_held(tensor: torch.Tensor) -> np.ndarray:
    if jax.config.jax_enable_x64:
        return tensor.numpy()
    physical = {torch.int64: torch.int32, torch.float64: torch.float32}.get(tensor.dtype, tensor.dtype)
    return tensor.to(physical).numpy()


def agree(function, *tensors: torch.Tensor) -> None:
    expected = as_held(function(*tensors))
    for run in (t2j(function), jax.jit(t2j(function))):
        got = np.asarray(run(*map(t2j, tensors)))
        assert got.dtype == expected.dtype
        if expected.dtype.kind == "f":
            np.testing.assert_allclose(got, expected, rtol=2e-6, atol=1e-36)  # XLA flushes what is subnormal
        else:
            differing = np.flatnonzero(got != expected)
            first = [x.flatten()[differing[0]].item() for x in tensors] if len(differing) else []
            assert not len(differing), f"{len(differing)} differ, the first of {first}"


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_of_two(name, dtype):
    a, b = pairs(dtype)
    if name in DIVIDES:
        a, b = a[b != 0], b[b != 0]
    if dtype is torch.int64 and name in GROWING:
        pytest.skip("results of 64 bits, which 32 do not hold")
    if torch.iinfo(dtype).bits > 8 and name == "float_power":
        pytest.skip("powers beyond single precision")
    agree(FUNCTIONS[name], a, b)


@pytest.mark.parametrize("name", [*GROWING, "remainder", "gcd", "left shift"])
def test_functions_of_64_bits(name):
    a, b = pairs(torch.int64, 64)
    function = {**FUNCTIONS, **SHIFTS}[name]
    if name in SHIFTS:
        a, b = a[(b >= 0) & (b < 64)], b[(b >= 0) & (b < 64)]
    with jax.enable_x64(True):
        agree(function, *((a[b != 0], b[b != 0]) if name in DIVIDES else (a, b)))


UNSIGNED = {  # those that PyTorch has for them
    "and": torch.bitwise_and,
    "xor": torch.bitwise_xor,
    "eq": torch.eq,
    "div": torch.div,
    "sum": lambda a, b: torch.stack([a, b]).eq(a).sum(0),
    "where": lambda a, b: torch.where(a == b, a, b),
    "to": lambda a, b: a.to(torch.int8).int() + b.to(torch.float32).int(),
}


@pytest.mark.parametrize("dtype", [torch.uint16, torch.uint32], ids=str)
@pytest.mark.parametrize("name", UNSIGNED)
def test_wider_unsigned_integers(name, dtype):
    info = torch.iinfo(dtype)
    values = torch.tensor([0, 1, 2, 127, 128, 255, 256, 2**15 - 1, 2**15, info.max // 2, info.max - 1, info.max])
    values = values[values < 2**24] if name == "to" else values
    a, b = values.repeat_interleave(len(values)).to(dtype), values.repeat(len(values)).to(dtype)
    agree(UNSIGNED[name], a, b)


@pytest.mark.parametrize("to", [torch.int8, torch.uint8, torch.int16, torch.int32], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_casts_of_numbers_that_32_bits_hold(dtype, to):
    """Narrower integers wrap around; what 32 bits do not hold is not defined in PyTorch (docs/differences.md)."""
    numbers = [0.0, -0.0, 1.5, -1.5, 127.9, 128.0, -129.0, 255.0, 256.0, 300.0, -1.0, 32767.0, 40000.0, 65504.0]
    numbers += [1e6, -3e7, 2147483520.0, -2147483648.0] if dtype == torch.float32 else []
    agree(lambda x: x.to(to), torch.tensor(numbers, dtype=dtype))


@pytest.mark.parametrize("dtype", DTYPES[:4], ids=str)
@pytest.mark.parametrize("name", SHIFTS)
def test_shifts_by_less_than_the_width(name, dtype):
    a, b = pairs(dtype)
    is_less = (b >= 0) & (b < torch.iinfo(dtype).bits)
    agree(SHIFTS[name], a[is_less], b[is_less])


POWERS = [0, 1, 2, 3, 7, 31, 63, 64, 65, 100, 127, 250, 255]


@pytest.mark.parametrize(
    ("dtype", "exponent"), [(x, n) for x in (torch.int8, torch.uint8) for n in POWERS if n <= torch.iinfo(x).max]
)
def test_powers_of_and_by_numbers(dtype, exponent):
    values = pairs(dtype)[1][:256]
    bases, constant = values[values >= 0], torch.tensor(exponent, dtype=dtype)
    agree(lambda x: x**exponent, values)
    agree(lambda x: exponent**x, bases)
    agree(lambda x: constant**x, bases)
    assert int(t2j(lambda: 3**constant)()) == int(3**constant)


@pytest.mark.parametrize("number", [300, -300, 2.5])
def test_float_power_by_a_number_that_the_integers_do_not_hold(number):
    values = pairs(torch.int8)[1][:256]
    agree(lambda x: torch.float_power(x, number), values[values > 0])


def test_the_least_integer_has_a_greatest_common_divisor():
    """``jnp.gcd`` never ends for it."""
    agree(torch.gcd, torch.tensor([-128, -128, -128], dtype=torch.int8), torch.tensor([0, 6, -128], dtype=torch.int8))


@pytest.mark.parametrize("to", CASTS, ids=str)
@pytest.mark.parametrize("dtype", DTYPES[:4], ids=str)
def test_casts(dtype, to):
    agree(lambda x: x.to(to), pairs(dtype)[0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_powers_of_two_that_are_no_normal_numbers(dtype):
    """``ldexp`` of what is: XLA takes smaller ones for zero."""
    info, most = torch.finfo(dtype), 128 if dtype == torch.float32 else 1024
    numbers = [1.0, -3.0, 1.2345, 2.0 ** (most - 2), info.tiny, info.tiny * 8, 0.0, -0.0, math.inf, math.nan]
    exponents = [0, 1, most - 1, most, most + 5, 2 * most - 3, 2 * most - 2, 3 * most, 100_000]
    exponents += [-n for n in exponents]
    x = torch.tensor(numbers, dtype=dtype).repeat_interleave(len(exponents))
    n = torch.tensor(exponents).repeat(len(numbers))
    expected = torch.ldexp(x, n).numpy()
    with jax.enable_x64(dtype == torch.float64):
        for run in (t2j(torch.ldexp), jax.jit(t2j(torch.ldexp))):
            got = np.asarray(run(t2j(x), t2j(n)))
            is_normal = ~((np.abs(expected) < info.tiny) & (np.abs(got) < info.tiny))
            np.testing.assert_array_equal(got[is_normal], expected[is_normal])
