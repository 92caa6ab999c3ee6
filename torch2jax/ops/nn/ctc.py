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
from ..bounds import seen
from .loss import MEAN, SUM, reduce


def _check_lengths(log_probs, targets, input_lengths, target_lengths, *args, **kwargs) -> None:
    """Refuses lengths that go on past their sequences, and labels of which the lengths say that there are more."""
    batch = log_probs.shape[1] if log_probs.ndim == 3 else 1
    if targets.ndim == 2 and targets.shape[0] != batch:
        raise RuntimeError(f"Expected targets to have size {batch} at dimension 0, but got size {targets.shape[0]}")
    limits = {"input_lengths": (input_lengths, len(log_probs)), "target_lengths": (target_lengths, None)}
    for name, (lengths, most) in limits.items():
        values = _seen(lengths)
        if values is None or not values.size:
            continue
        least, greatest = values.min(), values.max()
        if least < 0:
            raise RuntimeError(f"Expected {name} to have value at least 0, but got value {least}")
        if most is not None and greatest > most:
            raise RuntimeError(f"Expected {name} to have value at most {most}, but got value {greatest}")
        if name == "target_lengths" and targets.ndim == 2 and targets.shape[1] < greatest:
            raise RuntimeError(
                f"Expected targets to have size at least {greatest} at dimension 1, but got size {targets.shape[1]}"
            )
        total = values.reshape(len(values), -1).sum(1)
        if name == "target_lengths" and targets.ndim == 1 and (total != len(targets)).any():
            raise RuntimeError(f"Expected targets to have size {total[0]} at dimension 0, but got {len(targets)}")


def _seen(lengths) -> np.ndarray | None:
    return seen(lengths) if isinstance(lengths, torch.Tensor) else np.asarray(lengths)[None]


@implements(torch.ctc_loss, takes=FLOATS, check=_check_lengths)
def ctc_loss(log_probs, targets, input_lengths, target_lengths, blank=0, reduction=MEAN, zero_infinity=False):
    batched = log_probs.ndim == 3
    x = widened(log_probs if batched else lax.expand_dims(log_probs, (1,)))
    input_lengths = _lengths(input_lengths, "input_lengths", x.shape[1])
    target_lengths = _lengths(target_lengths, "target_lengths", x.shape[1])
    if not 0 <= blank < x.shape[2]:
        raise RuntimeError(f"blank must be in label range, 0 to {x.shape[2] - 1}, but got {blank}")
    labels = _label_rows(jnp.asarray(targets, np.int32), target_lengths, x.shape[1])
    loss = _ctc_forward(x, labels, input_lengths, target_lengths, blank)
    if zero_infinity:
        loss = where(jnp.isinf(loss), like(loss, 0), loss)
    if reduction == MEAN:
        loss = reduce(lax.div(loss, cast(lax.max(target_lengths, np.int32(1)), loss.dtype)), MEAN)
    elif reduction == SUM:
        loss = reduce(loss, SUM)
    return cast(loss if batched or reduction else lax.squeeze(loss, (0,)), log_probs.dtype)


def _lengths(lengths, name: str, batch: int):
    """One length for each sequence."""
    array = (lengths if is_traced(lengths) else np.asarray(lengths)).reshape(-1)
    if not jnp.issubdtype(array.dtype, jnp.integer):
        raise RuntimeError(f"{name} must be integral, but got {array.dtype}")
    if array.size != batch:
        raise RuntimeError(f"{name} must be of size batch_size, {batch}, but got {array.size}")
    return array.astype(np.int32)


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
