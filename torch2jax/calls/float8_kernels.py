"""8-bit floats: PyTorch has few CPU kernels for them, and torch2jax refuses what PyTorch refuses.

The first tensor of such a dtype in a call (an argument, a constant, what a cast gives) begins the check; a call without
one asks nobody.
"""

import itertools
from collections.abc import Callable, Hashable, Iterable
from typing import Any

import jax
import torch

from ..internals.guards import DisableTorchFunction
from ..rules.array_rule import ArrayRule
from ..rules.features import CallCheck
from ..rules.inplace import InPlace
from ..rules.registry import name_of
from ..rules.rule import Reflected, TensorRule
from ..tensors.dtypes import FLOAT8, default_dtype
from ..tensors.tensor import WATCHED
from ..tensors.trees import flatten
from .call import current
from .refusals import Numbers, other_numbers, refusal_of

__all__ = ["Float8Kernels"]

_TYPE = "Float8"  # what PyTorch's errors call one
_SMALL = 8  # the largest size that tells which dtypes a kernel is for
_MOST = 4096
_served: set[Hashable] = set()  # what PyTorch has not refused


class Float8Kernels(CallCheck):
    """Refuses floats of 8 bits, given or asked for, where PyTorch has no kernel for them."""

    def expect(self, call: Any, function: Any, rule: Any, args: tuple, kwargs: dict) -> None:
        if not _has_float8((*args, *kwargs.values())):
            return
        if rule is None:
            _expect_kernel(call, function, args, kwargs)
            return
        if type(rule) is TensorRule:
            # It runs what other rules serve; if that is code of the user's, these are asked.
            if not isinstance(function, type) and not any(map(callable, flatten((args, kwargs))[0])):
                _expect_kernel(call, function, args, kwargs)
            return
        if type(rule) is InPlace:
            rule = rule.rule
        if type(rule) is Reflected:
            rule, args = rule.rule, args[::-1]
        if type(rule) is ArrayRule and rule.function is not None:
            _expect_kernel(call, rule.function, args, kwargs)


def _has_float8(values: Iterable[Any]) -> bool:
    with DisableTorchFunction():
        for value in values:
            if isinstance(value, (list, tuple)):
                if _has_float8(value):
                    return True
            else:
                dtype = value.dtype if isinstance(value, torch.Tensor) else value
                if type(dtype) is torch.dtype and dtype in FLOAT8:
                    return True
    return False


def _expect_kernel(call: Any, function: Callable, args: tuple, kwargs: dict) -> None:
    """Refuses what PyTorch does: it has few kernels for these dtypes, and promotes them to nothing.

    PyTorch is asked once for each function and metadata of its arguments that it does not refuse.

    Raises:
        NotImplementedError: it has no kernel for the dtype, in its words.
        RuntimeError: there is no common dtype, in its words.
    """
    kwargs = {name: value for name, value in kwargs.items() if name not in ("out", "device")}
    key = _key(call, function, args, kwargs)
    if key in _served:
        return
    _ask(call, function, args, kwargs)
    if key is not None:
        if len(_served) >= _MOST:
            _served.clear()
        _served.add(key)


def _key(call: Any, function: Callable, args: tuple, kwargs: dict) -> Hashable | None:
    """What PyTorch's answer depends on; None where that has no value."""
    if call.transformations:
        return None
    leaves, structure = flatten((args, kwargs))
    with DisableTorchFunction():
        parts = [(x.dtype, x.shape, x.stride()) if isinstance(x, torch.Tensor) else (type(x), x) for x in leaves]
    x64: bool = jax.config.jax_enable_x64  # pyright: ignore[reportAttributeAccessIssue]
    key = function, default_dtype(), x64, structure, *parts
    try:
        hash(key)
    except TypeError:
        return None
    return key


def _ask(call: Any, function: Callable, args: tuple, kwargs: dict) -> None:
    """Asks PyTorch, with small tensors.

    What these cannot tell, since sizes have to fit numbers among the arguments, it is asked with the whole ones.
    """
    for largest, numbers in itertools.product((_SMALL, None), (Numbers(), *other_numbers())):
        refused = refusal_of(call, function, args, kwargs, "cpu", numbers, largest)
        if refused is None:
            return
        if isinstance(refused, RuntimeError) and _TYPE in str(refused):
            leaves = [x.dtype if isinstance(x, torch.Tensor) else x for x in flatten((args, kwargs))[0]]
            dtypes = ", ".join({str(x): None for x in leaves if isinstance(x, torch.dtype) and x in FLOAT8})
            raise type(refused)(
                f"{refused}\n{name_of(function)} got {dtypes}, which it does not take: convert it first"
            )


_CHECK = Float8Kernels()


def _begin() -> None:
    call = current()
    if call is not None:
        call.features.add_check(_CHECK)


WATCHED.update(dict.fromkeys(FLOAT8, _begin))
