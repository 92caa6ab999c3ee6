"""Fourier transforms. PyTorch's C++ parses ``torch.fft.*`` and reaches the three operators below."""

import math

import torch
from jax import lax
from jax.lax import FftType

from ..internals.promotion import corresponding_complex_dtype, corresponding_real_dtype
from ..rules.registry import implements
from .arrays import like

aten = torch.ops.aten

_BY_ROOT_N, _BY_N = 1, 2  # the values of `normalization`
_MOST_DIMS = 3  # that one lax.fft transforms


@implements(aten._fft_c2c)
def _fft_c2c(input, dim, normalization, forward):
    kind = FftType.FFT if forward else FftType.IFFT
    return _transform(input, kind, dim, [input.shape[d] for d in dim], normalization)


@implements(aten._fft_r2c, dtype=lambda input, *args, **kwargs: corresponding_complex_dtype(input.dtype))
def _fft_r2c(input, dim, normalization, onesided):
    if not onesided:
        return _fft_c2c(lax.complex(input, lax.full_like(input, 0)), dim, normalization, True)
    return _transform(input, FftType.RFFT, dim, [input.shape[d] for d in dim], normalization)


@implements(aten._fft_c2r, dtype=lambda input, *args, **kwargs: corresponding_real_dtype(input.dtype))
def _fft_c2r(input, dim, normalization, last_dim_size):
    return _transform(input, FftType.IRFFT, dim, [*(input.shape[d] for d in dim[:-1]), last_dim_size], normalization)


def _transform(x, kind, dim, lengths, normalization: int):
    """A transform along dimensions `dim`, of these lengths in the time domain, scaled by PyTorch's number."""
    dim = [d % x.ndim for d in dim]
    if not dim:
        return x
    x = _by_groups(x, kind, dim, lengths)
    count = math.prod(lengths)
    divisor = {_BY_ROOT_N: math.sqrt(count), _BY_N: count}.get(normalization, 1)
    if kind in (FftType.IFFT, FftType.IRFFT):
        divisor /= count  # XLA has divided by it
    return x if divisor == 1 else lax.div(x, like(x, divisor))


def _by_groups(x, kind, dim, lengths):
    """Transforms as many dimensions at once as XLA can. The last group is the one that is real in the time domain."""
    last, before = slice(-_MOST_DIMS, None), slice(0, -_MOST_DIMS)
    if len(dim) <= _MOST_DIMS:
        return _along_last(x, kind, dim, lengths)
    if kind in (FftType.FFT, FftType.RFFT):
        return _by_groups(_along_last(x, kind, dim[last], lengths[last]), FftType.FFT, dim[before], lengths[before])
    return _along_last(_by_groups(x, FftType.IFFT, dim[before], lengths[before]), kind, dim[last], lengths[last])


def _along_last(x, kind, dim, lengths):
    order = [d for d in range(x.ndim) if d not in dim] + dim
    if order == sorted(order):
        return lax.fft(x, kind, tuple(lengths))
    transformed = lax.fft(lax.transpose(x, order), kind, tuple(lengths))
    return lax.transpose(transformed, [order.index(d) for d in range(x.ndim)])
