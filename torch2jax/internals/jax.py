"""JAX's traces, programs and derivatives, where its public modules lack something.

The public modules are `jax.core`, `jax.extend` and `jax.interpreters`. A tracer's trace is its ``_trace``. Traces nest:
what a transformation's trace computes goes to its ``parent_trace``.
"""

from typing import Any

from jax._src import ad_checkpoint, array, config, core, dispatch, linear_util
from jax._src.interpreters import ad, batching, partial_eval

join_effects = core.join_effects
"""The effects of several sets of them."""

convert_constvars_jaxpr = partial_eval.convert_constvars_jaxpr
"""A jaxpr with its constants as its first inputs."""

primitive_linearizations = ad.primitive_linearizations
"""The rules of primitives for `jax.linearize`, by primitive."""

fallback_linearize_rule = ad.fallback_linearize_rule
"""Makes a linearization rule from a primitive's rule for `jax.jvp`."""

backward_pass3 = ad.backward_pass3
"""Transposes a jaxpr: gradients of its results go to accumulators, one for each of its inputs."""

ValAccum = ad.ValAccum
"""An accumulator of a sum, which ``freeze()`` returns."""

NullAccum = ad.NullAccum
"""An accumulator that ignores its input, for an input without a gradient."""

Store = linear_util.Store
"""A box for what a transformed function leaves for its caller, once; ``_val`` is the value."""

EqualStore = linear_util.EqualStore
"""As `Store`; equal values may be stored several times."""

VJPNode: Any = getattr(ad, "VJPNode", ())
"""JAX's node, since 0.11, around a step that it will only ever transpose, such as a call of a jitted function."""

remat_p = ad_checkpoint.remat_p
"""The primitive of `jax.checkpoint`, whose ``jaxpr`` takes its operands, and has no constants."""


def checks_manual_axes() -> bool:
    """Returns True if `jax.shard_map` tracks in types over which axes values differ (``check_vma``) here."""
    return config._check_vma.value


trace_ctx = core.trace_ctx
"""This thread's state: ``trace`` is the innermost one, ``is_top_level()`` whether that computes at once."""

trace_context = config.trace_context
"""All of JAX's settings that affect tracing, as one value: `jax.jit` keeps programs by it."""

ArrayImpl = array.ArrayImpl
"""The class of concrete arrays."""

EvalTrace = core.EvalTrace
"""The trace that computes at once."""

eval_trace = core.eval_trace
"""The only trace of this class, for all threads."""

DynamicJaxprTrace = partial_eval.DynamicJaxprTrace
"""The trace that records equations, as under `jax.jit`: in its ``frame``, for tracers that ``new_arg`` makes."""

DynamicJaxprTracer = partial_eval.DynamicJaxprTracer
"""A tracer of it: ``val`` is a variable or a literal, ``parent`` the equation that computes it; None for an input."""

LinearizeTrace = ad.LinearizeTrace
"""The trace that computes primals in its parent, and records what is linear in tangents in its ``tangent_trace``."""

LinearizeTracer = ad.LinearizeTracer
"""An array of it: ``primal`` and ``tangent``."""

BatchTrace = batching.BatchTrace
"""The trace that computes all examples in its parent, under `jax.vmap`: ``axis_data`` has its size and name."""

BatchTracer = batching.BatchTracer
"""An array of it: ``val`` with the dimension ``batch_dim``, or None if all examples share it."""


def source_of(tracer) -> Any:
    """The traceback of the line that computes a tracer of `DynamicJaxprTrace`; None for other tracers."""
    found = getattr(tracer, "_line_info", None)
    return None if found is None or found.traceback is None else found.traceback.as_python_traceback()


matchaxis = batching.matchaxis
"""An array of all examples, with their dimension moved, or made, from one place to another."""

extend_axis_env_nd = core.extend_axis_env_nd
"""A context in which axes of these names and sizes are there, for collective operations."""

prim_requires_devices_during_lowering = dispatch.prim_requires_devices_during_lowering
"""The primitives whose lowering needs to know its devices."""


ShardingTypeError = core.ShardingTypeError
"""The error for operands that lie on the explicit axes of a mesh in ways that do not go together."""


def varying_axes(value) -> frozenset[str]:
    """The axes of `jax.shard_map` over which the type of an array, or of a variable, says that its values differ."""
    kind = value.aval if isinstance(value, core.Var | core.Literal) else core.typeof(value)
    found = getattr(kind, "mat", None)  # releases have the one or the other
    return getattr(kind, "vma", frozenset()) if found is None else found.varying
