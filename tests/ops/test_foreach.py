"""Operators over lists of tensors: what they give back, and what they refuse. Their values are in the database."""

import inspect

import jax.numpy as jnp
import pytest
import torch

from torch2jax import t2j

IN_PLACE = [
    name
    for name in dir(torch)
    if name.startswith("_foreach_") and name.endswith("_") and inspect.isbuiltin(getattr(torch, name))
]


@pytest.mark.parametrize("name", IN_PLACE)
def test_in_place_operators_give_the_list_itself(name):
    operator = getattr(torch, name)
    others = {"lerp_": 2, "addcmul_": 2, "addcdiv_": 2}.get(name.removeprefix("_foreach_"))

    def function(x):
        tensors = [x.clone()]
        for count in (others,) if others else (0, 1):
            try:
                result = operator(tensors, *[[x]] * count)
            except (TypeError, RuntimeError):
                continue
            assert result is tensors
            return tensors[0]
        raise AssertionError("it takes something else")

    t2j(function)(jnp.ones(2))


@pytest.mark.parametrize(
    ("name", "operands"),
    [
        ("add", ([],)),
        ("add", ([1.0, 2.0],)),
        ("add", ([torch.ones(1)] * 2,)),
        ("minimum", ([],)),
        ("lerp", ([], [])),
        ("lerp", ([torch.ones(1)], [1.0, 2.0])),
        ("addcmul", ([torch.ones(1)], [torch.ones(1)], [1.0, 2.0])),
    ],
)
def test_lists_of_other_lengths_are_refused_as_in_pytorch(name, operands):
    operator = getattr(torch, f"_foreach_{name}")
    with pytest.raises(RuntimeError) as expected:
        operator([torch.ones(1)], *operands)
    with pytest.raises(RuntimeError) as found:
        t2j(lambda x: operator([x], *operands))(jnp.ones(1))
    assert str(found.value) == str(expected.value)
