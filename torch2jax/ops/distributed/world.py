"""The process groups that PyTorch finds while a call is translated: those of the mesh.

All functions of `torch.distributed` ask one object, `world`, for the default group and for what is known of each. In
its place is one that knows those of the mesh, which changes nothing of PyTorch's own.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch.distributed as dist

from ...calls.call import current
from ...internals.distributed import c10d, c10d_logger, world
from ...patches import exchange, stands_in
from .groups import MeshGroup, default_group, expect_group, group_of_ranks, ranks_of
from .operations import finished
from .ranks import number_along

__all__: list[str] = []


class _Beside:
    """A table of PyTorch's by process groups, which has those of a mesh too.

    Args:
        table: PyTorch's own.
        of_mesh: gives what it has of a group of a mesh.
    """

    def __init__(self, table: Any, of_mesh: Callable[[MeshGroup], Any]):
        self._table, self._of_mesh = table, of_mesh

    def __getitem__(self, group: Any) -> Any:
        return self._of_mesh(group) if isinstance(group, MeshGroup) else self._table[group]

    def __contains__(self, group: Any) -> bool:
        return isinstance(group, MeshGroup) or group in self._table

    def get(self, group: Any, default: Any = None) -> Any:
        return self._of_mesh(group) if isinstance(group, MeshGroup) else self._table.get(group, default)


class _DeviceNumbers:
    """The numbers that devices have in a group, by those in the default one."""

    def __init__(self, group: MeshGroup):
        self._group, self._rows = group, ranks_of(group).tolist()

    def __contains__(self, rank: Any) -> bool:
        return type(rank) is not int or any(rank in row for row in self._rows)

    def __getitem__(self, rank: Any) -> Any:
        if type(rank) is not int:
            return number_along(rank, self._group)
        return next(row.index(rank) for row in self._rows if rank in row)

    def __iter__(self) -> Iterator[int]:
        return iter(self._rows[0])

    def __len__(self) -> int:
        return self._group.size()

    def keys(self) -> list[int]:
        return self._rows[0]

    def items(self) -> list[tuple[int, int]]:
        return [(rank, number) for number, rank in enumerate(self._rows[0])]


class _World:
    """As PyTorch's own; in translated calls the default group is that of the mesh around it."""

    @property
    def default_pg(self) -> Any:
        return world.default_pg if current() is None else default_group() or world.default_pg

    @default_pg.setter
    def default_pg(self, group: Any) -> None:
        world.default_pg = group

    @property
    def group_count(self) -> int:
        return world.group_count

    @group_count.setter
    def group_count(self, count: int) -> None:
        world.group_count = count

    @property
    def pg_group_ranks(self) -> Any:
        return world.pg_group_ranks if current() is None else _Beside(world.pg_group_ranks, _DeviceNumbers)

    @property
    def pg_names(self) -> Any:
        return world.pg_names if current() is None else _Beside(world.pg_names, lambda group: group.group_name)

    @property
    def pg_map(self) -> Any:
        return world.pg_map if current() is None else _Beside(world.pg_map, lambda _: ("gloo", None))

    def __getattr__(self, name: str) -> Any:
        return getattr(world, name)


exchange(c10d, "_world", _World())


@stands_in(c10d, "_get_default_group")
def _get_default_group():
    return default_group() or world.default_pg or expect_group()


@stands_in(c10d, "_resolve_process_group")
def _resolve_process_group(group_name):
    return expect_group(group_name)


@stands_in(c10d, "_new_group_with_tag")
def _new_group_with_tag(ranks=None, *args, **kwargs):
    del args, kwargs  # how processes find each other
    return group_of_ranks(ranks)


@stands_in(c10d, "destroy_process_group")
@stands_in(dist, "destroy_process_group")
def _destroy_process_group(group=None):
    expect_group(group)  # which the mesh has made


@stands_in(c10d, "barrier")
@stands_in(dist, "barrier")
def _barrier(group=None, async_op=False, device_ids=None, timeout=None):
    del device_ids, timeout
    expect_group(group)
    return finished(async_op)  # XLA orders what devices do


@stands_in(c10d_logger, "_get_msg_dict")
def _get_msg_dict(func_name, *args, **kwargs):
    del args, kwargs  # a log of an error has the rank, which is traced
    return {"func_name": func_name}
