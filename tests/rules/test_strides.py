"""The strides of pointwise results are PyTorch's, for operands of any layout, and for Python numbers beside them."""

import random

import jax
import numpy as np
import pytest
import torch
import torch.nn.functional as F

from torch2jax import t2j

WITH_NUMBERS = {
    "x + 1": lambda x: x + 1,
    "1 - x": lambda x: 1 - x,
    "x * 2.5": lambda x: x * 2.5,
    "x / 3": lambda x: x / 3,
    "3 / x": lambda x: 3 / x,
    "x // 2": lambda x: x // 2,
    "x % 2": lambda x: x % 2,
    "x ** 2": lambda x: x**2,
    "2 ** x": lambda x: 2**x,
    "x > 1": lambda x: x > 1,
    "x & 1": lambda x: x.int() & 1,
    "pow": lambda x: torch.pow(2.0, x),
    "float_power": lambda x: torch.float_power(x, 2),
    "where": lambda x: torch.where(x > 0, x, 0.0),
    "where, first": lambda x: torch.where(x > 0, 1.0, x),
    "clamp": lambda x: x.clamp(0, 1),
    "clamp_min": lambda x: x.clamp_min(0),
    "lerp": lambda x: torch.lerp(x, x, 0.5),
    "fmod": lambda x: x.fmod(2),
    "xlogy": lambda x: torch.xlogy(2.0, x),
    "leaky_relu": F.leaky_relu,
    "hardtanh": F.hardtanh,
    "nan_to_num": lambda x: x.nan_to_num(0.0),
    "masked_fill": lambda x: x.masked_fill(x > 1, 0.0),
    "a tensor without dimensions": lambda x: x * torch.tensor(2.0),
}
OF_TENSORS = {
    "neg": lambda x, y, z: -x,
    "add": lambda x, y, z: x + y,
    "bound": lambda x, y, z: x.clamp(y, z),
    "addcmul": lambda x, y, z: torch.addcmul(x, y, z),
    "where": lambda x, y, z: torch.where(x > 0, y, z),
}


def layout(draw: random.Random, sizes: list[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """A shape and strides: dimensions in any order, with gaps, expanded, or of one element with any stride."""
    order = draw.sample(range(len(sizes)), len(sizes))
    strides, step = [0] * len(sizes), 1
    for dim in order:
        strides[dim] = step
        step *= sizes[dim] * draw.choice([1, 1, 2])
        if sizes[dim] == 1:
            strides[dim] = draw.choice([strides[dim], 1, 2, 7, 24])
    if draw.random() < 0.2:
        strides[draw.randrange(len(sizes))] = 0
    return tuple(sizes), tuple(strides)


def compare(functions, layouts) -> None:
    def strides_of(total) -> list:
        values = torch.arange(2000, dtype=torch.float32) + total
        operands = [values.as_strided(*each) for each in layouts]
        return [(name, function(*operands).stride()) for name, function in functions.items()]

    def run(x):
        said.append(strides_of(x.sum()))
        return x

    said: list = []
    jax.make_jaxpr(t2j(run))(np.zeros(1, np.float32))
    differing = [(got, want) for got, want in zip(said[0], strides_of(0), strict=True) if got != want]
    assert not differing, layouts


@pytest.mark.parametrize("seed", range(4))
def test_numbers(seed):
    draw = random.Random(seed)
    for _ in range(12):
        compare(WITH_NUMBERS, [layout(draw, [draw.choice([1, 1, 2, 3]) for _ in range(draw.randint(1, 5))])])


@pytest.mark.parametrize("seed", range(4))
def test_several_tensors(seed):
    draw = random.Random(seed)
    for _ in range(25):
        sizes = [draw.choice([1, 2, 3]) for _ in range(draw.randint(1, 5))]
        shown = [[draw.choice([size, size, 1]) for size in sizes][draw.choice([0, 0, 1]) :] or [1] for _ in range(3)]
        compare(OF_TENSORS, [layout(draw, each) for each in shown])
