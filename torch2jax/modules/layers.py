"""States whose repeated layers are stacked: one array for the same weight of all layers, as a loop takes it.

``layers.*.mlp.weight``, of shape ``(L, …)``, is ``layers.0.mlp.weight`` to ``layers.{L-1}.mlp.weight``. Where not all
layers have the weight, ``layers.1::2.mlp.weight`` is that of the layers 1, 3, 5, …, as many as its first dimension has.
"""

import re
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec

from ..tensors.interop import without_values
from ..tensors.traced import is_traced

_LEAST = 2
_LEAST_OF_SOME = 4  # where not all layers have a weight: fewer may be no row
_ALL = "*"
_SOME = re.compile(r"(\d+)::(\d+)")


def stack_layers(state: Mapping[str, object]) -> dict[str, Any]:
    """Returns a state in which the weights of repeated layers are stacked.

    Weights of consecutive layers (``layers.0.weight``, ``layers.1.weight``, …) with the same shape and dtype become one
    array under the name ``layers.*.weight``, with the layers along its first dimension. Weights that only layers at
    equal distances have, such as experts in every second layer, become ``layers.1::2.weight``. Everything else, and
    every tensor that layers share, keeps its own name. Translated modules accept such a state: under ``jax.jit`` the
    layers are then one `jax.lax.scan`, which compiles in the time of one layer.

    Args:
        state: arrays by name, from ``t2j(module.state_dict())``, ``split()`` or `load_state`; tensors, which are copied
            only into the stacked arrays; or other values by the names of a state: a `jax.ShapeDtypeStruct`, or a
            `PartitionSpec` or `NamedSharding`, whose result does not shard the dimension of the layers.
    """
    found: dict[str, object] = {}
    groups = _groups(state)
    for name, value in state.items():
        group = groups.get(name)
        if group is None:
            found[name] = value
        elif group[0] not in found:
            found[group[0]] = stacked([state[each] for each in group[1]])
    return found


def unstack_layers(state: Mapping[str, object]) -> dict[str, Any]:
    """Undoes `stack_layers`: returns a state with an entry for each layer.

    Raises:
        ValueError: the state has an entry for all layers and also one for a single layer of these.
        TypeError: an entry for all layers, such as a `PartitionSpec`, does not say how many layers there are.
    """
    found: dict[str, object] = {}
    for name, value in state.items():
        for each, part in _apart(name, value) if _word_of_layers(name) else [(name, value)]:
            if each in found:
                raise ValueError(f"the state has two entries for {each!r}, one of which is for all layers; wanted one")
            found[each] = part
    return found


def has_layers(state: object) -> bool:
    """Returns True if a state has entries for all layers together."""
    return isinstance(state, Mapping) and any(isinstance(name, str) and _word_of_layers(name) for name in state)


def names_of_layers(name: str, state: Mapping[str, object]) -> list[str]:
    """The names in each layer of an entry for all layers; none of another entry."""
    shape = getattr(state[name], "shape", ())
    return [_of_layer(name, i) for i in range(shape[0])] if shape and _word_of_layers(name) else []


def names_when_stacked(state: Mapping[str, object]) -> dict[str, list[str]]:
    """The names of entries after `stack_layers`, each with the names of its layers' entries."""
    groups = _groups(state)
    return dict(groups.get(name, (name, [name])) for name in state)


def restacked(
    state: Mapping[str, object], given: Mapping[str, object], apart: Mapping[str, object]
) -> dict[str, object]:
    """A state with the entries for all layers that another has.

    Args:
        given: that other, which had these.
        apart: what `unstack_layers` gave of it.
    """
    names: dict[str, tuple[str, list[str]]] = {}
    for name in given:
        layers = names_of_layers(name, given)
        names.update(dict.fromkeys(layers, (name, layers)))
    found: dict[str, object] = {}
    for name, value in state.items():
        if name not in names:
            found[name] = value
            continue
        stacked_name, layers = names[name]
        if stacked_name not in found:
            is_same = all(state[each] is apart[each] for each in layers)
            found[stacked_name] = given[stacked_name] if is_same else stacked([state[each] for each in layers])
    return OrderedDict(found) if isinstance(given, OrderedDict) else found


def _groups(state: Mapping[str, object]) -> dict[str, tuple[str, list[str]]]:
    """The names of all entries to stack, by the name of the stacked one, and those of all of them."""
    layers: dict[tuple[str, str], dict[int, str]] = {}
    for name in state:
        words = name.split(".")
        at = next((i for i, word in enumerate(words) if word.isdecimal()), None)
        if at is not None:
            around = ".".join(words[:at]), ".".join(words[at + 1 :])
            layers.setdefault(around, {})[int(words[at])] = name
    counts: dict[str, int] = {}  # of layers, by what stands before the number
    for (before, _), names in layers.items():
        counts[before] = max(counts.get(before, 0), max(names) + 1)
    found: dict[str, tuple[str, list[str]]] = {}
    for (before, after), names in layers.items():
        indices = sorted(names)
        ordered = [names[i] for i in indices]
        is_all = len(names) == counts[before]
        row = _ALL if is_all and len(names) >= _LEAST else name_of_row(indices)
        if row is not None and _are_stackable([state[name] for name in ordered]):
            stacked_name = ".".join(word for word in (before, row, after) if word)
            found.update(dict.fromkeys(ordered, (stacked_name, ordered)))
    return found


def name_of_row(indices: Sequence[int]) -> str | None:
    """The word for layers at equal distances: ``1::2`` for 1, 3, 5, 7; None if they are not, or are few."""
    if len(indices) < _LEAST_OF_SOME:
        return None
    start, step = indices[0], indices[1] - indices[0]
    is_row = step > 0 and list(indices) == [start + step * i for i in range(len(indices))]
    return f"{start}::{step}" if is_row else None


def _word_of_layers(name: str) -> str | None:
    """The word in a name that marks an entry for several layers."""
    return next((word for word in name.split(".") if word == _ALL or _SOME.fullmatch(word)), None)


def _are_stackable(values: Sequence[Any]) -> bool:
    first = values[0]
    if isinstance(first, (PartitionSpec, NamedSharding)):
        return all(x == first for x in values)
    if not hasattr(first, "shape") or not hasattr(first, "dtype"):
        return False
    return all(getattr(x, "shape", None) == first.shape and getattr(x, "dtype", None) == first.dtype for x in values)


def stacked(values: Sequence[Any]) -> object:
    """The entry for all layers, stacked from those of each: arrays, tensors, specs, shardings or shapes."""
    first = values[0]
    if isinstance(first, PartitionSpec):
        return PartitionSpec(None, *first)
    if isinstance(first, NamedSharding):
        return NamedSharding(first.mesh, PartitionSpec(None, *first.spec), memory_kind=first.memory_kind)
    if isinstance(first, torch.Tensor):
        if first.is_meta:
            return stacked([without_values(x) for x in values])
        return torch.stack([x.detach() for x in values])
    if isinstance(first, jax.ShapeDtypeStruct):
        sharding = None if first.sharding is None else stacked([first.sharding])
        return jax.ShapeDtypeStruct((len(values), *first.shape), first.dtype, sharding=sharding)
    if isinstance(first, np.ndarray):
        return np.stack(values)
    sharding = None if is_traced(first) else first.sharding
    array = jnp.stack(values)
    return jax.device_put(array, stacked([sharding])) if isinstance(sharding, NamedSharding) else array


def _apart(name: str, value: Any) -> list[tuple[str, object]]:
    if not getattr(value, "shape", ()):
        raise TypeError(
            f"got a {type(value).__name__} for {name!r}; wanted an array whose first dimension is the layers"
        )
    return [(_of_layer(name, i), _element(value, i)) for i in range(value.shape[0])]


def _of_layer(name: str, index: int) -> str:
    words = name.split(".")
    at = words.index(_word_of_layers(name) or _ALL)
    some = _SOME.fullmatch(words[at])
    start, step = map(int, some.groups()) if some else (0, 1)
    words[at] = str(start + step * index)
    return ".".join(words)


def _element(value: Any, index: int) -> object:
    if isinstance(value, jax.ShapeDtypeStruct):
        return jax.ShapeDtypeStruct(value.shape[1:], value.dtype)
    if isinstance(value, jax.Array):
        return lax.index_in_dim(value, index, keepdims=False)
    return value[index]
