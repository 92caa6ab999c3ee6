"""Checks that a user's rule fits PyTorch's function: that this writes to nothing, and that the results are its own."""

import operator
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import torch

from ..internals.dispatch import OpOverload, OpOverloadPacket
from .keywords import schemas


def expect_no_writes(function: Any, name: str, place: str) -> None:
    """Refuses a function that writes to its arguments, for a rule that returns new arrays: nothing would be written.

    Args:
        function: what the rule is declared for.
        name: the function's name.
        place: where the rule's body is.

    Raises:
        TypeError: every overload of the function writes, apart from ``out=``.
    """
    written = _written(_loaded(function), name)
    if written:
        raise TypeError(
            f"the rule at {place} is for {name}, which writes to {written}: wanted a function that only returns, since "
            "a rule of implements takes and returns arrays. Declare the rule with implements_tensors and write with "
            "x.copy_(...). In-place forms of PyTorch's functions have the rule of the function itself: that of "
            "torch.add serves add_"
        )


def results_of(function: Any, name: str, place: str) -> Callable[[Any], None] | None:
    """Gives what refuses results of a body that are not those of PyTorch's operator; None if these are not known.

    It raises a TypeError for another number of results, and for results that are no arrays.

    Args:
        function: what the rule is declared for.
        name: the function's name.
        place: where the rule's body is.
    """
    function = _loaded(function)
    if not isinstance(function, (OpOverload, OpOverloadPacket)):
        return None
    returned = {tuple(str(x.type) for x in schema.returns) for schema in schemas(function)}
    if len(returned) != 1 or set(*returned) != {"Tensor"}:
        return None
    count = len(*returned)

    def refusal(given: Any, wanted: str) -> TypeError:
        error = TypeError(f"the rule for {name} at {place} gave {_kind(given)}; wanted {wanted}")
        vars(error)["is_of_results"] = True
        return error

    def expect(result: Any) -> None:
        parts = result if isinstance(result, (tuple, list)) else (result,)
        is_single = not isinstance(result, (tuple, list))
        if len(parts) != count or is_single != (count == 1):
            raise refusal(result, "an array" if count == 1 else f"a tuple of {count} arrays")
        for part in parts:
            if not isinstance(part, (jax.Array, np.ndarray, np.generic)):
                raise refusal(part, "an array")

    return expect


def _kind(result: Any) -> str:
    """What a body gave, in words."""
    if isinstance(result, (tuple, list)):
        return f"a {type(result).__name__} of {len(result)}"
    return "an array" if isinstance(result, (jax.Array, np.ndarray)) else f"a {type(result).__name__}"


def _written(function: Any, name: str) -> str | None:
    """What a function writes to, in words; None if it has a form that writes to nothing, or is unknown."""
    if isinstance(function, (OpOverload, OpOverloadPacket)):
        writes = [[x.name for x in schema.arguments if x.is_write and not x.is_out] for schema in schemas(function)]
        return ", ".join(map(repr, writes[0])) if writes and all(writes) else None
    return "its tensor" if callable(function) and _says_that_it_writes(name) else None


def _says_that_it_writes(name: str) -> bool:
    """Whether a function's name is that of an in-place form: ``add_``, ``__iadd__``, ``__setitem__``."""
    if not name.endswith("__"):
        return name.endswith("_")
    plain = f"__{name[3:]}"  # of ``__iadd__``; ``__invert__`` and ``__index__`` have none
    return name in ("__setitem__", "__delitem__") or (hasattr(operator, name) and hasattr(operator, plain))


def _loaded(function: Any) -> Any:
    """The operator of a name, or None if no library that is loaded has it; anything else as it is."""
    if not isinstance(function, str):
        return function
    namespace, _, name = function.partition("::")
    return getattr(getattr(torch.ops, namespace), name, None)
