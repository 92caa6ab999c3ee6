"""The process groups that PyTorch finds while a call is translated: those of the mesh.

All functions of `torch.distributed` ask one object, `world`, for the default group and for what is known of each. In
its place is one that knows those of the mesh, which changes nothing of PyTorch's own.

Also here: the rank of a device, which is traced. Code computes with it, tests it, and derives targets of messages from
it.

What it computes of that number alone is known for each device. So whom each of them sends to is a table, as
`jax.lax.ppermute` wants it.
"""

import math
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
import torch
import torch.distributed as dist
from jax import lax
from jax.core import Tracer
from jax.extend.core import Literal

from ...internals.distributed import ShardMapTracer, c10d, c10d_logger, world
from ...internals.jax import BatchTracer, DynamicJaxprTracer
from ...runtime.patches import exchange, replaces
from ...runtime.translation import current
from ...tensors.tensor import wrap
from ...tracing.traces import without_derivatives
from ...values.item import Item
from .groups import MeshGroup, default_group, expect_group, group_of_ranks, is_alone, ranks_of
from .operations import finished, index_along

_AXES = "_torch2jax_axes"


def rank_along(axes: tuple[str, ...]) -> Item | int:
    """The number of the device along some axes."""
    if is_alone():
        return 0
    rank = Item.of(wrap(index_along(axes), torch.int64))
    vars(rank)[_AXES] = axes
    return rank


def number_along(rank: Any, group: MeshGroup) -> object:
    """The number in a group of the device with a number in the default group, that is traced."""
    world = expect_group()
    if vars(rank).get(_AXES) == world.axes:  # the device's own
        return group.rank()
    number = 0
    for axis, size in zip(group.axes, group.sizes, strict=True):
        position = world.axes.index(axis)
        number = number * size + rank // math.prod(world.sizes[position + 1 :]) % size
    return number


def peers(group: MeshGroup, rank: object, group_rank: object, name: str) -> tuple[int, ...]:
    """The number in a group of the device that each device of it names.

    Args:
        rank: the number in the default group that the code gives, a number that the device's own decides.
        group_rank: or the one in the group.
        name: what it is, for errors.

    Raises:
        ValueError: there is no such device for one of them, or data decide it.
    """
    if (rank is None) == (group_rank is None):
        both = "Can't specify both group_rank and global_rank"
        raise ValueError("Must specify global_rank or group_rank" if rank is None else both)
    if is_alone():
        return (0,)
    world = expect_group()
    given = rank if group_rank is None else group_rank
    axes = world.axes if set(group.axes) <= set(world.axes) else group.axes
    sizes = tuple(lax.axis_size(axis) for axis in axes)
    table = _everywhere(given, axes, sizes, name)
    rows = np.arange(group.size())[None] if axes == group.axes else ranks_of(group)
    found = [_in_row(row, [int(table.flat[position]) for position in row], group_rank is None, name) for row in rows]
    if any(row != found[0] for row in found):
        raise ValueError(f"{name} is {found} in the groups along {group.axes}; wanted the same in each of them")
    return found[0]


def _in_row(row: Any, named: list[int], by_rank: bool, name: str) -> tuple[int, ...]:
    numbers = {int(rank): number for number, rank in enumerate(row)} if by_rank else {i: i for i in range(len(row))}
    for number, peer in enumerate(named):
        if peer not in numbers:
            raise ValueError(
                f"{name} is {peer} for the device {number}, of {len(row)} in the group; wanted a rank in the "
                "group for each device, such as (rank + 1) % world_size: all devices run this line"
            )
    return tuple(numbers[peer] for peer in named)


def _everywhere(number: Any, axes: tuple[str, ...], sizes: tuple[int, ...], name: str) -> np.ndarray:
    """A whole number on all devices along some axes."""
    if not isinstance(number, torch.Tensor):
        return np.full(sizes, int(number))
    known = number.known if isinstance(number, Item) else None
    if known is not None:
        return np.full(sizes, int(known))
    try:
        return np.broadcast_to(_ValuesOnMesh(axes, sizes).values(number.read()), sizes)  # pyright: ignore
    except _DataDecideError:
        raise ValueError(
            f"{name} is a data-dependent number; wanted one that is known on each device, computed from the rank "
            "and Python numbers"
        ) from None


class _DataDecideError(Exception):
    """A number does not depend on where it is computed alone."""


class _ValuesOnMesh:
    """The values of traced numbers at each place of a mesh, found from the steps that compute them."""

    def __init__(self, axes: tuple[str, ...], sizes: tuple[int, ...]):
        self._axes, self._sizes = axes, sizes
        self._indices = dict(zip(axes, np.indices(sizes), strict=True))
        self._found: dict[object, object] = {}

    def values(self, array: Any) -> Any:
        """An array with the places as its first dimensions."""
        array = without_derivatives(array)
        if not isinstance(array, Tracer):
            return np.broadcast_to(np.asarray(array), self._sizes + np.shape(array))
        if isinstance(array, DynamicJaxprTracer):
            return self._of_step(array)
        if isinstance(array, ShardMapTracer):
            return self._of_devices(array)
        if isinstance(array, BatchTracer) and array._trace.axis_data.name in self._axes:
            return self._of_batch(array)
        raise _DataDecideError

    def _of_step(self, array: Any) -> Any:
        atom, step = array.val, array.parent
        if isinstance(atom, Literal):
            return np.broadcast_to(np.asarray(atom.val), self._sizes + np.shape(atom.val))
        if step is None:
            raise _DataDecideError
        if atom not in self._found:
            for var, value in zip(step.outvars, self._results(step), strict=True):
                self._found[var] = value
        return self._found[atom]

    def _results(self, step: Any) -> list:
        primitive, params = step.primitive, step.params
        if primitive is lax.axis_index_p:
            names = params["axis_name"]
            return [self._index(names if isinstance(names, tuple) else (names,))]
        if primitive.name == "pvary":  # what it says of types changes no values
            return [self.values(x) for x in step.in_tracers]
        operands = [self.values(x).reshape(-1, *np.shape(x)) for x in step.in_tracers]
        if not operands:
            raise _DataDecideError
        with jax.ensure_compile_time_eval(), jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((), ())):
            found = jax.vmap(lambda *x: primitive.bind(*x, **params))(*operands)
        found = found if primitive.multiple_results else [found]
        return [np.asarray(x).reshape(*self._sizes, *x.shape[1:]) for x in found]

    def _index(self, names: tuple[str, ...]) -> np.ndarray:
        if not set(names) <= set(self._axes):
            raise _DataDecideError
        number = np.zeros(self._sizes, int)
        for name in names:
            number = number * lax.axis_size(name) + self._indices[name]
        return number

    def _of_devices(self, array: Any) -> object:
        varying = [axis for axis in array._trace.mesh.axis_names if axis in array.mat.varying]
        if not set(varying) <= set(self._axes):
            raise _DataDecideError
        value = np.asarray(array.val)
        value = value.reshape(*(lax.axis_size(axis) for axis in varying), *value.shape[1:])
        return self._placed(value, varying)

    def _of_batch(self, array: Any) -> object:
        value = array.val
        if isinstance(value, Tracer):
            raise _DataDecideError
        value = np.moveaxis(np.asarray(value), array.batch_dim, 0)
        return self._placed(value, [array._trace.axis_data.name])

    def _placed(self, value: np.ndarray, axes: list[str]) -> np.ndarray:
        """An array with some axes first, as one with all of them."""
        order = [axis for axis in self._axes if axis in axes]
        value = np.moveaxis(value, [axes.index(axis) for axis in order], list(range(len(order))))
        shape = tuple(size if axis in axes else 1 for axis, size in zip(self._axes, self._sizes, strict=True))
        rest = value.shape[len(axes) :]
        return np.broadcast_to(value.reshape(shape + rest), self._sizes + rest)


class _Beside:
    """A table of PyTorch's by process group, extended by the groups of a mesh.

    Args:
        table: PyTorch's own.
        of_mesh: gives what it has of a group of a mesh.
    """

    def __init__(self, table: dict, of_mesh: Callable[[MeshGroup], object]):
        self._table, self._of_mesh = table, of_mesh

    def __getitem__(self, group: object) -> object:
        return self._of_mesh(group) if isinstance(group, MeshGroup) else self._table[group]

    def __contains__(self, group: object) -> bool:
        return isinstance(group, MeshGroup) or group in self._table

    def get(self, group: Any, default: Any = None) -> Any:
        return self._of_mesh(group) if isinstance(group, MeshGroup) else self._table.get(group, default)


class _DeviceNumbers:
    """The numbers that devices have in a group, by those in the default one."""

    def __init__(self, group: MeshGroup):
        self._group, self._rows = group, ranks_of(group).tolist()

    def __contains__(self, rank: object) -> bool:
        return type(rank) is not int or any(rank in row for row in self._rows)

    def __getitem__(self, rank: object) -> object:
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
    """PyTorch's `_World`, in which the default group within translated calls is that of the mesh around."""

    @property
    def default_pg(self) -> object:
        return world.default_pg if current() is None else default_group() or world.default_pg

    @default_pg.setter
    def default_pg(self, group: object) -> None:
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

    def __getattr__(self, name: str) -> object:
        return getattr(world, name)


exchange(c10d, "_world", _World())


@replaces(c10d, "_get_default_group")
def _get_default_group():
    return default_group() or world.default_pg or expect_group()


@replaces(c10d, "_resolve_process_group")
def _resolve_process_group(group_name):
    return expect_group(group_name)


@replaces(c10d, "_new_group_with_tag")
def _new_group_with_tag(ranks=None, *args, **kwargs):
    del args, kwargs  # how processes find each other
    return group_of_ranks(ranks)


@replaces(c10d, "destroy_process_group")
@replaces(dist, "destroy_process_group")
def _destroy_process_group(group=None):
    expect_group(group)  # which the mesh has made


@replaces(c10d, "barrier")
@replaces(dist, "barrier")
def _barrier(group=None, async_op=False, device_ids=None, timeout=None):
    del device_ids, timeout
    expect_group(group)
    return finished(async_op)  # XLA orders what devices do


@replaces(c10d_logger, "_get_msg_dict")
def _get_msg_dict(func_name, *args, **kwargs):
    del args, kwargs  # a log of an error has the rank, which is traced
    return {"func_name": func_name}
