"""Loss functions.

PyTorch's Python functions check and combine; these are the rules of what they call, with `reduction` as a number.

Also here: connectionist temporal classification.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import torch
import torch.nn.functional as F
from jax import lax

from ...internals.dispatch import nn as _nn
from ...internals.jax import ShardingTypeError
from ...rules.pointwise import as_pointwise, like_input
from ...rules.registry import implements, implements_tensors
from ...tensors.dtypes import FLOATS, INEXACT, NUMBERS
from ...tensors.traced import is_traced
from ..arrays import cast, is_complex, like, looks_for_nans, where, widened
from ..bounds import outside, seen
from ..elementwise import magnitude
from .activation import log_softmax_over, logsigmoid, shifted

aten = torch.ops.aten

NONE, MEAN, SUM = 0, 1, 2  # torch.nn._reduction.get_enum


def reduce(loss, reduction: int):
    """The losses of all elements, their mean or their sum."""
    if reduction == NONE:
        return loss
    total = lax.reduce_sum(loss, tuple(range(loss.ndim)))
    return lax.div(total, like(total, loss.size)) if reduction == MEAN else total


# Differences.


def _elementwise(function):
    """A rule that reduces a function of two tensors of one dtype, computed in float32 for half precision."""

    def body(input, target, reduction=MEAN, *parameters, **named_parameters):
        dtype = jnp.promote_types(input.dtype, target.dtype)
        operands = jnp.broadcast_arrays(widened(cast(input, dtype)), widened(cast(target, dtype)))
        loss = reduce(function(*operands, *parameters, **named_parameters), reduction)
        return loss if is_complex(operands[0]) else cast(loss, dtype)

    return body


def _real_dtype(input, target, reduction=MEAN, *parameters, **named_parameters) -> torch.dtype:
    return torch.promote_types(input.dtype, target.dtype).to_real()


def _absolute(input, target):
    return magnitude(lax.sub(input, target))


def _square(input, target):
    return lax.square(lax.sub(input, target))


def _smooth(input, target, beta=1.0):
    if beta < 0:
        raise RuntimeError(f"smooth_l1_loss does not support negative values for beta, got {beta}")
    if beta == 0:
        return _absolute(input, target)
    distance = _absolute(input, target)
    is_near = lax.lt(distance, like(input, beta))
    square = lax.mul(_square_where(is_near, input, target), like(input, 0.5 / beta))
    return where(is_near, square, lax.sub(distance, like(input, beta / 2)))


def _square_where(is_near, input, target):
    """The square of a difference, which elsewhere may be infinite, and would make the derivative NaN."""
    return lax.square(where(is_near, lax.sub(input, target), like(input, 0)))


def _huber(input, target, delta=1.0):
    if delta <= 0:
        raise RuntimeError(f"huber_loss does not support non-positive values for delta, got {delta}")
    distance = _absolute(input, target)
    is_near = lax.lt(distance, like(input, delta))
    square = lax.mul(_square_where(is_near, input, target), like(input, 0.5))
    line = lax.mul(lax.sub(distance, like(input, delta / 2)), like(input, delta))
    # At the bound both are the same number; the second derivative is that of the line, as PyTorch's.
    return where(is_near, square, line)


def _absolute_dtypes(input, target, reduction=MEAN):
    return INEXACT if reduction == MEAN else NUMBERS


for _name, _function, _takes, _strides in (
    ("l1_loss", _absolute, _absolute_dtypes, as_pointwise),
    ("mse_loss", _square, FLOATS, as_pointwise),
    ("smooth_l1_loss", _smooth, FLOATS, as_pointwise),
    ("huber_loss", _huber, FLOATS, like_input),
):
    implements(getattr(_nn, _name), getattr(aten, _name), takes=_takes, dtype=_real_dtype, strides=_strides)(
        _elementwise(_function)
    )


# Margins.


def _reduce_tensor(loss, reduction: int):
    return loss if reduction == NONE else loss.mean() if reduction == MEAN else loss.sum()


@implements_tensors(torch.margin_ranking_loss, aten.margin_ranking_loss.default)
def margin_ranking_loss(input1, input2, target, margin=0.0, reduction=MEAN):
    return _reduce_tensor((-target * (input1 - input2) + float(margin)).clamp_min(0), reduction)


@implements_tensors(_nn.soft_margin_loss, aten.soft_margin_loss.default, takes=FLOATS)
def soft_margin_loss(input, target, reduction=MEAN):
    return _reduce_tensor(-F.logsigmoid(input * target), reduction)


@implements_tensors(torch.hinge_embedding_loss, aten.hinge_embedding_loss.default)
def hinge_embedding_loss(input, target, margin=1.0, reduction=MEAN):
    apart = torch.where(target != 1, (margin - input).clamp_min(0), 0)
    return _reduce_tensor(apart + torch.where(target != -1, input, 0), reduction)


@implements_tensors(_nn.multi_margin_loss, aten.multi_margin_loss.default, takes=FLOATS)
def multi_margin_loss(input, target, p=1, margin=1.0, weight=None, reduction=MEAN):
    rows, index = torch.atleast_2d(input), target.reshape(-1, 1)
    batch, classes = rows.shape[0], rows.shape[-1]
    if rows.ndim != 2 or classes == 0:
        raise RuntimeError(f"expected a non-empty vector or matrix, got input of shape {list(input.shape)}")
    if target.ndim > 1 or target.numel() != batch:
        raise RuntimeError(f"inconsistent target size, expected {batch}, got {list(target.shape)}")
    if weight is not None and weight.numel() != classes:
        raise RuntimeError(f"inconsistent weight size, expected {classes}, got {list(weight.shape)}")
    if outside(target, 0, classes - 1) is not None:
        raise RuntimeError(f"target out of range: wanted 0 to {classes - 1}, got {outside(target, 0, classes - 1)}")
    distances = F.relu(margin - rows.gather(1, index) + rows) ** p
    if weight is not None:
        distances = distances * weight.reshape(-1)[index]
    others = torch.arange(classes) != index
    loss = torch.where(others, distances, 0).sum(1) / classes
    return loss.reshape(target.shape) if reduction == NONE else _reduce_tensor(loss, reduction)


@implements_tensors(_nn.multilabel_margin_loss, aten.multilabel_margin_loss.default, takes=FLOATS)
def multilabel_margin_loss(input, target, reduction=MEAN):
    rows, labels = torch.atleast_2d(input), torch.atleast_2d(target)
    classes = rows.shape[-1]
    if rows.ndim != 2 or classes == 0:
        raise RuntimeError(f"expected a non-empty vector or matrix, got input of shape {list(input.shape)}")
    if labels.shape != rows.shape:
        raise RuntimeError(f"inconsistent target size {list(target.shape)} for input of size {list(input.shape)}")
    if outside(target, -1, classes - 1) is not None:
        raise RuntimeError(f"target out of range: wanted -1 to {classes - 1}, got {outside(target, -1, classes - 1)}")
    listed = (labels >= 0).cumprod(1).bool()  # the first negative label ends them
    index = torch.where(listed, labels, 0)
    is_target = ((index.unsqueeze(2) == torch.arange(classes)) & listed.unsqueeze(2)).any(1)
    distances = F.relu(1 - rows.gather(1, index).unsqueeze(2) + rows.unsqueeze(1))
    counted = listed.unsqueeze(2) & ~is_target.unsqueeze(1)
    loss = torch.where(counted, distances, 0).sum((1, 2)) / classes
    return loss.reshape(input.shape[:-1]) if reduction == NONE else _reduce_tensor(loss, reduction)


# Probabilities of two classes.


@jax.custom_jvp
def _cross_entropy_of_two(x, target):
    log_x, log_rest = (lax.max(log, like(x, -100)) for log in (lax.log(x), lax.log1p(lax.neg(x))))
    return lax.neg(lax.add(lax.mul(target, log_x), lax.mul(lax.sub(like(x, 1), target), log_rest)))


@_cross_entropy_of_two.defjvp
def _(primals, tangents):
    # The derivative is finite where a probability is 0 or 1, as PyTorch's is.
    (x, target), (dx, dtarget) = primals, tangents
    rest = lax.sub(like(x, 1), x)
    slope = lax.div(lax.sub(x, target), lax.max(lax.mul(rest, x), like(x, 1e-12)))
    odds = lax.sub(lax.log(rest), lax.log(x))
    return _cross_entropy_of_two(x, target), lax.add(lax.mul(slope, dx), lax.mul(odds, dtarget))


@implements(_nn.binary_cross_entropy, takes=FLOATS)
def binary_cross_entropy(input, target, weight=None, reduction=MEAN):
    _expect_probabilities(input, "input")
    _expect_probabilities(target, "target")
    loss = _cross_entropy_of_two(widened(input), cast(widened(target), widened(input).dtype))
    return cast(reduce(_weighted(loss, weight), reduction), input.dtype)


def _expect_probabilities(values, name: str) -> None:
    """Refuses wrong values where they are known; traced ones are not checked."""
    if is_traced(values):
        return
    values = np.asarray(values)
    if not ((values >= 0) & (values <= 1)).all():
        raise RuntimeError(f"all elements of {name} should be between 0 and 1")


def _weighted(loss, weight):
    return loss if weight is None else loss * cast(weight, loss.dtype)


@implements(torch.binary_cross_entropy_with_logits, takes=FLOATS)
def binary_cross_entropy_with_logits(input, target, weight=None, pos_weight=None, reduction=MEAN):
    x = widened(input)
    target = cast(target, x.dtype)
    log_likelihood = logsigmoid(x)
    if pos_weight is not None:
        log_likelihood = log_likelihood * (1 + (cast(pos_weight, x.dtype) - 1) * target)
    loss = lax.sub(lax.mul(lax.sub(like(x, 1), target), x), log_likelihood)
    return cast(reduce(_weighted(loss, weight), reduction), input.dtype)


# Classes. The class dimension is the second one, or the only one.


@functools.partial(jax.custom_jvp, nondiff_argnums=(2,))
def _picked(x, target, axis: int):
    """``x[..., target, ...]`` along `axis`, NaN for a class that is out of range."""
    others = tuple(i for i in range(x.ndim) if i != axis)
    batch = tuple(range(target.ndim))
    numbers = lax.GatherDimensionNumbers(
        offset_dims=(),
        collapsed_slice_dims=(axis,),
        start_index_map=(axis,),
        operand_batching_dims=others,
        start_indices_batching_dims=batch,
    )
    index = lax.expand_dims(target, (target.ndim,))
    try:
        return lax.gather(x, index, numbers, (1,) * x.ndim, mode=lax.GatherScatterMode.FILL_OR_DROP)
    except ShardingTypeError:  # the classes are split over explicit axes: each device has some, or none
        found = lax.reduce_sum(where(_is_class(x, target, axis), x, like(x, 0)), (axis,))
        is_there = lax.bitwise_and(lax.ge(target, like(target, 0)), lax.lt(target, like(target, x.shape[axis])))
        return where(is_there, found, like(x, np.nan))


def _is_class(x, target, axis: int):
    """The one-hot mask of the class of each target along an axis."""
    classes = lax.broadcasted_iota(target.dtype, x.shape, axis)
    return lax.eq(classes, jnp.broadcast_to(lax.expand_dims(target, (axis,)), x.shape))


@_picked.defjvp
def _(axis, primals, tangents):
    # A gather would leave a scatter to its transpose; this leaves a select, which fuses.
    (x, target), (tangent, _) = primals, tangents
    hit = _is_class(x, target, axis)
    return _picked(x, target, axis), lax.reduce_sum(where(hit, tangent, lax.full_like(tangent, 0)), (axis,))


def _counted(target, ignore_index) -> tuple:
    """The classes to look up, and which targets count."""
    valid = lax.ne(target, like(target, ignore_index))
    return (where(valid, target, like(target, 0)) if looks_for_nans() else target), valid


def _class_weights(weight, target, valid, dtype):
    """The weight of each target's class, zero for ignored ones."""
    if weight is None:
        return cast(valid, dtype)
    weight = cast(weight, dtype).at[target].get(mode="fill", fill_value=jnp.nan, wrap_negative_indices=False)
    return where(valid, weight, like(weight, 0))


def _class_axis(input, target, weight) -> int:
    axis = min(input.ndim - 1, 1)
    if weight is not None and weight.shape != (input.shape[axis],):
        raise RuntimeError(
            "cross_entropy: weight tensor should be defined either for all "
            f"{input.shape[axis]} classes or no classes but got weight tensor of shape: {list(weight.shape)}"
        )
    expected = input.shape[:axis] + input.shape[axis + 1 :]
    if input.ndim > 1 and target.shape[:1] != expected[:1]:
        raise ValueError(
            f"Expected input batch_size ({input.shape[0]}) to match target batch_size, got a target of size "
            f"{list(target.shape)}"
        )
    if target.shape != expected:
        raise RuntimeError(
            f"Expected target size {list(expected)} for input of size {list(input.shape)}, got {list(target.shape)}"
        )
    if not jnp.issubdtype(target.dtype, jnp.integer):
        raise RuntimeError(f"expected scalar type Long for the target classes, but found {target.dtype}")
    return axis


def _negative_likelihood(log_likelihood, target, valid, weight, reduction):
    """Reduces the log-likelihoods of the targets' classes; the mean is weighted."""
    loss = where(valid, lax.neg(log_likelihood), like(log_likelihood, 0))
    weights = _class_weights(weight, target, valid, loss.dtype) if weight is not None or reduction == MEAN else None
    if weight is not None:
        loss = lax.mul(loss, weights)
    return lax.div(reduce(loss, SUM), reduce(weights, SUM)) if reduction == MEAN else reduce(loss, reduction)


def _check_classes(input, target, weight=None, reduction=MEAN, ignore_index=-100, *args, **kwargs) -> None:
    """Raises an error if a known class is none of `input`'s, nor the one to ignore."""
    if target.is_floating_point() or not input.ndim:  # probabilities
        return
    values, classes = seen(target), input.shape[min(input.ndim - 1, 1)]
    if values is not None and outside(values, 0, classes - 1) is not None:
        bad = values[((values < 0) | (values >= classes)) & (values != ignore_index)]
        if bad.size:
            raise IndexError(f"Target {bad[0]} is out of bounds.")


@implements(_nn.nll_loss_nd, _nn.nll_loss, _nn.nll_loss2d, takes=FLOATS, check=_check_classes)
def nll_loss(input, target, weight=None, reduction=MEAN, ignore_index=-100):
    if input.ndim == 0:
        raise ValueError(f"Expected 1 or more dimensions (got {input.ndim})")
    axis = _class_axis(input, target, weight)
    target, valid = _counted(target, ignore_index)
    likelihood = _picked(widened(input), target, axis)
    return cast(_negative_likelihood(likelihood, target, valid, weight, reduction), input.dtype)


@implements(_nn.cross_entropy_loss, takes=FLOATS, check=_check_classes)
def cross_entropy_loss(input, target, weight=None, reduction=MEAN, ignore_index=-100, label_smoothing=0.0):
    if not 0 <= label_smoothing <= 1:
        raise RuntimeError(f"label_smoothing must be between 0.0 and 1.0. Got: {label_smoothing}")
    if input.shape == target.shape and jnp.issubdtype(target.dtype, jnp.floating):
        loss = _cross_entropy_of_probabilities(widened(input), target, weight, reduction, label_smoothing)
        return cast(loss, input.dtype)
    axis = _class_axis(input, target, weight)
    x = shifted(widened(input), (axis,))
    log_sum = lax.log(lax.reduce_sum(lax.exp(x), (axis,)))
    target, valid = _counted(target, ignore_index)
    likelihood = lax.sub(_picked(x, target, axis), log_sum)
    loss = _negative_likelihood(likelihood, target, valid, weight, reduction)
    if label_smoothing:
        smooth = _smoothing_loss(x, log_sum, target, valid, axis, weight, reduction)
        loss = (1 - label_smoothing) * loss + (label_smoothing / x.shape[axis]) * smooth
    return cast(loss, input.dtype)


def _smoothing_loss(x, log_sum, target, valid, axis, weight, reduction):
    """The loss against every class alike."""
    losses = lax.sub(jnp.expand_dims(log_sum, axis), x)
    if weight is not None:
        losses = losses * _along(weight, axis, losses)
    losses = where(valid, lax.reduce_sum(losses, (axis,)), like(losses, 0))
    if reduction != MEAN:
        return reduce(losses, reduction)
    return lax.div(reduce(losses, SUM), reduce(_class_weights(weight, target, valid, losses.dtype), SUM))


def _along(weight, axis, x):
    """A vector laid along one dimension of `x`."""
    return lax.broadcast_in_dim(cast(weight, x.dtype), x.shape, (axis,))


def _cross_entropy_of_probabilities(x, target, weight, reduction, label_smoothing):
    axis = min(x.ndim - 1, 1)
    target = cast(target, x.dtype)
    if label_smoothing:
        target = target * (1 - label_smoothing) + label_smoothing / x.shape[axis]
    products = lax.mul(log_softmax_over(x, (axis,)), target)
    if weight is not None:
        products = products * _along(weight, axis, products)
    loss = lax.neg(lax.reduce_sum(products, (axis,)))
    # The mean is over all but the class dimension, whatever the weights.
    return reduce(loss, reduction)


@implements_tensors("torch_nn::_linear_cross_entropy_batch_chunked")
def _linear_cross_entropy(
    input, linear_weight, target, linear_bias, weight, reduction, ignore_index, label_smoothing, *_how
):
    loss = F.cross_entropy(
        F.linear(input, linear_weight, linear_bias),
        target,
        weight,
        ignore_index=ignore_index,
        reduction=reduction,
        label_smoothing=label_smoothing,
    )
    return (loss,)


@implements_tensors("torch_nn::_linear_cross_entropy_batch_chunked_no_reduction")
def _linear_cross_entropy_each(input, linear_weight, target, linear_bias, weight, ignore_index, *_how):
    return _linear_cross_entropy(input, linear_weight, target, linear_bias, weight, "none", ignore_index, 0.0)[0]


def _check_lengths(log_probs, targets, input_lengths, target_lengths, *args, **kwargs) -> None:
    """Refuses lengths beyond their sequences, and labels of fewer elements than their lengths say."""
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
