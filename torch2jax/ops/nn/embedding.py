"""Embeddings.

Rows of a table may require grad in its place, so that its gradient is sparse.

Bags are embeddings that are summed, averaged, or reduced to their largest.
"""

import functools
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax
from jax.sharding import AxisType, NamedSharding

from ...rules.array_rule import InnerRule
from ...rules.options import Tag
from ...rules.registry import implements, implements_tensors
from ...runtime.layers import SPARSE
from ...runtime.translation import current, lift, lift_own
from ...tensors.history import GradientPart
from ...tensors.tensor import Torchish, wrap
from ...tensors.traced import is_traced
from ...tensors.view_kind import entries_of, reshape, sharding_beside
from ...transforms.backward import begin_part, takes_parts
from ..arrays import cast, widened
from ..bounds import known_values, outside, seen
from ..indexing import progression
from ..values import values


def take_rows(table, indices):
    """``table[indices]`` on the first dimension; rows out of range are NaN (or the least value) where traced."""
    mode = lax.GatherScatterMode.FILL_OR_DROP if is_traced(indices) else lax.GatherScatterMode.PROMISE_IN_BOUNDS
    given = sharding_of_rows(table, indices)
    if given is not None:
        return table.at[indices].get(mode=mode, wrap_negative_indices=False, out_sharding=given)
    dimensions = lax.GatherDimensionNumbers(
        offset_dims=tuple(range(indices.ndim, indices.ndim + table.ndim - 1)),
        collapsed_slice_dims=(0,),
        start_index_map=(0,),
    )
    positions = lax.expand_dims(indices, (indices.ndim,))
    return lax.gather(table, positions, dimensions, (1, *table.shape[1:]), mode=mode)


def sharding_of_rows(table, indices) -> NamedSharding | None:
    """The sharding of rows on explicit axes: that of the indices and the columns; None if these are on one axis or on
    none.

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
    """The row without a gradient; -1 for none."""


def rows_apart(weight: Torchish, indices: Torchish, padding_idx: int, scale_grad_by_freq: bool) -> Rows | None:
    """A table of the rows that indices choose, which requires grad in place of the whole; None where none is needed.

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
        chosen = call.constants.lift_own(torch.from_numpy(known.reshape(-1).copy()))
    positions = call.constants.lift_own(torch.arange(count))
    if padding_idx >= 0:  # one row more, which all that pad lead to
        rows = lax.pad(rows, np.zeros((), rows.dtype), ((0, 1, 0), (0, 0, 0)))
        pads = index == padding_idx
        positions = wrap(jnp.where(pads, count, jnp.arange(count, dtype=index.dtype)), torch.int64)
    table, size = wrap(rows, weight.dtype), tuple(weight.shape)

    def gradient(of_table):
        if scale_grad_by_freq:
            raise RuntimeError("embedding_backward: scale_grad_by_freq not supported with sparse gradients")
        return _gradient(of_table.narrow(0, 0, count), chosen.to(torch.int64), size, padding_idx)

    begin_part(table, GradientPart(weight, gradient))
    return Rows(table, positions.reshape(indices.shape), count if padding_idx >= 0 else -1)


def _gradient(of_rows, index, size: tuple[int, ...], padding_idx: int):
    """The sparse gradient of a table; the row that pads has none."""
    if padding_idx >= 0:
        known = known_values(lift(index))
        if known is None:  # a place beyond the shape is no element
            kept = index != padding_idx
            index, of_rows = torch.where(kept, index, size[0]), torch.where(kept[:, None], of_rows, 0)
        else:
            kept = lift_own(torch.from_numpy((known != padding_idx).nonzero()[0]))
            index, of_rows = index.index_select(0, kept), of_rows.index_select(0, kept)
    return SPARSE.make_sparse(torch.sparse_coo, [index[None]], of_rows, size, False)


aten = torch.ops.aten


@functools.partial(jax.custom_jvp, nondiff_argnums=(2, 3))
def embed(weight, indices, padding_idx, scale_grad_by_freq):
    del padding_idx, scale_grad_by_freq  # they change the gradient alone
    return take_rows(weight, indices)


@embed.defjvp
def _(padding_idx, scale_grad_by_freq, primals, tangents):
    (weight, indices), (d_weight, _) = primals, tangents
    tangent = take_rows(d_weight, indices)
    if scale_grad_by_freq:
        counts = lax.max(jnp.zeros(weight.shape[:1], weight.dtype).at[indices].add(1), np.ones((), weight.dtype))
        factor = lax.div(np.ones((), weight.dtype), take_rows(counts, indices))
        tangent = lax.mul(tangent, lax.broadcast_in_dim(factor, tangent.shape, range(indices.ndim)))
    if padding_idx is not None:  # chosen, not multiplied by zero: what comes back for the padding may be NaN
        kept = lax.ne(indices, np.asarray(padding_idx, indices.dtype))
        given = sharding_of_rows(weight, indices)
        kept = lax.broadcast_in_dim(kept, tangent.shape, range(indices.ndim), out_sharding=given)
        tangent = lax.select(kept, tangent, lax.full_like(tangent, 0))
    return take_rows(weight, indices), tangent


@dataclass(frozen=True)
class _EvenRows:
    """Indices that are known, and evenly spaced: positions in a sequence."""

    start: int
    stop: int
    step: int
    shape: tuple[int, ...]

    def of(self, table):
        rows = lax.slice_in_dim(table, self.start, self.stop, self.step)
        return reshape(rows, (*self.shape, table.shape[1]))


def _find_rows(weight, indices, padding_idx=-1, scale_grad_by_freq=False, sparse=False):
    apart = rows_apart(weight, indices, padding_idx, scale_grad_by_freq) if sparse else None
    if apart is not None:
        (weight, indices, padding_idx), scale_grad_by_freq = apart, False
    plain = padding_idx < 0 and not scale_grad_by_freq and weight.ndim == 2
    indexed = known_values(indices) if plain and is_traced(weight.buffer.array) else None
    rows = None if indexed is None else indexed.reshape(-1)
    region = None if rows is None else progression(rows)
    if region is not None and region.step > 0:
        indices = _EvenRows(region.start, min(region.stop, weight.shape[0]), region.step, tuple(indexed.shape))
    return (weight, indices, padding_idx, scale_grad_by_freq), {}


def expect_rows(weight, indices, error: type[Exception] = IndexError) -> None:
    """Raises `error` where indices are seen not to be of rows of `weight`."""
    rows, indexed = weight.shape[0] if weight.ndim else 0, seen(indices)
    if weight.ndim and indexed is not None and outside(indexed, 0, rows - 1) is not None:
        raise error(
            "index out of range in self: Expected idx >= 0 && idx < num_embeddings, but got indices from "
            f"{indexed.min()} to {indexed.max()} for {rows} rows"
        )


def _check_rows(weight, indices, *args, **kwargs) -> None:
    expect_rows(weight, indices)


@implements(torch.embedding, aten.embedding, check=_check_rows, prepare=_find_rows)
def embedding(weight, indices, padding_idx, scale_grad_by_freq):
    if weight.ndim != 2:
        raise RuntimeError(f"'weight' must be 2-D, but got {weight.ndim}-D")
    if isinstance(indices, _EvenRows):
        return indices.of(weight)
    if padding_idx < 0 and not scale_grad_by_freq:
        return take_rows(weight, indices)
    return embed(weight, indices, padding_idx if padding_idx >= 0 else None, scale_grad_by_freq)


@implements(aten.embedding_renorm)
def embedding_renorm(input, indices, max_norm, norm_type):
    """Scales down the rows that are used and too long."""
    norms = jnp.linalg.norm(input, ord=norm_type, axis=1, keepdims=True)
    used = jnp.zeros((input.shape[0], 1), bool).at[indices.ravel()].set(True)
    scaled = lax.mul(input, jnp.broadcast_to(max_norm / (norms + 1e-7), input.shape).astype(input.dtype))
    return lax.select(jnp.broadcast_to(used & (norms > max_norm), input.shape), scaled, input)


@implements_tensors(torch.nn.functional.one_hot, aten.one_hot.default, tags=[Tag.FRESH])
def one_hot(tensor, num_classes=-1):
    if tensor.dtype not in (torch.int64, torch.int32):  # JAX's own integers are int32
        raise RuntimeError(f"one_hot is only applicable to index tensor of type LongTensor, but got {tensor.dtype}")
    if num_classes == -1:
        indexed = values(tensor, "one_hot without num_classes", instead="say num_classes=")
        if indexed.size == 0:
            raise RuntimeError("Can not infer total number of classes from empty tensor.")
        num_classes = int(indexed.max()) + 1
    examples = seen(tensor)
    if examples is not None and examples.size:
        if examples.min() < 0:
            raise RuntimeError("Class values must be non-negative.")
        if examples.max() >= num_classes:
            raise RuntimeError(
                f"Class values must be smaller than num_classes, but got {examples.max()} for {num_classes}"
            )
    return _ONE_HOT((tensor, num_classes), {})


def _one_hot(input, num_classes):
    shape = (*input.shape, num_classes)
    classes = lax.broadcasted_iota(input.dtype, shape, input.ndim)
    return lax.eq(lax.broadcast_in_dim(input, shape, range(input.ndim)), classes).astype(input.dtype)


_ONE_HOT = InnerRule(_one_hot, "one_hot", dtype=torch.int64)


_DTYPES = (None, torch.int64, torch.int64, torch.int64)


def _of_one_dtype(weight, indices, offsets, *args, per_sample_weights=None, **kwargs):
    """The arguments with indices and offsets of one dtype.

    Raises:
        RuntimeError: that is no integer dtype, the weights are not of one floating dtype, or a tensor has another
            number of dimensions.
    """
    _expect_dimensions(weight, indices, offsets)
    common = torch.promote_types(indices.dtype, offsets.dtype)
    indices, offsets = (x if x.dtype == common else x.to(common) for x in (indices, offsets))
    _expect_kind(indices, "indices", _INTEGERS)
    _expect_kind(weight, "weight", _FLOATS)
    samples = args[3] if len(args) > 3 else per_sample_weights
    if samples is not None and samples.dtype != weight.dtype:
        raise RuntimeError(
            "Expected tensor for argument #1 'weight' to have the same type as tensor for argument #1 "
            f"'per_sample_weights'; but type {weight.type()} does not equal {samples.type()} (while checking arguments "
            "for embedding_bag)"
        )
    if per_sample_weights is not None:
        kwargs["per_sample_weights"] = per_sample_weights
    if kwargs.get("sparse", len(args) > 2 and args[2]):
        return _with_sparse_gradient(weight, indices, offsets, *args, **kwargs)
    return (weight, indices, offsets, *args), kwargs


def _with_sparse_gradient(
    weight,
    indices,
    offsets,
    scale_grad_by_freq=False,
    mode=0,
    sparse=True,
    per_sample_weights=None,
    include_last_offset=False,
    padding_idx=None,
):
    """The arguments with the used rows in place of the table, if its gradient is sparse."""
    rest = mode, sparse, per_sample_weights, include_last_offset
    pads = -1 if padding_idx is None else padding_idx
    # A number below zero is a row of the function's, and none of the operator's.
    counted = padding_idx is None or padding_idx >= 0
    apart = rows_apart(weight, indices, pads, scale_grad_by_freq) if counted else None
    if apart is None:
        return (weight, indices, offsets, scale_grad_by_freq, *rest, padding_idx), {}
    return (apart.table, apart.indices, offsets, False, *rest, None if pads < 0 else apart.padding_idx), {}


def _expect_dimensions(weight, indices, offsets) -> None:
    """Checks the dimensions, before values are checked: PyTorch's order."""
    for tensor, name, wanted, counts in (
        (indices, "input", "a 1D or 2D", (1, 2)),
        (offsets, "offsets", "a 1D", (1,)),
        (weight, "weight", "a 2D", (2,)),
    ):
        if tensor.ndim not in counts:
            raise RuntimeError(f"{name} has to be {wanted} Tensor, but got Tensor of dimension {tensor.ndim}")


def _expect_kind(tensor, name: str, dtypes: dict[torch.dtype, str]) -> None:
    if tensor.dtype not in dtypes:
        raise RuntimeError(
            f"Expected tensor for argument #1 '{name}' to have one of the following scalar types: "
            f"{', '.join(dtypes.values())}; but got {tensor.type()} instead (while checking arguments for "
            "embedding_bag)"
        )


_INTEGERS = {torch.int64: "Long", torch.int32: "Int"}
_FLOATS = {torch.float16: "Half", torch.bfloat16: "BFloat16", torch.float32: "Float", torch.float64: "Double"}


def _check_bags(weight, indices, offsets, *args, **kwargs) -> None:
    """Refuses offsets that do not divide the indices, and indices of no rows.

    Raises:
        RuntimeError: offsets do not begin with 0, decrease, or go on past the end; or an index is out of range.
    """
    _expect_dimensions(weight, indices, offsets)
    for starts in [] if (examples := seen(offsets)) is None or not examples.size else examples:
        if (starts[1:] < starts[:-1]).any():
            raise RuntimeError(f"got the offsets {starts.tolist()}; wanted none below the one before it")
        if starts[0] != 0:
            raise RuntimeError(
                "offsets[0] has to be 0, i.e., the first sequence in the mini-batch has to start from position 0. "
                f"However, got {starts[0]}"
            )
        if starts[-1] > len(indices):
            raise RuntimeError(
                f"offsets[-1] can not be greater than input's length {len(indices)} but got offsets[-1] of {starts[-1]}"
            )
    expect_rows(weight, indices, RuntimeError)


@implements(torch.embedding_bag, check=_check_bags, prepare=_of_one_dtype, dtype=_DTYPES)
def embedding_bag(
    weight,
    indices,
    offsets,
    scale_grad_by_freq=False,
    mode=0,
    sparse=False,
    per_sample_weights=None,
    include_last_offset=False,
    padding_idx=None,
):
    """Gives the bags, the bag of each index, the size of each bag, and for mode 2 (max) the winning indices."""
    del sparse
    rows = weight.shape[0]
    if padding_idx is not None and not -rows <= padding_idx < rows:
        raise RuntimeError(
            f"padding_idx must be within the number of embeddings, {-rows} through {rows - 1}, but got {padding_idx}"
        )
    padding_idx = None if padding_idx is None else padding_idx % rows
    return _bags(
        weight, indices, offsets, scale_grad_by_freq, mode, per_sample_weights, include_last_offset, padding_idx
    )


@implements(
    aten._embedding_bag,
    aten._embedding_bag_forward_only,
    check=_check_bags,
    prepare=_of_one_dtype,
    dtype=_DTYPES,
)
def _embedding_bag(
    weight,
    indices,
    offsets,
    scale_grad_by_freq=False,
    mode=0,
    sparse=False,
    per_sample_weights=None,
    include_last_offset=False,
    padding_idx=-1,
):
    del sparse
    padding_idx = None if padding_idx is None or padding_idx < 0 else padding_idx
    return _bags(
        weight, indices, offsets, scale_grad_by_freq, mode, per_sample_weights, include_last_offset, padding_idx
    )


def _bags(weight, indices, offsets, scale_grad_by_freq, mode, per_sample_weights, include_last_offset, padding_idx):
    if include_last_offset and offsets.shape[0] == 0:
        raise RuntimeError("include_last_offset: number of offset should be at least 1")
    count = offsets.shape[0] - (1 if include_last_offset else 0)
    # Index i lies in the last bag that starts at or before it.
    starts = jnp.zeros((indices.shape[0] + 1,), indices.dtype).at[offsets[:count]].add(1)
    bag = jnp.cumsum(starts)[:-1].astype(indices.dtype) - 1
    rows = embed(weight, indices, padding_idx, scale_grad_by_freq)
    padding = np.asarray(-1 if padding_idx is None else padding_idx, indices.dtype)
    kept = lax.ne(indices, padding)
    sizes = jnp.zeros((count,), indices.dtype).at[bag].add(kept.astype(indices.dtype))
    if mode == 2:
        return _largest(rows, indices, bag, kept, count, sizes)
    rows = widened(rows)
    if per_sample_weights is not None:
        rows = lax.mul(rows, lax.broadcast_in_dim(widened(per_sample_weights), rows.shape, (0,)))
    rows = lax.select(lax.broadcast_in_dim(kept, rows.shape, (0,)), rows, lax.full_like(rows, 0))
    output = jnp.zeros((count, weight.shape[1]), rows.dtype).at[bag].add(rows)
    if mode == 1:
        divisor = lax.max(sizes, lax.full_like(sizes, 1)).astype(rows.dtype)
        output = lax.div(output, lax.broadcast_in_dim(divisor, output.shape, (0,)))
    return cast(output, weight.dtype), bag, sizes, jnp.zeros((0,), indices.dtype)


def _largest(rows, indices, bag, kept, count: int, sizes):
    """The largest of each column in each bag, the first one where several are."""
    last = rows.shape[0]
    if last == 0:
        shape = (count, rows.shape[1])
        return jnp.zeros(shape, rows.dtype), bag, sizes, jnp.full(shape, -1, indices.dtype)
    values = jnp.where(kept[:, None], lax.stop_gradient(rows), -jnp.inf)
    most = jnp.full((count, rows.shape[1]), -jnp.inf, rows.dtype).at[bag].max(values)
    positions = jnp.where((values == most[bag]) & kept[:, None], lax.broadcasted_iota(bag.dtype, rows.shape, 0), last)
    first = jnp.full(most.shape, last, bag.dtype).at[bag].min(positions)
    taken = jnp.take_along_axis(rows, jnp.minimum(first, last - 1), axis=0)
    winners = jnp.where(first == last, -1, indices[jnp.minimum(first, last - 1)])
    return jnp.where(first == last, 0, taken), bag, sizes, winners
