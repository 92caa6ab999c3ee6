"""The one list of looser tolerances and of what is left out of the databases' checks, each with its reason.

A pattern is matched against the full name of an entry (``var.unbiased``) or of a module (``nn.Linear``).
"""

import fnmatch
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch.utils import _pytree as pytree

from .compare import Tolerance, precision_of

__all__ = [
    "DATA_DEPENDENT",
    "DATA_DEPENDENT_SAMPLES",
    "FREEDOMS",
    "RANDOM",
    "RANDOM_SAMPLES",
    "UNINITIALISED",
    "excluded",
    "forward_tolerance",
    "freedom_of",
    "has_values",
    "is_converted",
    "is_data_dependent",
    "is_drawn",
    "tolerance_for",
]

ALL = ("values", "x64", "jit", "gradients", "forward", "second", "vmap", "errors", "forms")
DERIVATIVES = ("gradients", "forward", "second", "wide")
HALF = (torch.float16, torch.bfloat16)
INTEGRAL = (torch.uint8, torch.int32, torch.int64)


class Exclusion(NamedTuple):
    """What cannot be compared at all."""

    pattern: str
    reason: str
    columns: tuple[str, ...] = ALL
    dtypes: tuple[torch.dtype, ...] | None = None


class Looser(NamedTuple):
    """What is compared to a looser tolerance than its dtype's."""

    pattern: str
    tolerance: Tolerance
    reason: str
    columns: tuple[str, ...] = ALL
    dtypes: tuple[torch.dtype, ...] | None = None


_SPARSE = "JAX has no sparse layouts in its core"

EXCLUDED = [
    Exclusion("chalf", "JAX has no complex32"),
    Exclusion("complex", "JAX has no complex32", dtypes=(torch.float16,)),
    Exclusion("view_as_complex", "JAX has no complex32", dtypes=(torch.float16,)),
    Exclusion("where", "JAX has no complex32, which a complex number makes of it", ("jit",), (torch.float16,)),
    Exclusion(
        "as_strided.partial_views",
        "its samples are views of larger storages, which arrays as arguments are not",
        ("jit", "vmap", *DERIVATIVES),
    ),
    Exclusion(
        "as_strided_scatter",
        "PyTorch gives the gradient to what was overwritten, and not to the rest; its database expects that to fail",
        DERIVATIVES,
    ),
    Exclusion("fft.ihfft[2n]", "PyTorch's ``out=`` is another result than without, of one dimension", ("forms",)),
    Exclusion("nn.Softplus(beta=0.0)", "it divides by zero: PyTorch gives infinity everywhere, here it is an error"),
    Exclusion(
        "nn.EmbeddingBag(scale_grad_by_freq=True)", "PyTorch's kernel for the CPU reads the counts of another index"
    ),
    Exclusion("nn.Transformer*(dropout=1.0)", "a dropout of everything needs a key here"),
    Exclusion("to_sparse", _SPARSE),
    Exclusion("sparse.*", _SPARSE),
]

# Dtypes that PyTorch has no kernels for, and that get what converting them first would give.
CONVERTED = [
    Exclusion("max_pool2d_with_indices_backward", "PyTorch's decomposition, which serves it here, takes any dtype"),
    Exclusion("*", "int64 is held as int32 with jax_enable_x64 off", dtypes=(torch.int32,)),
    *(
        Exclusion(pattern, "half precision is computed in float32, as elsewhere in PyTorch", dtypes=HALF)
        for pattern in ("special.*", "cdist", "histogram*", "nn.functional.ctc_loss", "linalg.matrix_exp")
    ),
]

_FROM_SINGLE = (torch.float32, *INTEGRAL)
_SINGLE = (torch.float32, torch.complex64)
_DOUBLE = (torch.float64,)

LOOSER = [
    *(
        Looser(
            "nn.functional.multi_head_attention_forward",
            tolerance,
            "sums of up to a thousand, weighted by exponentials of differences of hundreds that have been rounded",
            dtypes=dtypes,
        )
        for tolerance, dtypes in ((Tolerance(2e-2, 32), HALF), (Tolerance(2e-5, 2e-3), (torch.float32,)))
    ),
    Looser(
        "special.laguerre_polynomial_l",
        Tolerance(1e-4, 1e-4),
        "a recurrence of up to 255 steps, each of which is rounded",
        ("jit",),
        (torch.uint8,),
    ),
    Looser("histc", Tolerance(0, 1), "an edge of two bins, but for rounding, is in either", dtypes=HALF),
    Looser(
        "nn.functional.multilabel_soft_margin_loss",
        Tolerance(2e-3, 2e-2),
        "means of terms of up to fifty and of either sign, each of which is rounded to eleven bits",
        dtypes=(torch.float16,),
    ),
    Looser(
        "nn.functional.conv*",
        Tolerance(2e-5, 1e-4),
        "sums of a hundred products of up to 80, rounded in another order",
        dtypes=_SINGLE,
    ),
    Looser("special.bessel_*", Tolerance(1e-6, 1e-6), "PyTorch's are off in the seventh digit beyond 5", ALL, _DOUBLE),
    Looser("special.airy_ai", Tolerance(1e-5, 1e-5), "PyTorch's is off in the sixth digit below -2", ALL, _DOUBLE),
    Looser(
        "special.airy_ai", Tolerance(0, 1e-2), "waves of up to 1e10 radians in single precision", dtypes=_FROM_SINGLE
    ),
    Looser(
        "nn.functional.interpolate.bicubic",
        Tolerance(0, 1),
        "weights halfway between two numbers of 16 bits are rounded either way",
        ALL,
        (torch.uint8,),
    ),
    Looser(
        "logaddexp", Tolerance(1e-4, 1e-4), "of opposite phases, a sum of which a thousandth is left", ALL, _SINGLE[1:]
    ),
    Looser(
        "div.trunc_rounding",
        Tolerance(0, 1),
        "a quotient that rounds to an integer is truncated before or after it is rounded",
        dtypes=HALF,
    ),
    Looser(
        "linspace*",
        Tolerance(2e-3, 5e-3),
        "an end of 5 is added to multiples of a rounded step, which are rounded before or not",
        dtypes=(torch.float16,),
    ),
    Looser(
        "l??space*",
        Tolerance(0, 1),
        "what is an integer but for rounding is truncated to it or to the next; PyTorch's depends on the processor",
        dtypes=INTEGRAL,
    ),
    Looser("svd_lowrank", Tolerance(0.1, 0.1), "divides by differences of singular values", ("second",), _SINGLE),
    Looser("pca_lowrank", Tolerance(0.05, 0.05), "as svd_lowrank, which it calls", ("second",), _SINGLE),
    Looser(
        "nn.CTCLoss",
        Tolerance(1e-4, 5e-5),
        "sums of exponentials over all alignments, rounded in another order",
        ("gradients",),
        _SINGLE,
    ),
    Looser(
        "polygamma.*",
        Tolerance(3e-4, 3e-4),
        "of negative numbers PyTorch adds in double precision what cancels to a thousandth",
        dtypes=(torch.float32,),
    ),
    Looser("bfloat16", Tolerance(1e-2, 1e-2), "the tangent is rounded to bfloat16", ("forward",)),
    Looser("half", Tolerance(1e-3, 1e-3), "the tangent is rounded to float16", ("forward",)),
    Looser(
        "nn.functional.normalize",
        Tolerance(1e-5, 2e-5),
        "of one number it is a sign, whose derivative is a difference of equal terms",
        ("forward",),
        _SINGLE,
    ),
    Looser("cov", Tolerance(1e-6, 1e-6), "the gradient of weights in float32 is rounded to it", ("forward",), _DOUBLE),
    Looser("*float", Tolerance(1e-6, 1e-6), "the tangent is rounded to float32", ("forward",), _DOUBLE),
    Looser(
        "matrix_exp",
        Tolerance(1e-4, 1e-4),
        "of norms up to 20, squared several times, in single precision while jax_enable_x64 is off",
        ("values", "jit", "vmap"),
        _DOUBLE,
    ),
    Looser("*", Tolerance(2e-4, 2e-4), "rounded in two passes backwards; float64 tells", ("second",), _SINGLE),
]


def _tensors_in(arguments) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(arguments) if isinstance(leaf, torch.Tensor)]


def _product(result, *args, **kwargs):
    """Singular vectors are free in sign or phase; what they compose is not."""
    del args, kwargs
    u, s, v = result
    k = s.shape[-1]
    if u.shape[-1] < k:
        return s
    return s, (u[..., :k] * s.unsqueeze(-2).to(u.dtype)) @ v[..., :k].mH, u.mH @ u, v.mH @ v


def _product_of_adjoint(result, *args, **kwargs):
    """As `_product`, of a result with the adjoint of V."""
    u, s, vh = result
    return _product((u, s, vh.mH), *args, **kwargs)


def _eigenspaces(result, *args, **kwargs):
    """Eigenvectors of hermitian matrices are free in sign or phase."""
    del args, kwargs
    w, v = result
    return w, (v * w.unsqueeze(-2).to(v.dtype)) @ v.mH, v.mH @ v


def _spectrum(result, *args, **kwargs):
    """Eigenvectors are free in their length and phase."""
    del args, kwargs
    w, v = result
    return w, (v * w.unsqueeze(-2).to(v.dtype)) @ torch.linalg.inv(v)


def _elements(position: int):
    """Which of equal elements an index is of is free; `position` is that of `dim` among the arguments after input."""

    def freedom(result, input, *args, **kwargs):
        dim = kwargs.get("dim", args[position] if len(args) > position else -1)
        values, indices = (None, result) if isinstance(result, torch.Tensor) else result
        if indices.ndim < input.ndim:
            indices = indices.unsqueeze(dim)
        return values, torch.take_along_dim(torch.atleast_1d(input), torch.atleast_1d(indices), dim)

    return freedom


def _exponential(result, *args, **kwargs):
    """The imaginary part of a logarithm is free by multiples of two pi."""
    del args, kwargs
    return (result.real, torch.polar(torch.ones_like(result.imag), result.imag)) if result.is_complex() else result


def _physical(result, input, *args, **kwargs):
    """What an integer cannot hold becomes, by PyTorch's documentation, whatever the machine makes of it."""
    del args, kwargs
    if not (input.is_floating_point() or input.is_complex()):
        return result
    number = input.real if input.is_complex() else input
    bounds = torch.iinfo(torch.int32 if result.dtype == torch.int64 else result.dtype)  # as 64 bits may be held
    return torch.where((number > bounds.min - 1) & (number < bounds.max + 1), result, 0)


def _power(result, input, exponent, *args, **kwargs):
    """As `_where_finite`; of complex zeros to the right half of the plane; of integers, to what cannot but overflow."""
    del args, kwargs
    if not isinstance(result, torch.Tensor) or result.is_floating_point():
        return result
    if not result.is_complex():
        return torch.where((torch.as_tensor(exponent) >= 64) & (torch.as_tensor(input) % 2 != 0), 0, result)
    input, exponent = torch.broadcast_tensors(*(torch.as_tensor(x, dtype=result.dtype) for x in (input, exponent)))
    free = torch.isinf(input) | torch.isinf(exponent) | ((input == 0) & (exponent.real <= 0))
    return torch.where(free, 0, result)


def _power_of(result, exponent, input, *args, **kwargs):
    """As `_power`, of operands the other way round."""
    return _power(result, input, exponent, *args, **kwargs)


def _below_infinity(result, input, *args, **kwargs):
    """At infinity PyTorch's Bessel functions are not numbers; the limits are."""
    del args, kwargs
    return torch.where(torch.isinf(input), 0, result)


def _of_small_order(result, input, *args, **kwargs):
    """Of orders beyond a million the terms that PyTorch adds overflow; the limits are zero and infinite."""
    del args, kwargs
    return torch.where(torch.as_tensor(input) > 1e6, 0, result)


def _where_exponential_is_held(result, input, *args, **kwargs):
    """As `_where_finite`; where exp(-input) overflows PyTorch's are not numbers either, and the limit is zero."""
    del args, kwargs
    result = _where_finite(result, input)
    return torch.where(input.real < -80, 0, result) if input.is_complex() else result


def _where_finite(result, input, *args, **kwargs):
    """Of complex infinities PyTorch's quotients are not numbers, and XLA's exponentials; the others' are limits."""
    del args, kwargs
    return _below_infinity(result, input) if input.is_complex() else result


# Where a definition leaves results free, they are compared after this function of them and the arguments.
FREEDOMS: dict[str, Callable[..., Any]] = {
    "svd": _product,
    "linalg.svd": _product_of_adjoint,
    "svd_lowrank": _product,
    "pca_lowrank": _product,
    "linalg.eig": _spectrum,
    "linalg.eigh": _eigenspaces,
    "logaddexp": _exponential,
    "logaddexp2": _exponential,
    "logcumsumexp": _exponential,
    "sort": _elements(0),
    "argsort": _elements(0),
    "topk": _elements(1),
    "kthvalue": _elements(1),
    "mode": _elements(0),
    "pow": _power,
    "float_power": _power,
    "__rpow__": _power_of,
    **dict.fromkeys((f"special.bessel_{kind}{order}" for kind in "jy" for order in "01"), _below_infinity),
    "special.airy_ai": _below_infinity,
    **dict.fromkeys(("byte", "char", "short", "int", "long"), _physical),
    **dict.fromkeys(("exp", "exp2", "reciprocal", "rsqrt"), _where_finite),
    **dict.fromkeys(("sigmoid", "nn.functional.silu.complex"), _where_exponential_is_held),
    "special.zeta": _of_small_order,
}

# Their values are drawn from JAX's stream: only shapes and dtypes are compared. Distributions: tests/ops/test_random.py
RANDOM = (
    "bernoulli",
    "cauchy",
    "exponential",
    "geometric",
    "log_normal",
    "multinomial",
    "nn.functional.alpha_dropout",
    "nn.functional.dropout*",
    "nn.functional.feature_alpha_dropout.with_train",
    "nn.functional.fractional_max_pool*",
    "nn.functional.rrelu",
    "normal*",
    "rand*",
    "uniform",
)
# Those samples that draw, of entries that do not always.
RANDOM_SAMPLES: dict[str, Callable[[Any], bool]] = {
    "nn.functional.scaled_dot_product_attention": lambda sample: sample.kwargs.get("dropout_p", 0) > 0,
    # Of a matrix of full rank it finds what its random projection leaves.
    "svd_lowrank": lambda sample: sample.kwargs["M"] is not None,
    "nn.functional.multi_head_attention_forward": lambda sample: sample.args[9] > 0 and sample.kwargs["training"],
}
# Their values are whatever was in memory.
UNINITIALISED = ("empty*", "new_empty*", "resize_*")

# Their results' shapes, or Python values, depend on data, and no bound is seen: jit refuses them.
DATA_DEPENDENT = (
    "bincount",
    "item",
)
# Those samples of which that is true, of entries of which it is not always.
DATA_DEPENDENT_SAMPLES: dict[str, Callable[[Any], bool]] = {
    "argwhere": lambda sample: sample.input.ndim == 0,
    "nn.functional.one_hot": lambda sample: sample.kwargs["num_classes"] == -1,
    "nonzero": lambda sample: sample.input.ndim == 0,
    "repeat_interleave": lambda sample: _tensors_in(sample.kwargs) != [] and "output_size" not in sample.kwargs,
    "tensor_split": lambda sample: _tensors_in(sample.args) != [],
}


@functools.cache
def excluded(name: str, column: str, dtype: torch.dtype | None = None) -> str | None:
    """Why an entry is left out of a column, or None."""
    for exclusion in EXCLUDED:
        if _applies(exclusion, name, column, dtype):
            return exclusion.reason
    return None


def is_converted(name: str, dtype: torch.dtype) -> bool:
    """Whether an entry takes a dtype that PyTorch has no kernel for."""
    return any(_applies(conversion, name, "errors", dtype) for conversion in CONVERTED)


def tolerance_for(name: str, column: str, dtype: torch.dtype) -> Tolerance | None:
    """The looser tolerance of an entry, or None: that of its dtype, or of the one in which that is held."""
    return _loosest(name, column, frozenset((dtype, precision_of(dtype))))


@functools.cache
def _loosest(name: str, column: str, dtypes: frozenset[torch.dtype]) -> Tolerance | None:
    found = [x.tolerance for x in LOOSER if any(_applies(x, name, column, dtype) for dtype in dtypes)]
    return Tolerance(max(t.rtol for t in found), max(t.atol for t in found)) if found else None


def is_drawn(name: str) -> bool:
    """Whether the values of an entry's results, or a module's, are drawn or left as they were."""
    return _matches(name, RANDOM + UNINITIALISED)


def has_values(case) -> bool:
    """Whether the values of a case's results are the same in every run."""
    draws = RANDOM_SAMPLES.get(case.name)
    return not is_drawn(case.name) and not (draws is not None and draws(case.sample))


def forward_tolerance(name: str, dtype: torch.dtype) -> Tolerance:
    """How far <cotangent, pushed> may be from <gradients, tangent>, relative to their terms."""
    wanted = tolerance_for(name, "forward", dtype)
    usual = Tolerance(1e-9, 1e-12) if dtype.itemsize == 8 and dtype.is_floating_point else Tolerance(1e-5, 1e-6)
    return usual if wanted is None else wanted


def is_data_dependent(case) -> bool:
    """Whether a case may need values that do not exist yet under jit."""
    decided = DATA_DEPENDENT_SAMPLES.get(case.name)
    return _matches(case.name, DATA_DEPENDENT) or (decided is not None and decided(case.sample))


def freedom_of(name: str) -> Callable[..., Any] | None:
    """What makes results of an entry comparable, or None if they are."""
    return FREEDOMS.get(name)


def _applies(rule, name: str, column: str, dtype: torch.dtype | None) -> bool:
    return (
        fnmatch.fnmatchcase(name, rule.pattern)
        and column in rule.columns
        and (rule.dtypes is None or dtype in rule.dtypes)
    )


def _matches(name: str, patterns) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)
