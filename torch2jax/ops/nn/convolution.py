"""Convolutions and their transposes, folding and unfolding."""

import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import torch
from jax import lax

from ...rules.pointwise import as_convolved
from ...rules.registry import implements
from ...tensors.dtypes import INEXACT
from ...tracing.tensor_spec import conjugate
from ..views import reshape

aten = torch.ops.aten

_CONVOLVED = INEXACT | {torch.int64, torch.int32}  # int32 is what int64 becomes with jax_enable_x64 off


def per_dimension(value, count: int, what: str) -> tuple[int, ...]:
    """A layer's argument (``stride=2``, ``kernel_size=(3, 5)``) as one integer for each spatial dimension."""
    values = (value,) if isinstance(value, int) or not hasattr(value, "__len__") else tuple(value)
    if len(values) not in (1, count):
        raise RuntimeError(f"expected {what} to be a single integer or a list of {count} values, but got {values}")
    values = tuple(int(v) for v in values)
    return values * count if len(values) == 1 else values


class _ChannelLayout(NamedTuple):
    """The layout of a convolution's input and output, with the channels last or not: the one place that decides it."""

    channels_last: bool

    def numbers(self, ndim: int, transposed: bool) -> tuple[str, str, str]:
        """The dimension numbers of ``lax.conv_general_dilated``."""
        spatial = "DHW"[5 - ndim :]
        images = f"N{spatial}C" if self.channels_last else f"NC{spatial}"
        return images, ("IO" if transposed else "OI") + spatial, images

    def channels(self, array) -> int:
        return array.shape[self.axis(array)]

    def axis(self, array) -> int:
        return array.ndim - 1 if self.channels_last else 1

    def sizes(self, array) -> tuple[int, ...]:
        """The spatial sizes."""
        return array.shape[1:-1] if self.channels_last else array.shape[2:]

    def add_bias(self, output, bias):
        if bias is None:
            return output
        return lax.add(output, lax.broadcast_in_dim(bias, output.shape, (self.axis(output),)))


def _with_batch(function):
    """Makes a layer on ``(batch, channels, *spatial)`` accept input without the batch as well."""

    @functools.wraps(function)
    def layer(input, weight, *args, channels_last=False):
        if input.ndim == weight.ndim - 1:
            return lax.squeeze(layer(lax.expand_dims(input, (0,)), weight, *args), (0,))
        if input.ndim != weight.ndim:
            raise RuntimeError(
                f"Expected {weight.ndim - 1}D (unbatched) or {weight.ndim}D (batched) input to conv{weight.ndim - 2}d, "
                f"but got input of size: {list(input.shape)} for a weight of size {list(weight.shape)}"
            )
        if input.dtype != weight.dtype:
            raise RuntimeError(f"input type ({input.dtype}) and weight type ({weight.dtype}) should be the same")
        bias = args[0]
        if bias is not None and input.dtype != bias.dtype:
            raise RuntimeError(f"input type ({input.dtype}) and bias type ({bias.dtype}) should be the same")
        return function(_ChannelLayout(channels_last), input, weight, *args)

    return layer


def _check_steps(stride, dilation) -> None:
    if min(stride, default=1) < 1:
        raise RuntimeError(f"non-positive stride is not supported, got stride={stride}")
    if min(dilation, default=1) < 1:
        raise RuntimeError(f"dilation should be greater than zero, got dilation={dilation}")


@_with_batch
def _forward(layout, input, weight, bias, stride, padding, dilation, groups):
    if groups < 1:
        raise RuntimeError(f"non-positive groups is not supported, got groups={groups}")
    _check_channels(layout, input, weight, weight.shape[1] * groups, f"groups={groups}")
    count = input.ndim - 2
    stride, dilation = per_dimension(stride, count, "stride"), per_dimension(dilation, count, "dilation")
    _check_steps(stride, dilation)
    reach = [step * (size - 1) for step, size in zip(dilation, weight.shape[2:], strict=True)]
    margins = _margins(padding, stride, reach)
    padded = [size + low + high for size, (low, high) in zip(layout.sizes(input), margins, strict=True)]
    if any(size <= span for size, span in zip(padded, reach, strict=True)):
        raise RuntimeError(
            f"Calculated padded input size per channel: ({' x '.join(map(str, padded))}). "
            f"Kernel size: ({' x '.join(str(span + 1) for span in reach)}). "
            "Kernel size can't be greater than actual input size"
        )
    output = lax.conv_general_dilated(
        input,
        weight,
        stride,
        margins,
        rhs_dilation=dilation,
        dimension_numbers=layout.numbers(input.ndim, transposed=False),
        feature_group_count=groups,
    )
    return layout.add_bias(output, bias)


def _check_channels(layout, input, weight, expected: int, given: str) -> None:
    if layout.channels(input) != expected:
        raise RuntimeError(
            f"Given {given}, weight of size {list(weight.shape)}, expected input to have {expected} channels, "
            f"but got {layout.channels(input)} channels instead"
        )


def _margins(padding, stride, reach) -> list[tuple[int, int]]:
    if padding == "valid":
        return [(0, 0)] * len(reach)
    if padding == "same":
        if any(step != 1 for step in stride):
            raise RuntimeError("padding='same' is not supported for strided convolutions")
        return [(span // 2, span - span // 2) for span in reach]
    if isinstance(padding, str):
        raise RuntimeError(f"Invalid padding string: {padding!r}; expected 'same' or 'valid'")
    padding = per_dimension(padding, len(reach), "padding")
    if min(padding, default=0) < 0:
        raise RuntimeError(f"negative padding is not supported, got padding={padding}")
    return [(size, size) for size in padding]


@_with_batch
def _transposed(layout, input, weight, bias, stride, padding, output_padding, groups, dilation):
    _check_channels(layout, input, weight, weight.shape[0], "transposed=1")
    count = input.ndim - 2
    stride, padding = per_dimension(stride, count, "stride"), per_dimension(padding, count, "padding")
    dilation, extra = per_dimension(dilation, count, "dilation"), per_dimension(output_padding, count, "output_padding")
    _check_steps(stride, dilation)
    if any(more >= max(step, spread) for more, step, spread in zip(extra, stride, dilation, strict=True)):
        raise RuntimeError(
            f"output padding must be smaller than either stride or dilation, but got output_padding={extra}, "
            f"stride={stride}, dilation={dilation}"
        )
    reach = [step * (size - 1) for step, size in zip(dilation, weight.shape[2:], strict=True)]
    margins = [(span - low, span - low + more) for span, low, more in zip(reach, padding, extra, strict=True)]
    output = lax.conv_general_dilated(
        input,
        _grouped(lax.rev(weight, range(2, weight.ndim)), groups),
        (1,) * count,
        margins,
        lhs_dilation=stride,
        rhs_dilation=dilation,
        dimension_numbers=layout.numbers(input.ndim, transposed=True),
        feature_group_count=groups,
    )
    return layout.add_bias(output, bias)


def _grouped(weight, groups: int):
    """The weight ``(in, out / groups, ...)`` of a transposed convolution as ``(in / groups, out, ...)``."""
    if groups == 1:
        return weight
    inputs, outputs, *window = weight.shape
    split = reshape(weight, (groups, inputs // groups, outputs, *window))
    return reshape(jnp.moveaxis(split, 0, 1), (inputs // groups, groups * outputs, *window))


def _conv(input, weight, bias=None, stride=1, padding=0, dilation=1, groups=1, *, channels_last=False):
    return _forward(input, weight, bias, stride, padding, dilation, groups, channels_last=channels_last)


def _conv_transpose(
    input, weight, bias=None, stride=1, padding=0, output_padding=0, groups=1, dilation=1, *, channels_last=False
):
    return _transposed(
        input, weight, bias, stride, padding, output_padding, groups, dilation, channels_last=channels_last
    )


for _name, _body in (("conv", _conv), ("conv_transpose", _conv_transpose)):
    for _count, _strides in ((1, None), (2, as_convolved), (3, as_convolved)):
        implements(
            getattr(torch, f"{_name}{_count}d"),
            getattr(torch.nn.functional, f"{_name}{_count}d"),
            takes=_CONVOLVED,
            channels_last=("prefer", _count + 2),
            strides=_strides,
        )(_body)


@implements(torch.convolution, aten.convolution_overrideable, takes=_CONVOLVED)
def convolution(input, weight, bias, stride, padding, dilation, transposed, output_padding, groups):
    if transposed:
        return _transposed(input, weight, bias, stride, padding, output_padding, groups, dilation)
    return _forward(input, weight, bias, stride, padding, dilation, groups)


@implements(torch._convolution, aten._convolution, takes=_CONVOLVED)
def _convolution(input, weight, bias, stride, padding, dilation, transposed, output_padding, groups, *_backend):
    return convolution(input, weight, bias, stride, padding, dilation, transposed, output_padding, groups)


@implements(aten.convolution_backward.default, takes=INEXACT)
def convolution_backward(
    grad_output, input, weight, bias_sizes, stride, padding, dilation, transposed, output_padding, groups, output_mask
):
    """The gradients of the input, the weight and the bias; None for those that `output_mask` leaves out."""
    del bias_sizes
    options = (None, stride, padding, dilation, transposed, output_padding, groups)

    def of(operand, convolve):
        (gradient,) = jax.linear_transpose(convolve, operand)(conjugate(grad_output))
        return conjugate(gradient)

    of_input, of_weight, of_bias = output_mask
    return (
        of(input, lambda x: convolution(x, weight, *options)) if of_input else None,
        of(weight, lambda x: convolution(input, x, *options)) if of_weight else None,
        lax.reduce_sum(grad_output, (0, *range(2, grad_output.ndim))) if of_bias else None,
    )


@implements(torch.conv_tbc, takes=_CONVOLVED)
def conv_tbc(input, weight, bias, pad=0):
    """A convolution over ``(time, batch, channels)``, with a weight of ``(window, inputs, outputs)``."""
    if input.ndim != 3 or weight.ndim != 3 or input.shape[2] != weight.shape[1]:
        raise RuntimeError(
            f"conv_tbc wants an input of (time, batch, inputs) and a weight of (window, inputs, outputs), got shapes "
            f"{list(input.shape)} and {list(weight.shape)}"
        )
    layout = ("WNC", "WIO", "WNC")
    output = lax.conv_general_dilated(input, weight, (1,), [(pad, pad)], dimension_numbers=layout)
    return lax.add(output, lax.broadcast_in_dim(bias, output.shape, (2,)))


# Folding and unfolding.


def _unfold(images, kernel_size, dilation, padding, stride):
    """The windows of ``(batch, channels, height, width)`` as ``(batch, channels * window, positions)``."""
    margins = [(0, 0, 0), (0, 0, 0), *((size, size, 0) for size in padding)]
    images = lax.pad(images, jnp.zeros((), images.dtype), margins) if any(padding) else images
    batch, channels, *sizes = images.shape
    counts = _window_counts(sizes, kernel_size, dilation, stride)
    windows = []
    for row in range(kernel_size[0]):
        for column in range(kernel_size[1]):
            start = [offset * step for offset, step in zip((row, column), dilation, strict=True)]
            end = [s + (n - 1) * step + 1 for s, n, step in zip(start, counts, stride, strict=True)]
            part = lax.slice(images, (0, 0, *start), (batch, channels, *end), (1, 1, *stride))
            windows.append(reshape(part, (batch, channels, 1, math.prod(counts))))
    return reshape(lax.concatenate(windows, 2), (batch, channels * len(windows), math.prod(counts)))


def _window_counts(sizes, kernel_size, dilation, stride) -> list[int]:
    counts = [
        (size - spread * (window - 1) - 1) // step + 1
        for size, window, spread, step in zip(sizes, kernel_size, dilation, stride, strict=True)
    ]
    if any(count < 1 for count in counts):
        raise RuntimeError(
            f"expected a padded image at least as large as the dilated kernel, got size {tuple(sizes)} for "
            f"kernel_size={kernel_size}, dilation={dilation}"
        )
    return counts


def _pairs(kernel_size, dilation, padding, stride):
    named = {"kernel_size": kernel_size, "dilation": dilation, "padding": padding, "stride": stride}
    return [per_dimension(value, 2, name) for name, value in named.items()]


@implements(torch._C._nn.im2col, torch.nn.functional.unfold, takes=INEXACT | {torch.bool})
def im2col(input, kernel_size, dilation=1, padding=0, stride=1):
    if input.ndim not in (3, 4):
        raise RuntimeError(f"expected 3D (unbatched) or 4D (batched) input to unfold, but got shape {input.shape}")
    if 0 in input.shape[input.ndim - 3 :]:
        raise RuntimeError(
            "Expected 3D or 4D (batch mode) tensor with possibly 0 batch size and other non-zero dimensions for input, "
            f"but got: {list(input.shape)}"
        )
    images = input if input.ndim == 4 else lax.expand_dims(input, (0,))
    columns = _unfold(images, *_pairs(kernel_size, dilation, padding, stride))
    return columns if input.ndim == 4 else lax.squeeze(columns, (0,))


@implements(torch._C._nn.col2im, torch.nn.functional.fold, takes=INEXACT | {torch.bool})
def col2im(input, output_size, kernel_size, dilation=1, padding=0, stride=1):
    if input.ndim not in (2, 3):
        raise RuntimeError(f"expected 2D (unbatched) or 3D (batched) input to fold, but got shape {input.shape}")
    if 0 in input.shape[input.ndim - 2 :]:
        raise RuntimeError(
            "Expected 2D or 3D (batch mode) tensor for input with possibly 0 batch size and non-zero dimensions for "
            f"input, but got: {list(input.shape)}"
        )
    columns = input if input.ndim == 3 else lax.expand_dims(input, (0,))
    arguments = _pairs(kernel_size, dilation, padding, stride)
    height, width = per_dimension(output_size, 2, "output_size")
    if columns.shape[1] % math.prod(arguments[0]):
        raise RuntimeError(
            f"expected size of input's dimension 1 to be divisible by the product of kernel_size={arguments[0]}, "
            f"but got {columns.shape[1]}"
        )
    channels = columns.shape[1] // math.prod(arguments[0])
    images = jax.ShapeDtypeStruct((columns.shape[0], channels, height, width), columns.dtype)
    names = ("kernel_size", "dilation", "padding", "stride")
    unfold = functools.partial(_unfold, **dict(zip(names, arguments, strict=True)))
    expected = jax.eval_shape(unfold, images).shape
    if expected != columns.shape:
        raise RuntimeError(f"expected input of shape {expected} for output_size={(height, width)}, got {columns.shape}")
    (output,) = jax.linear_transpose(unfold, images)(columns)
    return output if input.ndim == 3 else lax.squeeze(output, (0,))
