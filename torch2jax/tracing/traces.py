"""JAX's current trace, and the tangents that it computes meanwhile.

Also here: Python's garbage collector while JAX traces, which finds next to nothing there.

What a trace makes lives until its end, and by its default the collector begins once for every 700 objects that live.
Each time it looks at the new ones again, and every tenth time at older ones, the modules of a large library included.
That is up to half of the time to trace some thousand operators.

Also here: PyTorch's recorders of operators, such as `make_fx`, which do not see JAX's transformations; and types within
`jax.shard_map`, which say over which axes an array's values differ.
"""

import contextlib
import gc
import weakref
from collections.abc import Collection, Iterable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import Tracer
from jax.extend.core import TraceTag, set_current_trace
from jax.interpreters import ad

from ..internals.dispatch import TorchDispatchModeKey, get_dispatch_mode
from ..internals.jax import (
    BatchTrace,
    BatchTracer,
    DynamicJaxprTrace,
    DynamicJaxprTracer,
    EvalTrace,
    LinearizeTracer,
    checks_manual_axes,
    extend_axis_env_nd,
    trace_ctx,
    varying_axes,
)

_OBJECTS = 100_000  # which cycles of garbage may hold, before they are looked for


class RareCollections:
    """A context in which the collector begins rarely. It does not where it is told to begin more rarely, or never."""

    _before: tuple[int, int, int] | None = None

    def __enter__(self) -> None:
        before = gc.get_threshold()
        if 0 < before[0] < _OBJECTS:
            self._before = before
            gc.set_threshold(_OBJECTS, *before[1:])

    def __exit__(self, *_: object) -> None:
        # Another thread, or the code, may have set something else meanwhile.
        if self._before is not None and gc.get_threshold()[0] == _OBJECTS:
            gc.set_threshold(*self._before)


_KEY = TorchDispatchModeKey.PROXY


def expect_unrecorded(what: str) -> None:
    """Refuses an operation whose result a recorder would take for a constant.

    Raises:
        NotImplementedError: one is at work.
    """
    if get_dispatch_mode(_KEY) is not None:
        raise NotImplementedError(
            f"got {what} within make_fx, which would record its result as a constant; wanted operators alone. Call "
            "make_fx in PyTorch, outside of the translated call, and translate the module that it gives"
        )


ALONE = "alone"
"""The axis of the only device, where code for several is traced without a mesh."""


@contextlib.contextmanager
def alone(axes: Iterable[str]) -> Iterator[None]:
    """A context, outside of `jax.shard_map`, in which code is traced as on a mesh of one device with these axes."""
    if jax.sharding.get_abstract_mesh().manual_axes:
        yield
    else:
        with extend_axis_env_nd([(axis, 1) for axis in dict.fromkeys((ALONE, *axes))]):
            yield


def axes_in_types() -> frozenset[str]:
    """The axes over which types say whether values differ."""
    axes = jax.sharding.get_abstract_mesh().manual_axes
    return frozenset(axes) if axes and checks_manual_axes() else frozenset()


def varying(array: jax.Array | np.ndarray, axes: frozenset[str]) -> Any:
    """The array, as one whose values differ over some axes."""
    missing = tuple(sorted(axes - varying_axes(array)))
    return lax.pcast(array, missing, to="varying") if missing else array


def unvaried(array: jax.Array) -> jax.Array:
    """The array from before it was typed as varying, if that can be found."""
    while isinstance(array, DynamicJaxprTracer) and array.parent is not None and array.parent.primitive.name == "pvary":
        (array,) = array.parent.in_tracers
    return array


def is_float(array: Any) -> bool:
    """Returns True if an array's dtype is differentiable."""
    return jnp.issubdtype(array.dtype, jnp.inexact)


def current_trace():
    return trace_ctx.trace


def is_transforming() -> bool:
    """Returns True if a transformation of JAX is active."""
    return not trace_ctx.is_top_level()


def running(trace: object):
    """A context in which JAX computes with `trace`."""
    return set_current_trace(trace)


@contextlib.contextmanager
def ending_with_errors(around: object):
    """A context for code that JAX traces to a program: an exception that leaves the code ends the program.

    JAX lets go of what a program holds only where its trace ends well. Else its constants keep it for ever.

    Args:
        around: the trace that the code was begun in. Where JAX runs the code in that one, nothing is ended.
    """
    trace = current_trace()
    try:
        yield
    except BaseException:
        if trace is not around:
            trace.invalidate()
        raise


def is_zero(cotangent: object) -> bool:
    return type(cotangent) is ad.Zero


def examples_in(array: jax.Array, tag: object) -> tuple[object, int | None]:
    """The batch that an array is an example of, under the batch trace of a tag, and the dimension of its examples.

    That is None if the array is no example.
    """
    while isinstance(array, (ad.JVPTracer, LinearizeTracer)):
        array = array.primal
    if isinstance(array, BatchTracer) and array._trace.tag is tag:
        return array.val, array.batch_dim
    return array, None


def without_derivatives(array: object):
    """The values of an array, whatever derivatives are taken of it."""
    while isinstance(array, (ad.JVPTracer, LinearizeTracer)):
        array = array.primal
    return array


def values_of_examples(array: object) -> np.ndarray | None:
    """The values of an array, with all examples of the batches that it is in along a first dimension.

    None if a program decides them, or they are on other processes.
    """
    array = without_derivatives(array)
    if isinstance(array, BatchTracer):
        dim, full = array.batch_dim, values_of_examples(array.val)
        if full is None or not isinstance(dim, int):
            return full if dim is None else None
        by_example = np.moveaxis(full, dim + 1, 1)
        return by_example.reshape(-1, *by_example.shape[2:])
    if isinstance(array, Tracer) or not getattr(array, "is_fully_addressable", True):
        return None
    return np.asarray(array)[None]


def decides(array: jax.Array, trace: object) -> bool:
    """True if an array has one value where JAX computes with `trace`: no other program, and no batch, is in between."""
    now = current_trace()
    while now is not trace:
        if now is None or isinstance(now, DynamicJaxprTrace):
            return False
        if isinstance(array, Tracer) and getattr(array._trace, "tag", array) is getattr(now, "tag", now):
            return False
        now = getattr(now, "parent_trace", None)
    return True


def _stack(trace: object) -> Iterator[object]:
    """The traces that JAX is at with one, the innermost first."""
    while trace is not None:
        yield trace
        trace = getattr(trace, "parent_trace", None)


def may_differentiate(trace: object) -> bool:
    """Returns True if JAX may take derivatives of what it computes with a trace, now or later."""
    return not all(isinstance(x, (EvalTrace, BatchTrace)) for x in _stack(trace))


def program_of(trace: object) -> Any:
    """The program that JAX traces into when it computes with a trace; None if there is none."""
    return next((x for x in _stack(trace) if isinstance(x, DynamicJaxprTrace)), None)


def _layers(array: object) -> Iterator[Any]:
    """The tracers of an array, from the innermost transformation outwards."""
    while isinstance(array, Tracer):
        yield array
        array = array.primal if isinstance(array, _DERIVED) else getattr(array, "val", None)


_DERIVED = (ad.JVPTracer, LinearizeTracer)


def is_differentiated(array: object) -> bool:
    """Returns True if JAX is taking a derivative with respect to something that an array depends on."""
    return any(isinstance(x, _DERIVED) and not is_zero(x.tangent) for x in _layers(array))


def is_from_outside(array: jax.Array, program: object) -> bool:
    """Returns True if an array is of a trace outside of a program that JAX is tracing."""
    tags = set()  # by their ids: JAX's tags are all equal
    for trace in _stack(current_trace()):
        tags.add(id(getattr(trace, "tag", trace)))
        if trace is program:
            break
    return any(id(getattr(x._trace, "tag", x._trace)) not in tags for x in _layers(array))


def example_of(trace: Any, array: jax.Array, dim: int):
    """The array of one example, in a batch with that trace, of an array that has them along a dimension."""
    return BatchTracer(trace, array, dim)


def without_tangents(array: jax.Array, tags: Collection):
    """The array with zero tangents for the forward-mode derivatives of these tags; it keeps the others."""
    if not isinstance(array, Tracer):
        return array
    trace = array._trace
    if isinstance(array, BatchTracer):
        below = without_tangents(array.val, tags)
        return array if below is array.val else BatchTracer(trace, below, array.batch_dim)
    if not isinstance(array, (ad.JVPTracer, LinearizeTracer)):
        return array
    below = without_tangents(array.primal, tags)
    if isinstance(array, ad.JVPTracer) and any(trace.tag is tag for tag in tags):  # all tags are equal to JAX
        return below
    return array if below is array.primal else type(array)(trace, below, array.tangent)


class Bookmark:
    """The length of each program that is being traced, to see or to undo what was added since."""

    def __init__(self):
        self._programs: list[tuple[list, int]] = []
        trace = current_trace()
        while trace is not None:
            if isinstance(trace, DynamicJaxprTrace):
                steps = trace.frame.tracing_eqns
                self._programs.append((steps, len(steps)))
            trace = getattr(trace, "parent_trace", None)

    def added(self) -> list[str]:
        """The names of the steps added since, those of the innermost program first."""
        alive = [step() if isinstance(step, weakref.ref) else step for steps, n in self._programs for step in steps[n:]]
        return [step.primitive.name for step in alive if step is not None]

    def return_to(self) -> None:
        """Removes the steps added since; nothing may need them."""
        for steps, count in self._programs:
            del steps[count:]


class Tangents:
    """One forward-mode derivative of all that is computed while its trace is current.

    Args:
        below: the trace that the values and the tangents are computed with.
    """

    def __init__(self, below: object):
        self.below, self.tag = below, TraceTag()
        self.trace = ad.JVPTrace(below, self.tag)

    def has(self, array: object) -> bool:
        return isinstance(array, ad.JVPTracer) and array._trace.tag is self.tag

    def dual(self, values: jax.Array, tangent: jax.Array):
        """An array with a tangent of its shape and dtype."""
        return ad.JVPTracer(self.trace, values, tangent)

    def values(self, array: Any):
        return array.primal if self.has(array) else array

    def tangent(self, array: Any):
        """None if the array has none."""
        if not self.has(array) or is_zero(array.tangent):
            return None
        return array.tangent
