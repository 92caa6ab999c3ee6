"""Sharding constraints of arrays over a mesh."""

from typing import Any

import jax
from jax import lax
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec

from .traced import is_traced


def laid_out(array: jax.Array, mesh: Mesh | AbstractMesh, spec: PartitionSpec) -> jax.Array:
    """The array with a sharding constraint; an array that is not traced stays where the caller has put it.

    Args:
        mesh: one in force comes in its place.
        spec: an entry for each dimension; axes that the code runs within are left out.
    """
    if not is_traced(array):
        return array
    around = jax.sharding.get_abstract_mesh()
    mesh = mesh if around.empty else around
    kinds = dict(zip(mesh.axis_names, mesh.axis_types, strict=True))
    if AxisType.Explicit in kinds.values():
        array = jax.sharding.reshard(array, _explicit(array, spec, kinds))
    if AxisType.Auto in kinds.values():
        array = lax.with_sharding_constraint(array, NamedSharding(mesh, _of_kind(spec, kinds, AxisType.Auto)))
    return array


def _explicit(array: jax.Array, spec: PartitionSpec, kinds: dict[str, AxisType]) -> PartitionSpec:
    """The array's type after the constraint: nothing is left to XLA."""
    now = jax.typeof(array).sharding.spec
    wanted = _of_kind(spec, kinds, AxisType.Explicit)
    given = zip(wanted, (*now, *[None] * (len(wanted) - len(now))), strict=True)
    return PartitionSpec(*[before if entry is PartitionSpec.UNCONSTRAINED else entry for entry, before in given])


def _of_kind(spec: PartitionSpec, kinds: dict[str, AxisType], kind: AxisType) -> PartitionSpec:
    """The spec without the axes of other kinds: within `jax.shard_map` there is no choice of them."""

    def kept(entry: Any) -> Any:
        if entry is PartitionSpec.UNCONSTRAINED:
            return entry
        names = () if entry is None else (entry,) if isinstance(entry, str) else entry
        return tuple(name for name in names if kinds.get(name) is kind) or None

    return PartitionSpec(*map(kept, spec))
