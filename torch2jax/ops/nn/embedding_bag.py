"""Bags: embeddings that are summed, averaged, or reduced to their largest."""

import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from ...rules.registry import implements
from ..arrays import cast, widened
from ..bounds import seen
from .embedding import embed, expect_rows
from .embedding_rows import rows_apart

aten = torch.ops.aten

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
    """The arguments with the rows that are used in the place of the table, where that has a sparse gradient."""
    rest = mode, sparse, per_sample_weights, include_last_offset
    pads = -1 if padding_idx is None else padding_idx
    # A number below zero is a row of the function's, and none of the operator's.
    counted = padding_idx is None or padding_idx >= 0
    apart = rows_apart(weight, indices, pads, scale_grad_by_freq) if counted else None
    if apart is None:
        return (weight, indices, offsets, scale_grad_by_freq, *rest, padding_idx), {}
    return (apart.table, apart.indices, offsets, False, *rest, None if pads < 0 else apart.padding_idx), {}


def _expect_dimensions(weight, indices, offsets) -> None:
    """Is asked before values are: PyTorch knows shapes first."""
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
    places = jnp.where((values == most[bag]) & kept[:, None], lax.broadcasted_iota(bag.dtype, rows.shape, 0), last)
    first = jnp.full(most.shape, last, bag.dtype).at[bag].min(places)
    taken = jnp.take_along_axis(rows, jnp.minimum(first, last - 1), axis=0)
    winners = jnp.where(first == last, -1, indices[jnp.minimum(first, last - 1)])
    return jnp.where(first == last, 0, taken), bag, sizes, winners
