"""Fake quantization: rounding to what a quantized tensor could hold, the choice of its scale, and its observers.

PyTorch's kernels multiply by the inverse of the scale, which is of float32, and round half to even. Then they add the
zero point if it is an integer; one of floating point is added before. So do these rules, bit for bit, but for a last
product by channels with zero points of floating point, which PyTorch takes in float64.

Observers have switches, which may be traced. Each condition on one would double the paths through a network that has
many of them. They choose between tensors instead.
"""

import contextlib
import functools

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax
from jax.custom_derivatives import SymbolicZero
from torch.ao.quantization.fake_quantize import FakeQuantize
from torch.ao.quantization.observer import (
    MovingAverageMinMaxObserver,
    UniformQuantizationObserverBase,
)
from torch.ao.quantization.utils import check_min_max_valid

from ..rules.array_rule import InnerRule
from ..rules.inplace import write_in_place
from ..rules.registry import implements, implements_tensors
from ..runtime.patches import runs_instead_of
from ..runtime.translation import lift
from ..tensors.dtypes import FLOATS, type_name
from .arrays import cast, is_float, like, where, widened
from .bounds import known_values
from .gradients import expect_constant

aten = torch.ops.aten


def _spread(value, array, axis: int | None):
    """A number, or one for each index of an axis, for each element of an array."""
    if isinstance(value, np.ndarray | np.generic) and value.ndim == 0:
        return value
    return lax.broadcast_in_dim(value, array.shape, () if axis is None else (axis,))


def _inverse(scale):
    return np.float32(1) / np.float32(scale) if isinstance(scale, np.generic) else lax.div(like(scale, 1), scale)


def _level(x, scale, zero_point, axis: int | None):
    """The number of the step that each element is nearest to, of those that are `scale` wide."""
    steps = lax.mul(x, _spread(cast(_inverse(scale), x.dtype), x, axis))
    if is_float(zero_point):
        steps = cast(lax.add(_spread(cast(zero_point, x.dtype), x, axis), steps), jnp.float32)
        return cast(_round(steps), x.dtype)
    steps = _round(steps)
    is_zero = isinstance(zero_point, np.generic) and zero_point == 0
    return steps if is_zero else lax.add(_spread(cast(zero_point, x.dtype), x, axis), steps)


def _round(array):
    return lax.round(array, lax.RoundingMethod.TO_NEAREST_EVEN)


def _clamped(level, low: int, high: int):
    """A level within the bounds, and whether it was within; NaN becomes the lowest, as in PyTorch."""
    low, high = like(level, low), like(level, high)
    is_above, is_below = lax.ge(level, low), lax.le(level, high)
    return where(is_above, lax.min(level, high), low), lax.bitwise_and(is_above, is_below)


def _value(level, scale, zero_point, axis: int | None):
    """The real value of a level, in the dtype of the scale."""
    level, zero_point = cast(level, scale.dtype), cast(zero_point, scale.dtype)
    return lax.mul(lax.sub(level, _spread(zero_point, level, axis)), _spread(scale, level, axis))


@functools.partial(jax.custom_jvp, nondiff_argnums=(3, 4, 5, 6))
def _quantized(x, scale, zero_point, axis: int | None, low: int, high: int, name: str):
    """`x` rounded to steps of `scale`, and where it was within the bounds, which is where it has a derivative."""
    del name
    wide = widened(x)
    level, is_within = _clamped(_level(wide, scale, zero_point, axis), low, high)
    if axis is not None:
        scale = cast(scale, wide.dtype)
    return cast(_value(level, scale, zero_point, axis), x.dtype), is_within


def _quantized_jvp(axis, low, high, name, primals, tangents):
    result, is_within = _quantized(*primals, axis, low, high, name)
    for argument, tangent in zip(("scale", "zero_point"), tangents[1:], strict=True):
        if not isinstance(tangent, SymbolicZero):
            raise RuntimeError(
                f"The function '{name}' is not differentiable with respect to argument '{argument}', whose derivative "
                f"is taken; wanted a {argument} that does not depend on what is differentiated: detach() it, or learn "
                "it by a torch.autograd.Function of your own"
            )
    (dx, *_), nothing = tangents, np.zeros(is_within.shape, jax.dtypes.float0)
    dx = lax.full_like(result, 0) if isinstance(dx, SymbolicZero) else where(is_within, dx, like(dx, 0))
    return (result, is_within), (dx, nothing)


_quantized.defjvp(_quantized_jvp, symbolic_zeros=True)


# With a scale and a zero point for all.


def _expect_range(quant_min, quant_max) -> None:
    if quant_min > quant_max:
        raise RuntimeError(
            f"`quant_min` should be less than or equal to `quant_max`, got quant_min={quant_min} and "
            f"quant_max={quant_max}"
        )


def _expect_zero_point(zero_point, quant_min: int, quant_max: int) -> None:
    """Refuses a zero point out of the range, where it is known."""
    values = known_values(lift(zero_point)) if isinstance(zero_point, torch.Tensor) else np.asarray(zero_point)
    if values is not None and values.size and (values.min() < quant_min or values.max() > quant_max):
        raise RuntimeError(
            f"`zero_point` must be between `quant_min` and `quant_max`, got {values.tolist()}, which is not within "
            f"{quant_min} and {quant_max}"
        )


def _of_tensor(name: str):
    def prepare(input, scale, zero_point, *options):
        _expect_range(*options[-2:])
        numbers = {"scale": scale, "zero_point": zero_point}
        tensors = {key: value for key, value in numbers.items() if isinstance(value, torch.Tensor)}
        for key, tensor in tensors.items():
            if tensor.numel() != 1:
                raise RuntimeError(f"{key} with {tensor.numel()} elements cannot be converted to Scalar; wanted one")
        if not tensors:
            _expect_zero_point(zero_point, *options[-2:])
        expect_constant(name, **tensors)
        return (input, scale, zero_point, *options), {}

    return prepare


def _number(value, dtype):
    """The one number of an array, or a number, in a dtype."""
    if not isinstance(value, jax.Array):
        return np.dtype(dtype).type(value)
    return cast(lax.reshape(value, ()), dtype)


def _quantize_tensor(input, scale, zero_point, quant_min, quant_max, name: str):
    scale, zero_point = _number(scale, np.float32), _number(zero_point, np.int32)
    return _quantized(input, scale, zero_point, None, int(quant_min), int(quant_max), name)


_OF_NUMBERS = "fake_quantize_per_tensor_affine_cachemask"
_OF_TENSORS = "_fake_quantize_per_tensor_affine_cachemask_tensor_qparams"


@implements(
    torch.fake_quantize_per_tensor_affine,
    aten.fake_quantize_per_tensor_affine,
    takes=FLOATS,
    prepare=_of_tensor(_OF_TENSORS),
)
def fake_quantize_per_tensor_affine(input, scale, zero_point, quant_min, quant_max):
    return _quantize_tensor(input, scale, zero_point, quant_min, quant_max, _OF_TENSORS)[0]


@implements(aten.fake_quantize_per_tensor_affine_cachemask, takes=FLOATS, prepare=_of_tensor(_OF_NUMBERS))
def fake_quantize_per_tensor_affine_cachemask(input, scale, zero_point, quant_min, quant_max):
    return _quantize_tensor(input, scale, zero_point, quant_min, quant_max, _OF_NUMBERS)


@implements(
    torch._fake_quantize_per_tensor_affine_cachemask_tensor_qparams, takes=FLOATS, prepare=_of_tensor(_OF_TENSORS)
)
def fake_quantize_per_tensor_affine_tensor_qparams(input, scale, zero_point, fake_quant_enabled, quant_min, quant_max):
    result, mask = _quantize_tensor(input, scale, zero_point, quant_min, quant_max, _OF_TENSORS)
    enabled = lax.ne(lax.reshape(fake_quant_enabled, ()), like(fake_quant_enabled, 0))
    return where(enabled, result, input), where(enabled, mask, np.bool_(True))


# With a scale and a zero point for each channel.

_OF_CHANNELS = "fake_quantize_per_channel_affine_cachemask"


def _of_channels(input, scale, zero_point, axis, quant_min, quant_max):
    _expect_range(quant_min, quant_max)
    _expect_channels(input, scale, zero_point, axis)
    if scale.dtype not in (torch.float32, torch.bfloat16):
        raise RuntimeError(f"Scale must be Float or BFloat16, found {scale.dtype}")
    if zero_point.dtype not in (torch.int32, torch.float32, torch.float16):
        raise RuntimeError(f"Zero-point must be Int32, Float or Half, found {zero_point.dtype}")
    if not zero_point.is_floating_point():
        _expect_zero_point(zero_point, quant_min, quant_max)
    expect_constant(_OF_CHANNELS, scale=scale, zero_point=zero_point)
    return (input, scale, zero_point, axis, quant_min, quant_max), {}


def _expect_channels(input, scale, zero_point, axis) -> None:
    for name, tensor in (("scale", scale), ("zero point", zero_point)):
        if tensor.ndim != 1:
            raise RuntimeError(f"{name} should be a 1-D tensor, got one of shape {list(tensor.shape)}")
    if scale.shape != zero_point.shape:
        raise RuntimeError(
            f"scale and zero-point need to have the same dimensions, got {list(scale.shape)} and "
            f"{list(zero_point.shape)}"
        )
    if not 0 <= axis < input.ndim:
        raise RuntimeError(f"`axis` must be between 0 and number of dimensions of input, got {axis} of {input.ndim}")
    if scale.shape[0] != input.shape[axis]:
        raise RuntimeError(
            f"dimensions of scale and zero-point are not consistent with input tensor, got {scale.shape[0]} of them "
            f"for {input.shape[axis]} channels"
        )


@implements(torch.fake_quantize_per_channel_affine, takes=FLOATS, prepare=_of_channels)
def fake_quantize_per_channel_affine(input, scale, zero_point, axis, quant_min, quant_max):
    return fake_quantize_per_channel_affine_cachemask(input, scale, zero_point, axis, quant_min, quant_max)[0]


@implements(aten.fake_quantize_per_channel_affine_cachemask, takes=FLOATS, prepare=_of_channels)
def fake_quantize_per_channel_affine_cachemask(input, scale, zero_point, axis, quant_min, quant_max):
    return _quantized(input, cast(scale, np.float32), zero_point, axis, int(quant_min), int(quant_max), _OF_CHANNELS)


# With a scale and a zero point for the range of what was seen.

_SMALLEST_SCALE = 6.1e-5


def _running_average(running, value, rate: float):
    """A running extremum after a batch; the first one is the batch's."""
    updated = lax.add(running, lax.mul(like(running, rate), lax.sub(value, running)))
    return where(lax.eq(lax.abs(running), like(running, np.inf)), value, updated)


def _observed(x, running_min, running_max, rate: float, by_row: bool):
    """The running extrema after a batch."""
    axes = tuple(range(1 if by_row else 0, x.ndim))
    low, high = (lax.reshape(reduce(x, axes), running_min.shape) for reduce in (lax.reduce_min, lax.reduce_max))
    return _running_average(running_min, low, rate), _running_average(running_max, high, rate)


def quotient(x, count: int, rest=None):
    """``(x + rest) / count``, rounded once, which XLA's product with an inverse is not."""
    quotient = lax.div(x, like(x, count))
    if x.dtype == np.float64:
        return quotient
    upper = lax.reduce_precision(quotient, 8, 11)  # products of these halves with a count of few bits are exact
    for half in (upper, lax.sub(quotient, upper)):
        x = lax.sub(x, lax.mul(half, like(x, count)))
    return lax.add(quotient, lax.div(x if rest is None else lax.add(x, rest), like(x, count)))


def _chosen(low, high, quant_min: int, quant_max: int, is_symmetric: bool):
    """The scale and the zero point for numbers between `low` and `high`, as FBGEMM chooses them for PyTorch.

    It does so in float64, but for bounds that are symmetric. In float32 a zero point that is some millionths away from
    a half may become its other neighbour.
    """
    zero = like(low, 0)
    low, high = lax.min(low, zero), lax.max(high, zero)
    if is_symmetric:
        is_middle = lax.bitwise_and(lax.lt(low, zero), lax.gt(high, zero))
        half = (quant_max - quant_min) // 2
        steps = lax.max(quotient(lax.neg(low), half + 1), quotient(high, half))
        low = where(is_middle, lax.mul(steps, like(low, -half - 1)), low)
        high = where(is_middle, lax.mul(steps, like(high, half)), high)
    low, high = (cast(x, jax.dtypes.canonicalize_dtype(np.float64)) for x in (low, high))
    greater, less = lax.max(high, lax.neg(low)), lax.min(high, lax.neg(low))
    width = lax.add(greater, less)
    scale = quotient(width, quant_max - quant_min, lax.sub(less, lax.sub(width, greater)))
    scale = where(lax.lt(scale, like(scale, np.finfo(np.float32).tiny)), like(scale, 0.1), scale)
    below, above = lax.div(low, scale), lax.div(high, scale)
    from_low, from_high = lax.sub(like(low, quant_min), below), lax.sub(like(low, quant_max), above)
    is_nearer = lax.lt(  # the one that adds the smaller numbers is rounded less
        lax.sub(like(low, abs(quant_min)), lax.abs(below)), lax.sub(like(low, abs(quant_max)), lax.abs(above))
    )
    zero_point = where(is_nearer, from_low, from_high)
    if is_symmetric:
        zero_point = where(is_middle, like(zero_point, (quant_min + quant_max) / 2), zero_point)
    zero_point = _round(lax.clamp(like(low, quant_min), zero_point, like(low, quant_max)))
    return cast(lax.max(scale, like(scale, _SMALLEST_SCALE)), np.float32), cast(zero_point, np.int32)


def _fuse(x, observer_on, fake_quant_on, low, high, scale, zero_point, rate, quant_min, quant_max, axis, is_symmetric):
    """The result, where it has a derivative, and the running extrema, the scale and the zero point after it.

    Args:
        observer_on, fake_quant_on: a bool where it is known, else an array.
    """

    def switched(on, new, old):
        return new if on is True else where(on, new, old)

    if observer_on is not False:
        updated = _observed(lax.stop_gradient(x), low, high, rate, axis is not None)
        low, high = (switched(observer_on, new, old) for new, old in zip(updated, (low, high), strict=True))
    mask = lax.full(x.shape, True)
    if fake_quant_on is False:
        return x, mask, low, high, scale, zero_point
    chosen = _chosen(*(lax.stop_gradient(each) for each in (low, high)), quant_min, quant_max, is_symmetric)
    if axis is None:
        chosen = [lax.reshape(each, ()) for each in chosen]
    result, is_within = _quantized(x, *chosen, axis, quant_min, quant_max, "_fused_moving_avg_obs_fq_helper")
    new = [cast(lax.reshape(a, b.shape), b.dtype) for a, b in zip(chosen, (scale, zero_point), strict=True)]
    scale, zero_point = (switched(fake_quant_on, a, b) for a, b in zip(new, (scale, zero_point), strict=True))
    result, mask = switched(fake_quant_on, result, x), switched(fake_quant_on, is_within, mask)
    return result, mask, low, high, scale, zero_point


_FUSE = InnerRule(_fuse, "fused_moving_avg_obs_fake_quant")


def switch(flag):
    """The state of a switch, a tensor of one element: a bool if it is known, else a tensor."""
    flag = lift(flag)
    values = known_values(flag)
    return flag.reshape(()) != 0 if values is None else bool(values.item())


def _fused(
    input,
    observer_on,
    fake_quant_on,
    running_min,
    running_max,
    scale,
    zero_point,
    averaging_const,
    quant_min,
    quant_max,
    ch_axis,
    per_row_fake_quant=False,
    symmetric_quant=False,
):
    observer_on, fake_quant_on = switch(observer_on), switch(fake_quant_on)
    if ch_axis >= input.ndim:
        raise RuntimeError(f"ch_axis must be < self.dim(), got ch_axis={ch_axis} of {input.ndim} dimensions")
    if quant_min >= quant_max:
        raise RuntimeError(f"qmin should be less than qmax, got quant_min={quant_min} and quant_max={quant_max}")
    if observer_on is not False and input.dtype != torch.float32:
        raise RuntimeError(
            f"expected scalar type Float but found {type_name(input.dtype)}: the running extrema are of float32"
        )
    if per_row_fake_quant and ch_axis != 0:
        raise RuntimeError(
            "Per-channel FakeQuant in fused_moving_avg_obs_fake_quant is only supported on axis == 0, got "
            f"ch_axis={ch_axis}"
        )
    state = (running_min, running_max, scale, zero_point)
    axis = 0 if per_row_fake_quant else None
    options = (float(averaging_const), int(quant_min), int(quant_max), axis, bool(symmetric_quant))
    return _FUSE((input, observer_on, fake_quant_on, *state, *options), {})


def _start_channels(count: int, running_min, running_max, scale, zero_point) -> None:
    """Sets the size of statistics for each channel, before anything was observed."""
    if running_min.numel():
        return
    running_min.resize_(count).fill_(np.inf)
    running_max.resize_(count).fill_(-np.inf)
    scale.resize_(count)
    zero_point.resize_(count)


@implements_tensors(torch._fused_moving_avg_obs_fq_helper, aten._fused_moving_avg_obs_fq_helper.default, takes=FLOATS)
def fused_moving_avg_obs_fq_helper(
    input, observer_on, fake_quant_on, running_min, running_max, scale, zero_point, *options, **named
):
    state = (running_min, running_max, scale, zero_point)
    with torch.no_grad():
        if named.get("per_row_fake_quant", options[4] if len(options) > 4 else False):
            _start_channels(input.shape[0], *state)
    result, mask, *new = _fused(input, observer_on, fake_quant_on, *state, *options, **named)
    with torch.no_grad():
        for old, value in zip(state, new, strict=True):
            write_in_place(old, value)
    return result, mask


@implements_tensors(torch.fused_moving_avg_obs_fake_quant, aten.fused_moving_avg_obs_fake_quant.default, takes=FLOATS)
def fused_moving_avg_obs_fake_quant(input, *args, **kwargs):
    return fused_moving_avg_obs_fq_helper(input, *args, **kwargs)[0] if input.numel() else input.clone()


def _is_traced(tensor: torch.Tensor) -> bool:
    return tensor.numel() > 0 and known_values(lift(tensor)) is None


def _is_unseen(min_val, max_val):
    """Returns True if a range is the one that an observer starts with."""
    return (min_val == float("inf")) & (max_val == -float("inf"))


# The scale and the zero point for what was seen.


def _calculated(low, high, least, quant_min: int, quant_max: int, scheme: str, middle: int):
    """The scale and the zero point of each range; the extremum of a symmetric one is a tie, where each bit counts."""
    unseen = lax.bitwise_and(lax.eq(low, like(low, np.inf)), lax.eq(high, like(high, -np.inf)))
    shape, count, least = low.shape or (1,), quant_max - quant_min, lax.broadcast_in_dim(least, low.shape, ())
    if scheme == "float":
        scale = quotient(lax.sub(high, low), count)
        scale = where(lax.gt(scale, least), scale, like(scale, 1))
        zero_point = lax.div(lax.neg(low), scale)
    else:
        negative, positive = lax.min(low, like(low, 0)), lax.max(high, like(high, 0))
        if scheme == "symmetric":
            scale = quotient(lax.mul(lax.max(lax.neg(negative), positive), like(low, 2)), count)
        else:
            scale = quotient(lax.sub(positive, negative), count)
        scale = lax.max(scale, least)
        zero_point = lax.full(low.shape, middle, np.int32)
        if scheme == "affine":
            steps = cast(lax.round(lax.div(negative, scale), lax.RoundingMethod.TO_NEAREST_EVEN), np.int32)
            zero_point = lax.clamp(np.int32(quant_min), lax.sub(np.int32(quant_min), steps), np.int32(quant_max))
    if low.ndim == 0:
        scale, zero_point = where(unseen, like(scale, 1), scale), where(unseen, like(zero_point, 0), zero_point)
    return lax.reshape(scale, shape), lax.reshape(zero_point, shape)


_SCHEMES = {
    torch.per_tensor_symmetric: "symmetric",
    torch.per_channel_symmetric: "symmetric",
    torch.per_channel_affine_float_qparams: "float",
}
_CALCULATED = {
    dtype: InnerRule(_calculated, "calculate_qparams", dtype=(None, dtype))
    for dtype in (torch.int32, torch.int64, torch.float32)
}
_DTYPES = {"symmetric": torch.int64, "affine": torch.int32, "float": torch.float32}


@runs_instead_of(UniformQuantizationObserverBase._calculate_qparams, with_original=True)
def _calculate_qparams(original, self, min_val, max_val):
    if min_val.numel() == 0 or max_val.numel() == 0:
        return original(self, min_val, max_val)
    if not _is_traced(min_val) and not check_min_max_valid(min_val, max_val):
        return torch.tensor([1.0]), torch.tensor([0])
    scheme, middle = _SCHEMES.get(self.qscheme, "affine"), 0
    if self.dtype in (torch.quint8, torch.uint8):
        middle = (self.quant_min + self.quant_max) // 2 if self.has_customized_qrange else 128
    elif self.dtype == torch.uint16:
        middle = 2**15
    options = (self.quant_min, self.quant_max, scheme, middle)
    return _CALCULATED[_DTYPES[scheme]]((min_val.detach(), max_val.detach(), self.eps.reshape(()), *options), {})


# What is seen.


@implements_tensors(MovingAverageMinMaxObserver)
def moving_average_min_max_observer(self, x_orig):
    if x_orig.numel() == 0 or not _is_traced(self.min_val):
        return self.forward(x_orig)
    x = x_orig.detach().to(self.min_val.dtype)
    is_unseen = _is_unseen(self.min_val, self.max_val)
    for running, value in zip((self.min_val, self.max_val), torch.aminmax(x), strict=True):
        running.copy_(torch.where(is_unseen, value, running + self.averaging_constant * (value - running)))
    return x_orig


@implements_tensors(FakeQuantize)
def fake_quantize(self, X):
    observes, quantizes = switch(self.observer_enabled[0] == 1), switch(self.fake_quant_enabled[0] == 1)
    if isinstance(observes, bool) and isinstance(quantizes, bool):
        return self.forward(X)
    if observes is not False:
        _observe(self, X.detach(), observes)
    if quantizes is False:
        return X
    options = (self.activation_post_process.quant_min, self.activation_post_process.quant_max)
    if self.is_per_channel:
        Y = torch.fake_quantize_per_channel_affine(X, self.scale, self.zero_point, self.ch_axis, *options)
    else:
        Y = torch.fake_quantize_per_tensor_affine(X, self.scale, self.zero_point, *options)
    return Y if quantizes is True else torch.where(quantizes, Y, X)


def _observe(module, x, observes) -> None:
    """Observes the input and updates the parameters, as a fake quantizer does first if it is on."""
    buffers = {name: buffer for name, buffer in module.named_buffers() if not name.endswith("_enabled")}
    with _switched(module, buffers, observes):
        module.activation_post_process(x)
        for old, new in zip((module.scale, module.zero_point), module.calculate_qparams(), strict=True):
            if old.shape != new.shape:
                old.resize_(new.shape)
            old.copy_(new)


@contextlib.contextmanager
def _switched(module, tensors: dict[str, torch.Tensor], is_on):
    """Keeps the values written to tensors within the context only if a switch is on.

    Raises:
        RuntimeError: the switch is traced, and a tensor would get another shape.
    """
    before = {name: tensor.clone() for name, tensor in tensors.items()}
    yield
    for name, tensor in tensors.items() if is_on is not True else ():
        if tensor.shape != before[name].shape:
            raise RuntimeError(
                f"{type(module).__name__} has seen no channels yet: {name} is of shape {list(before[name].shape)}, and "
                f"would be of {list(tensor.shape)} if its observer, whose switch is traced, is on. Observe something "
                "before the call is traced, by the module itself or by a call outside of jit, or leave the switch out "
                "of state_dict"
            )
        tensor.copy_(torch.where(is_on, tensor, before[name]))
