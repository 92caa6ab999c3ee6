"""Process groups as axes of JAX's mesh within `jax.shard_map`.

No process group of PyTorch's has to exist, and none is asked. A group is the devices along some axes that differ in
nothing else; of these there are as many as there are other devices, and each is in one.

The dimensions of a `DeviceMesh` are the mesh axes with the same names.
"""

import itertools
import math
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
import torch
import torch.distributed as dist
from jax import lax

from ...internals.dispatch import DisableTorchFunction
from ...internals.distributed import world
from ...runtime.caches import remembered
from ...runtime.patches import runs_instead_of
from ...runtime.translation import current
from ...tracing.traces import ALONE

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

Axes = tuple[str, ...]
HOW = (
    "collectives of a translated function run within jax.shard_map, over its axes: "
    'jax.shard_map(t2j(fn, groups="axis"), mesh=..., in_specs=..., out_specs=...). A process group stands for one axis '
    "or several, as groups= says; the default group for all of them"
)


def axes_given(groups: Any) -> tuple[tuple[object, Axes], ...]:
    """The argument `groups` of `t2j`, as pairs of a group, or None for the default one, and axes.

    Raises:
        TypeError: it is nothing that `t2j` takes.
    """
    if groups is None:
        return ()
    if not isinstance(groups, Mapping):
        groups = {None: groups}
    found = []
    for group, axes in groups.items():
        named = (axes,) if isinstance(axes, str) else tuple(axes) if isinstance(axes, (tuple, list)) else ()
        if not named or not all(isinstance(axis, str) for axis in named) or len(set(named)) < len(named):
            raise TypeError(
                f"groups got {axes!r} for {group!r}; wanted the name of an axis of the mesh, or a tuple of such names"
            )
        module = sys.modules.get("torch.distributed.device_mesh")
        if module is not None and isinstance(group, module.DeviceMesh):
            found.extend(_of_mesh(group, named))
            continue
        if not (group is None or isinstance(group, (str, dist.ProcessGroup))):
            raise TypeError(
                f"groups got a {type(group).__name__}; wanted None for the default group, the name of a group, a "
                "ProcessGroup, or a DeviceMesh"
            )
        found.append((group, named))
    return tuple(found)


def _of_mesh(mesh: "DeviceMesh", axes: Axes) -> list[tuple[Any, Axes]]:
    """The groups of a mesh's dimensions, with an axis for each, or all for the only one."""
    if mesh.ndim == 1:
        return [(mesh.get_group(), axes)]
    if len(axes) != mesh.ndim:
        raise TypeError(f"groups got {axes} for a DeviceMesh of {mesh.ndim} dimensions; wanted an axis for each")
    return [(mesh.get_group(dim), (axis,)) for dim, axis in enumerate(axes)]


def axes_of_mesh(mesh: "DeviceMesh") -> Axes | None:
    """The axes for the dimensions of a `DeviceMesh`, in order, as `t2j` was told; None if some are missing."""
    given = [
        (group, axes) for group, axes in current().execution.path.policy.groups if isinstance(group, dist.ProcessGroup)
    ]
    if not given:
        return None
    found = [next((axes for group, axes in given if group is mesh.get_group(dim)), None) for dim in range(mesh.ndim)]
    return None if None in found else tuple(axis for axes in found for axis in axes)  # pyright: ignore


class MeshGroup(dist.ProcessGroup):
    """The devices along some axes, as a process group.

    Args:
        axes: their names, the slowest first: that is how devices are numbered.
        sizes: how many devices there are along each.
    """

    def __init__(self, axes: Axes, sizes: tuple[int, ...]):
        super().__init__(0, math.prod(sizes))
        self.axes, self.sizes = axes, sizes

    def __repr__(self) -> str:
        return f"MeshGroup({', '.join(map(repr, self.axes))})"

    def size(self) -> int:
        return math.prod(self.sizes)

    def rank(self) -> Any:
        """The traced index of the device in its group."""
        from .world import rank_along

        return rank_along(self.axes)

    def name(self) -> str:
        return "jax"

    def boxed(self) -> object:
        raise NotImplementedError(
            "the operators torch.ops.c10d take process groups of PyTorch's C++; wanted torch.distributed.all_reduce, "
            "broadcast and so on, or torch.ops._c10d_functional"
        )

    @property
    def group_name(self) -> object:
        return ",".join(self.axes)

    def _get_backend(self, device: object) -> None:
        """PyTorch's backend: None, so that batches of messages are sent one by one."""
        del device

    @property
    def group_desc(self) -> str:
        return f"the axes {', '.join(self.axes)} of a mesh"


@remembered(256)
def _made(axes: Axes, sizes: tuple[int, ...]) -> MeshGroup:
    return MeshGroup(axes, sizes)


def group_of_axes(axes: Axes) -> MeshGroup:
    """The group of some axes that the code is within.

    Raises:
        ValueError: it is within no axis of such a name.
    """
    try:
        sizes = tuple(lax.axis_size(axis) for axis in axes)
    except NameError as error:
        here = ", ".join(map(repr, jax.sharding.get_abstract_mesh().manual_axes)) or "none"
        raise ValueError(
            f"a process group stands for the axes {', '.join(map(repr, axes))}; the code runs within {here}. {HOW}"
        ) from error
    return _made(axes, sizes)


def default_group() -> MeshGroup | None:
    """The default group at this place in the code: the one that `t2j` was given, or all axes of `jax.shard_map`."""
    call = current()
    if call is None:
        return None
    given = next((axes for group, axes in call.execution.path.policy.groups if group is None), None)
    axes = given or tuple(jax.sharding.get_abstract_mesh().manual_axes) or ((ALONE,) if is_alone() else ())
    return group_of_axes(axes) if axes else None


def is_alone() -> bool:
    """Returns True if code for several devices is traced for one, without a mesh."""
    try:
        return lax.axis_size(ALONE) == 1
    except NameError:
        return False


def expect_group(group: object = None) -> MeshGroup:
    """The mesh group of a process group, of None (the default one), of itself, or of its name.

    Raises:
        ValueError: it stands for nothing.
    """
    if isinstance(group, MeshGroup):
        return group
    for given, axes in current().execution.path.policy.groups:
        if given is group or (isinstance(given, str) and given == group):
            return group_of_axes(axes)
    if group is None or group is world.default_pg:
        found = default_group()
        if found is not None:
            return found
        if world.default_pg is None:
            raise ValueError(
                "Default process group has not been initialized, please make sure to call init_process_group. In JAX, "
                + HOW
            )
    if isinstance(group, str):
        return group_of_axes(tuple(group.split(",")))
    raise ValueError(f"got the process group {group or world.default_pg!r}, which stands for no axes: {HOW}")


def ranks_of(group: MeshGroup) -> np.ndarray:
    """The numbers that devices have in the default group, for each group of these axes a row.

    Raises:
        ValueError: the default group lacks an axis.
    """
    if is_alone():
        return np.zeros((1, 1), int)
    world = expect_group()
    missing = [axis for axis in group.axes if axis not in world.axes]
    if missing:
        raise ValueError(f"the group has the axis {missing[0]!r}, which the default group lacks: {world!r}")
    numbers = np.arange(world.size()).reshape(world.sizes)
    others = [i for i, axis in enumerate(world.axes) if axis not in group.axes]
    return numbers.transpose(*others, *(world.axes.index(axis) for axis in group.axes)).reshape(-1, group.size())


def group_of_ranks(ranks: object) -> MeshGroup:
    """The group of axes that has the devices with these ranks of the default group as one of its groups.

    Raises:
        ValueError: there is none.
    """
    world = expect_group()
    if ranks is None or is_alone():
        return world
    ranks = [int(rank) for rank in ranks]
    for count in range(1, len(world.axes) + 1):
        for axes in itertools.combinations(world.axes, count):
            group = group_of_axes(axes)
            if group.size() == len(ranks) and any(ranks == list(row) for row in ranks_of(group)):
                return group
    raise ValueError(
        f"new_group got the ranks {ranks}; wanted those of devices along whole axes of the mesh, of which the default "
        f"group has {dict(zip(world.axes, world.sizes, strict=True))}: give the mesh an axis for each kind of group"
    )


def number_in(group: MeshGroup, rank: int | None, group_rank: int | None) -> int:
    """The number of a device in a group, by that in the default one or by this itself.

    Raises:
        ValueError: both are given or none, or there is no such device.
        TypeError: it is a number that is traced.
    """
    if (rank is None) == (group_rank is None):
        both = "Can't specify both group_rank and global_rank"
        raise ValueError("Must specify global_rank or group_rank" if rank is None else both)
    given = rank if group_rank is None else group_rank
    if type(given) is not int:
        raise TypeError(
            f"got a {type(given).__name__} for the rank of a device; wanted a number that is the same on all of them"
        )
    if is_alone():
        return 0
    if group_rank is None:
        found = next((list(row).index(rank) for row in ranks_of(group) if rank in row), None)
        if found is None:
            raise ValueError(f"Global rank {rank} is not part of group {group}")
        return found
    if not 0 <= group_rank < group.size():
        raise ValueError(f"Group rank {group_rank} is not part of group {group}")
    return group_rank


_MODULE = "torch.distributed.device_mesh"


@runs_instead_of(_MODULE + ".init_device_mesh", with_original=True)
def _init_device_mesh(original, device_type, mesh_shape, *, mesh_dim_names=None, backend_override=None):
    world = default_group()
    if world is None:
        return original(device_type, mesh_shape, mesh_dim_names=mesh_dim_names, backend_override=backend_override)
    shape = tuple(mesh_shape)
    if mesh_dim_names is None and world.sizes == shape:
        mesh_dim_names = world.axes
    if mesh_dim_names is None or len(set(mesh_dim_names)) != len(shape) or len(mesh_dim_names) != len(shape):
        raise RuntimeError(
            f"init_device_mesh got the shape {shape} and the names {mesh_dim_names}; wanted a name for each dimension, "
            f"those of axes of jax.shard_map: {dict(zip(world.axes, world.sizes, strict=True))}"
        )
    for name, size in zip(mesh_dim_names, shape, strict=True):
        _group(name, size)
    return _made_mesh(device_type, shape, tuple(mesh_dim_names))


def _made_mesh(device_type: str, shape: tuple[int, ...], names: tuple[str, ...]) -> object:
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
        world = default_group()
        assert world is not None
        return world
    group = group_of_axes((name,))
    if group.size() != size:
        raise ValueError(
            f"a DeviceMesh has the dimension {name!r} of size {size}; the axis of jax.shard_map has {group.size()} "
            "devices"
        )
    return group


def groups_of(mesh: "DeviceMesh") -> tuple[MeshGroup, ...] | None:
    """The groups of the dimensions of a mesh; None if their names are no axes that the code is within."""
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
        world = default_group()
        if world is not None:
            raise ValueError(
                f"got a part of a DeviceMesh with the dimensions {self.mesh_dim_names} within jax.shard_map over "
                f"{world.axes}; wanted the same names, or take the part of it before the call and say in groups= "
                "which axis it stands for"
            )
        return original(self, mesh_dim_names)
    missing = [name for name in names if name not in self.mesh_dim_names]
    if missing:
        raise KeyError(f"got the dimension {missing[0]!r} of a DeviceMesh; it has {self.mesh_dim_names}")
    sizes = dict(zip(self.mesh_dim_names, self.shape, strict=True))
    return _made_mesh(self.device_type, tuple(sizes[name] for name in names), names)


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
