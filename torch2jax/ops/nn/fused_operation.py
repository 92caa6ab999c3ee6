"""Attention as one operation of the graph, which each platform lowers in its own way.

`jax.lax.platform_dependent` leaves a branch in the graph of a single platform, and for several it lowers each side for
all of them, which cuDNN's call refuses. So this is a primitive, and a platform's kernel is its lowering. What
differentiates or batches it meets the operation: of kernels only the value and the first cotangents are asked, and all
other derivatives are those of plain attention.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.core import ShapedArray
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir, xla

from ...internals.jax_traces import prim_requires_devices_during_lowering
from ...tracing.linear_call import linear_call
from ...tracing.traces import is_zero
from .kernels import cudnn_attention, pallas_attention
from .scores import attention

__all__ = ["attention_by_platform"]

_KERNELS = {"cuda": cudnn_attention, "tpu": pallas_attention}


def attention_by_platform(is_causal: bool, scale: float, is_divided: bool) -> Callable[..., jax.Array]:
    """A function of ``(batch, heads, length, features)`` three times, and a boolean mask of four dimensions, or none.

    Args:
        is_causal: the first query attends to the first key alone, each other one to one more.
        scale: the factor of the scores.
        is_divided: it is called where each device has its part. Otherwise JAX's call of cuDNN asks which devices there
            are.
    """
    operation = _DIVIDED if is_divided else _WHOLE
    return functools.partial(operation.value.bind, attend=_Attention(is_causal, scale))


@dataclasses.dataclass(frozen=True)
class _Attention:
    is_causal: bool
    scale: float

    def plain(self, query, key, value, mask=None):
        return attention(query, key, value, mask, self.is_causal, self.scale)

    def on(self, platform: str | None, operands) -> Callable:
        """The platform's kernel, if it takes such operands: JAX says so where it is traced, with its gradient."""
        if platform is None:
            return self.plain
        kernel = functools.partial(_KERNELS[platform], is_causal=self.is_causal, scale=self.scale)
        try:
            jax.eval_shape(lambda *operands: jax.vjp(kernel, *operands)[0], *operands)
        except (NotImplementedError, RuntimeError, ValueError):
            return self.plain
        return kernel


class _Operation:
    """The primitive, and that of its gradient: the cotangents of query, key and value for that of the result."""

    def __init__(self, requires_devices: bool):
        self.value, self.gradient = Primitive("attention"), Primitive("attention_gradient")
        self.gradient.multiple_results = True
        self.value.def_abstract_eval(_shape)
        self.gradient.def_abstract_eval(_shapes_of_gradient)
        ad.primitive_jvps[self.value] = self._jvp
        ad.primitive_jvps[self.gradient] = self._jvp_of_gradient
        for primitive, compute in ((self.value, _compute), (self.gradient, _compute_gradient)):
            primitive.def_impl(functools.partial(xla.apply_primitive, primitive))
            batching.primitive_batchers[primitive] = functools.partial(_batch, primitive)
            for platform in (None, *_KERNELS):
                on_platform = functools.partial(compute, platform)
                lowering = mlir.lower_fun(on_platform, multiple_results=primitive.multiple_results)
                mlir.register_lowering(primitive, lowering, platform=platform)
            if requires_devices:
                prim_requires_devices_during_lowering.add(primitive)

    def _jvp(self, primals, tangents, *, attend: _Attention):
        output = self.value.bind(*primals, attend=attend)
        moving = [i for i, tangent in enumerate(tangents[:3]) if not is_zero(tangent)]

        def push(residuals: list, moved: list) -> list:
            def of_moving(*inputs):
                operands = list(residuals)
                for i, x in zip(moving, inputs, strict=True):
                    operands[i] = x
                return attend.plain(*operands)

            return [jax.jvp(of_moving, tuple(residuals[i] for i in moving), tuple(moved))[1]]

        def pull(residuals: list, cotangents: list) -> list:
            found = self.gradient.bind(*residuals, *cotangents, attend=attend)
            return [found[i] for i in moving]

        (moved,) = linear_call(push, pull, list(primals), [tangents[i] for i in moving], [output])
        return output, moved

    def _jvp_of_gradient(self, primals, tangents, *, attend: _Attention):
        found = self.gradient.bind(*primals, attend=attend)
        tangents = [ad.instantiate_zeros(x) if is_zero(x) else x for x in tangents]
        plain = functools.partial(_compute_gradient, None, attend=attend)
        return found, jax.jvp(plain, tuple(primals), tuple(tangents))[1]


def _shape(query, key, value, *mask, attend: _Attention) -> ShapedArray:
    return ShapedArray((*query.shape[:-1], value.shape[-1]), query.dtype)


def _shapes_of_gradient(*operands, attend: _Attention) -> list[ShapedArray]:
    return [ShapedArray(x.shape, x.dtype) for x in operands[:3]]


def _compute(platform: str | None, *operands, attend: _Attention):
    return attend.on(platform, operands)(*operands)


def _compute_gradient(platform: str | None, *operands, attend: _Attention) -> list:
    *operands, cotangent = operands
    run = attend.on(platform, operands)
    _, pull = jax.vjp(lambda *inputs: run(*inputs, *operands[3:]), *operands[:3])
    return list(pull(cotangent))


def _batch(primitive: Primitive, operands, dims, **params):
    """What is mapped over becomes part of the batch."""
    size = next(x.shape[dim] for x, dim in zip(operands, dims, strict=True) if dim is not None)
    arrays = [batching.bdim_at_front(x, dim, size) for x, dim in zip(operands, dims, strict=True)]
    batch = size, max(x.shape[1] for x in arrays)
    merged = [jnp.broadcast_to(x, batch + x.shape[2:]).reshape(-1, *x.shape[2:]) for x in arrays]
    found: Any = primitive.bind(*merged, **params)
    if not primitive.multiple_results:
        return found.reshape(batch + found.shape[1:]), 0
    return [x.reshape(batch + x.shape[1:]) for x in found], [0] * len(found)


_WHOLE, _DIVIDED = _Operation(requires_devices=True), _Operation(requires_devices=False)
