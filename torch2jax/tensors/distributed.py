"""PyTorch's `DTensor`s as sharded arrays: each process puts its part on its device.

A dimension of a `DeviceMesh` is an axis of a `jax.sharding.Mesh` of the same name, and the rank of a process the number
of a device.
"""

import functools
import sys
import types
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
import torch
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor

_OF_CALLS = "torch"
"""The module that classes of a call's own `DTensor`s name, by which libraries tell whose array it is."""


def is_split(kind: type) -> bool:
    """Returns True for PyTorch's `DTensor` and its subclasses, of which each process holds a part."""
    module = sys.modules.get("torch.distributed.tensor")  # takes half a second, and who has one has it
    split = getattr(module, "DTensor", None)  # which is not there while PyTorch still imports the module
    return split is not None and issubclass(kind, split) and kind.__module__ != _OF_CALLS


@functools.cache
def class_of_calls(base: type) -> type:
    """The class of a call's own tensors that are `DTensor`s: of `base`, and of PyTorch's.

    It is made where code has imported PyTorch's, which takes half a second.
    """
    from torch.distributed.tensor import DTensor

    return types.new_class("DTensor", (base, DTensor), exec_body=lambda body: body.update(__module__=_OF_CALLS))


def is_device_mesh(thing: object) -> bool:
    """Returns True if a thing is a `DeviceMesh` of PyTorch."""
    module = sys.modules.get("torch.distributed.device_mesh")
    kind = getattr(module, "DeviceMesh", None)
    return kind is not None and isinstance(thing, kind)


def is_distributed(tensor: torch.Tensor) -> bool:
    """Returns True if a tensor is a `DTensor`."""
    return is_split(type(tensor))


def names_in(mesh: "DeviceMesh") -> tuple[str, ...]:
    """The names of a `DeviceMesh`'s dimensions, also where it has none."""
    return tuple(mesh.mesh_dim_names or (f"dim_{i}" for i in range(mesh.ndim)))


def parts_over(mesh: "DeviceMesh", placements: Iterable[Any]) -> Iterator[tuple[str, int, Any]]:
    """The dimensions of a `DeviceMesh` over which a tensor is split between processes: names, sizes, and placements.

    There are none where each has the whole.
    """
    for name, size, placement in zip(names_in(mesh), mesh.shape, placements, strict=True):
        if size > 1 and not placement.is_replicate():
            yield name, size, placement


def mesh_in_force(mesh: "DeviceMesh") -> Mesh | AbstractMesh | None:
    """The JAX mesh that a `DeviceMesh` stands for at this place in the code; None if none is set.

    That is the one in force (`jax.set_mesh`), if it has axes of these names, of the same sizes or where PyTorch has one
    process; or the one of the devices of these ranks, if there are several.
    """
    around, names, sizes = jax.sharding.get_abstract_mesh(), names_in(mesh), tuple(mesh.shape)
    fits = all(size in (1, around.shape.get(name)) for name, size in zip(names, sizes, strict=True))
    if not around.empty and fits and set(names) <= set(around.axis_names):
        return around
    is_there = np.prod(sizes, dtype=int) > 1 and mesh.mesh.max() < jax.device_count()
    return mesh_of(mesh) if around.empty and is_there else None


def spec_of(mesh: Mesh | AbstractMesh, device_mesh: Any, placements: tuple, shape: tuple[int, ...]) -> PartitionSpec:
    """The `PartitionSpec` of a tensor with these placements over some axes of a mesh.

    What other axes do is left to XLA, and so is a dimension that the devices do not divide.
    """
    entries: list[tuple[str, ...]] = [()] * len(shape)
    for name, placement in zip(names_in(device_mesh), placements, strict=True):
        if placement.is_shard():
            entries[placement.dim] = (*entries[placement.dim], name)
    free = PartitionSpec.UNCONSTRAINED
    empty = free if len(mesh.axis_names) > len(placements) else None
    counts = [int(np.prod([mesh.shape[name] for name in names], dtype=int)) for names in entries]
    lengths = zip(shape, entries, counts, strict=True)
    return PartitionSpec(*[(names or empty) if size % count == 0 else free for size, names, count in lengths])


def mesh_of(mesh: Any) -> Mesh:
    """The mesh of JAX devices with the ranks of a `DeviceMesh`.

    In as many processes as PyTorch has, a rank is the first device of JAX's process of that number; in one process it
    is the device of that number.

    Raises:
        ValueError: there are no such devices.
    """
    ranks = np.asarray(mesh.mesh.tolist())
    if jax.process_count() > 1:
        firsts = {device.process_index: device for device in reversed(jax.devices())}
        devices = [firsts[process] for process in sorted(firsts)]
    else:
        devices = jax.devices()
    if ranks.max() >= len(devices):
        raise ValueError(
            f"got {mesh}, of rank {ranks.max()} and others; JAX has {len(devices)} devices in {jax.process_count()} "
            "processes. Start JAX in as many (jax.distributed.initialize), or give it so many devices"
        )
    names = names_in(mesh)
    grid = np.empty(ranks.shape, object)
    for index in np.ndindex(ranks.shape):
        grid[index] = devices[ranks[index]]
    return Mesh(grid, names, axis_types=(AxisType.Auto,) * len(names))


def split_like(tensor: Any, full: torch.Tensor) -> Any:
    """A whole tensor as a `DTensor` that is split as another one: each process has its part of it."""
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(full, tensor.device_mesh, tensor.placements, src_data_rank=None)


def array_of_distributed(tensor: Any, to_array: Callable[[torch.Tensor], jax.Array]) -> jax.Array:
    """The array of a `DTensor`'s values, with the sharding that its placements say.

    Where PyTorch has one process, its part is the whole: that lies on the mesh in force (`jax.set_mesh`), or as an
    array of any tensor does.

    Args:
        to_array: gives the array of this process's part.

    Raises:
        ValueError: its parts are sums that have not been made (`Partial`), or of unequal sizes; or this process cannot
            know those of others, since JAX does not run in them.
    """
    if tensor.device_mesh.size() == 1:
        return _on_mesh_in_force(tensor, to_array(tensor.to_local()))
    mesh, placements, shape = mesh_of(tensor.device_mesh), tensor.placements, tuple(tensor.shape)
    spec: list[tuple[str, ...]] = [()] * len(shape)
    needs_others = False
    for axis, _, placement in parts_over(tensor.device_mesh, placements):
        if type(placement).__name__ != "Shard":
            raise ValueError(
                f"got a DTensor that is {placement!r} over {axis!r}; wanted Shard(dim) or Replicate(): give "
                "tensor.redistribute(placements=...)"
            )
        spec[placement.dim] = (*spec[placement.dim], axis)
        needs_others = True
    if needs_others and jax.process_count() != torch.distributed.get_world_size():
        raise ValueError(
            f"got a DTensor of shape {shape}, of which this process has a part, and JAX runs in "
            f"{jax.process_count()} process, PyTorch in {torch.distributed.get_world_size()}; wanted as many: call "
            "jax.distributed.initialize in each, or give tensor.full_tensor()"
        )
    sharding = NamedSharding(mesh, PartitionSpec(*[axes or None for axes in spec]))
    for dim, axes in enumerate(spec):
        count = int(np.prod([mesh.shape[axis] for axis in axes], dtype=int))
        if shape[dim] % count:
            raise ValueError(
                f"got a DTensor whose dimension {dim}, of size {shape[dim]}, is split into {count} unequal parts; JAX "
                "has equal ones: give tensor.full_tensor(), and pad or place it"
            )
    local = to_array(tensor.to_local())
    mine = [device for device in sharding.device_set if device.process_index == jax.process_index()]
    return jax.make_array_from_single_device_arrays(shape, sharding, [jax.device_put(local, x) for x in mine])


def _on_mesh_in_force(tensor: "DTensor", array: jax.Array) -> jax.Array:
    around = mesh_in_force(tensor.device_mesh)
    mesh = None if around is None else jax.sharding.get_mesh()
    if around is None or not isinstance(mesh, Mesh) or mesh.empty:
        return array
    entries = spec_of(around, tensor.device_mesh, tuple(tensor.placements), tuple(tensor.shape))
    spec = PartitionSpec(*[None if entry is PartitionSpec.UNCONSTRAINED else entry for entry in entries])
    return jax.device_put(array, NamedSharding(mesh, spec))
