"""A `DeviceMesh` within `jax.shard_map`: its dimensions are the mesh axes with the same names."""

import math
from typing import Any

import torch
from jax import lax

from ...calls.call import current
from ...internals.guards import DisableTorchFunction
from ...patches import runs_instead_of
from .groups import MeshGroup, default_group, group_of_axes, is_alone

__all__ = ["groups_of"]

_MODULE = "torch.distributed.device_mesh"


@runs_instead_of(_MODULE + ".init_device_mesh", with_original=True)
def _init_device_mesh(original, device_type, mesh_shape, *, mesh_dim_names=None, backend_override=None):
    whole = default_group()
    if whole is None:
        return original(device_type, mesh_shape, mesh_dim_names=mesh_dim_names, backend_override=backend_override)
    shape = tuple(mesh_shape)
    if mesh_dim_names is None and whole.sizes == shape:
        mesh_dim_names = whole.axes
    if mesh_dim_names is None or len(set(mesh_dim_names)) != len(shape) or len(mesh_dim_names) != len(shape):
        raise RuntimeError(
            f"init_device_mesh got the shape {shape} and the names {mesh_dim_names}; wanted a name for each dimension, "
            f"those of axes of jax.shard_map: {dict(zip(whole.axes, whole.sizes, strict=True))}"
        )
    for name, size in zip(mesh_dim_names, shape, strict=True):
        _group(name, size)
    return _made(device_type, shape, tuple(mesh_dim_names))


def _made(device_type: str, shape: tuple[int, ...], names: tuple[str, ...]) -> Any:
    """A mesh without process groups."""
    from torch.distributed.device_mesh import DeviceMesh

    with DisableTorchFunction(), torch.device("cpu"):
        ranks = torch.arange(math.prod(shape)).reshape(shape)
        return DeviceMesh(device_type, ranks, mesh_dim_names=names, _init_backend=False, _rank=0)


def _group(name: str, size: int) -> MeshGroup:
    """The group of the axis of a name.

    Raises:
        ValueError: there is none, or it is of another size.
    """
    if is_alone():
        whole = default_group()
        assert whole is not None
        return whole
    group = group_of_axes((name,))
    if group.size() != size:
        raise ValueError(
            f"a DeviceMesh has the dimension {name!r} of size {size}; the axis of jax.shard_map has {group.size()} "
            "devices"
        )
    return group


def groups_of(mesh: Any) -> tuple[MeshGroup, ...] | None:
    """The groups of the dimensions of a mesh; None if its names are not those of axes that the code is within."""
    names = mesh.mesh_dim_names
    if current() is None or not names or not (is_alone() or all(map(_is_axis, names))):
        return None
    return tuple(_group(*each) for each in zip(names, mesh.shape, strict=True))


def _is_axis(name: str) -> bool:
    try:
        lax.axis_size(name)
    except NameError:
        return False
    return True


@runs_instead_of(_MODULE + ":DeviceMesh.__getitem__", with_original=True)
def _getitem(original, self, mesh_dim_names):
    names = (mesh_dim_names,) if isinstance(mesh_dim_names, str) else tuple(mesh_dim_names)
    if groups_of(self) is None:
        whole = default_group()
        if whole is not None:
            raise ValueError(
                f"got a part of a DeviceMesh with the dimensions {self.mesh_dim_names} within jax.shard_map over "
                f"{whole.axes}; wanted the same names, or take the part of it before the call and say in groups= "
                "which axis it stands for"
            )
        return original(self, mesh_dim_names)
    missing = [name for name in names if name not in self.mesh_dim_names]
    if missing:
        raise KeyError(f"got the dimension {missing[0]!r} of a DeviceMesh; it has {self.mesh_dim_names}")
    sizes = dict(zip(self.mesh_dim_names, self.shape, strict=True))
    return _made(self.device_type, tuple(sizes[name] for name in names), names)


@runs_instead_of(_MODULE + ":DeviceMesh.get_group", with_original=True)
def _get_group(original, self, mesh_dim=None):
    groups = groups_of(self)
    if groups is None:
        return original(self, mesh_dim)
    if mesh_dim is None:
        if len(groups) > 1:
            raise RuntimeError(
                f"Found the DeviceMesh have {len(groups)} dimensions Optional kwarg `mesh_dim` needs to be specified "
                "when device_mesh.ndim > 1."
            )
        return groups[0]
    if isinstance(mesh_dim, str):
        if mesh_dim not in self.mesh_dim_names:
            raise KeyError(f"got the dimension {mesh_dim!r} of a DeviceMesh; it has {self.mesh_dim_names}")
        mesh_dim = self.mesh_dim_names.index(mesh_dim)
    return groups[mesh_dim]


@runs_instead_of(_MODULE + ":DeviceMesh.get_all_groups", with_original=True)
def _get_all_groups(original, self):
    groups = groups_of(self)
    return original(self) if groups is None else list(groups)


@runs_instead_of(_MODULE + ":DeviceMesh.get_coordinate", with_original=True)
def _get_coordinate(original, self):
    groups = groups_of(self)
    return original(self) if groups is None else tuple(group.rank() for group in groups)


@runs_instead_of(_MODULE + ":DeviceMesh.get_local_rank", with_original=True)
def _get_local_rank(original, self, mesh_dim=None):
    return original(self, mesh_dim) if groups_of(self) is None else _get_group(original, self, mesh_dim).rank()
