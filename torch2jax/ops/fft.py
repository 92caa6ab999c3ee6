"""Fourier transforms, short-time ones too; PyTorch reaches them by the three operators below."""

import math
import warnings

import torch
from jax import lax
from jax.lax import FftType
from torch import Tensor

from ..internals.prims import torch_stft
from ..internals.tensors import corresponding_complex_dtype, corresponding_real_dtype
from ..rules.registry import implements, implements_tensors
from ..runtime.translation import lift
from ..tensors.dtypes import COMPLEX
from .arrays import like
from .bounds import known_values

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


_LEAST = 1e-11  # of the windows' sum of squares, which the signal is divided by
_LEVEL_OF_CALLER = 8  # of warnings: what PyTorch and this package call in between


@implements_tensors(aten.stft.center)
def stft(input, n_fft, hop_length=None, win_length=None, window=None, *args, **options):
    if window is None:
        _warn_of_no_window(
            "which is known to cause spectral leakage. Other windows such as torch.hann_window or torch.hamming_window "
            "are recommended to reduce spectral leakage."
        )
    return torch_stft(input, n_fft, hop_length, win_length, window, *args, **options)


@implements_tensors(aten.stft.default)
def _stft_not_centered(input, n_fft, hop_length=None, win_length=None, window=None, *args, **options):
    return stft(input, n_fft, hop_length, win_length, window, False, "reflect", *args, **options)


def _warn_of_no_window(advice: str) -> None:
    warnings.warn(
        f"A window was not provided. A rectangular window will be applied, {advice} To suppress this warning and use a "
        "rectangular window, explicitly set `window=torch.ones(n_fft, device=<device>)`.",
        stacklevel=_LEVEL_OF_CALLER,
    )


# torch._refs has this too, but not for frames of odd length, and divides by a sum of windows that is zero.
@implements_tensors(aten.istft.default, takes=COMPLEX)
def istft(
    input,
    n_fft,
    hop_length=None,
    win_length=None,
    window=None,
    center=True,
    normalized=False,
    onesided=None,
    length=None,
    return_complex=False,
):
    hop_length = n_fft // 4 if hop_length is None else hop_length
    win_length = n_fft if win_length is None else win_length
    _expect(input.numel() > 0, "input tensor cannot be empty.")
    _expect(input.ndim in (2, 3), f"expected a tensor with 2 or 3 dimensions, but got {input.ndim}")
    onesided = input.shape[-2] != n_fft if onesided is None else onesided
    _expect_frequencies(input.shape[-2], n_fft, onesided)
    _expect(0 < hop_length <= win_length, f"expected 0 < hop_length <= win_length, but got hop_length={hop_length}")
    _expect(0 < win_length <= n_fft, f"expected 0 < win_length <= n_fft, but got win_length={win_length}")
    _expect(
        window is None or window.shape == (win_length,),
        "Invalid window shape. window has to be 1D and length of `win_length`",
    )
    if return_complex and onesided:
        raise RuntimeError("Cannot have onesided output if window or input is complex")
    if not return_complex and window is not None and window.is_complex():
        raise RuntimeError("Complex windows are incompatible with return_complex=False")
    if window is None:
        _warn_of_no_window("Please provide the same window used by stft to make the inversion lossless.")
        window = torch.ones(win_length, dtype=input.dtype.to_real())
    before = (n_fft - win_length) // 2
    window = torch.nn.functional.pad(window, (before, n_fft - win_length - before)) if win_length < n_fft else window

    frames = _in_time(input.mT, n_fft, "ortho" if normalized else None, onesided, return_complex) * window
    size = n_fft + hop_length * (input.shape[-1] - 1)
    start = n_fft // 2 if center else 0
    end = size - start if length is None else start + length
    signal = _overlapped(frames, size, hop_length)[..., start:end]
    envelope = _overlapped(window.square().expand(frames.shape[-2:]), size, hop_length)[start:end]
    _expect_overlap(envelope)
    signal = signal / envelope
    if end <= size:
        return signal
    warnings.warn(
        "The length of signal is shorter than the length parameter. Result is being padded with zeros in the tail. "
        "Please check your center and hop_length settings.",
        stacklevel=_LEVEL_OF_CALLER - 1,
    )
    return torch.nn.functional.pad(signal, (0, end - size))


def _expect(holds: bool, message: str) -> None:
    if not holds:
        raise RuntimeError(f"istft: {message}")


def _expect_frequencies(count: int, n_fft: int, onesided: bool) -> None:
    wanted, name = (n_fft // 2 + 1, "n_fft / 2 + 1") if onesided else (n_fft, "n_fft")
    _expect(
        count == wanted,
        "expected the frequency dimension (3rd to the last) of the input tensor to match "
        f"{name} when onesided={onesided}, but got {count}",
    )


def _in_time(frames: Tensor, n_fft: int, norm: str | None, onesided: bool, is_complex: bool) -> Tensor:
    if is_complex:
        return torch.fft.ifft(frames, norm=norm)
    return torch.fft.irfft(frames if onesided else frames[..., : n_fft // 2 + 1], n=n_fft, norm=norm)


def _overlapped(frames: Tensor, size: int, hop_length: int) -> Tensor:
    """The sum of frames, each of which begins `hop_length` after the one before."""
    return aten.unfold_backward(frames, [*frames.shape[:-2], size], frames.ndim - 2, frames.shape[-1], hop_length)


def _expect_overlap(envelope: Tensor) -> None:
    """Raises where a known sum of windows is zero; one that is traced is taken to be none."""
    _expect(envelope.numel() > 0, "expected a length of at least 1")
    values = known_values(lift(envelope))
    _expect(values is None or abs(values).min() >= _LEAST, f"window overlap add min is not above {_LEAST:g}")
