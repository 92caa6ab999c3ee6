"""Places arrays, or the shapes of future arrays, on devices by specs."""

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
    """Returns the sharding of each leaf of a tree: a state dictionary, gradients, an optimizer state.

    A leaf gets the spec of the last key on its path that is in `specs`, if that spec fits its shape. So optax's
    moments, which are trees like the parameters, get the specs of the parameters. Other leaves (a counter) are
    replicated.

    Args:
        tree: arrays, or objects with their shapes, such as the result of `jax.eval_shape`.
        specs: the result of `specs`.
        mesh: the mesh; None for the current one (`jax.set_mesh`).

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
    """Places each array of a tree on the devices, sharded by `specs`.

    Args:
        tree: arrays or tensors, which are copied one after another, tensors shard by shard; and
            `jax.ShapeDtypeStruct` or tensors without values, which only get the sharding.
        specs: the result of `specs`.
        mesh: the mesh; None for the current one (`jax.set_mesh`). It may be abstract if nothing has values.

    Raises:
        TypeError: `tree` is a module, not a state.
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
