"""Rows of a table, on arrays; and those that require grad in its place, so that its gradient is sparse."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax
from jax.sharding import AxisType, NamedSharding

from ...autograd.backward import begin_part, takes_parts
from ...tensors.history import GradientPart
from ...tensors.tensor import Torchish, wrap
from ...tensors.traced import is_traced
from ...tensors.view_kind import entries_of, sharding_beside
from ...translation import current
from ...values.sparse import make_sparse
from ..bounds import known_values


def take_rows(table, indices):
    """``table[indices]`` on the first dimension; what is out of range is NaN (or the least value) where traced."""
    mode = lax.GatherScatterMode.FILL_OR_DROP if is_traced(indices) else lax.GatherScatterMode.PROMISE_IN_BOUNDS
    told = sharding_of_rows(table, indices)
    if told is not None:
        return table.at[indices].get(mode=mode, wrap_negative_indices=False, out_sharding=told)
    dimensions = lax.GatherDimensionNumbers(
        offset_dims=tuple(range(indices.ndim, indices.ndim + table.ndim - 1)),
        collapsed_slice_dims=(0,),
        start_index_map=(0,),
    )
    places = lax.expand_dims(indices, (indices.ndim,))
    return lax.gather(table, places, dimensions, (1, *table.shape[1:]), mode=mode)


def sharding_of_rows(table, indices) -> NamedSharding | None:
    """How rows lie on explicit axes: as the indices and the columns do, None if these are on one axis or on none.

    JAX asks for it, though a table that is split by rows leaves no other choice.
    """
    if AxisType.Explicit not in jax.typeof(table).sharding.mesh.axis_types:
        return None
    return sharding_beside(table, [*entries_of(indices), *entries_of(table)[1:]])


class Rows(NamedTuple):
    """A table of the rows that indices chose of another one."""

    table: Torchish
    indices: Torchish
    """The places in it, of the shape of the indices."""
    padding_idx: int
    """Its row that has no gradient, -1 for none."""


def rows_apart(weight: Torchish, indices: Torchish, padding_idx: int, scale_grad_by_freq: bool) -> Rows | None:
    """Lets the rows that indices choose require grad in the place of a table; None where nothing asks for that.

    Only what the code itself differentiates by a backward pass has a sparse gradient. One that JAX takes from outside
    is an array of the table's shape.

    Args:
        weight: ``(rows, features)``.
        padding_idx: the row that has no gradient, -1 for none.
    """
    if weight.ndim != 2 or not takes_parts(weight):
        return None
    call = current()
    known, count = known_values(indices), indices.numel()
    index = indices.read().reshape(-1)
    rows = take_rows(call.tape.primal(weight.read()), index)
    chosen = wrap(index, indices.dtype)
    if known is not None:
        chosen = call.lift_own(torch.from_numpy(known.reshape(-1).copy()))
    places = call.lift_own(torch.arange(count))
    if padding_idx >= 0:  # one row more, which all that pad lead to
        rows = lax.pad(rows, np.zeros((), rows.dtype), ((0, 1, 0), (0, 0, 0)))
        pads = index == padding_idx
        places = wrap(jnp.where(pads, count, jnp.arange(count, dtype=index.dtype)), torch.int64)
    table, size = wrap(rows, weight.dtype), tuple(weight.shape)

    def gradient(of_table):
        if scale_grad_by_freq:
            raise RuntimeError("embedding_backward: scale_grad_by_freq not supported with sparse gradients")
        return _gradient(of_table.narrow(0, 0, count), chosen.to(torch.int64), size, padding_idx)

    begin_part(table, GradientPart(weight, gradient))
    return Rows(table, places.reshape(indices.shape), count if padding_idx >= 0 else -1)


def _gradient(of_rows, index, size: tuple[int, ...], padding_idx: int):
    """The sparse gradient of a table; the row that pads has none."""
    if padding_idx >= 0:
        known = known_values(current().lift(index))
        if known is None:  # a place beyond the shape is no element
            kept = index != padding_idx
            index, of_rows = torch.where(kept, index, size[0]), torch.where(kept[:, None], of_rows, 0)
        else:
            kept = current().lift_own(torch.from_numpy((known != padding_idx).nonzero()[0]))
            index, of_rows = index.index_select(0, kept), of_rows.index_select(0, kept)
    return make_sparse(torch.sparse_coo, [index[None]], of_rows, size, False)
