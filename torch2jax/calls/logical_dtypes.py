"""The PyTorch dtypes that 32-bit argument arrays stand for, while JAX has no 64-bit ones.

Also here: 64-bit and 32-bit operands in one operator, while JAX's arrays have 32 bits.

An array stands for either dtype then, and what PyTorch refuses for the sake of the other one is meant to work: a module
of doubles gets arrays that were doubles before JAX narrowed them. One rule for all operators: a call that is refused is
made once more with the dtype of the first operand for all that are held alike.
"""

import contextlib
import inspect
import itertools
from collections.abc import Callable, Mapping
from typing import Any

import torch

from ..internals.dispatch import OpOverload
from ..rules import registry
from ..rules.features import NEXT, Feature, in_every_call
from ..rules.options import Tag
from ..runtime.errors import REFUSALS, TracedValueError
from ..runtime.errors.locations import nearest
from ..runtime.translation import Call, this_call
from ..tensors.dtypes import canonical, dtype_j2t, has_doubles
from ..tensors.tensor import Torchish
from ..tensors.trees import flatten, map_arguments

_NARROW = {
    torch.int64: torch.int32,
    torch.uint64: torch.uint32,
    torch.float64: torch.float32,
    torch.complex128: torch.complex64,
}


class LogicalDtypes:
    """The dtypes that code sees in place of those of its argument arrays.

    Args:
        dtypes: the wide dtype for each narrow one; or that of an argument, by the name of its parameter.
        function: the code.
        first: how many parameters of it are no arguments of the call.

    Raises:
        TypeError: `dtypes` has something else.
        ValueError: a dtype is none of 64 bits, or not what the narrow one may stand for, or a name is unknown.
    """

    def __init__(self, dtypes: Mapping[object, torch.dtype], function: Callable, first: int = 0):
        if not isinstance(dtypes, Mapping):
            raise TypeError(f"got dtypes={dtypes!r}; wanted a dictionary, as {{torch.int32: torch.int64}}")
        for key, wide in dtypes.items():
            _check(key, wide)
        self._dtypes = dict(dtypes)
        parameters = _parameters(function)[first:]
        kinds = inspect.Parameter
        positional = (kinds.POSITIONAL_ONLY, kinds.POSITIONAL_OR_KEYWORD)
        self._positional = [x.name for x in parameters if x.kind in positional]
        self._rest = next((x.name for x in parameters if x.kind is kinds.VAR_POSITIONAL), None)
        if all(x.kind is not kinds.VAR_KEYWORD for x in parameters):
            _expect_names(dtypes, [x.name for x in parameters])

    def of(self, array: Any, parameter: str | None) -> torch.dtype | None:
        """The dtype that code sees for an array in the argument of a parameter; None for the array's own."""
        if has_doubles():
            return None
        wide = self._dtypes.get(parameter) or self._dtypes.get(dtype_j2t(array.dtype))
        return wide if wide is not None and array.dtype == canonical(wide) else None

    def parameters(self, args: tuple) -> list[str | None]:
        """The name of the parameter that each of the positional arguments is for."""
        names = itertools.chain(self._positional, itertools.repeat(self._rest))
        return list(itertools.islice(names, len(args)))


def _check(key: object, wide: torch.dtype) -> None:
    if not isinstance(key, (str, torch.dtype)) or not isinstance(wide, torch.dtype):
        raise TypeError(
            f"got dtypes={{{key!r}: {wide!r}}}; wanted PyTorch dtypes, such as {{torch.int32: torch.int64}}, or "
            f"argument names, such as {{'input_ids': torch.int64}}"
        )
    if wide not in _NARROW or (isinstance(key, torch.dtype) and key != _NARROW[wide]):
        pairs = ", ".join(f"{narrow}: {each}" for each, narrow in _NARROW.items())
        raise ValueError(
            f"got dtypes={{{key!r}: {wide}}}; wanted the 64-bit dtype that 32-bit arrays stand for: {pairs}. For "
            "another dtype use array.astype(dtype)"
        )


def _expect_names(dtypes: Mapping[object, torch.dtype], names: list[str]) -> None:
    unknown = [key for key in dtypes if isinstance(key, str) and key not in names]
    if unknown:
        raise ValueError(f"dtypes names {unknown[0]!r}, which is no parameter{nearest(unknown[0], names)}")


def _parameters(function: Callable) -> list[inspect.Parameter]:
    """The parameters of a function; any, where it does not tell."""
    try:
        return list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return [inspect.Parameter("kwargs", inspect.Parameter.VAR_KEYWORD)]


@in_every_call
class _OneDtype(Feature):
    """The standing feature that calls a refused function once more, with one dtype for what is held alike."""

    rank = 60

    def run_again(
        self,
        call: Call,
        function: Callable[..., object],
        args: tuple,
        kwargs: dict,
        error: Exception,
        run: Callable[..., object],
    ) -> object:
        again = in_one_dtype(function, args, kwargs, error)
        if again is not None:
            with contextlib.suppress(*REFUSALS):
                return run(*again)
        return NEXT


def in_one_dtype(func: Callable[..., object], args: tuple, kwargs: dict, error: Exception) -> tuple[tuple, dict] | None:
    """The arguments with one dtype for all tensors that arrays of one dtype hold; None if they have that already.

    What a function writes to stays what it is: there is nothing to be done where that is not the first argument alone.

    Args:
        func: what refuses the arguments with `error`.
    """
    if has_doubles() or isinstance(error, TracedValueError):
        return None
    firsts: dict[object, torch.dtype] = {}
    tensors = [x for x in flatten((args, kwargs))[0] if type(x) is Torchish]
    for tensor in tensors:
        firsts.setdefault(canonical(tensor.dtype), tensor.dtype)
    if len(firsts) == len({x.dtype for x in tensors}) or _may_write_others(func, args, kwargs):
        return None

    def converted(x: object):
        return x.to(firsts[canonical(x.dtype)]) if type(x) is Torchish else x

    with this_call().inside():
        return map_arguments(converted, (args, kwargs))


def _may_write_others(func: Callable, args: tuple, kwargs: dict) -> bool:
    if kwargs.get("out") is not None or any(isinstance(x, (list, tuple)) and _writes(func) for x in args[:1]):
        return True
    if isinstance(func, OpOverload):
        return any(argument.is_write for argument in func._schema.arguments[1:])
    return Tag.WRITES_OTHERS in registry.tags_of(func)


def _writes(func: Any) -> bool:
    return func.__name__.partition(".")[0].endswith("_")
