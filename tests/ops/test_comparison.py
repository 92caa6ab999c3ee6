"""Comparisons of half precision with numbers that it does not hold."""

import operator

import jax
import numpy as np
import pytest
import torch

from torch2jax import t2j

COMPARISONS = {
    **{name: getattr(operator, name) for name in ("eq", "ne", "lt", "le", "gt", "ge")},
    "of a number": lambda x, y: y < x,
    "by method": lambda x, y: x.gt(y),
    "fmod": torch.fmod,
    "remainder": torch.remainder,
    "with a tensor of no dimensions": lambda x, y: x > torch.tensor(y),
    "round": lambda x, y: x.round(decimals=1),
}


@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", COMPARISONS)
def test_numbers_are_rounded_first(name, dtype, jit):
    numbers = (0.1, 0.3, -0.1, 0.7, 3)
    x = torch.tensor([*numbers, 0.0, 1.0, -2.34375, float("nan")]).to(dtype)

    def compare(x):
        return [COMPARISONS[name](x, number) for number in numbers]

    translated = t2j(compare)
    for got, expected in zip((jax.jit(translated) if jit else translated)(t2j(x)), compare(x), strict=True):
        np.testing.assert_array_equal(np.asarray(got).astype(float), expected.double())


def test_they_are_compared_as_they_are():
    jaxpr = str(jax.make_jaxpr(t2j(lambda x: x > 0.1))(t2j(torch.ones(2, dtype=torch.bfloat16))))
    assert "convert_element_type" not in jaxpr
