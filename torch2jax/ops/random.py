"""Random numbers: factories, fills in place, and draws from distributions.

Each draw takes the next key of the call, or of a generator. A draw with a known key (after ``torch.manual_seed`` in the
code, from a ``torch.Generator``) is known itself.

Also here: Sobol sequences, which PyTorch's own kernels make, from directions that are known while JAX traces.
"""

import functools
import types
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from ..internals.dispatch import DisableTorchFunction
from ..rules.inline import call_inlined
from ..rules.inplace import write_in_place
from ..rules.registry import implements_tensors
from ..runtime.errors.locations import user_level
from ..runtime.translation import current, lift
from ..tensors.dtypes import (
    FLOATS,
    INEXACT,
    REALS,
    REALS_AND_BOOL,
    Takes,
    canonical,
    cpp_name,
    expect,
    is_integral,
    type_name,
)
from ..tensors.known import defer_body, value_of_body
from ..tensors.tensor import Torchish, expect_values, strides_of_copy, wrap
from ..tensors.traced import is_at_once, is_traced
from ..transforms.vmap import check_operands, check_target, differing_axes, draw_for_each
from ..values.valueless import run_on_values
from .arrays import like
from .bounds import seen
from .creation import factory, label_of, like_options, new_shape
from .gradients import set_requires_grad

aten = torch.ops.aten
Tensor = torch.Tensor


def sample(
    body: Callable,
    shape,
    dtype: torch.dtype,
    *operands,
    generator: torch.Generator | None = None,
    device=None,
    requires_grad: bool = False,
    strides: tuple[int, ...] | None = None,
    differentiable: bool = False,
    pointwise: bool = True,
) -> Tensor:
    """The tensor of ``body(key, shape, array dtype, *operands)``, where `operands` are numbers and tensors.

    `pointwise` says that with more dimensions in front of `shape` and the operands `body` draws as often as they say.
    """
    call = current()
    lifted = [call.constants.lift(x) if isinstance(x, torch.Tensor) else x for x in operands]  # pyright: ignore
    tensors = [x for x in lifted if isinstance(x, Torchish)]
    label = tensors[0].device if device is None and tensors else label_of(device)
    expect_values(label, dtype)
    differing = differing_axes() if pointwise and not differentiable else []
    key = call.stream.next_common_key(generator) if differing else call.stream.next_key(generator)
    arrays = [x.read() if isinstance(x, Torchish) else x for x in lifted]
    if not differentiable:
        arrays = [lax.stop_gradient(x) if is_traced(x) else x for x in arrays]
    check_operands(arrays)
    given = (tuple(shape), canonical(dtype))
    if not differing and is_at_once(key, *arrays):
        array = call_inlined(body, (key, *given, *arrays), {}, "sample")
    else:
        array = draw_for_each(body, key, *given, arrays, differing)
    known = None
    if current().stages and not (is_traced(key) or differing) and all(x.known is not None for x in tensors):
        values = [x.known if isinstance(x, Torchish) else x for x in lifted]
        known = defer_body(value_of_body, body, key, *given, *values)
    result = wrap(array, dtype, known, strides=strides, device=label)
    if differentiable and torch.is_grad_enabled():
        result.descend(tensors, "Sample")
    elif call.dual is not None:
        call.dual.complete(result, tensors)
    return set_requires_grad(result, True) if requires_grad else result


# Distributions, as functions of a key. Those of floating-point type also take the integer dtypes that PyTorch allows.


def drawn_in(dtype):
    """The dtype to draw in, for results of `dtype`: in half precision JAX draws no more than 128 or 1024 values."""
    return np.dtype(np.float32) if jnp.issubdtype(dtype, jnp.floating) and jnp.finfo(dtype).bits < 32 else dtype


def _rounded(body: Callable) -> Callable:
    """`body`, drawn in no less than single precision."""

    @functools.wraps(body)
    def draw(key, shape, dtype, *operands):
        wide = drawn_in(dtype)
        drawn = body(key, shape, wide, *operands)
        return drawn if wide == dtype else lax.convert_element_type(drawn, dtype)

    return draw


def coin(key, shape, probability: float):
    """True with a probability: the cheapest form of it, one comparison of random bits."""
    if probability >= 1:
        return lax.full(shape, True)
    threshold = np.uint32(min(round(probability * 2**32), 2**32 - 1))
    return lax.lt(jax.random.bits(key, shape, np.uint32), threshold)


def _uniform(key, shape, dtype, low=0.0, high=1.0):
    if jnp.issubdtype(dtype, jnp.complexfloating):
        parts = jax.random.uniform(key, (2, *shape), np.finfo(dtype).dtype)
        return lax.complex(parts[0], parts[1])
    drawn = jax.random.uniform(key, shape, drawn_in(dtype), low, high)
    if drawn.dtype == dtype:
        return drawn
    below = np.nextafter(np.asarray(high, dtype), np.asarray(low, dtype))  # what is next to `high` would round to it
    return lax.min(lax.convert_element_type(drawn, dtype), below)


@_rounded
def _normal(key, shape, dtype, mean=0.0, std=1.0):
    draw = jax.random.normal(key, shape, dtype)
    if isinstance(std, jax.Array) or std != 1:
        draw = lax.mul(draw, jnp.asarray(std, dtype))
    return draw if not isinstance(mean, jax.Array) and mean == 0 else lax.add(draw, jnp.asarray(mean, dtype))


def _integers(key, shape, dtype, low: int, high: int):
    """Whole numbers from `low` up to, but without, `high`, in any dtype."""
    if np.issubdtype(dtype, np.bool_):
        return coin(key, shape, 0.5) if (low, high) == (0, 2) else lax.full(shape, low != 0)
    drawn = dtype if jnp.issubdtype(dtype, jnp.integer) else jax.dtypes.canonicalize_dtype(np.int64)
    limits = jnp.iinfo(drawn)
    if low < limits.min or high - 1 > limits.max:
        raise ValueError(
            f"got random integers from {low} to {high - 1}; wanted a range within {drawn.name}. "
            'With 64-bit integers larger ranges work: jax.config.update("jax_enable_x64", True)'
        )
    draw = _up_to_the_last if high - 1 == limits.max else jax.random.randint
    return lax.convert_element_type(draw(key, shape, low, high, drawn), dtype)


def _up_to_the_last(key, shape, low: int, high: int, dtype):
    """As ``jax.random.randint``, where `high` itself is too large for `dtype`: counted from `low` without a sign."""
    unsigned = np.dtype(f"uint{dtype.itemsize * 8}")
    if high - low == 2 ** (dtype.itemsize * 8):
        return lax.bitcast_convert_type(jax.random.bits(key, shape, unsigned), dtype)
    above = jax.random.randint(key, shape, unsigned.type(0), unsigned.type(high - low), unsigned)
    return lax.add(lax.bitcast_convert_type(above, dtype), dtype.type(low))


def _permutation(key, shape, dtype):
    return jax.random.permutation(key, shape[0]).astype(dtype)


def _bernoulli(key, shape, dtype, probability):
    if not isinstance(probability, jax.Array):
        return coin(key, shape, probability).astype(dtype)
    wide = jnp.promote_types(probability.dtype, np.float32)
    return lax.lt(jax.random.uniform(key, shape, wide), jnp.broadcast_to(probability, shape).astype(wide)).astype(dtype)


@_rounded
def _exponential(key, shape, dtype, rate=1.0):
    return lax.div(jax.random.exponential(key, shape, dtype), np.asarray(rate).astype(dtype))


def _geometric(key, shape, dtype, probability):
    wide = dtype if jnp.issubdtype(dtype, jnp.floating) else np.dtype(np.float32)
    return jax.random.geometric(key, probability, shape, np.int32).astype(wide).astype(dtype)


@_rounded
def _log_normal(key, shape, dtype, mean=1.0, std=2.0):
    return lax.exp(_normal(key, shape, dtype, mean, std))


@_rounded
def _cauchy(key, shape, dtype, median=0.0, sigma=1.0):
    draw = lax.mul(jax.random.cauchy(key, shape, dtype), np.asarray(sigma).astype(dtype))
    return lax.add(draw, np.asarray(median).astype(dtype))


def _threefry(key):
    """A key of the kind that JAX's rejection samplers need."""
    return jax.random.wrap_key_data(jax.random.bits(key, (2,), np.uint32), impl="threefry2x32")


def _poisson(key, shape, dtype, rate):
    return jax.random.poisson(_threefry(key), rate.astype(np.float32), shape).astype(dtype)


def _binomial(key, shape, dtype, count, probability):
    wide = jnp.promote_types(count.dtype, np.float32)
    return jax.random.binomial(key, count.astype(wide), probability.astype(wide), shape, wide).astype(dtype)


def _gamma(key, shape, dtype, concentration):
    draw = jax.random.gamma(key, concentration, shape, drawn_in(dtype)).astype(dtype)
    return lax.max(draw, like(draw, jnp.finfo(dtype).tiny))  # so that its logarithm is finite


def _logits(weights):
    return lax.log(weights.astype(jnp.promote_types(weights.dtype, np.float32)))


def _multinomial(key, shape, dtype, weights):
    # The largest k of logits + Gumbel noise are k draws without replacement, in the order they are drawn.
    logits = _logits(weights)
    noisy = lax.add(logits, jax.random.gumbel(key, logits.shape, logits.dtype))
    return lax.top_k(noisy, shape[-1])[1].astype(dtype)


def _multinomial_with_replacement(key, shape, dtype, weights):
    logits = _logits(weights)
    draws = jax.random.categorical(key, logits, shape=(shape[-1], *logits.shape[:-1]))
    return jnp.moveaxis(draws, 0, -1).astype(dtype)


# Factories.


def _floating(dtype: torch.dtype | None) -> torch.dtype:
    dtype = dtype or torch.get_default_dtype()
    if is_integral(dtype):
        raise NotImplementedError(f"got dtype={dtype} for random numbers; wanted a floating-point or complex dtype")
    return dtype


@factory(torch.rand, aten.rand.default, aten.rand.generator)
def rand(*size, dtype=None, **options):
    return sample(_uniform, new_shape(size, options), _floating(dtype), **options)


@factory(torch.randn, aten.randn.default, aten.randn.generator)
def randn(*size, dtype=None, **options):
    return sample(_normal, new_shape(size, options), _floating(dtype), **options)


@factory(torch.rand_like, aten.rand_like.default, aten.rand_like.generator)
def rand_like(input, *, dtype=None, memory_format=None, device=None, **options):
    options = like_options(input, dtype, memory_format, device, options)
    return sample(_uniform, input.shape, _floating(options.pop("dtype")), **options)


@factory(torch.randn_like, aten.randn_like.default, aten.randn_like.generator)
def randn_like(input, *, dtype=None, memory_format=None, device=None, **options):
    options = like_options(input, dtype, memory_format, device, options)
    return sample(_normal, input.shape, _floating(options.pop("dtype")), **options)


def _draw_integers(shape, dtype, low, high, **options) -> Tensor:
    expect("randint", dtype, REALS_AND_BOOL)
    low, high = int(low), int(high)
    _expect_range(dtype, low, high)
    return sample(_integers, shape, dtype, low, high, **options)


_OVERLOADS = ("default", "generator", "low", "low_generator")


@factory(torch.randint, *(getattr(aten.randint, name) for name in _OVERLOADS))
def randint(*args, low=0, high=None, size=None, dtype=None, **options):
    bounds = list(args)
    if bounds and not isinstance(bounds[-1], (int, torch.Tensor)):
        size = bounds.pop()
    low, high = (*bounds, high)[:2] if len(bounds) + (high is not None) > 1 else (low, *bounds, high)[:2]
    return _draw_integers(new_shape((size,), {}), dtype or torch.int64, low, high, **options)


_OVERLOADS = ("default", "generator", "low_dtype", "low_generator_dtype", "Tensor", "Tensor_generator")


@factory(torch.randint_like, *(getattr(aten.randint_like, name) for name in _OVERLOADS))
def randint_like(input, *bounds, low=0, high=None, dtype=None, memory_format=None, device=None, **options):
    low, high = (*bounds, high)[:2] if len(bounds) + (high is not None) > 1 else (low, *bounds, high)[:2]
    options = like_options(input, dtype, memory_format, device, options)
    return _draw_integers(input.shape, options.pop("dtype"), low, high, **options)


@factory(torch.randperm, aten.randperm.default, aten.randperm.generator)
def randperm(n, *, dtype=torch.int64, **options):
    return sample(_permutation, new_shape((n,), {}), dtype, pointwise=False, **options)


# Fills in place, and their functional forms.


def _fills(functional, in_place, takes: Takes | None = None) -> Callable[[Callable], Callable]:
    """Declares ``draw(tensor, ..., generator)`` as an in-place operator, and its functional form."""

    def register(draw: Callable) -> Callable:
        def fill(self, *args, generator=None):
            call = current()
            if differing_axes():
                operands = [call.constants.lift(x).read() for x in args if isinstance(x, torch.Tensor)]
                check_target(call.constants.lift(self), operands)
            return write_in_place(self, draw(self, *args, generator=generator))

        implements_tensors(functional, takes=takes)(draw)
        implements_tensors(in_place, takes=takes)(fill)
        return draw

    return register


def _drawn(input: Tensor, body: Callable, *args, generator) -> Tensor:
    strides = None if input.is_contiguous() else strides_of_copy(input)
    return sample(body, input.shape, input.dtype, *args, generator=generator, device=input.device, strides=strides)


def _check(holds: bool, name: str, wanted: str, **got) -> None:
    if not holds:
        values = ", ".join(f"{key}={value}" for key, value in got.items())
        raise RuntimeError(f"{name} expects {wanted}, but got {values}")


def _check_values(name: str, wanted: str, tensor, holds: Callable[[np.ndarray], np.ndarray]) -> None:
    values = seen(tensor)
    if values is not None and not holds(values).all():
        raise RuntimeError(f"{name} expects {wanted}, but got {values[~holds(values)].item(0)}")


@_fills(aten.uniform, aten.uniform_, INEXACT)
def uniform(input, low=0.0, high=1.0, *, generator=None):
    if not input.is_complex():
        _expect_within(input.dtype, torch.finfo(input.dtype), low, high, "to")
    if low > high:
        raise RuntimeError(f"uniform_ expects to return a [from, to) range, but found from={low:g} > to={high:g}")
    if not input.is_complex() and high - low > torch.finfo(input.dtype).max:
        raise RuntimeError(
            f"uniform_ expects to-from <= std::numeric_limits<{type_name(input.dtype)}>::max(), but found to={high:g} "
            f"and from={low:g} which result in to-from to exceed the limit"
        )
    return _drawn(input, _uniform, low, high, generator=generator)


@_fills(aten.normal_functional, aten.normal_, INEXACT)
def normal_functional(input, mean=0.0, std=1.0, *, generator=None):
    _check(std >= 0.0, "normal", "std >= 0.0", std=std)
    return _drawn(input, _normal, mean, std, generator=generator)


@_fills(aten.exponential, aten.exponential_, FLOATS)
def exponential(input, lambd=1.0, *, generator=None):
    _check(lambd > 0.0, "exponential_", "lambda > 0.0", **{"lambda": lambd})
    return _drawn(input, _exponential, lambd, generator=generator)


@_fills(aten.geometric, aten.geometric_, REALS)
def geometric(input, p, *, generator=None):
    _check(0 < p < 1, "geometric_", "p to be in (0, 1)", p=p)
    return _drawn(input, _geometric, p, generator=generator)


@_fills(aten.log_normal, aten.log_normal_, FLOATS)
def log_normal(input, mean=1.0, std=2.0, *, generator=None):
    _check(std > 0.0, "log_normal_", "std > 0.0", std=std)
    return _drawn(input, _log_normal, mean, std, generator=generator)


@_fills(aten.cauchy, aten.cauchy_, FLOATS)
def cauchy(input, median=0.0, sigma=1.0, *, generator=None):
    _check(sigma > 0.0, "cauchy_", "sigma > 0.0", sigma=sigma)
    return _drawn(input, _cauchy, median, sigma, generator=generator)


@_fills(aten.random, aten.random_, REALS_AND_BOOL)
def random(input, *bounds, generator=None):
    low, high = (0, *bounds) if len(bounds) == 1 else bounds or (0, None)
    if high is None:
        high = _limit(input.dtype)
    else:
        _expect_range(input.dtype, low, high)
    return _drawn(input, _integers, low, high, generator=generator)


def _expect_range(dtype: torch.dtype, low: int, high: int) -> None:
    """Refuses numbers of the range from `low` to `high`, excluded, that `dtype` does not hold, and warns of gaps."""
    if low >= high:
        raise RuntimeError(f"random_ expects 'from' to be less than 'to', but got from={low} >= to={high}")
    if dtype == torch.bool:
        _expect_within(dtype, _BOOLS, low, high - 1, "to - 1")
    if not dtype.is_floating_point:
        return  # the draw refuses them
    _expect_within(dtype, torch.finfo(dtype), low, high - 1, "to - 1")
    digits = jnp.finfo(canonical(dtype)).nmant + 1
    for name, value in (("from", low), ("to - 1", high - 1)):
        if abs(value) > 2**digits:
            warnings.warn(
                f"{name} is out of bounds [-(2^{digits}), 2^{digits}]. Due to precision limitations {cpp_name(dtype)} "
                "can support discrete uniform distribution only within this range.",
                stacklevel=user_level(),
            )


_BOOLS = types.SimpleNamespace(min=0, max=1)


def _expect_within(dtype: torch.dtype, limits, low, high, name_of_high: str) -> None:
    for name, value in (("from", low), (name_of_high, high)):
        if not limits.min <= value <= limits.max:
            raise RuntimeError(
                f"{name} is out of bounds for {cpp_name(dtype)}: got {value}; wanted {limits.min} to {limits.max}"
            )


def _limit(dtype: torch.dtype) -> int:
    """The upper limit of ``random_()``, excluded: a float counts up to its mantissa's precision."""
    if dtype == torch.bool:
        return 2
    if is_integral(dtype):
        return int(jnp.iinfo(canonical(dtype)).max) + 1
    return min(2 ** (jnp.finfo(canonical(dtype)).nmant + 1), int(jnp.iinfo(canonical(torch.int64)).max)) + 1


@_fills(aten.bernoulli.p, aten.bernoulli_.float)
def bernoulli_p(input, p=0.5, *, generator=None):
    _check(0 <= p <= 1, "bernoulli_", "p to be in [0, 1]", p=p)
    return _drawn(input, _bernoulli, p, generator=generator)


@_fills(aten.bernoulli.Tensor, aten.bernoulli_.Tensor)
def bernoulli_tensor(input, p, *, generator=None):
    _check_values("bernoulli_", "p to be in [0, 1]", p, lambda p: (p >= 0) & (p <= 1))
    return _drawn(input, _bernoulli, p, generator=generator)


# Draws whose parameters are tensors.


@factory(torch.bernoulli, Tensor.bernoulli, aten.bernoulli.default)
def bernoulli(input, p=None, *, generator=None, dtype=None):
    if p is not None:
        return bernoulli_p(input, p, generator=generator)
    expect("bernoulli", input.dtype, FLOATS)
    _check_values("bernoulli", "p to be in [0, 1]", input, lambda p: (p >= 0) & (p <= 1))
    drawn = _drawn(input, _bernoulli, input, generator=generator)
    return drawn if dtype is None else drawn.to(dtype)  # that of `out`


_OVERLOADS = ("Tensor_float", "float_Tensor", "Tensor_Tensor", "float_float")


@factory(torch.normal, *(getattr(aten.normal, name) for name in _OVERLOADS), operates=True)
def normal(mean, std=1.0, size=None, *, generator=None, dtype=None, **options):
    if isinstance(std, torch.Tensor):
        _check_values("normal", "std >= 0.0", std, lambda std: std >= 0)
    else:
        _check(std >= 0.0, "normal", "std >= 0.0", std=std)
    tensors = [x.detach() for x in (mean, std) if isinstance(x, torch.Tensor)]
    if not tensors:
        dtype = _floating(dtype)
        return sample(_normal, new_shape((size,), {}), dtype, mean, std, generator=generator, **options)
    shape = torch.broadcast_shapes(*(x.shape for x in tensors))
    dtype = functools.reduce(torch.promote_types, (x.dtype for x in tensors))
    expect("normal", dtype, FLOATS)
    mean, std = (x.to(dtype).expand(shape) if isinstance(x, torch.Tensor) else x for x in (mean, std))
    return sample(_normal, shape, dtype, mean, std, generator=generator)


@factory(torch.poisson, aten.poisson.default)
def poisson(input, generator=None):
    expect("poisson", input.dtype, FLOATS)
    _check_values("poisson", "a rate that is not negative", input, lambda rate: rate >= 0)
    return _drawn(input, _poisson, input, generator=generator)


@factory(torch.binomial, aten.binomial.default)
def binomial(count, prob, generator=None):
    if is_integral(count.dtype):
        raise ValueError(f"binomial only supports floating-point dtypes for count, got: {count.dtype}")
    shape = torch.broadcast_shapes(count.shape, prob.shape)
    return sample(_binomial, shape, count.dtype, count, prob, generator=generator)


def _expect_weights(weights: np.ndarray) -> None:
    with np.errstate(invalid="ignore"):  # a nan is neither the least nor the greatest
        least, greatest = weights.min(initial=0), weights.max(-1, initial=0)
        is_valid = least >= 0 and (greatest < np.inf).all()
    if not is_valid:
        raise RuntimeError("probability tensor contains either `inf`, `nan` or element < 0")
    if not (greatest > 0).all():
        raise RuntimeError("invalid multinomial distribution (sum of probabilities <= 0)")


@factory(torch.multinomial, Tensor.multinomial, aten.multinomial.default)
def multinomial(input, num_samples, replacement=False, *, generator=None):
    lifted = lift(input)
    with DisableTorchFunction():
        shape, dtype = tuple(lifted.shape), lifted.dtype
    if len(shape) not in (1, 2):
        raise RuntimeError(f"prob_dist must be 1 or 2 dim, got shape {shape}")
    if num_samples <= 0:
        raise RuntimeError(f"cannot sample n_sample <= 0 samples, got {num_samples}")
    if not replacement and num_samples > shape[-1]:
        raise RuntimeError(
            f"cannot sample n_sample > prob_dist.size(-1) samples without replacement, got {num_samples} of {shape[-1]}"
        )
    if dtype not in FLOATS:
        raise RuntimeError(f"multinomial only supports floating-point dtypes for input, got: {type_name(dtype)}")
    weights = seen(lifted)
    if weights is not None:
        _expect_weights(weights)
    body = _multinomial_with_replacement if replacement else _multinomial
    return sample(body, (*shape[:-1], num_samples), torch.int64, lifted, generator=generator)


@factory(aten._standard_gamma.default)
def _standard_gamma(input, generator=None):
    return sample(_gamma, input.shape, input.dtype, input, generator=generator, differentiable=True)


@factory(torch.ops.prims.normal.default)
def prims_normal(shape, *, mean, std, dtype, **options):
    return sample(_normal, shape, dtype, mean, std, **options)


def _runs_in_pytorch(function: Callable, written: tuple[int, ...]) -> None:
    @implements_tensors(function)
    def rule(*args, **kwargs) -> Any:
        return run_on_values(current(), function, args, kwargs, written)


_runs_in_pytorch(torch._sobol_engine_draw, ())
for _function in (torch._sobol_engine_ff_, torch._sobol_engine_scramble_, torch._sobol_engine_initialize_state_):
    _runs_in_pytorch(_function, (0,))
