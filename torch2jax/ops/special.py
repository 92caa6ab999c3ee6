"""Special functions that JAX has under another name, or not at all.

Those it lacks are computed from formulas of the Digital Library of Mathematical Functions (DLMF, dlmf.nist.gov) named
beside them: a power series near zero, and elsewhere an integral, by the trapezoidal rule. The error of that rule on the
whole line falls exponentially with the number of nodes when the integrand is analytic near the line (Trefethen and
Weideman, SIAM Review 56, 2014), so that some twenty nodes give full precision.
"""

import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from ..rules.pointwise import like_input
from ..rules.registry import implements
from ..tensors.dtypes import FLOATS, REALS_AND_BOOL
from ..tensors.traced import is_traced
from .arrays import cast, default, floating_real, is_float, like, same_shape, where, widened

_EULER = 0.57721566490153286


# What JAX has.


def _trigamma(x):
    """The derivative of digamma: reflected to the right, raised above 6, and there an asymptotic series."""
    reflected = lax.lt(x, like(x, 0.5))
    sine = lax.sin(lax.mul(x, like(x, math.pi)))
    y = where(reflected, lax.sub(like(x, 1), x), x)
    total = like(x, 0)
    for _ in range(6):
        total = lax.add(total, lax.integer_pow(y, -2))
        y = lax.add(y, like(x, 1))
    z = lax.integer_pow(y, -2)
    series = 1 + lax.integer_pow(y, -1) / 2 + z * (1 / 6 - z * (1 / 30 - z / 42))
    total = lax.add(total, lax.div(series.astype(x.dtype), y))
    return where(reflected, lax.sub(lax.div(like(x, math.pi**2), lax.square(sine)), total), total)


@jax.custom_jvp
def _digamma(x):
    """``lax.digamma`` with the limit at zero, from above or below, where XLA has none."""
    return where(lax.eq(x, like(x, 0)), lax.neg(lax.div(like(x, 1), x)), lax.digamma(x))


@_digamma.defjvp
def _(primals, tangents):
    return _digamma(*primals), lax.mul(tangents[0], _trigamma(*primals))


@floating_real(torch.digamma, torch.special.digamma, torch.special.psi)
def digamma(input):
    return _digamma(input)


@jax.custom_jvp
def _lgamma(x):
    return lax.lgamma(x)


@_lgamma.defjvp
def _(primals, tangents):
    return _lgamma(*primals), lax.mul(tangents[0], _digamma(*primals))


@floating_real(torch.lgamma, torch.special.gammaln)
def lgamma(input):
    return _lgamma(input)


@floating_real(torch.special.zeta)
def zeta(input, other):
    x, q = same_shape(input, other)
    one, nan, infinite = like(x, 1), like(x, np.nan), like(x, np.inf)
    defined = (x > one) & (x < infinite) & ((q > 0) | (x == lax.floor(x)))
    result = where(defined, _reflected_zeta(where(defined, x, 2 * one), where(defined, q, one)), nan)
    # The rest is what PyTorch finds, in its order: its terms at a pole before an undefined `x`, and so on.
    result = where((q <= 0) & (q == lax.floor(q)), infinite, result)
    return where(x < one, nan, where(lax.eq(x, one), infinite, result))


def _reflected_zeta(x, q):
    """The sum of (q + k)**-x over k >= 0, with an integer `x` where `q` is negative.

    There it is that over all integers k less that over the others, each a sum of powers of positive numbers.
    """
    negative = lax.lt(q, like(q, 0))
    fraction, rest = q - lax.floor(q), lax.ceil(q) - q  # each exact where it is small
    first = _zeta(x, where(negative, fraction, q))
    others = _zeta(x, where(negative, rest, like(q, 1))) - _zeta(x, where(negative, 1 - q, like(q, 1)))
    odd = lax.ne(lax.rem(x, like(x, 2)), like(x, 0))
    pole = lax.bitwise_and(lax.le(q, like(q, 0)), lax.eq(fraction, like(q, 0)))
    both = where(odd, first - others, first + others)
    both = where(lax.eq(first, others) & jnp.isinf(first), where(odd & (fraction > rest), -first, first), both)
    return where(pole, like(q, np.inf), where(negative, both, first))


def _zeta(x, q):
    """``lax.zeta``, which is not a number where its first term overflows or underflows."""
    term = lax.pow(q, -x)
    alone = lax.bitwise_or(jnp.isinf(term), lax.eq(term, like(q, 0)))
    return where(alone, term, lax.zeta(where(alone, like(x, 2), x), where(alone, like(q, 1), q)))


# Incomplete gamma functions. Where `a` is large and `x` near it XLA's series end too soon, and DLMF 8.12.3 is uniform.

_TEMME = (  # of c_0, c_1 and c_2 in powers of eta (DLMF 8.12.9 to 8.12.12)
    (-1 / 3, 1 / 12, -2 / 135, 1 / 864, 1 / 2835, -139 / 777600, 1 / 25515, -571 / 261273600),
    (-1 / 540, -1 / 288, 1 / 378, -77 / 77760, 1 / 4860),
    (25 / 6048, -139 / 51840, 1 / 1296),
)


def _near_large(a, x, sign: int):
    """``igamma`` (`sign` 1) or ``igammac`` (-1) for large `a` and `x` within a few of its roots."""
    mu = (x - a) / a
    eta = mu * lax.sqrt(_power_series(mu, [2 * (-1) ** n / (n + 2) for n in range(16)]))
    z = eta * lax.sqrt(a / 2)
    c0, c1, c2 = (_power_series(eta, coefficients) for coefficients in _TEMME)
    terms = c0 + (c1 + c2 / a) / a
    return lax.erfc(-sign * z) / 2 - sign * lax.exp(-lax.square(z)) * terms / lax.sqrt(2 * math.pi * a)


def _incomplete(function, a, x, sign: int):
    a, x = same_shape(a, x)
    low, high = like(a, (1 - sign) / 2), like(a, (1 + sign) / 2)  # at zero, at infinity
    zero, one, infinite = like(a, 0), like(a, 1), like(a, np.inf)
    ordinary = (a > zero) & (x > zero) & (a < infinite) & (x < infinite)
    large = 200 if a.dtype.itemsize == 8 else 20  # what three terms are exact enough for
    is_near = ordinary & (a > large) & (lax.square(x - a) < 60 * a) & (lax.abs(x - a) < a / 2)
    inner = ordinary & ~is_near
    near = _near_large(where(is_near, a, 200 * one), where(is_near, x, 200 * one), sign)
    result = where(is_near, near, function(where(inner, a, one), where(inner, x, one)))
    result = where(ordinary, result, like(a, np.nan))
    # The rest is what PyTorch finds, in its order: infinite `x` before an undefined `a`, and so on.
    result = where(lax.eq(x, infinite), high, result)
    result = where(lax.eq(a, infinite), where(lax.eq(x, infinite), like(a, np.nan), low), result)
    result = where(lax.eq(x, zero), low, result)
    result = where(lax.eq(a, zero), where(lax.gt(x, zero), high, like(a, np.nan)), result)
    return where((x < zero) | (a < zero), like(a, np.nan), result)


@default(torch.igamma, torch.special.gammainc, takes=FLOATS)
def igamma(input, other):
    return _incomplete(lax.igamma, input, other, 1)


@default(torch.igammac, torch.special.gammaincc, takes=FLOATS)
def igammac(input, other):
    return _incomplete(lax.igammac, input, other, -1)


@jax.custom_jvp
def _ndtri(x):
    return jax.scipy.special.ndtri(x)


@_ndtri.defjvp
def _(primals, tangents):
    """The slope is infinite at zero and one, where the function itself is infinite."""
    result = _ndtri(*primals)
    slope = lax.mul(lax.exp(lax.mul(lax.square(result), like(result, 0.5))), like(result, math.sqrt(2 * math.pi)))
    return result, lax.mul(slope, *tangents)


@floating_real(torch.special.ndtri)
def ndtri(input):
    return _ndtri(input)


@jax.custom_jvp
def _entropy(x):
    positive = lax.gt(x, like(x, 0))
    product = lax.neg(lax.mul(x, lax.log(where(positive, x, like(x, 1)))))
    outside = where(lax.eq(x, like(x, 0)), like(x, 0), where(lax.ne(x, x), x, like(x, -np.inf)))
    return where(positive, product, outside)


@_entropy.defjvp
def _(primals, tangents):
    return _entropy(*primals), lax.mul(lax.neg(lax.add(lax.log(*primals), like(primals[0], 1))), *tangents)


@floating_real(torch.special.entr)
def entr(input):
    return _entropy(input)


@floating_real(torch.Tensor.polygamma)
def _polygamma_method(input, n):
    return polygamma(int(n), input)


def _strides_of_polygamma(shape, n, input):
    return like_input(shape, input)


@implements(
    *(torch.polygamma, torch.special.polygamma, torch.ops.aten.polygamma),
    takes=REALS_AND_BOOL,
    strides=_strides_of_polygamma,
)
def polygamma(n, input):
    if n < 0:
        raise RuntimeError(f"polygamma(n, x) does not support negative n, got {n}.")
    x = widened(input) if is_float(input) else cast(input, np.float32)
    result = digamma(x) if n == 0 else like(x, (-1) ** (n + 1) * math.factorial(n)) * _hurwitz_zeta(n + 1, x)
    return cast(result, input.dtype) if is_float(input) else result


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _hurwitz_zeta(order: int, x):
    return _reflected_zeta(lax.full_like(x, order), x)


@_hurwitz_zeta.defjvp
def _(order, primals, tangents):
    return _hurwitz_zeta(order, *primals), like(primals[0], -order) * _hurwitz_zeta(order + 1, *primals) * tangents[0]


@floating_real(torch.special.erfcx)
def erfcx(input):
    near = lax.lt(input, like(input, 2))
    small, large = where(near, input, like(input, 0)), where(near, like(input, 2), input)
    return where(near, lax.mul(lax.exp(lax.square(small)), lax.erfc(small)), _erfcx_integral(large))


@floating_real(torch.special.log_ndtr)
def log_ndtr(input):
    near = lax.gt(input, like(input, -1))
    x = lax.mul(input, like(input, math.sqrt(0.5)))
    tail = where(near, like(x, -1), x)
    far = lax.log(erfcx(lax.neg(tail)) / 2) - lax.square(tail)
    return where(near, lax.log1p(lax.erfc(where(near, x, like(x, 0))) / -2), far)


def _erfcx_integral(x):
    """DLMF 7.7.1, for large `x`."""
    step = 0.3
    nodes = ((np.arange(21) + 0.5) * step).reshape((-1,) + (1,) * x.ndim)
    weights = 2 * step / math.pi * np.exp(-(nodes**2))
    # Divided by x**2, which could overflow.
    terms = weights.astype(x.dtype) / (1 + lax.square(nodes.astype(x.dtype) / x))
    return lax.div(lax.reduce_sum(terms, (0,)), x)


# Modified Bessel functions of the first kind.


def _growth(x):
    return lax.exp(lax.abs(x))


@jax.custom_jvp
def _i0(x):
    return lax.mul(_growth(x), lax.bessel_i0e(x))


@_i0.defjvp
def _(primals, tangents):
    return _i0(*primals), lax.mul(_i1(*primals), *tangents)


@floating_real(torch.i0, torch.special.i0, torch.special.modified_bessel_i0)
def i0(input):
    return _i0(input)


@floating_real(torch.special.i0e)
def i0e(input):
    return lax.bessel_i0e(input)


@jax.custom_jvp
def _i1(x):
    return lax.mul(_growth(x), lax.bessel_i1e(x))


@_i1.defjvp
def _(primals, tangents):
    return _i1(*primals), lax.mul(_i1_slope(*primals), *tangents)


@jax.custom_jvp
def _i1_slope(x):
    """DLMF 10.29.2."""
    at_zero = lax.eq(x, like(x, 0))
    return where(at_zero, like(x, 0.5), _i0(x) - _i1(x) / where(at_zero, like(x, 1), x))


@_i1_slope.defjvp
def _(primals, tangents):
    """DLMF 10.25.1, or of small numbers 10.25.2."""
    (x,) = primals
    small = lax.lt(lax.abs(x), like(x, 0.1))
    far = where(small, like(x, 1), x)
    series = x * _power_series(lax.square(x), [3 / 8, 5 / 96, 7 / 3072, 1 / 20480])
    curvature = where(small, series, _i1(far) * (1 + 1 / lax.square(far)) - _i1_slope(far) / far)
    return _i1_slope(x), lax.mul(curvature, *tangents)


@floating_real(torch.special.i1, torch.special.modified_bessel_i1)
def i1(input):
    return _i1(input)


@floating_real(torch.special.i1e)
def i1e(input):
    return lax.bessel_i1e(input)


# Bessel functions of the first and second kind, and modified ones of the second kind, of orders 0 and 1.

_SERIES_LIMIT = {"bessel": 5.0, "modified": 2.0}  # where the integral takes over from the series
_SERIES_TERMS = 22


def _power_series(x, coefficients):
    result = lax.full_like(x, 0)
    for coefficient in reversed(coefficients):
        result = result * x + like(x, coefficient)
    return result


def _series(order: int, sign: int):
    """Coefficients in (x/2)**2 of ``J`` (sign -1) or ``I`` (sign 1) over ``(x/2)**order``: DLMF 10.2.2 and 10.25.2.

    The second list is that of the sum with digamma functions in ``Y`` and ``K``: DLMF 10.8.1 and 10.31.1.
    """
    harmonic = np.concatenate([[0], np.cumsum(1 / np.arange(1, _SERIES_TERMS + order + 1))])
    first, second = [], []
    for k in range(_SERIES_TERMS):
        term = sign**k / (math.factorial(k) * math.factorial(k + order))
        first.append(term)
        second.append(term * (harmonic[k] + harmonic[k + order] - 2 * _EULER))
    return first, second


def _small(x, kind: str):
    """`x` where the series serves, and a harmless value elsewhere."""
    return where(lax.le(lax.abs(x), like(x, _SERIES_LIMIT[kind])), x, like(x, 1))


def _large(x, kind: str):
    return where(lax.le(lax.abs(x), like(x, _SERIES_LIMIT[kind])), like(x, 10), x)


def _laplace_integral(order: int, x, direction):
    """The integral of exp(-t) t**(order-1/2) (1 + t/(2z))**(order-1/2) over t > 0, by Gamma(order+1/2); t = s**2.

    Here ``z = x / direction``. It is the integral in DLMF 10.32.8 (`direction` 1) and, turned by a right angle, in
    Hankel's representation (Watson, Bessel Functions, 6.12; `direction` 1j).
    """
    step = 0.3
    s = np.arange(0.5, 21) * step
    weights = 2 * step * np.exp(-(s**2)) * s ** (2 * order) / math.gamma(order + 0.5)
    t = (s**2).reshape((-1,) + (1,) * x.ndim).astype(x.dtype)
    factor = 1 + jnp.asarray(t * direction) / (2 * x)
    return jnp.tensordot(weights.astype(factor.dtype), jnp.sqrt(factor) ** (2 * order - 1), 1)


def _hankel(order: int, x):
    """``J + iY`` for large positive `x`."""
    phase = x - like(x, (order / 2 + 0.25) * math.pi)
    wave = lax.complex(lax.cos(phase), lax.sin(phase))
    return jnp.sqrt(2 / (math.pi * x)) * wave * _laplace_integral(order, x, 1j)


def _bessel_j(order: int, x):
    small, large = _small(x, "bessel"), lax.abs(_large(x, "bessel"))
    near = (small / 2) ** order * _power_series(lax.square(small / 2), _series(order, -1)[0])
    far = lax.real(_hankel(order, large))
    far = jnp.where(jnp.isinf(large), 0, far)
    far = far if order == 0 else far * lax.sign(x)
    return where(lax.le(lax.abs(x), like(x, _SERIES_LIMIT["bessel"])), near, far)


def _second_kind_near(order: int, x, sign: int):
    """The logarithmic series of ``Y`` (times pi/2, `sign` -1) and ``K`` (up to a sign, `sign` 1) near zero."""
    first, second = _series(order, sign)
    square = lax.square(x / 2)
    regular = (x / 2) ** order * (lax.log(x / 2) * _power_series(square, first) - _power_series(square, second) / 2)
    return regular if order == 0 else regular + sign / x


def _bessel_y(order: int, x):
    small, large = _small(x, "bessel"), _large(x, "bessel")
    near = _second_kind_near(order, small, -1) * (2 / math.pi)
    far = jnp.where(jnp.isinf(large), 0, lax.imag(_hankel(order, lax.abs(large))))
    result = where(lax.le(x, like(x, _SERIES_LIMIT["bessel"])), near, far)
    return _on_positive(x, result, -jnp.inf)


def _on_positive(x, result, at_zero):
    return jnp.where(x > 0, result, jnp.where(x == 0, at_zero, jnp.nan))


def _bessel_k_scaled(order: int, x):
    """``exp(x) K(x)``."""
    small, large = _small(x, "modified"), lax.abs(_large(x, "modified"))
    near = _second_kind_near(order, small, 1) * lax.exp(small) * (-1 if order == 0 else 1)
    far = jnp.sqrt(math.pi / (2 * large)) * _laplace_integral(order, large, 1)
    return _on_positive(x, where(lax.le(x, like(x, _SERIES_LIMIT["modified"])), near, far), jnp.inf)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _second_kind(order: int, x):
    return _bessel_y(order, x)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _modified_second_kind(order: int, x):
    return _bessel_k_scaled(order, x) * lax.exp(lax.neg(x))


def _jvp_by_the_other_order(function: Callable, sign: int) -> Callable:
    """The derivatives of orders 0 and 1 of ``Y`` (`sign` 1) and ``K`` (-1): DLMF 10.6.2 and 10.29.2.

    The series and the integrals have the same ones, but not at zero, where these are infinite.
    """

    def jvp(order, primals, tangents):
        (x,), (tangent,) = primals, tangents
        value = function(order, x)
        if order == 0:
            slope = lax.neg(function(1, x))
        else:  # at zero the quotient grows faster, and what it is taken from is harmless
            before = function(0, where(lax.eq(x, like(x, 0)), like(x, 1), x))
            slope = lax.sub(lax.mul(like(x, sign), before), lax.div(value, x))
        return value, lax.mul(tangent, slope)

    return jvp


_second_kind.defjvp(_jvp_by_the_other_order(_second_kind, 1))
_modified_second_kind.defjvp(_jvp_by_the_other_order(_modified_second_kind, -1))


def _of_order(function, order):
    def body(input):
        return function(order, input)

    return body


for _order in (0, 1):
    floating_real(getattr(torch.special, f"bessel_j{_order}"))(_of_order(_bessel_j, _order))
    floating_real(getattr(torch.special, f"bessel_y{_order}"))(_of_order(_second_kind, _order))
    floating_real(getattr(torch.special, f"scaled_modified_bessel_k{_order}"))(_of_order(_bessel_k_scaled, _order))
    floating_real(getattr(torch.special, f"modified_bessel_k{_order}"))(_of_order(_modified_second_kind, _order))


@floating_real(torch.special.spherical_bessel_j0)
def spherical_bessel_j0(input):
    tiny = lax.lt(lax.abs(input), like(input, 0.5))
    series = [(-1) ** k / math.factorial(2 * k + 1) for k in range(8)]  # DLMF 10.53.1
    near = _power_series(lax.square(where(tiny, input, like(input, 0))), series)
    far = where(tiny, like(input, 1), input)
    return where(tiny, near, where(jnp.isinf(far), like(input, 0), lax.div(lax.sin(far), far)))


@floating_real(torch.special.airy_ai)
def airy_ai(input):
    limit = like(input, 2)
    near = lax.le(lax.abs(input), limit)
    series = _airy_series(where(near, input, like(input, 0)))
    size = lax.abs(where(near, like(input, 10), input))
    decaying = lax.real(_airy_integral(size, 1))
    # DLMF 9.2.14
    turned = _airy_integral(size, np.exp(1j * math.pi / 3))
    waving = 2 * lax.real(np.exp(1j * math.pi / 3).astype(turned.dtype) * turned)
    result = where(near, series, where(lax.gt(input, like(input, 0)), decaying, waving))
    return where(jnp.isinf(input), like(input, 0), result)


def _airy_series(x):
    """DLMF 9.4.1."""
    at_zero, slope = 1 / (3 ** (2 / 3) * math.gamma(2 / 3)), -1 / (3 ** (1 / 3) * math.gamma(1 / 3))
    even, odd = [1.0], [1.0]
    for k in range(1, 14):
        even.append(even[-1] / ((3 * k - 1) * (3 * k)))
        odd.append(odd[-1] / ((3 * k) * (3 * k + 1)))
    cube = x**3
    return at_zero * _power_series(cube, even) + slope * x * _power_series(cube, odd)


def _airy_integral(x, direction):
    """``Ai`` of ``z = x * direction``: DLMF 9.5.7, with the variable of integration scaled by x**(1/4)."""
    step = 0.2
    t = np.arange(0.5, 36).reshape((-1,) + (1,) * x.ndim) * step
    kernel = np.exp(-np.sqrt(complex(direction)) * t**2)
    cosines = jnp.cos((t**3).astype(x.dtype) / (3 * x**0.75))
    complex_dtype = jnp.promote_types(x.dtype, np.complex64)
    integral = step * jnp.sum(kernel.astype(complex_dtype) * cosines, axis=0) / x**0.25
    exponent = np.asarray(-2 / 3 * complex(direction) ** 1.5, complex_dtype) * x**1.5
    return lax.exp(exponent) * integral / math.pi


# Orthogonal polynomials, by their three-term recurrences: DLMF 18.9.


_FEW = 1000  # as many steps as a loop of known length takes, which can be differentiated backwards


def _recurrence(first, step):
    """The body for polynomials ``p(0) = 1``, ``p(1) = first(x)``, ``p(k+1) = step(k, x, p(k), p(k-1))``."""

    def body(input, n):
        degree = _degree(n)
        count = _count(degree)
        input, degree = same_shape(input, degree)
        one = lax.full_like(input, 1)
        start = np.int32(1), one, first(input), jnp.where(degree < 0, 0, one)

        def advance(state):
            k, previous, current, result = state
            following = step(lax.convert_element_type(k, input.dtype), input, current, previous)
            return k + 1, current, following, jnp.where(degree == k, current, result)

        def goes_on(state):
            k, _, current, _ = state
            return jnp.any((degree >= k) & ~jnp.isnan(current))

        if count is not None and count <= _FEW:
            return lax.fori_loop(1, count, lambda _, state: advance(state), start)[-1]
        k, _, current, result = lax.while_loop(goes_on, advance, start)
        return jnp.where(degree >= k, current, result)

    return body


def _degree(n):
    """The degrees, negative where 64 bits hold none: a polynomial of negative degree is zero."""
    numbers, n = (jnp, n) if is_traced(n) else (np, np.asarray(n))
    return numbers.where(abs(n) < 2.0**63, numbers.trunc(n), -1)


def _count(degree) -> int | None:
    """The highest degree plus one, if it is known."""
    return None if is_traced(degree) else int(np.max(np.asarray(degree), initial=0)) + 1


def _chebyshev_step(k, x, p, before):
    return 2 * x * p - before


def _shifted(first, step):
    return lambda x: first(2 * x - 1), lambda k, x, p, before: step(k, 2 * x - 1, p, before)


for _name, _first in (
    ("t", lambda x: x),
    ("u", lambda x: 2 * x),
    ("v", lambda x: 2 * x - 1),
    ("w", lambda x: 2 * x + 1),
):
    _functions = [getattr(torch.special, f"{prefix}chebyshev_polynomial_{_name}") for prefix in ("", "shifted_")]
    floating_real(_functions[0])(_recurrence(_first, _chebyshev_step))
    floating_real(_functions[1])(_recurrence(*_shifted(_first, _chebyshev_step)))


def _laguerre_step(k, x, p, before):
    return p + (k * (p - before) - x * p) / (k + 1)  # by differences: exact at zero


def _legendre_step(k, x, p, before):
    return x * p + k * (x * p - before) / (k + 1)  # by differences: exact at one and minus one


for _function, _first, _step in (
    (torch.special.hermite_polynomial_h, lambda x: 2 * x, lambda k, x, p, before: 2 * (x * p - k * before)),
    (torch.special.hermite_polynomial_he, lambda x: x, lambda k, x, p, before: x * p - k * before),
    (torch.special.laguerre_polynomial_l, lambda x: 1 - x, _laguerre_step),
    (torch.special.legendre_polynomial_p, lambda x: x, _legendre_step),
):
    floating_real(_function)(_recurrence(_first, _step))
