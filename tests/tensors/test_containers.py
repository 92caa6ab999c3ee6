"""Objects that hold tensors are pytrees of JAX's, whatever their leaves are for the moment."""

import dataclasses
import enum
from collections import OrderedDict
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from torch2jax import t2j


class Layer:
    def __init__(self):
        self.keys: Any = None
        self.name, self.lengths = "layer", [1, 2]

    def update(self, keys):
        if self.keys is None:
            self.keys = torch.zeros(4, 2)
        self.lengths.append(len(keys))
        self.keys = torch.cat([self.keys, keys])[len(keys) :]
        return self.keys


class Cache:
    def __init__(self, count=2):
        self.layers = [Layer() for _ in range(count)]
        self.is_updated = {}

    def update(self, keys):
        self.is_updated[0] = True
        for layer in self.layers:
            keys = layer.update(keys)[-1:]
        return self


class Slotted:
    __slots__ = ("__hidden", "name", "x")

    def __init__(self, x):
        self.x, self.name, self.__hidden = x, "slots", x * 2

    @property
    def hidden(self):
        return self.__hidden


@dataclasses.dataclass(frozen=True)
class Frozen:
    x: Any
    factor: float = 2.0


@dataclasses.dataclass
class Output(OrderedDict):
    first: Any = None
    second: Any = None

    def __post_init__(self):
        for field in dataclasses.fields(self):
            if getattr(self, field.name) is not None:
                self[field.name] = getattr(self, field.name)


class Named(dict):
    def __init__(self, values, extra):
        super().__init__(values)
        self.extra, self.kind = extra, "named"


def made():
    x = torch.arange(6.0).reshape(3, 2)
    return [Cache().update(x), Slotted(x), Frozen(x), Output(second=x), Named({"a": x}, x + 1)]


@jax.jit
@t2j
def step(cache, x):
    return cache.update(x)


def test_an_empty_cache_becomes_a_pytree():
    cache = t2j(Cache())
    assert jax.tree.leaves(cache) == []
    after = step(cache, jnp.ones((1, 2)))
    assert [x.shape for x in jax.tree.leaves(after)] == [(4, 2), (4, 2)]
    np.testing.assert_array_equal(step(after, 2 * jnp.ones((1, 2))).layers[1].keys[-2:], [[1, 1], [2, 2]])


def test_what_the_user_has_stays_as_it_is():
    cache = Cache()
    t2j(lambda cache, x: cache.update(x))(t2j(cache), jnp.ones((1, 2)))
    step(t2j(cache), jnp.ones((1, 2)))
    assert cache.is_updated == {}
    assert cache.layers[0].lengths == [1, 2]
    assert cache.layers[0].keys is None
    converted = t2j(cache)
    step(converted, jnp.ones((1, 2)))
    assert converted.is_updated == {}
    assert converted.layers[0].lengths == [1, 2]


@pytest.mark.parametrize("thing", made(), ids=lambda thing: type(thing).__name__)
def test_leaves_may_be_anything(thing):
    thing = t2j(thing)
    leaves, tree = jax.tree.flatten(thing)
    assert leaves
    assert all(isinstance(leaf, jax.Array) for leaf in leaves)
    for leaf in (None, True, 0, object(), "x"):  # as masks, axes and placeholders of JAX's and equinox's are
        other = tree.unflatten([leaf] * len(leaves))
        assert jax.tree.structure(other, is_leaf=lambda x: x is None) == tree
        combined = jax.tree.map(lambda _, x: x, other, thing, is_leaf=lambda x: x is None)
        jax.tree.map(np.testing.assert_array_equal, combined, thing)
    jax.tree.map(
        np.testing.assert_array_equal, jax.jit(lambda x: x, donate_argnums=0)(jax.tree.map(jnp.copy, thing)), thing
    )
    batch = jax.vmap(lambda thing: jax.tree.map(jnp.sin, thing))(thing)
    jax.tree.map(np.testing.assert_allclose, batch, jax.tree.map(jnp.sin, thing))


def test_what_is_kept_beside_the_arrays():
    cache, slotted, frozen, output, named = (t2j(thing) for thing in made())
    assert cache.is_updated == {0: True}
    assert cache.layers[0].lengths == [1, 2, 3]
    assert slotted.name == "slots"
    assert slotted.hidden[1, 1] == 6
    assert frozen.factor == 2.0
    assert output.first is None
    assert "first" not in output
    assert output.second is output["second"]
    assert named.kind == "named"
    assert named.extra[0, 0] == 1


def test_paths():
    paths = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path([t2j(x) for x in made()])]
    assert paths == [
        *("[0].layers[0].keys", "[0].layers[1].keys", "[1]._Slotted__hidden", "[1].x", "[2].x"),
        *("[3]['second']", "[4]['a']", "[4].extra"),
    ]


def test_carried_by_a_scan():
    class Counted(Cache):
        def update(self, keys):
            for layer in self.layers:
                layer.keys = torch.roll(layer.keys, -1, 0) + keys
            return self

    def counted(cache, x):
        cache = t2j(lambda cache, x: cache.update(x))(cache, x)
        return cache, cache.layers[0].keys.sum()

    start = Counted(1)
    start.layers[0].keys = torch.zeros(2, 1)
    end, sums = jax.lax.scan(counted, t2j(start), jnp.arange(3.0))
    assert type(end) is Counted
    assert sums.tolist() == [0, 2, 6]


def test_differing_rests_are_differing_structures():
    one, other = t2j(Frozen(torch.ones(2))), t2j(Frozen(torch.ones(2), 3.0))
    assert jax.tree.structure(one) != jax.tree.structure(other)
    assert jax.tree.structure(one) == jax.tree.structure(t2j(Frozen(torch.zeros(2))))
    assert jax.jit(lambda thing: thing.x * thing.factor)(other)[0] == 3


class Key(enum.Enum):
    B, A = 1, 2


@pytest.mark.parametrize("transform", [lambda f: f, jax.jit, jax.vmap], ids=["eager", "jit", "vmap"])
def test_results_with_keys_that_jax_cannot_sort(transform):
    """They become ordered dictionaries, at any depth; others stay what they are."""

    def function(x):
        result = {Key.B: x, Key.A: {"b": x + 1, "a": [{1: x, "one": x * 2}]}}
        return result if x.sum() > 0 else {Key.B: x - 1, Key.A: {"b": x, "a": [{1: x, "one": x * 3}]}}

    got = transform(t2j(function))(jnp.ones((2, 3)))
    assert type(got) is OrderedDict
    assert list(got) == [Key.B, Key.A]
    assert type(got[Key.A]) is dict
    np.testing.assert_array_equal(got[Key.A]["a"][0]["one"], np.full((2, 3), 2))
    given = OrderedDict({Key.B: jnp.ones(3), Key.A: jnp.ones(3)})
    np.testing.assert_array_equal(jax.jit(t2j(lambda x: x[Key.A] + x[Key.B]))(given), np.full(3, 2))
