"""Code that runs again when JAX differentiates it: a primitive that no derivative looks into.

Where JAX traces a program, the code is an equation of it, with the program of one run inside. A transformation that
comes to the equation runs the code itself, on its own tracers, so that the code can see what is differentiated.

Code with hooks on gradients has a derivative of its own: the way back is a run that goes backward as PyTorch does, with
all that its hooks do. That is code as well, and has a derivative.
"""

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import jax
from jax.core import Trace, Tracer
from jax.extend.core import ClosedJaxpr, Primitive, jaxpr_as_fun, take_current_trace
from jax.interpreters import ad, mlir, partial_eval as pe

from ..internals.jax import (
    BatchTrace,
    BatchTracer,
    DynamicJaxprTrace,
    LinearizeTrace,
    convert_constvars_jaxpr,
    extend_axis_env_nd,
    matchaxis,
)
from ..runtime.errors.unwinding import Unwind
from ..tracing.primitives import linear_call
from ..tracing.traces import Bookmark, current_trace, ending_with_errors, is_float, is_zero, running


class NeedsHooks(Unwind):
    """The code has a hook on a gradient that JAX takes."""


class Code(ABC):
    """Code as a function of arrays."""

    @property
    @abstractmethod
    def has_hooks(self) -> bool:
        """True if the code is known to have hooks, and so needs a backward pass of its own."""

    @abstractmethod
    def __call__(self, *arrays: jax.Array, is_last: bool) -> list:
        """The arrays that it returns.

        Args:
            is_last: whether derivatives to come do not run it anew.

        Raises:
            NeedsHooks: it needs a way back of its own.
        """

    @abstractmethod
    def requiring(self, positions: Sequence[int]) -> "Code":
        """The same code, knowing that the arguments at these indices are differentiated."""

    @abstractmethod
    def without_hooks(self) -> "Code":
        """The same code as it runs for a forward-mode derivative, which no hook sees."""

    @abstractmethod
    def back(self, positions: Sequence[int], has_cotangent: Sequence[bool]) -> "Code":
        """The backward pass: a function of the arguments, and of the cotangents of some of the results.

        Args:
            positions: those of the arguments whose cotangents it gives.
            has_cotangent: of each result of a floating dtype, whether it has one.
        """


def run_anew(code: Code, arrays: Sequence) -> list:
    """The result of some code, as one equation: JAX runs the code again for each derivative that it takes."""
    return _run_anew_p.bind(*arrays, code=code)


class _RunAnew(Primitive):
    multiple_results = True

    def bind_with_trace(
        self, trace: Trace, args: Sequence[jax.Array], avals: Sequence[object], params: dict[str, Any], /
    ):
        code, count = params["code"], params.get("count", 0)
        if isinstance(trace, (ad.JVPTrace, LinearizeTrace)):
            pairs = [trace.to_primal_tangent_pair(x) for x in args]
            if all(is_zero(tangent) for _, tangent in pairs):
                values = [value for value, _ in pairs]
                return self.bind_with_trace(trace.parent_trace, values, [*map(jax.typeof, values)], params)
            return _differentiated(trace, code, list(args[count:]))
        if isinstance(trace, BatchTrace):
            return self._bind_batched(trace, args, params)
        if isinstance(trace, DynamicJaxprTrace):
            if "program" not in params:
                args, params = _traced(trace, code, args)
            return super().bind_with_trace(trace, args, [*map(jax.typeof, args)], params)
        if "program" in params and not any(isinstance(x, pe.JaxprTracer) for x in args):
            return super().bind_with_trace(trace, args, avals, params)
        with running(trace):
            return code(*args[count:], is_last=True)

    def to_lojax(self, *args: Any, program: ClosedJaxpr, refusal: Exception | None, **_: object) -> list:
        """Returns the program itself. JAX 0.12 asks for it when it lowers an operation of `jax.numpy` to several.

        It does once no derivative is to come.
        """
        return _run_program(*args, program=program, refusal=refusal)

    def _bind_batched(self, trace: BatchTrace, args: Sequence[jax.Array], params: dict[str, Any]):
        infos = [trace.to_batch_info(x) for x in args]
        arrays, dims = [array for array, _ in infos], [dim for _, dim in infos]
        if all(dim is None for dim in dims):
            return self.bind_with_trace(trace.parent_trace, arrays, [*map(jax.typeof, arrays)], params)
        count = params.get("count", 0)
        code = _Batched(params["code"], trace, dims[count:])
        with running(trace.parent_trace):
            results = self.bind(*arrays[count:], code=code)
        return [BatchTracer(trace, x, 0) for x in results]


def _differentiated(trace: ad.JVPTrace | LinearizeTrace, code: Code, args: list) -> list:
    """The result of some code in a trace in which JAX takes a derivative."""
    if not code.has_hooks:
        with running(trace):
            bookmark = Bookmark()
            try:
                return code(*args, is_last=True)
            except NeedsHooks:
                bookmark.return_to()
    pairs = [trace.to_primal_tangent_pair(x) for x in args]
    positions = [i for i, (_, tangent) in enumerate(pairs) if not is_zero(tangent) and is_float(args[i])]
    # Numpy's arrays come back as they are, and are not seen to be differentiated.
    values = [value if isinstance(value, jax.Array) else jax.numpy.asarray(value) for value, _ in pairs]
    code = code.requiring(positions)
    with running(trace.parent_trace):
        results = run_anew(code, values)
    floats = [x for x in results if is_float(x)]

    def push(values: list[jax.Array], tangents: list) -> list:
        def forwards(*given: jax.Array):
            at = dict(zip(positions, given, strict=True))
            found = code.without_hooks()(*[at.get(i, x) for i, x in enumerate(values)], is_last=True)
            return [x for x in found if is_float(x)]

        return jax.jvp(forwards, [values[i] for i in positions], tangents)[1]

    def pull(values: list, cotangents: list) -> list:
        back = code.back(positions, [x is not None for x in cotangents])
        return run_anew(back, [*values, *[x for x in cotangents if x is not None]])

    @jax.custom_jvp
    def attached(*given: jax.Array):
        del given
        return floats

    @attached.defjvp
    def _(_primals: list, tangents: list):
        return floats, linear_call(push, pull, values, list(tangents), floats)

    with running(trace):
        found = iter(attached(*[args[i] for i in positions]))
    return [next(found) if is_float(x) else x for x in results]


class _Batched(Code):
    """Some code, for each example of a batch.

    Args:
        trace: that of the batch.
        dims: the dimension of each argument that has the examples, or None.
        of_results: the same of each result, for a sum over the examples if it is None; without, all have them first.
    """

    def __init__(
        self, code: Code, trace: BatchTrace, dims: Sequence[int | None], of_results: Sequence[int | None] | None = None
    ):
        self._code, self._tag, self._axis, self._dims = code, trace.tag, trace.axis_data, dims
        self._trace, self._of_results = trace, of_results

    @property
    def has_hooks(self) -> bool:
        return self._code.has_hooks

    def requiring(self, positions: Sequence[int]) -> Code:
        return _Batched(self._code.requiring(positions), self._trace, self._dims, self._of_results)

    def without_hooks(self) -> Code:
        return _Batched(self._code.without_hooks(), self._trace, self._dims, self._of_results)

    def back(self, positions: Sequence[int], has_cotangent: Sequence[bool]) -> Code:
        dims = [*self._dims, *[0 for x in has_cotangent if x]]
        of_results = [self._dims[i] for i in positions]
        return _Batched(self._code.back(positions, has_cotangent), self._trace, dims, of_results)

    def __call__(self, *arrays: jax.Array, is_last: bool) -> list:
        with take_current_trace() as parent:
            trace = BatchTrace(parent, self._tag, self._axis)
            given = [
                x if dim is None else BatchTracer(trace, x, dim) for x, dim in zip(arrays, self._dims, strict=True)
            ]
            with running(trace), extend_axis_env_nd([(self._axis.name, self._axis.size)]):
                results = self._code(*given, is_last=is_last)
        infos = [trace.to_batch_info(x) for x in results]
        if self._of_results is None:
            return [matchaxis(self._axis, dim, 0, x) for x, dim in infos]
        return [self._gathered(x, dim, to) for (x, dim), to in zip(infos, self._of_results, strict=True)]

    def _gathered(self, array: jax.Array, dim: int | None, to: int | None):
        if to is not None:
            return matchaxis(self._axis, dim, to, array)
        return matchaxis(self._axis, dim, 0, array).sum(axis=0, dtype=array.dtype)


def _traced(trace: Trace, code: Code, args: Sequence) -> tuple[list, dict]:
    """The arguments of the equation for some code, and its parameters."""
    with running(trace):
        program, refusal = _program_of(code, args)
    consts = program.consts
    closed = ClosedJaxpr(convert_constvars_jaxpr(program.jaxpr), ())
    with running(trace):
        args = [x if isinstance(x, Tracer) else jax.numpy.asarray(x) for x in (*consts, *args)]
    return args, {"code": code, "program": closed, "count": len(consts), "refusal": refusal}


def _program_of(code: Code, args: Sequence) -> tuple[ClosedJaxpr, Exception | None]:
    """The program of some code that is not differentiated.

    Where that is an error, as a hook on what requires no grad, it is one only if the program is ever run; meanwhile
    there is the program of the code that is differentiated, and the error.
    """

    around = current_trace()

    def program_of(code: Code) -> ClosedJaxpr:
        def traced(*arrays: jax.Array):
            with ending_with_errors(around):
                return code(*arrays, is_last=False)

        return jax.make_jaxpr(traced)(*args)

    try:
        return program_of(code), None
    except Exception as error:
        floats = [i for i, x in enumerate(args) if is_float(x)]
        with contextlib.suppress(Exception):
            program = program_of(code.requiring(floats))
            if any(map(is_float, program.out_avals)):
                error.__context__ = error.__cause__ = None  # of which, as of the frames, tracers are part
                return program, error.with_traceback(None)
        raise


_run_anew_p = _RunAnew("run_anew")


@_run_anew_p.def_impl
def _run_program(*args: jax.Array, program: ClosedJaxpr, refusal: Exception | None, **_):
    if refusal is not None:
        raise refusal
    return jaxpr_as_fun(program)(*args)


@_run_anew_p.def_effectful_abstract_eval
def _abstract(*_, program: ClosedJaxpr, **__: object):
    return program.out_avals, program.effects


mlir.register_lowering(_run_anew_p, mlir.lower_fun(_run_program, multiple_results=True))
