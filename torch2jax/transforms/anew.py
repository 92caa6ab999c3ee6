"""Code that runs anew where JAX differentiates it: a primitive that no derivative takes apart.

Where JAX traces a program, the code is an equation of it, with the program of one run inside. A transformation that
comes to the equation runs the code itself, on its own tracers, so that the code can see what is differentiated.
"""

from collections.abc import Callable, Sequence

import jax
from jax._src import core
from jax._src.interpreters import ad, batching, partial_eval as pe
from jax.extend.core import ClosedJaxpr, Primitive
from jax.interpreters import mlir

from .traces import is_zero, running

__all__ = ["Code", "run_anew"]

Code = Callable[..., list]
"""``code(*arrays, is_last=...)`` gives arrays; `is_last` says that derivatives to come do not run it anew."""


def run_anew(code: Code, arrays: Sequence) -> list:
    """What some code gives, which JAX runs again for each derivative that it takes."""
    return _run_anew_p.bind(*arrays, code=code)


class _RunAnew(Primitive):
    multiple_results = True

    def bind_with_trace(self, trace, args, avals, params, /):
        code, count = params["code"], params.get("count", 0)
        if isinstance(trace, (ad.JVPTrace, ad.LinearizeTrace)):
            pairs = [trace.to_primal_tangent_pair(x) for x in args]
            if all(is_zero(tangent) for _, tangent in pairs):
                values = [value for value, _ in pairs]
                return self.bind_with_trace(trace.parent_trace, values, [*map(core.typeof, values)], params)
        elif isinstance(trace, batching.BatchTrace):
            return self._bind_batched(trace, args, params)
        elif isinstance(trace, pe.DynamicJaxprTrace):
            if "program" not in params:
                args, params = _traced(trace, code, args)
            return super().bind_with_trace(trace, args, [*map(core.typeof, args)], params)
        elif "program" in params and not any(isinstance(x, pe.JaxprTracer) for x in args):
            return super().bind_with_trace(trace, args, avals, params)
        with running(trace):
            return code(*args[count:], is_last=True)

    def _bind_batched(self, trace, args, params):
        infos = [trace.to_batch_info(x) for x in args]
        arrays, dims = [array for array, _ in infos], [dim for _, dim in infos]
        if all(dim is None for dim in dims):
            return self.bind_with_trace(trace.parent_trace, arrays, [*map(core.typeof, arrays)], params)
        count = params.get("count", 0)
        code = _Batched(params["code"], trace, dims[count:])
        with running(trace.parent_trace):
            results = self.bind(*arrays[count:], code=code)
        return [batching.BatchTracer(trace, x, 0) for x in results]


class _Batched:
    """Some code, for each example of a batch.

    Args:
        trace: that of the batch.
        dims: the dimension of each argument that has the examples, or None.
    """

    def __init__(self, code: Code, trace, dims: Sequence[int | None]):
        self._code, self._tag, self._axis, self._dims = code, trace.tag, trace.axis_data, dims

    def __call__(self, *arrays, is_last: bool) -> list:
        with core.take_current_trace() as parent:
            trace = batching.BatchTrace(parent, self._tag, self._axis)
            given = [
                x if dim is None else batching.BatchTracer(trace, x, dim)
                for x, dim in zip(arrays, self._dims, strict=True)
            ]
            with running(trace), core.extend_axis_env_nd([(self._axis.name, self._axis.size)]):
                results = self._code(*given, is_last=is_last)
        infos = [trace.to_batch_info(x) for x in results]
        return [batching.matchaxis(self._axis, dim, 0, x) for x, dim in infos]


def _traced(trace, code: Code, args: Sequence) -> tuple[list, dict]:
    """The arguments of the equation for some code, and its parameters."""
    with running(trace):
        program = jax.make_jaxpr(lambda *arrays: code(*arrays, is_last=False))(*args)
    consts = program.consts
    closed = ClosedJaxpr(pe.convert_constvars_jaxpr(program.jaxpr), ())
    with running(trace):
        args = [x if isinstance(x, core.Tracer) else jax.numpy.asarray(x) for x in (*consts, *args)]
    return args, {"code": code, "program": closed, "count": len(consts)}


_run_anew_p = _RunAnew("run_anew")


@_run_anew_p.def_impl
def _run_program(*args, program, **_):
    return core.jaxpr_as_fun(program)(*args)


@_run_anew_p.def_effectful_abstract_eval
def _abstract(*_, program, **__):
    return program.out_avals, program.effects


mlir.register_lowering(_run_anew_p, mlir.lower_fun(_run_program, multiple_results=True))
