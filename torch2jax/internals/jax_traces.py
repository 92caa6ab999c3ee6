"""JAX's traces and tracers, as far as `jax.core` and `jax.interpreters` do not have them.

A tracer's trace is its ``_trace``. Traces nest: what a transformation's trace computes goes to its ``parent_trace``.
"""

from jax._src import array, config, core, dispatch
from jax._src.interpreters import ad, batching, partial_eval

__all__ = [
    "ArrayImpl",
    "BatchTrace",
    "BatchTracer",
    "DynamicJaxprTrace",
    "DynamicJaxprTracer",
    "EvalTrace",
    "LinearizeTrace",
    "LinearizeTracer",
    "ShardingTypeError",
    "eval_trace",
    "extend_axis_env_nd",
    "matchaxis",
    "prim_requires_devices_during_lowering",
    "trace_context",
    "trace_ctx",
    "varying_axes",
]

trace_ctx = core.trace_ctx
"""This thread's state: ``trace`` is the innermost one, ``is_top_level()`` whether that computes at once."""

trace_context = config.trace_context
"""All of JAX's settings that have a say in what it traces, as one value: `jax.jit` keeps programs by it."""

ArrayImpl = array.ArrayImpl
"""The class of arrays that are no tracers."""

EvalTrace = core.EvalTrace
"""What computes at once."""

eval_trace = core.eval_trace
"""The one of it that there is, for all threads."""

DynamicJaxprTrace = partial_eval.DynamicJaxprTrace
"""What notes equations, as under `jax.jit`: in its ``frame``, for tracers that ``new_arg`` makes."""

DynamicJaxprTracer = partial_eval.DynamicJaxprTracer
"""An array of it: ``val`` is a variable or a number, ``parent`` the equation that computes it, None of an input."""

LinearizeTrace = ad.LinearizeTrace
"""What computes primals in its parent, and notes what is linear in tangents in its ``tangent_trace``."""

LinearizeTracer = ad.LinearizeTracer
"""An array of it: ``primal`` and ``tangent``."""

BatchTrace = batching.BatchTrace
"""What computes all examples in its parent, under `jax.vmap`: ``axis_data`` has its size and name."""

BatchTracer = batching.BatchTracer
"""An array of it: ``val`` with the dimension ``batch_dim``, or None if all examples share it."""

matchaxis = batching.matchaxis
"""An array of all examples, with their dimension moved, or made, from one place to another."""

extend_axis_env_nd = core.extend_axis_env_nd
"""A context in which axes of these names and sizes are there, for collective operations."""

prim_requires_devices_during_lowering = dispatch.prim_requires_devices_during_lowering
"""The set of primitives whose lowering is told for which devices it is."""


ShardingTypeError = core.ShardingTypeError
"""What is raised of operands that lie on the explicit axes of a mesh in ways that do not go together."""


def varying_axes(value) -> frozenset[str]:
    """The axes of `jax.shard_map` over which the type of an array, or of a variable, says that its values differ."""
    kind = value.aval if isinstance(value, core.Var | core.Literal) else core.typeof(value)
    found = getattr(kind, "mat", None)  # releases have the one or the other
    return getattr(kind, "vma", frozenset()) if found is None else found.varying
