"""Normalization layers."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from ...rules.array_rule import InnerRule
from ...rules.inplace import write_in_place
from ...rules.options import Tag
from ...rules.pointwise import as_input
from ...rules.registry import implements, implements_tensors, limit_decomposed, tag
from ...runtime.patches import exchange
from ...runtime.translation import current, lift
from ...tensors.dtypes import FLOATS, INEXACT
from ...values.item import Item
from ..arrays import like, spread, where
from ..gradients import expect_constant
from ..views import reshape

aten = torch.ops.aten

limit_decomposed(
    aten.native_group_norm.default,
    aten.native_batch_norm.default,
    aten._native_batch_norm_legit.default,
    aten._native_batch_norm_legit.no_stats,
    aten._native_batch_norm_legit_functional.default,
    aten._batch_norm_with_update.default,
    takes=FLOATS,
)
# Whose schemas do not say that they write the running statistics.
tag(torch.native_batch_norm, torch.cudnn_batch_norm, torch.miopen_batch_norm, tags=[Tag.WRITES_OTHERS])
tag(torch.batch_norm_gather_stats, torch.batch_norm_gather_stats_with_counts, tags=[Tag.WRITES_OTHERS])
tag(torch.batch_norm_update_stats, tags=[Tag.WRITES_OTHERS])


@functools.partial(jax.custom_jvp, nondiff_argnums=(1, 2, 3))
def standardize(x, axes: tuple[int, ...], eps: float, constant_is_zero: bool = False):
    """``(x - mean) / sqrt(variance + eps)`` over `axes`, with the mean and the variance.

    Args:
        constant_is_zero: whether that is 0 for equal numbers where `eps` is 0.
    """
    mean = _mean(x, axes)
    centred = lax.sub(x, spread(mean, x, axes))
    var = _mean(lax.square(centred), axes)
    return lax.mul(centred, spread(_inverse(var, eps, constant_is_zero), x, axes)), mean, var


@standardize.defjvp
def _(axes, eps, constant_is_zero, primals, tangents):
    # Written out so that the gradient takes two reductions, and reads nothing but the result. The tangent is used once,
    # so that its cotangent is one array when it meets others: XLA would add up every residual connection anew.
    (x,), (dx,) = primals, tangents
    y, mean, var = standardize(x, axes, eps, constant_is_zero)
    inverse = _inverse(var, eps, constant_is_zero)
    scaled = lax.mul(dx, spread(inverse, x, axes))
    shift, slope = _mean(scaled, axes), _mean(lax.mul(y, scaled), axes)
    d_y = lax.sub(lax.sub(scaled, spread(shift, x, axes)), lax.mul(y, spread(slope, x, axes)))
    if constant_is_zero and eps == 0:  # the inverse may be 0, by which nothing is divided
        centred = lax.sub(x, spread(mean, x, axes))
        d_mean, d_var = _mean(dx, axes), _mean(lax.mul(centred, lax.mul(dx, _scalar(dx, 2))), axes)
    else:
        d_mean = lax.div(shift, inverse)
        d_var = lax.div(lax.mul(slope, _scalar(slope, 2)), lax.square(inverse))
    return (y, mean, var), (d_y, d_mean, d_var)


def _inverse(var, eps, constant_is_zero: bool = False):
    if not constant_is_zero or eps != 0:
        return lax.rsqrt(lax.add(var, _scalar(var, eps)))
    is_zero = lax.eq(var, like(var, 0))
    return where(is_zero, like(var, 0), lax.rsqrt(where(is_zero, like(var, 1), var)))


def _scalar(array, value):
    return np.asarray(value, array.dtype)


def _mean(array, axes):
    count = math.prod(array.shape[axis] for axis in axes)
    return lax.div(lax.reduce_sum(array, axes), _scalar(array, count))


def _wide(array):
    """Half precision is computed in float32, and rounded once."""
    return array.astype(np.float32) if array is not None and array.dtype.itemsize < 4 else array


def _scaled(y, weight, bias, dimensions):
    """``y * weight + bias``, whose dimensions are those dimensions of `y`."""
    if weight is not None:
        y = lax.mul(y, lax.broadcast_in_dim(_wide(weight).astype(y.dtype), y.shape, dimensions))
    if bias is not None:
        y = lax.add(y, lax.broadcast_in_dim(_wide(bias).astype(y.dtype), y.shape, dimensions))
    return y


def _trailing(input, normalized_shape) -> tuple[int, ...]:
    """The last dimensions of `input`, which must be of `normalized_shape`."""
    shape = tuple(int(size) for size in normalized_shape)
    if not shape or input.shape[-len(shape) :] != shape:
        raise RuntimeError(
            f"given normalized_shape={list(shape)}, expected input with shape [*, {', '.join(map(str, shape))}], but "
            f"got input of size {list(input.shape)}"
        )
    return tuple(range(input.ndim - len(shape), input.ndim))


def _check_affine(normalized_shape, **parameters) -> None:
    for name, parameter in parameters.items():
        if parameter is not None and parameter.shape != tuple(normalized_shape):
            raise RuntimeError(
                f"expected {name} to be of same shape as normalized_shape, but got {name} of shape "
                f"{list(parameter.shape)} and normalized_shape = {list(normalized_shape)}"
            )


@implements(torch.native_layer_norm, takes=FLOATS)
def native_layer_norm(input, normalized_shape, weight, bias, eps):
    axes = _trailing(input, normalized_shape)
    _check_affine(normalized_shape, weight=weight, bias=bias)
    y, mean, var = standardize(_wide(input), axes, eps)
    output = _scaled(y, weight, bias, axes).astype(input.dtype)
    statistics = (lax.expand_dims(each, axes) for each in (mean, _inverse(var, eps)))
    if weight is None or weight.dtype == input.dtype:
        statistics = (each.astype(input.dtype) for each in statistics)
    return output, *statistics


@implements(torch.layer_norm, torch.nn.functional.layer_norm, takes=FLOATS)
def layer_norm(input, normalized_shape, weight=None, bias=None, eps=1e-05, cudnn_enable=True):
    axes = _trailing(input, normalized_shape)
    _check_affine(normalized_shape, weight=weight, bias=bias)
    y, _, _ = standardize(_wide(input), axes, eps)
    return _scaled(y, weight, bias, axes).astype(input.dtype)


@implements(torch.rms_norm, torch.nn.functional.rms_norm, takes=INEXACT)
def rms_norm(input, normalized_shape, weight=None, eps=None):
    axes = _trailing(input, normalized_shape)
    _check_affine(normalized_shape, weight=weight)
    x = _wide(input)
    eps = jnp.finfo(input.dtype).eps if eps is None else eps
    inverse = _inverse(_mean(lax.square(x), axes), eps)
    return _scaled(lax.mul(x, spread(inverse, x, axes)), weight, None, axes).astype(input.dtype)


@implements(torch.group_norm, takes=FLOATS, channels_last=("follow", 4), strides=as_input)
def group_norm(input, num_groups, weight=None, bias=None, eps=1e-05, cudnn_enabled=True, *, channels_last=False):
    at = _channel_axis(input, channels_last)
    channels = input.shape[at]
    if not input.size:  # which PyTorch 2.15 refuses
        torch.group_norm(torch.empty(input.shape, device="meta"), num_groups)
    if channels % num_groups:
        raise RuntimeError(
            f"expected number of channels in input to be divisible by num_groups, but got {channels} channels and "
            f"num_groups={num_groups}"
        )
    shape = (*input.shape[:at], num_groups, channels // num_groups, *input.shape[at + 1 :])
    y, _, _ = standardize(reshape(_wide(input), shape), tuple(i for i in range(1, len(shape)) if i != at), eps)
    return _scaled(reshape(y, input.shape), weight, bias, (at,)).astype(input.dtype)


# Batch norm and instance norm: they also write the running statistics.


def _normalize_batch(input, weight, bias, running_mean, running_var, momentum, eps, *, channels_last=False):
    """Batch norm by the statistics of the batch, and the new running statistics."""
    at = _channel_axis(input, channels_last)
    y, mean, var = standardize(_wide(input), tuple(i for i in range(input.ndim) if i != at), eps, True)
    output = _scaled(y, weight, bias, (at,)).astype(input.dtype)
    if input.size == 0:
        return output, running_mean, running_var
    return output, *_updated(running_mean, running_var, mean, var, input.size // mean.size, momentum)


def _normalize_with(input, weight, bias, mean, var, eps, *, channels_last=False):
    """Batch norm by given statistics: one multiplication and one addition for each element."""
    x = _wide(input)
    mean, var, weight, bias = (None if v is None else _wide(v).astype(x.dtype) for v in (mean, var, weight, bias))
    scale = _inverse(var, eps) if weight is None else lax.mul(_inverse(var, eps), weight)
    shift = lax.mul(mean, scale)
    shift = lax.neg(shift) if bias is None else lax.sub(bias, shift)
    return _scaled(x, scale, shift, (_channel_axis(input, channels_last),)).astype(input.dtype)


def _channel_axis(array, channels_last: bool) -> int:
    return array.ndim - 1 if channels_last else 1


def _updated(running_mean, running_var, mean, var, count: int, momentum):
    """The running statistics after a batch; gradients do not flow into them."""
    mean, var = lax.stop_gradient((mean, var))
    unbiased = lax.mul(var, _scalar(var, count / max(count - 1, 1)))
    return _running_average(running_mean, mean, momentum), _running_average(running_var, unbiased, momentum)


def _running_average(running, value, momentum):
    if running is None:
        return None
    value = value.astype(running.dtype)
    if isinstance(momentum, jax.Array):  # one over how many batches there were
        momentum = lax.broadcast(momentum.astype(running.dtype), running.shape)
        return lax.add(running, lax.mul(momentum, lax.sub(value, running)))
    kept = lax.mul(running, _scalar(running, 1 - momentum))
    return lax.add(kept, lax.mul(value, _scalar(running, momentum)))


_NORMALIZE_BATCH = InnerRule(_normalize_batch, "batch_norm", channels_last=("follow", 4), strides=as_input)
_NORMALIZE_WITH = InnerRule(_normalize_with, "batch_norm", channels_last=("follow", 4), strides=as_input)


def _expect_constant(input, running_mean, running_var, training: bool) -> None:
    """Refuses running statistics that require grad, as PyTorch does."""
    statistics = {"running_mean": running_mean, "running_var": running_var}
    given = {name: lift(tensor) for name, tensor in statistics.items() if tensor is not None}
    expect_constant("native_batch_norm", **given)
    dual = current().dual
    if dual is None or training or not dual.has_tangent(lift(input)):
        return
    if any(map(dual.has_tangent, given.values())):
        raise RuntimeError(
            "batch_norm is not differentiable wrt running_mean and running_var, they cannot have forward grad defined"
        )


@implements_tensors(torch.batch_norm, aten.batch_norm.default, takes=FLOATS, tags=[Tag.WRITES_OTHERS])
def batch_norm(input, weight, bias, running_mean, running_var, training, momentum, eps, cudnn_enabled=True):
    _expect_constant(input, running_mean, running_var, training)
    if input.ndim < 2 and input.numel() == 0:
        return input.clone()
    if not training and running_mean is not None:
        return _NORMALIZE_WITH((input, weight, bias, running_mean, running_var, eps), {})
    output, mean, var = _NORMALIZE_BATCH((input, weight, bias, running_mean, running_var, _operand(momentum), eps), {})
    return _with_written(output, running_mean, running_var, mean, var)


def _operand(momentum):
    """A momentum as a body takes it: one that is computed from a traced number of batches is a tensor."""
    return momentum.tensor(torch.float64) if isinstance(momentum, Item) else momentum


def _float(value=0.0):
    """``float`` where PyTorch's batch norm divides by its number of batches, which a jitted training step traces."""
    number = value.item() if isinstance(value, torch.Tensor) else value
    return number if isinstance(number, Item) else float(number)


for _module in ("torch.nn.modules.batchnorm", "timm.layers.norm_act"):
    exchange(_module, "float", _float, may_lack=True)


def _with_written(output, running_mean, running_var, mean, var):
    if running_mean is not None:
        with torch.no_grad():
            write_in_place(running_mean, mean)
            write_in_place(running_var, var)
    return output


def _normalize_instances(input, weight, bias, running_mean, running_var, momentum, eps, *, channels_last=False):
    """Instance norm by the statistics of each sample's channels, and the new running statistics."""
    at = _channel_axis(input, channels_last)
    axes = tuple(i for i in range(1, input.ndim) if i != at)
    y, mean, var = standardize(_wide(input), axes, eps, True)
    output = _scaled(y, weight, bias, (at,)).astype(input.dtype)
    count = math.prod(input.shape[axis] for axis in axes)
    return output, *_updated(running_mean, running_var, _mean(mean, (0,)), _mean(var, (0,)), count, momentum)


_NORMALIZE_INSTANCES = InnerRule(_normalize_instances, "instance_norm", channels_last=("follow", 4))


@implements_tensors(torch.instance_norm, aten.instance_norm.default, takes=FLOATS, tags=[Tag.WRITES_OTHERS])
def instance_norm(input, weight, bias, running_mean, running_var, use_input_stats, momentum, eps, cudnn_enabled=True):
    if not use_input_stats:
        return torch.batch_norm(input, weight, bias, running_mean, running_var, False, momentum, eps, cudnn_enabled)
    _expect_constant(input, running_mean, running_var, training=True)
    output, mean, var = _NORMALIZE_INSTANCES(
        (input, weight, bias, running_mean, running_var, _operand(momentum), eps), {}
    )
    return _with_written(output, running_mean, running_var, mean, var)
