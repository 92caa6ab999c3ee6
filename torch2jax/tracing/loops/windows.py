"""Slices of one array, a different one in each iteration: all of them as one array, and back."""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.core
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import Tracer
from jax.extend.core import JaxprEqn, Literal, Var

Read = Callable[[Any], Any]


def reader(values: dict[Var, object]) -> Read:
    """Returns the function from an operand to its value."""
    return lambda atom: atom.val if isinstance(atom, Literal) else values[atom]


class Part(NamedTuple):
    """A rectangle of an array, in any shape with the same number of elements."""

    base: Any
    starts: tuple[int, ...]
    sizes: tuple[int, ...]
    shape: tuple[int, ...]


def shape_of(atom: Any) -> tuple[int, ...]:
    return tuple(atom.aval.shape)


def part_made_by(step: JaxprEqn, position: int, parts: dict[Var, Part]) -> Part | None:
    """The part of an array that an equation's result is, if it is one.

    Args:
        position: of the result.
        parts: those that other equations give.
    """
    make = _MAKERS.get(step.primitive)
    if make is None or not isinstance(step.invars[0], Var):
        return None
    stacked = step.invars[0]
    part = parts.get(stacked)
    if step.primitive in _RESHAPING:
        return None if part is None or not make(step) else part._replace(shape=shape_of(step.outvars[0]))
    if part is not None:
        if part.shape != part.sizes:
            return None
        found = make(step, position)
        starts = tuple(x + y for x, y in zip(part.starts, found[0], strict=True)) if found else ()
        return Part(part.base, starts, found[1], found[1]) if found else None
    found = make(step, position)
    return Part(stacked, found[0], found[1], found[1]) if found else None


def _sliced(step: JaxprEqn, position: int) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    del position
    strides = step.params["strides"]
    if strides is not None and any(x != 1 for x in strides):
        return None
    return tuple(step.params["start_indices"]), shape_of(step.outvars[0])


def _split(step: JaxprEqn, position: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    axis, sizes = step.params["axis"], step.params["sizes"]
    starts = [0] * len(shape_of(step.invars[0]))
    starts[axis] = sum(sizes[:position])
    return tuple(starts), shape_of(step.outvars[position])


def _is_squeeze(step: JaxprEqn) -> bool:
    del step
    return True


def _is_reshape(step: JaxprEqn) -> bool:
    return step.params.get("dimensions") is None and step.params.get("sharding") is None


def _is_expansion(step: JaxprEqn) -> bool:
    """Returns True if a broadcast only adds dimensions of one element."""
    return (
        len(step.invars) == 1
        and step.params.get("sharding") is None
        and math.prod(shape_of(step.outvars[0])) == math.prod(shape_of(step.invars[0]))
    )


def _is_sum_of_one(step: JaxprEqn) -> bool:
    """Returns True if a sum only removes dimensions of one element."""
    return all(shape_of(step.invars[0])[axis] == 1 for axis in step.params["axes"])


_RESHAPING = {lax.squeeze_p, lax.reshape_p, lax.broadcast_in_dim_p, lax.reduce_sum_p}
_MAKERS: dict[object, Callable] = {
    lax.slice_p: _sliced,
    lax.split_p: _split,
    lax.squeeze_p: _is_squeeze,
    lax.reshape_p: _is_reshape,
    lax.broadcast_in_dim_p: _is_expansion,
    lax.reduce_sum_p: _is_sum_of_one,
}


class Windows(NamedTuple):
    """Parts of one array, at equal distances along one dimension."""

    first: Part
    axis: int
    step: int
    length: int

    @property
    def operands(self) -> list[Var]:
        return [self.first.base]

    @property
    def blocks(self) -> "Windows | None":
        """The blocks of a whole array that such parts are of, as of stacked layers that alternate.

        All parts together are a copy of what they take, while the blocks are the array itself, of another shape.
        """
        shape, (_, starts, sizes, _) = shape_of(self.first.base), self.first
        is_row = self.axis == 0 and sizes[0] == 1 and 0 <= starts[0] < self.step
        if not is_row or shape[0] != self.step * self.length or sizes[1:] != shape[1:]:
            return None
        size = (self.step, *shape[1:])
        return self._replace(first=Part(self.first.base, (0,) * len(shape), size, size))

    def stacked(self, read: Read):
        """All parts, stacked along a new first dimension."""
        base, (_, starts, sizes, shape) = read(self.first.base), self.first
        axis, size, length = self.axis, sizes[self.axis], self.length
        low = starts[axis] + min(0, self.step * (length - 1))
        lower, upper = list(starts), [x + y for x, y in zip(starts, sizes, strict=True)]
        strides = [1] * len(starts)
        lower[axis], upper[axis] = low, low + abs(self.step) * (length - 1) + size
        if size == 1:
            strides[axis] = abs(self.step)
        if lower != [0] * len(lower) or tuple(upper) != base.shape or any(x != 1 for x in strides):
            base = lax.slice(base, lower, upper, strides)
        if size != 1:
            base = lax.reshape(base, (*base.shape[:axis], length, size, *base.shape[axis + 1 :]))
        if self.step < 0:
            base = lax.rev(base, (axis,))
        if axis:
            base = lax.transpose(base, (axis, *(i for i in range(base.ndim) if i != axis)))
        return base if base.shape == (length, *shape) else lax.reshape(base, (length, *shape))


def windows(parts: Sequence[Part]) -> Windows | None:
    """The slices that iterations take, if they are consecutive slices of one array and do not overlap."""
    first, second = parts[:2]
    if any(x.base is not first.base or x[2:] != first[2:] for x in parts):
        return None
    steps = [y - x for x, y in zip(first.starts, second.starts, strict=True)]
    axes = [axis for axis, step in enumerate(steps) if step]
    if len(axes) != 1:
        return None
    axis, step = axes[0], steps[axes[0]]
    size = first.sizes[axis]
    if size == 0 or (size != 1 and abs(step) != size):
        return None
    starts = list(first.starts)
    for part in parts:
        if part.starts != tuple(starts):
            return None
        starts[axis] += step
    return Windows(first, axis, step, len(parts))


def row_of_windows(parts: Sequence[Part | None], start: int = 0) -> Windows | None:
    """The longest `windows` of parts from `start` on; None if it has one part."""
    found = stacks(parts[start : start + 2])
    if found is None:
        return None
    first, axis = found.first, found.axis
    at, length = first.starts[axis], 0
    for part in itertools.islice(parts, start, None):
        starts = (*first.starts[:axis], at, *first.starts[axis + 1 :])
        if part is None or part.base is not first.base or part[1:] != (starts, *first[2:]):
            break
        at, length = at + found.step, length + 1
    return found._replace(length=length)


def stacks(parts: Sequence[Part | None]) -> Windows | None:
    """As `windows`; None if some are no parts."""
    return None if len(parts) < 2 or any(part is None for part in parts) else windows(parts)  # pyright: ignore[reportArgumentType]


class Table(NamedTuple):
    """Values that differ between iterations."""

    atoms: tuple
    known: Any
    """The values of constants, by variable."""

    @property
    def operands(self) -> list[Var]:
        return [x for x in self.atoms if isinstance(x, Var)]

    def stacked(self, read: Read):
        """All values, stacked along a new first dimension."""
        values = [self.known.get(x) if isinstance(x, Var) and x in self.known else read(x) for x in self.atoms]
        dtype = self.atoms[0].aval.dtype
        if not any(isinstance(x, jax.Array) for x in values):
            return jnp.asarray(np.stack([np.asarray(x) for x in values]), dtype)
        if not any(isinstance(x, Tracer) for x in values):
            with jax.core.eval_context():
                return jnp.stack(values)
        return lax.concatenate([lax.expand_dims(jnp.asarray(x), (0,)) for x in values], 0)


class Pieces(NamedTuple):
    """The operands of iterations, in order: slices of one array for some, separate arrays for others."""

    rows: tuple[Windows | Table, ...]

    @property
    def operands(self) -> list[Var]:
        return [var for row in self.rows for var in row.operands]

    def stacked(self, read: Read):
        """All rows, stacked along a new first dimension."""
        return lax.concatenate([row.stacked(read) for row in self.rows], 0)


def in_pieces(table: Table, parts: Mapping[Var, Part], least: int) -> "Windows | Table | Pieces":
    """The values of a table, with the parts of one array together where these are not few."""
    rows: list[Windows | Table] = []
    single: list = []
    found = [parts.get(x) if isinstance(x, Var) else None for x in table.atoms]
    at = 0
    while at < len(found):
        row = row_of_windows(found, at)
        if row is None or row.length < least:
            single.append(table.atoms[at])
            at += 1
            continue
        if single:
            rows.append(Table(tuple(single), table.known))
            single = []
        rows.append(row)
        at += row.length
    if not rows:
        return table
    if single:
        rows.append(Table(tuple(single), table.known))
    return rows[0] if len(rows) == 1 else Pieces(tuple(rows))


class Joined(NamedTuple):
    """Parts of one array, joined along a dimension."""

    parts: Windows
    axis: int
    outvars: tuple[Var]

    has_effects = False

    @property
    def operands(self) -> list[Var]:
        return self.parts.operands

    def pruned(self, needed: set[Var]) -> "Joined":
        del needed
        return self

    def evaluated(self, values: dict[Var, object]) -> list:
        stacked, axis = self.parts.stacked(reader(values)), self.axis
        if axis:
            order = [*range(1, stacked.ndim)]
            order.insert(axis, 0)
            stacked = lax.transpose(stacked, order)
        shape = list(self.parts.first.shape)
        shape[axis] *= self.parts.length
        return [lax.reshape(stacked, shape)]
