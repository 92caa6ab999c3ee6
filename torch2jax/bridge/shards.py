"""Calls on sharded arrays: each device calls PyTorch on its own shard, or the call is refused."""

import math
from collections.abc import Callable, Sequence

import jax
from jax.core import Tracer
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from .primitive import Result


def sharding_of(array: object) -> NamedSharding | None:
    """The sharding of an array over the axes of a mesh, or None if every device has all of it."""
    if isinstance(array, jax.Array) and not isinstance(array, Tracer):
        sharding = array.sharding
        if sharding.is_fully_replicated or len(sharding.device_set) == 1:
            return None
        if not isinstance(sharding, NamedSharding):
            raise ValueError(f"torch2jax got an array sharded as {sharding}; wanted a NamedSharding over a mesh")
        return sharding
    sharding = getattr(jax.typeof(array), "sharding", None)
    return sharding if isinstance(sharding, NamedSharding) and _axes(sharding.spec) else None


def _axes(spec: PartitionSpec) -> list[str]:
    axes = []
    for entry in spec:
        if entry is not None and entry is not PartitionSpec.UNCONSTRAINED:
            axes.extend(entry if isinstance(entry, tuple) else (entry,))
    return axes


def refuse_sharded(arrays: Sequence) -> None:
    """Raises if an array is sharded: a PyTorch function needs all of its inputs, and nothing is gathered silently.

    Raises:
        ValueError: one is.
    """
    for array in arrays:
        sharding = sharding_of(array)
        if sharding is not None:
            raise ValueError(
                f"torch2jax got an input sharded as {sharding.spec} over the mesh {sharding.mesh.shape_tuple} and no "
                "out_specs=. Pass out_specs= to call the function on each shard, call it inside jax.shard_map, or "
                "gather the input first, with jax.sharding.reshard(x, jax.P())"
            )


def map_shards(call: Callable, arrays: Sequence, out_specs: object, structure: object) -> Callable | None:
    """The function that calls ``call`` on every device with its shards, or None if no array is sharded.

    Args:
        call: takes the shards in the structure of the arguments.
        arrays: concrete, or traced with explicit mesh axes.
        out_specs: how the results of the shards make up the whole ones, as in ``jax.shard_map``.
        structure: of the arguments.

    Raises:
        ValueError: the arrays are sharded over different meshes.
    """
    shardings = [sharding_of(array) for array in arrays]
    meshes = {sharding.mesh for sharding in shardings if sharding is not None}
    if not meshes:
        return None
    if len(meshes) > 1:
        raise ValueError(f"torch2jax got inputs sharded over different meshes: {meshes}")
    (mesh,) = meshes
    specs = [PartitionSpec() if sharding is None else sharding.spec for sharding in shardings]
    names = {name for spec in specs for name in _axes(spec)}
    _check_axes(out_specs, mesh, names)
    in_specs = jax.tree.unflatten(structure, specs)
    return jax.shard_map(call, mesh=mesh, in_specs=in_specs, out_specs=out_specs, axis_names=names)


def _check_axes(out_specs: object, mesh: Mesh | AbstractMesh, names: set[str]) -> None:
    for spec in jax.tree.leaves(out_specs, is_leaf=lambda node: isinstance(node, PartitionSpec)):
        for name in _axes(spec):
            if name not in names:
                raise ValueError(f"out_specs names the mesh axis {name!r}, over which no input is sharded ({names})")


def local_results(
    results: tuple[Result, ...], structure: object, out_specs: object, mesh: Mesh | AbstractMesh
) -> tuple[Result, ...]:
    """The results of one shard, given those of all together."""
    is_spec = lambda node: isinstance(node, PartitionSpec)
    tree = jax.tree.unflatten(structure, results)
    is_result = lambda node: isinstance(node, Result)
    spread = lambda spec, part: jax.tree.map(lambda _: spec, part, is_leaf=is_result)
    specs = jax.tree.leaves(jax.tree.map(spread, out_specs, tree, is_leaf=is_spec), is_leaf=is_spec)
    return tuple(_local(result, spec, mesh) for result, spec in zip(results, specs, strict=True))


def _local(result: Result, spec: PartitionSpec, mesh: Mesh | AbstractMesh) -> Result:
    shape = list(result.shape)
    for dimension, entry in enumerate(spec):
        if entry is not None:
            names = entry if isinstance(entry, tuple) else (entry,)
            parts = math.prod(mesh.shape[name] for name in names)
            if shape[dimension] % parts:
                raise ValueError(f"output_shapes has the size {shape[dimension]}, which {parts} shards do not divide")
            shape[dimension] //= parts
    return Result(shape, result.dtype)
