"""Partition specs of a module's tensors over a mesh, and their placement on its devices."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

import jax
import numpy as np
import torch
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from ..modules.checkpoints import placed
from ..tensors.interop import untied, without_values
from ..tensors.traced import is_traced
from .plans import EXPERTS, TENSOR, ShardingPlan

Axes = str | tuple[str, ...] | None
"""One or several axes of a mesh, or none."""


def resolve(mesh: Mesh | AbstractMesh | None) -> Mesh | AbstractMesh:
    """The mesh, or the one in force.

    Raises:
        ValueError: there is none.
    """
    if mesh is not None:
        return mesh
    abstract = jax.sharding.get_abstract_mesh()
    if abstract.empty:
        raise ValueError("no mesh was given, and none is in force: pass mesh=, or enter `with jax.set_mesh(mesh):`")
    if is_traced(jax.lax.full((), 0)):  # which devices they are, a trace does not tell
        return abstract
    concrete = jax.sharding.get_mesh()
    return abstract if concrete.empty else concrete


def names_of(axes: Axes) -> tuple[str, ...]:
    """The names of axes, also of one or none."""
    return () if axes is None else (axes,) if isinstance(axes, str) else tuple(axes)


def expect_axes(mesh: Mesh | AbstractMesh, **axes: Axes) -> None:
    """Refuses axes, by what they are for, that cannot all be used.

    Raises:
        ValueError: the mesh has no such axis, or one is given twice.
    """
    given = [name for each in axes.values() for name in names_of(each)]
    for name in given:
        if name not in mesh.axis_names:
            raise ValueError(f"got the axis {name!r}; the mesh has {', '.join(map(repr, mesh.axis_names))}")
        if given.count(name) > 1:
            listed = ", ".join(f"{purpose}={each!r}" for purpose, each in axes.items())
            raise ValueError(f"got {listed}; wanted different axes")


def size_of(mesh: Any, axes: Iterable[str]) -> int:
    """The number of devices along some axes."""
    return math.prod(mesh.shape[axis] for axis in axes)


def specs(
    module: torch.nn.Module,
    mesh: Mesh | AbstractMesh | None = None,
    *,
    tensor: Axes = None,
    experts: Axes = None,
    fsdp: Axes = None,
    plan: object = None,
) -> dict[str, PartitionSpec]:
    """Returns how to shard each tensor of ``module.state_dict()`` over the axes of a mesh.

    Args:
        module: the module, which may be on the meta device; it is only read.
        mesh: the mesh, of which only the sizes matter; None for the current one (`jax.set_mesh`).
        tensor: the axis, or axes, of tensor parallelism, by `plan`.
        experts: the axis, or axes, of expert parallelism, by transformers' ``_ep_plan`` or by ``"grouped_gemm"`` in
            `plan`.
        fsdp: the axis, or axes, that shard everything else: each tensor of two dimensions or more is split along the
            largest dimension that the number of devices divides and that is not split yet. Without such a dimension,
            it is replicated.
        plan: styles by path, as `torch.distributed.tensor.parallel.parallelize_module` takes them, or their names in
            transformers; None for the ``_tp_plan`` of a transformers model.

    Returns:
        A `PartitionSpec` for each name of the state, in its order. Tied weights have one for all of their names.

    Raises:
        ValueError: the mesh lacks an axis, an axis is given twice, the number of devices does not divide a dimension
            that the plan splits, the plan has an unknown style, or there is no plan.
        TypeError: the plan has a style of another kind.
    """
    mesh = resolve(mesh)
    expect_axes(mesh, tensor=tensor, fsdp=fsdp)
    expect_axes(mesh, experts=experts)
    axes, over = {TENSOR: names_of(tensor), EXPERTS: names_of(experts)}, names_of(fsdp)
    styles = ShardingPlan(module, plan, {kind: bool(names) for kind, names in axes.items()})
    parts = dict(module.named_modules())
    found: dict[int, PartitionSpec] = {}
    state = {name: x for name, x in module.state_dict(keep_vars=True).items() if isinstance(x, torch.Tensor)}
    for name, value in state.items():
        style = styles.of_parameter(name)
        if style is None or not axes[style.axis]:
            continue
        owner, _, leaf = name.rpartition(".")
        dim = style.dimension(parts[owner], leaf, value)
        if dim is not None and id(value) not in found:
            found[id(value)] = _along(value, dim, axes[style.axis], mesh, name)
    result = {name: found.get(id(value), PartitionSpec()) for name, value in state.items()}
    return {name: _spread(state[name], spec, over, mesh) for name, spec in result.items()}


def _along(value: torch.Tensor, dim: int, axes: tuple[str, ...], mesh: Mesh | AbstractMesh, name: str) -> PartitionSpec:
    count = size_of(mesh, axes)
    if value.shape[dim] % count:
        raise ValueError(
            f"the plan splits dimension {dim} of {name!r}, of shape {tuple(value.shape)}, over the {count} devices of "
            f"{', '.join(map(repr, axes))}, which do not divide it; pass a plan= with another style for it, such as "
            "'replicate'"
        )
    return PartitionSpec(*[None] * dim, _entry(axes))


def _spread(
    value: torch.Tensor, spec: PartitionSpec, axes: tuple[str, ...], mesh: Mesh | AbstractMesh
) -> PartitionSpec:
    """Splits the largest dimension that can be, over the axes that are not in use yet."""
    used = {name for entry in spec for name in names_of(entry)}
    axes = tuple(axis for axis in axes if axis not in used)
    if not axes or value.ndim < 2:
        return spec
    entries = [*spec, *[None] * (value.ndim - len(spec))]
    count = size_of(mesh, axes)
    fitting = [dim for dim in range(value.ndim) if entries[dim] is None and value.shape[dim] % count == 0]
    if not fitting:
        return spec
    entries[max(fitting, key=lambda dim: value.shape[dim])] = _entry(axes)
    return PartitionSpec(*entries)


def _entry(axes: tuple[str, ...]) -> str | tuple[str, ...]:
    return axes[0] if len(axes) == 1 else axes


def shardings(tree: object, specs: Mapping[str, PartitionSpec], mesh: Mesh | AbstractMesh | None = None) -> Any:
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


def put(tree: object, specs: Mapping[str, PartitionSpec], mesh: Mesh | AbstractMesh | None = None) -> Any:
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

    def put_leaf(leaf: object, sharding: NamedSharding) -> object:
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
    return jax.tree.map(put_leaf, tree, shardings(tree, specs, mesh))


def _name(key: object) -> Any:
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
