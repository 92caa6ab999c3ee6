"""Primitives of the package's own: markers of derivatives, and linear functions with a given transpose.

A marker is an identity of arrays whose derivative is an error, or belongs to another level of a tape.

A linear function has a transpose in Python code too, at any order of derivatives.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax import lax
from jax.extend.core import JaxprEqn, Primitive, unmapped_aval
from jax.interpreters import ad, batching, mlir

from ..internals.jax import fallback_linearize_rule, primitive_linearizations
from .traces import is_zero


class LevelEnd(Exception):
    """The way back leads through a derivative that this level has not recorded."""


def stop_levels(array: jax.Array, dependencies: Sequence[object], count: int):
    """An array that the code computed from the values of `dependencies` alone, though it depends on their origin.

    Args:
        array: has no part in the first `count` levels.
        dependencies: arrays.
        count: of the levels that raise `LevelEnd` where they are led back here.
    """
    return _stop_levels_p.bind(array, *dependencies, count=count)


def stops_levels(step: JaxprEqn) -> bool:
    """Returns True if a step of a linear program is where `stop_levels` ends it."""
    return step.primitive is _level_end_p


_stop_levels_p, _level_end_p = Primitive("seal"), Primitive("stop_levels")
_stop_levels_p.def_impl(lambda array, *_, count: array)
_stop_levels_p.def_abstract_eval(lambda array, *_, count: array)
mlir.register_lowering(_stop_levels_p, lambda _, array, *rest, count: [array])
_level_end_p.def_abstract_eval(lambda *_, aval: aval)


def _batch_stop_levels(arrays: Sequence[jax.Array], dims: Sequence[int | None], *, count: int):
    return _stop_levels_p.bind(*arrays, count=count), dims[0]


def _jvp_of_stop_levels(primals: Sequence[object], tangents: Sequence[object], *, count: int):
    tangent = tangents[0]
    if not is_zero(tangent):
        tangent = _stop_levels_p.bind(tangent, *primals[1:], count=count)
    return _stop_levels_p.bind(*primals, count=count), tangent


def _jvp_for_linearization(primals: Sequence[Any], tangents: Sequence[object], *, count: int):
    array, *dependencies = primals
    aval = jax.typeof(array).to_tangent_aval()
    tangent = _level_end_p.bind(*[x for x in tangents if not is_zero(x)], aval=aval)
    return array if count == 1 else stop_levels(array, dependencies, count - 1), tangent


def _end_level(*_args: object, **_params: object):
    raise LevelEnd


batching.primitive_batchers[_stop_levels_p] = _batch_stop_levels
ad.primitive_jvps[_stop_levels_p] = _jvp_of_stop_levels
# JAX makes a rule for linearization of one for forward mode; what such a rule returns depends on JAX's version.
_linearized_stop_levels_p = Primitive("linearized_stop_levels")
ad.primitive_jvps[_linearized_stop_levels_p] = _jvp_for_linearization
primitive_linearizations[_stop_levels_p] = functools.partial(fallback_linearize_rule, _linearized_stop_levels_p)
ad.primitive_transposes[_level_end_p] = _end_level


def constant_to(array: jax.Array, leaves: Sequence[object], counts: Sequence[int]):
    """An array that has no derivative at some levels, which code around a scope takes; JAX's own see it.

    Args:
        array: what a derivative within the scope gave.
        leaves: arrays, one for each tape around, that have a derivative at all of its levels.
        counts: how many levels each of these tapes has.
    """
    return _constant_p.bind(array, *leaves, counts=tuple(counts))


_constant_p = Primitive("constant_to")
_constant_p.def_impl(lambda array, *_, counts: array)
_constant_p.def_abstract_eval(lambda array, *_, counts: array)
mlir.register_lowering(_constant_p, lambda _, array, *rest, counts: [array])


def _batch_constant(arrays: Sequence[jax.Array], dims: Sequence[int | None], *, counts: tuple[int, ...]):
    return _constant_p.bind(*arrays, counts=counts), dims[0]


def _jvp_of_constant(primals: Sequence[Any], tangents: Sequence[object], *, counts: tuple[int, ...]):
    array, *leaves = primals
    at = next((i for i, n in enumerate(counts) if n > 0 and not is_zero(tangents[i + 1])), None)
    if at is None:
        return _constant_p.bind(*primals, counts=counts), tangents[0]
    left = [n - (i == at) for i, n in enumerate(counts)]
    array = constant_to(array, leaves, left) if any(left) else array
    return array, ad.Zero(jax.typeof(array).to_tangent_aval())


batching.primitive_batchers[_constant_p] = _batch_constant
ad.primitive_jvps[_constant_p] = _jvp_of_constant


def once(array: jax.Array, dependencies: Sequence[object], message: str, kind: type[Exception] = RuntimeError):
    """An array whose derivative raises an error when it is taken: a function is differentiable once.

    Args:
        array: what its backward gave.
        dependencies: the arrays that it came from.
        message: of the error.
        kind: of the error.
    """
    return _once_p.bind(array, *dependencies, is_own=True, message=message, kind=kind)


def apart_from(array: jax.Array, dependencies: Sequence[object], message: str, kind: type[Exception] = RuntimeError):
    """An array that keeps its derivative, but raises an error if a derivative for `dependencies` is taken.

    Args:
        array: has no derivative for the dependencies.
        dependencies: arrays.
        message: of the error.
        kind: of the error.
    """
    return _once_p.bind(array, *dependencies, is_own=False, message=message, kind=kind)


_once_p, _of_once_p = Primitive("once"), Primitive("of_once")
_once_p.def_impl(lambda array, *_, **__: array)
_once_p.def_abstract_eval(lambda array, *_, **__: array)
mlir.register_lowering(_once_p, lambda _, array, *rest, **__: [array])


def _batch_once(arrays: Sequence[jax.Array], dims: Sequence[int | None], **params: object):
    return _once_p.bind(*arrays, **params), dims[0]


def _jvp_of_once(primals: Sequence[Any], tangents: Sequence[Any], *, is_own: bool, **params: object):
    given = [x for x in (tangents if is_own else tangents[1:]) if not is_zero(x)]
    own, made = tangents[0], _once_p.bind(*primals, is_own=is_own, **params)
    if not given:
        return made, own
    ended = _of_once_p.bind(*given, aval=jax.typeof(primals[0]).to_tangent_aval(), **params)
    return made, ended if is_own or is_zero(own) else lax.add(own, ended)


def _twice(*_args: object, message: str, kind: type[Exception], **_params: object):
    raise kind(message)


_of_once_p.def_abstract_eval(lambda *_, aval, **__: aval)
_of_once_p.def_impl(_twice)
mlir.register_lowering(_of_once_p, _twice)
batching.primitive_batchers[_once_p] = _batch_once
ad.primitive_jvps[_once_p] = _jvp_of_once
ad.primitive_transposes[_of_once_p] = _twice


class Undecided:
    """A record of whether code was told that an input requires no grad, though JAX may still differentiate it."""

    is_queried = False


def undecided(array: jax.Array, asked: Undecided):
    """An input of code whose derivative is an error, if the code was told that it has none.

    A later derivative runs code anew that is told otherwise. It cannot where JAX has taken another one by then.
    """
    return _undecided_p.bind(array, asked=asked)


_undecided_p = Primitive("undecided")
_undecided_p.def_impl(lambda array, *, asked: array)
_undecided_p.def_abstract_eval(lambda array, *, asked: array)
mlir.register_lowering(_undecided_p, lambda _, array, *, asked: [array])


def _batch_undecided(arrays: Sequence[jax.Array], dims: Sequence[int | None], *, asked: Undecided):
    return undecided(arrays[0], asked), dims[0]


def _jvp_of_undecided(primals: Sequence[Any], tangents: Sequence[object], *, asked: Undecided):
    if asked.is_queried:
        raise NotImplementedError(
            "got a derivative of a derivative, within jax.jit, that was taken with respect to other inputs, of code "
            "that asks whether its inputs require grad: it was told that this one does not. Wanted jax.jit around all "
            "derivatives, as jit(jacfwd(grad(f), 1)), or one derivative with respect to all of these inputs"
        )
    return undecided(primals[0], asked), tangents[0]


batching.primitive_batchers[_undecided_p] = _batch_undecided
ad.primitive_jvps[_undecided_p] = _jvp_of_undecided


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


def _run(*args: object, push: _Function, pull: _Function, count: int, avals: tuple) -> list:
    del pull, avals
    return push(list(args[:count]), list(args[count:]))


def _jvp(primals: Sequence[Any], tangents: Sequence[Any], *, push: _Function, count: int, **params: object):
    residuals, arrays = list(primals[:count]), list(primals[count:])
    values = _call_p.bind(*primals, push=push, count=count, **params)
    tangents_in = [_filled(t, p) for t, p in zip(tangents[count:], arrays, strict=True)]
    found = _call_p.bind(*residuals, *tangents_in, push=push, count=count, **params)
    if not all(is_zero(t) or t.dtype == jax.dtypes.float0 for t in tangents[:count]):
        given = [_filled(t, p) for t, p in zip(tangents[:count], residuals, strict=True)]
        _, more = jax.jvp(lambda *residuals: push(list(residuals), arrays), residuals, given)
        found = [a + b for a, b in zip(found, more, strict=True)]
    return values, found


def _filled(tangent: object, primal: jax.Array) -> Any:
    return ad.instantiate_zeros(tangent) if is_zero(tangent) else tangent


def _transpose(cotangents: Sequence[object], *args: object, pull: _Function, count: int, **_):
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
    residual_dims, tangents_in = (
        list(dims[:count]),
        [batching.bdim_at_front(x, dim, axis.size) for x, dim in zip(arrays[count:], dims[count:], strict=True)],
    )

    def over(function: _Function) -> _Function:
        return jax.vmap(function, (residual_dims, 0), 0, axis_size=axis.size, axis_name=axis.name)

    wider = tuple(unmapped_aval(axis.size, 0, aval) for aval in avals)
    found = _call_p.bind(*arrays[:count], *tangents_in, push=over(push), pull=over(pull), count=count, avals=wider)
    return found, [0] * len(found)


_call_p.def_impl(_run)
_call_p.def_abstract_eval(lambda *_, avals, **params: list(avals))
mlir.register_lowering(_call_p, mlir.lower_fun(_run, multiple_results=True))
ad.primitive_jvps[_call_p] = _jvp
ad.primitive_transposes[_call_p] = _transpose
batching.fancy_primitive_batchers[_call_p] = _batch
