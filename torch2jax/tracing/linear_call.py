"""A linear function of arrays whose transpose is given by Python code too, at any order of derivatives."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.extend.core import Primitive, unmapped_aval
from jax.interpreters import ad, batching, mlir

from .traces import is_zero

__all__ = ["linear_call"]

_Function = Callable[[list, list], list]


def linear_call(push: _Function, pull: _Function, residuals: list, arrays: list, like: list) -> list:
    """``push(residuals, arrays)``, whose transpose is `pull`; unlike JAX's own, it is batched and differentiated again.

    Args:
        push: linear in the second list.
        pull: gives the cotangents of `arrays` for residuals and the cotangents of the results, None for zero.
        like: arrays of the shapes and dtypes of the results.
    """
    avals = tuple(jax.typeof(x).to_tangent_aval() for x in like)
    return _call_p.bind(*residuals, *arrays, push=push, pull=pull, count=len(residuals), avals=avals)


_call_p = Primitive("linear_call")
_call_p.multiple_results = True


def _run(*args: Any, push: _Function, pull: _Function, count: int, avals: tuple) -> list:
    del pull, avals
    return push(list(args[:count]), list(args[count:]))


def _jvp(primals: Sequence[Any], tangents: Sequence[Any], *, push: _Function, count: int, **params: Any):
    residuals, arrays = list(primals[:count]), list(primals[count:])
    values = _call_p.bind(*primals, push=push, count=count, **params)
    moved = [_filled(t, p) for t, p in zip(tangents[count:], arrays, strict=True)]
    found = _call_p.bind(*residuals, *moved, push=push, count=count, **params)
    if not all(is_zero(t) or t.dtype == jax.dtypes.float0 for t in tangents[:count]):
        given = [_filled(t, p) for t, p in zip(tangents[:count], residuals, strict=True)]
        _, more = jax.jvp(lambda *residuals: push(list(residuals), arrays), residuals, given)
        found = [a + b for a, b in zip(found, more, strict=True)]
    return values, found


def _filled(tangent: Any, primal: Any) -> Any:
    return ad.instantiate_zeros(tangent) if is_zero(tangent) else tangent


def _transpose(cotangents: Any, *args: Any, pull: _Function, count: int, **_):
    return [None] * count + pull(list(args[:count]), [None if is_zero(x) else x for x in cotangents])


def _batch(
    axis: Any,
    arrays: Sequence[jax.Array],
    dims: Sequence[int | None],
    *,
    push: _Function,
    pull: _Function,
    count: int,
    avals: tuple,
):
    residual_dims, moved = (
        list(dims[:count]),
        [batching.bdim_at_front(x, dim, axis.size) for x, dim in zip(arrays[count:], dims[count:], strict=True)],
    )

    def over(function: _Function) -> _Function:
        return jax.vmap(function, (residual_dims, 0), 0, axis_size=axis.size, axis_name=axis.name)

    wider = tuple(unmapped_aval(axis.size, 0, aval) for aval in avals)
    found = _call_p.bind(*arrays[:count], *moved, push=over(push), pull=over(pull), count=count, avals=wider)
    return found, [0] * len(found)


_call_p.def_impl(_run)
_call_p.def_abstract_eval(lambda *_, avals, **params: list(avals))
mlir.register_lowering(_call_p, mlir.lower_fun(_run, multiple_results=True))
ad.primitive_jvps[_call_p] = _jvp
ad.primitive_transposes[_call_p] = _transpose
batching.fancy_primitive_batchers[_call_p] = _batch
