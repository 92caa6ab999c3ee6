"""Arrays, and arrays to be, where the specs say."""

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
import torch
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from ..checkpoints import placed
from ..tensors.interop import without_values
from ..tensors.ties import untied
from .meshes import resolve

__all__ = ["put", "shardings"]


def shardings(tree: Any, specs: Mapping[str, PartitionSpec], mesh: Mesh | AbstractMesh | None = None) -> Any:
    """The sharding of each leaf of a tree: a state dictionary, gradients, an optimizer's state.

    A leaf is known by the last key on the way to it that `specs` has and whose spec fits its shape, as in optax's
    moments, which are trees like the parameters. Any other (a counter) is whole on each device.

    Args:
        tree: arrays, or what has their shapes, as `jax.eval_shape` gives it.
        specs: as `specs` gives it.
        mesh: None for the one in force (`jax.set_mesh`).

    Returns:
        A tree of `NamedSharding` of the same structure: for `jax.device_put`, and for ``in_shardings`` and
        ``out_shardings`` of `jax.jit`.

    Raises:
        ValueError: there is no mesh.
    """
    mesh = resolve(mesh)

    def of(path: tuple, leaf: Any) -> NamedSharding:
        spec = next((specs[key] for key in map(_name, reversed(path)) if key in specs), PartitionSpec())
        return NamedSharding(mesh, spec if _fits(spec, leaf.shape, mesh) else PartitionSpec())

    return jax.tree_util.tree_map_with_path(of, tree)


def put(tree: Any, specs: Mapping[str, PartitionSpec], mesh: Mesh | AbstractMesh | None = None) -> Any:
    """A tree with each array on the devices, and in the parts, that `specs` tells.

    Args:
        tree: arrays or tensors, which are copied there, one after another and of tensors each shard by itself, and
            `jax.ShapeDtypeStruct` or tensors without values, which get the sharding.
        specs: as `specs` gives it.
        mesh: None for the one in force (`jax.set_mesh`). An abstract one serves where nothing has values.

    Raises:
        TypeError: it is a module, and no state.
        ValueError: there is no mesh.
    """

    def place(leaf: Any, sharding: NamedSharding) -> Any:
        if isinstance(leaf, torch.Tensor) and leaf.is_meta:
            leaf = without_values(leaf)
        if isinstance(leaf, jax.ShapeDtypeStruct):
            return leaf.update(sharding=sharding)
        if isinstance(leaf, (torch.Tensor, np.ndarray)):  # JAX might keep numpy's memory, which may be written to
            return placed(leaf, sharding)
        return jax.device_put(leaf, sharding)

    if isinstance(tree, torch.nn.Module):
        raise TypeError(f"put got a {type(tree).__name__}; wanted a tree of arrays or tensors: module.state_dict()")
    tree = untied(tree)
    return jax.tree.map(place, tree, shardings(tree, specs, mesh))


def _name(key: Any) -> Any:
    return next((getattr(key, name) for name in ("key", "name", "idx") if hasattr(key, name)), None)


def _fits(spec: PartitionSpec, shape: tuple[int, ...], mesh: Any) -> bool:
    if len(spec) > len(shape):
        return False
    parts = NamedSharding(mesh, spec)
    try:
        parts.shard_shape(shape)
    except ValueError:
        return False
    return True
