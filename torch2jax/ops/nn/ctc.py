"""Connectionist temporal classification."""

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from ...rules.registry import implements
from ...tensors.dtypes import FLOATS
from ...tensors.traced import is_traced
from ..arrays import cast, like, where, widened
from .loss import MEAN, SUM, reduce


@implements(torch.ctc_loss, takes=FLOATS)
def ctc_loss(log_probs, targets, input_lengths, target_lengths, blank=0, reduction=MEAN, zero_infinity=False):
    batched = log_probs.ndim == 3
    x = widened(log_probs if batched else lax.expand_dims(log_probs, (1,)))
    input_lengths = _lengths(input_lengths, "input_lengths", x.shape[1], most=len(x))
    target_lengths = _lengths(target_lengths, "target_lengths", x.shape[1])
    if not 0 <= blank < x.shape[2]:
        raise RuntimeError(f"blank must be in label range, 0 to {x.shape[2] - 1}, but got {blank}")
    _expect_targets(targets.shape, target_lengths, x.shape[1])
    labels = _label_rows(jnp.asarray(targets, np.int32), target_lengths, x.shape[1])
    loss = _ctc_forward(x, labels, input_lengths, target_lengths, blank)
    if zero_infinity:
        loss = where(jnp.isinf(loss), like(loss, 0), loss)
    if reduction == MEAN:
        loss = reduce(lax.div(loss, cast(lax.max(target_lengths, np.int32(1)), loss.dtype)), MEAN)
    elif reduction == SUM:
        loss = reduce(loss, SUM)
    return cast(loss if batched or reduction else lax.squeeze(loss, (0,)), log_probs.dtype)


def _lengths(lengths, name: str, batch: int, most: int | None = None):
    """One length for each sequence; what is known of them is checked."""
    array = (lengths if is_traced(lengths) else np.asarray(lengths)).reshape(-1)
    if not jnp.issubdtype(array.dtype, jnp.integer):
        raise RuntimeError(f"{name} must be integral, but got {array.dtype}")
    if array.size != batch:
        raise RuntimeError(f"{name} must be of size batch_size, {batch}, but got {array.size}")
    if not is_traced(array) and array.size:
        least, greatest = int(np.min(array)), int(np.max(array))
        if least < 0:
            raise RuntimeError(f"Expected {name} to have value at least 0, but got value {least}")
        if most is not None and greatest > most:
            raise RuntimeError(f"Expected {name} to have value at most {most}, but got value {greatest}")
    return array.astype(np.int32)


def _expect_targets(shape, lengths, batch: int) -> None:
    """Refuses labels that are not of the shape that the lengths, if they are known, say."""
    if len(shape) == 2 and shape[0] != batch:
        raise RuntimeError(f"Expected targets to have size {batch} at dimension 0, but got size {shape[0]}")
    if is_traced(lengths) or not lengths.size:
        return
    if len(shape) == 2 and shape[1] < int(np.max(lengths)):
        raise RuntimeError(
            f"Expected targets to have size at least {int(np.max(lengths))} at dimension 1, but got size {shape[1]}"
        )
    if len(shape) == 1 and shape[0] != int(np.sum(lengths)):
        raise RuntimeError(f"Expected targets to have size {int(np.sum(lengths))} at dimension 0, but got {shape[0]}")


def _label_rows(targets, lengths, batch: int):
    """The labels of each sequence in a row, also where the targets are given end to end."""
    if targets.ndim == 2:
        return targets
    if batch == 1:
        return lax.expand_dims(targets, (0,))
    start = lax.cumsum(lengths) - lengths
    return targets.at[start[:, None] + np.arange(targets.size)].get(mode="clip")


_IMPOSSIBLE = -1e30  # stands for log(0): finite, so that its derivatives are


def _ctc_forward(log_probs, labels, input_lengths, target_lengths, blank: int):
    """The forward variables of Graves et al. (2006), eq. 6 and 7, for each sequence; the loss is their last sum."""
    batch, states = labels.shape[0], 2 * labels.shape[1] + 1
    states_of = jnp.full((batch, states), blank, np.int32).at[:, 1::2].set(labels)
    emitted = jnp.take_along_axis(log_probs, states_of[None], axis=2)  # time, batch, state
    skips = (
        jnp.zeros((batch, states), bool)
        .at[:, 2:]
        .set((states_of[:, 2:] != blank) & (states_of[:, 2:] != states_of[:, :-2]))
    )

    def delayed(alpha, by):
        return jnp.pad(alpha, ((0, 0), (by, 0)), constant_values=_IMPOSSIBLE)[:, :states]

    def step(alpha, at):
        time, emission = at
        arrivals = [alpha, delayed(alpha, 1), jnp.where(skips, delayed(alpha, 2), _IMPOSSIBLE)]
        after = lax.max(jax.nn.logsumexp(jnp.stack(arrivals), axis=0) + emission, like(alpha, _IMPOSSIBLE))
        return jnp.where((time < input_lengths)[:, None], after, alpha), None

    first = jnp.where(np.arange(states) < 2, emitted[0], _IMPOSSIBLE)
    if is_traced(input_lengths) or (np.asarray(input_lengths) == 0).any():
        empty = np.where(np.arange(states) == 0, 0.0, _IMPOSSIBLE).astype(first.dtype)
        first = jnp.where((input_lengths == 0)[:, None], empty, first)
    alpha, _ = lax.scan(step, first, (np.arange(1, len(emitted), dtype=np.int32), emitted[1:]))
    ends = jnp.stack([2 * target_lengths, jnp.maximum(2 * target_lengths - 1, 0)], axis=1)
    ending = jnp.take_along_axis(alpha, ends, axis=1)
    ending = jnp.where((np.arange(2) == 1) & (target_lengths == 0)[:, None], _IMPOSSIBLE, ending)
    loss = lax.neg(jax.nn.logsumexp(ending, axis=1))
    # PyTorch's derivative is that of inputs which are normalised, that is, with the one of log_softmax in it.
    total = jnp.where(np.arange(len(emitted))[:, None] < input_lengths, jnp.exp(log_probs).sum(2), 0).sum(0)
    loss += total - lax.stop_gradient(total)
    return jnp.where(loss > -_IMPOSSIBLE / 2, jnp.inf, loss)
