"""What calls whose rest runs once for each side leave in objects from outside."""

import collections
import copy

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from torch2jax import t2j
from torch2jax.runtime.errors import BranchError, EndedCallError


class Box:
    def __init__(self):
        self.value, self.count = torch.ones(3), 0


OUTER = Box()


def _parts(x):
    """A list whose length data decide, so that the rest of the code goes into both sides."""
    if x.sum() > 0:
        return [x]
    return [x, x * 2]


def _on_both_sides(x):
    parts = _parts(x)
    OUTER.value = x * len(parts)
    return OUTER.value + 1


def _on_one_side(x):
    parts = _parts(x)
    if len(parts) > 1:
        OUTER.value = x * len(parts)
    return OUTER.value + 1


def _number_of_data(x):
    parts = _parts(x)
    if x[0] > 0:
        OUTER.count += len(parts)
    return OUTER.count + x


def _number(x):
    parts = _parts(x)
    OUTER.count = len(parts)
    return OUTER.count + x


def _known_tensor(x):
    parts = _parts(x)
    OUTER.value = torch.ones(3) * len(parts)
    return OUTER.value + x


def _text(x):
    OUTER.count = "abc"[: len(_parts(x))]
    return x * len(OUTER.count)


def _number_or_text(x):
    parts = _parts(x)
    if len(parts) > 1:
        OUTER.count = "many"
    return x * len(parts)


def _number_or_one_of_data(x):
    parts = _parts(x)
    OUTER.count = 3
    if len(parts) == 1 and x[0] > 0:
        OUTER.count = 3 + x[1].item()
    return OUTER.count + x


@pytest.fixture(autouse=True)
def _outer(monkeypatch):
    monkeypatch.setattr(OUTER, "value", torch.ones(3))
    monkeypatch.setattr(OUTER, "count", 0)


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("function", [_on_both_sides, _on_one_side, _number_of_data, _number, _number_or_one_of_data])
def test_what_each_side_computes(function, sign):
    expected = function(torch.ones(3) * sign)
    OUTER.value, OUTER.count = torch.ones(3), 0
    np.testing.assert_array_equal(jax.jit(t2j(function))(jnp.ones(3) * sign), expected)


@pytest.mark.parametrize("function", [_on_both_sides, _on_one_side])
def test_tensors_that_any_side_has_left_are_gone(function):
    jax.jit(t2j(function))(jnp.ones(3))
    with pytest.raises(EndedCallError):
        OUTER.value + 1


@pytest.mark.parametrize("function", [_number_of_data, _number, _number_or_one_of_data])
def test_numbers_of_data_are_put_back(function):
    jax.jit(t2j(function))(jnp.ones(3))
    assert OUTER.count == 0


def _same_number(x):
    parts = _parts(x)
    OUTER.count += 1
    return x * len(parts)


def test_numbers_that_no_data_decide_stay():
    jax.jit(t2j(_same_number))(jnp.ones(3))
    assert OUTER.count == 1


@pytest.mark.parametrize("function", [_known_tensor, _text, _number_or_text])
def test_what_would_be_of_the_last_side_is_refused_and_put_back(function):
    before = OUTER.value
    with pytest.raises(BranchError, match="each leaves another"):
        jax.jit(t2j(function))(jnp.ones(3))
    assert OUTER.value is before
    assert OUTER.count == 0


def test_a_refused_call_leaves_nothing():
    def lists(x):
        OUTER.count += 1
        return _parts(x)

    with pytest.raises(BranchError, match="their results differ"):
        jax.jit(t2j(lists))(jnp.ones(3))
    assert OUTER.count == 0


def _sets_item(kept):
    kept["a"][0] = 5


def _deletes_item(kept):
    del kept["d"]["k"]


MUTATIONS = {
    "list.append": lambda kept: kept["a"].append(1),
    "list.sort": lambda kept: kept["a"].sort(),
    "dict.update": lambda kept: kept["d"].update(z=1),
    "set.add": lambda kept: kept["s"].add(5),
    "deque.append": lambda kept: kept["q"].append(5),
    "an item": _sets_item,
    "no item": _deletes_item,
}


@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize("name", MUTATIONS)
def test_containers_that_one_side_changes_are_put_back(name, is_first):
    def function(kept, x):
        parts = _parts(x)
        if (len(parts) == 1) == is_first:
            MUTATIONS[name](kept)
        return x * len(parts)

    kept = {"a": [2, 1], "d": {"k": 1}, "s": {1}, "q": collections.deque([1])}
    before = copy.deepcopy(kept)
    np.testing.assert_array_equal(jax.jit(lambda x: t2j(function)(kept, x))(jnp.ones(3)), np.ones(3))
    assert kept == before
