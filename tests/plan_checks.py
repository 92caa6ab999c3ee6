"""A switch that runs the slow path beside every plan and compares both, for tests and debugging."""

import collections
import contextlib
import functools
import types
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
import torch

import torch2jax
from torch2jax.calls.dispatch import Call
from torch2jax.calls.plans import run_planned
from torch2jax.internals.dispatch import DisableTorchFunction
from torch2jax.internals.jax import eval_trace, trace_ctx
from torch2jax.rules.features import Feature
from torch2jax.rules.inplace import InPlace, WithFlag
from torch2jax.rules.plan import NOT_PLANNED
from torch2jax.rules.tables import PROVIDED
from torch2jax.tensors.storage import Storage, steps_to
from torch2jax.tensors.tensor import Torchish, wrap
from torch2jax.tracing.traces import Bookmark

__all__ = ["PlanError", "checking_plans"]

_CHECK = Feature()  # by which the long way serves


class PlanError(AssertionError):
    """A plan and the long way differ."""


_compared: collections.Counter[tuple] = collections.Counter()
"""How many calls that look alike there have been in this process."""


@contextlib.contextmanager
def checking_plans(most: int | None = None) -> Iterator[None]:
    """Within, what a plan gives is compared with what the long way gives: metadata, and values or steps of the graph.

    It is for all threads. What a traced write in place has written is not compared.

    Args:
        most: how many calls are compared of those that look alike, without the first, which makes the plan; all of
            them by default.
    """
    before: Any = Call.run_planned
    Call.run_planned = staticmethod(functools.partial(_run_checked, most))
    try:
        yield
    finally:
        Call.run_planned = staticmethod(before)


def _look(value: Any) -> Any:
    """What plans go by, but for the rarest of it."""
    if isinstance(value, torch.Tensor):
        storage = value._node.storage if type(value) is Torchish else None
        history = storage is not None and storage.history is not None
        return type(value), value.dtype, value.shape, value.stride(), history
    if isinstance(value, (tuple, list)):
        return type(value), *map(_look, value)
    return type(value), None if isinstance(value, dict) else repr(value)  # which may hold what is half made


def _is_compared(most: int | None, function: Any, args: tuple, kwargs: dict, is_eager: bool) -> bool:
    if most is None:
        return True
    with DisableTorchFunction():
        look = function, is_eager, torch.is_grad_enabled(), _look((*args, *kwargs.items()))
    _compared[look] += 1
    return 1 < _compared[look] <= most + 1


def _run_checked(most: int | None, call: Call, function: Any, types: Any, args: tuple, kwargs: dict | None) -> Any:
    is_eager, writes = trace_ctx.trace is eval_trace, _writes(function, args, kwargs or {})
    if (writes and not is_eager) or not _is_compared(most, function, args, kwargs or {}, is_eager):
        return run_planned(call, function, types, args, kwargs)
    copied = _copy(args) if writes else args
    start = Bookmark()
    result = run_planned(call, function, types, args, kwargs)
    if result is NOT_PLANNED or not any(type(x) is Torchish for x in (result, *args)):
        return result
    planned, end = start.added(), Bookmark()
    call.features.push(_CHECK)
    try:
        expected = call.dispatch(function, copied, kwargs or {})
    finally:
        call.features.pop(_CHECK)
    long = end.added()
    end.return_to()
    found = args[0] if writes and result is None else result
    wanted = copied[0] if writes else expected
    told = _differences(found, wanted, is_eager, writes)
    if planned[len(planned) - len(long) :] != long:
        told.append(f"steps {planned}, not {long}")
    if told:
        raise PlanError(f"the plan of {function} gives {', '.join(told)}")
    return result


def _writes(function: Any, args: tuple, kwargs: dict) -> bool:
    """Whether a function writes to its first argument."""
    rule = PROVIDED.functions.get(function)
    if type(rule) is WithFlag:
        rule, _, _ = rule.form(*rule.names.placed(function, args, kwargs))
    return type(rule) is InPlace or function is torch.Tensor.__setitem__


def _copy(args: tuple) -> tuple:
    """The arguments with a copy of the first one, wherever it stands, to be written to."""
    first = args[0] if args else None
    if type(first) is not Torchish:
        return args
    with DisableTorchFunction():
        copied = wrap(first.buffer.array, first.dtype, layout=first.buffer.layout, strides=first.stride())
    return tuple([copied if x is first else x for x in args])


def _differences(got: Any, want: Any, is_eager: bool, writes: bool) -> list[str]:
    """In which regards two results differ."""
    if isinstance(want, (tuple, list)) and isinstance(got, type(want)) and len(got) == len(want):
        return [x for pair in zip(got, want, strict=True) for x in _differences(*pair, is_eager, writes)]
    if type(got) is not Torchish or type(want) is not Torchish:
        return [] if type(got) is type(want) and (got is want or got == want) else [f"{got!r}, not {want!r}"]
    if got is want:
        return []
    with DisableTorchFunction():
        mine, other = ({"dtype": x.dtype, "shape": x.shape} if writes else _metadata(x) for x in (got, want))
        told = [f"{name} {mine[name]}, not {other[name]}" for name in mine if mine[name] != other[name]]
        if not told and is_eager and not _are_close(np.asarray(got.read()), np.asarray(want.read())):
            told.append(f"values {got.read()}, not {want.read()}")
    return told


def _metadata(tensor: Torchish) -> dict[str, Any]:
    node, storage = tensor._node, tensor._node.storage
    found = {
        "dtype": tensor.dtype,
        "shape": tensor.shape,
        "strides": tensor.stride(),
        "order": storage.order,
        "history": storage.history,
        "size": storage.memory.size,
        "label": tensor._label,
    }
    if type(node) is Storage:
        physical = node.lazy(None, None)
        return {**found, "layout": getattr(physical, "layout", None), "array": (physical.dtype, physical.shape)}
    steps = [(kind._replace(read=abs, write=pow), place) for kind, place in steps_to(node)]
    return {**found, "offset": tensor.storage_offset(), "steps": steps, "base": id(tensor._viewed)}


def _are_close(got: np.ndarray, want: np.ndarray) -> bool:
    if got.dtype.kind in "biuSU":
        return np.array_equal(got, want)
    kind = np.complex128 if got.dtype.kind == "c" else np.float64
    tolerance = 1e-4 if jax.numpy.finfo(got.dtype).bits > 16 else 2e-2
    return np.allclose(got.astype(kind), want.astype(kind), tolerance, 1e-5, equal_nan=True)


def _as_the_package_s(code: types.CodeType) -> types.CodeType:
    constants = tuple(_as_the_package_s(x) if isinstance(x, types.CodeType) else x for x in code.co_consts)
    return code.replace(co_filename=torch2jax.__file__, co_consts=constants)


# Its frames lie between the user's code and a plan. What looks for the user's code passes by the package's own.
for _function in [x for x in globals().values() if isinstance(x, types.FunctionType)]:
    if _function.__module__ == __name__:
        _function.__code__ = _as_the_package_s(_function.__code__)
__name__ = torch2jax.__name__
