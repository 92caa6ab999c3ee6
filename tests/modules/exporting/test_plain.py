"""Trees of dictionaries, lists and tuples."""

import collections
import dataclasses

import jax
import jax.numpy as jnp
import torch

from torch2jax import t2j
from torch2jax.modules.exporting.export import plain

Pair = collections.namedtuple("Pair", ["first", "second"])


@dataclasses.dataclass
class Found:
    boxes: torch.Tensor
    rest: list


def test_containers_become_plain():
    def run(x):
        return Found(x, [Pair(x + 1, None), collections.OrderedDict(b=x, a=x + 2)]), torch.Size((2, 3))

    tree = plain(jax.jit(t2j(run))(jnp.zeros(2)))
    assert type(tree) is tuple
    assert tree[1] == (2, 3)
    found = tree[0]
    assert list(found) == ["boxes", "rest"]
    first, second = found["rest"]
    assert type(first) is tuple
    assert type(second) is dict
    assert first[1] is None
    assert (second["a"] == 2).all()


def test_leaves_stay():
    x = jnp.ones(3)
    assert plain(x) is x
    assert plain(None) is None
    assert plain([]) == []
    assert plain({"a": ()}) == {"a": ()}


def test_keys_are_strings():
    assert plain({0: 1.0, 10: 2.0}) == {"0": 1.0, "10": 2.0}
