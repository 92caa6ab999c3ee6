"""Operators over lists of tensors: what they give back, and what they refuse. Their values are in the database."""

import inspect

import jax.numpy as jnp
import pytest
import torch

from tests.ops.database import compare_trees
from torch2jax import t2j

IN_PLACE = [
    name
    for name in dir(torch)
    if name.startswith("_foreach_") and name.endswith("_") and inspect.isbuiltin(getattr(torch, name))
]


OF_SEVERAL = [
    "add",
    "addcdiv_",
    "addcmul",
    "clamp_min",
    "copy_",
    "div",
    "lerp",
    "maximum_",
    "mul_",
    "norm",
    "pow",
    "sub",
]
X = torch.tensor([0.5, 2.0])


def _named(overload) -> dict:
    """An argument of each of an overload's that has no default, or is of numbers, by its name."""
    of_all = torch.tensor([2.0, 3.0]) if "addc" in overload.name() else torch.tensor(2.0)
    kinds = {"List[Tensor]": lambda: [X.clone(), X + 1], "List[number]": lambda: [2.0, 3.0], "number": lambda: 2.0}
    kinds["Tensor"] = of_all.clone
    return {x.name: kinds[str(x.type)]() for x in overload._schema.arguments if str(x.type) in kinds}


@pytest.mark.parametrize("name", OF_SEVERAL)
def test_arguments_by_name(name):
    name = f"_foreach_{name}"
    packet, tried = getattr(torch.ops.aten, name), 0
    for overload in map(packet.__getattr__, packet.overloads()):
        if overload._schema.is_mutable and not name.endswith("_"):
            continue  # an `out`

        def function(overload=overload):
            arguments = _named(overload)
            return getattr(torch, name)(**arguments) or arguments["self"]

        try:
            expected = function()
        except (TypeError, RuntimeError):
            continue
        compare_trees(t2j(function)(), expected)
        tried += 1
    assert tried


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


@pytest.mark.parametrize("name", ["_foreach_maximum_", "_foreach_minimum_", "_foreach_clamp_max_"])
@pytest.mark.parametrize("other", [2.5, [2.5, 0.5]], ids=str)
def test_whole_numbers_cannot_be_written_what_is_none(name, other):
    def function():
        return getattr(torch, name)([torch.tensor([1, 5]), torch.tensor([2])], other)

    for run in (function, t2j(function)):
        with pytest.raises(RuntimeError, match="result type Float can't be cast"):
            run()


@pytest.mark.parametrize("name", ["_foreach_add", "_foreach_add_"])
def test_the_kind_of_sequence(name):
    def function():
        kinds.append(type(getattr(torch, name)([torch.ones(2)], 1)))

    kinds = []
    function()
    t2j(function)()
    assert kinds[0] is kinds[1]
