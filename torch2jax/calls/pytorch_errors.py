"""PyTorch's errors for calls that a rule cannot serve: users and their tests know these messages."""

import inspect
import re
import types
from typing import TYPE_CHECKING, Any

import torch

from ..errors import StridedNestedError, TracedValueError
from ..rules.array_rule import ArrayRule
from ..rules.registry import is_provided
from ..rules.rule import TensorRule
from ..tensors.jagged import NestedTensor
from ..tensors.trees import flatten
from .refusals import other_numbers, refusal_of

if TYPE_CHECKING:
    from .dispatch import Call

_KINDS = (LookupError, RuntimeError, TypeError, ValueError)  # of refusals; others are accidents
_OF_PYTORCHS_INSIDE = re.compile(
    r"[Ii]nternal error|INTERNAL ASSERT|SymInt|NestedTensorImpl|empty_strided not supported"
)
"""In messages that say how PyTorch is made, not what to do: the rule's own is better."""


def refuse_rule_as_pytorch(call: "Call", func: Any, rule: Any, args: tuple, kwargs: dict, error: Exception) -> None:
    """As `refuse_as_pytorch`, where a rule raised `error`: unless that may be of values, or of JAX's own.

    Without a rule, PyTorch's decomposition of an operator did.
    """
    if not _is_of_arguments(func, rule) or isinstance(error, TracedValueError) or hasattr(error, "is_of_values"):
        return
    if any(callable(leaf) for leaf in flatten((args, kwargs))[0]):  # it would be run, perhaps for ever
        return
    is_of_values = False
    if isinstance(error, RuntimeError):
        on_meta = refusal_of(call, func, args, kwargs, "meta")
        is_of_values = on_meta is None or _lacks_kernel(on_meta)  # or PyTorch does not look on meta
    refuse_as_pytorch(call, func, args, kwargs, error, is_of_values=is_of_values)


def name_rule(error: Exception, rule: Any) -> None:
    """Notes the user's own rule in which a call fails, unless the error names it."""
    if hasattr(error, "is_of_results"):
        return
    body = getattr(rule, "body", None)
    if isinstance(error, TypeError) and not is_provided(rule) and body is not None:
        place = f"{body.__code__.co_filename}:{body.__code__.co_firstlineno}" if hasattr(body, "__code__") else "?"
        error.add_note(
            f"raised by the rule for {rule.name} at {place}, which takes {inspect.signature(body)}: wanted the "
            "parameters of PyTorch's function, by the names in its documentation"
        )


def refuse_as_pytorch(
    call: "Call", func: Any, args: tuple, kwargs: dict, error: Exception, *, is_of_values: bool = False
) -> None:
    """Raises what PyTorch does for tensors of these shapes and dtypes, whatever their values are.

    Args:
        error: why the call cannot be served. JAX's own words for it are left out.
        is_of_values: so may the error be, or PyTorch's, whose tensors have other values. It stays as it is then, unless
            PyTorch says the same in another class, or refuses the dtype.
    """
    refused = refusal_of(call, func, args, kwargs, "cpu")
    if refused is not None and _lacks_kernel(refused):  # it runs on other devices alone
        refused = refusal_of(call, func, args, kwargs, "meta")
        if refused is not None and _lacks_kernel(refused):
            return
    if refused is not None and not all(refusal_of(call, func, args, kwargs, "cpu", x) for x in other_numbers()):
        return  # it is of the values that stand in, or of int32 where int64 was meant
    if not isinstance(refused, _KINDS) or isinstance(refused, torch.linalg.LinAlgError):
        return
    words = str(refused)
    if _OF_PYTORCHS_INSIDE.search(words):
        if _is_jagged(args, kwargs):
            raise NotImplementedError(
                f"{getattr(func, '__name__', func)} got a jagged tensor, which PyTorch has no kernel for either; "
                "wanted a dense one: x.to_padded_tensor(0.0), x.values(), or the rows, x.unbind()"
            ) from error
        if isinstance(error, StridedNestedError):  # Python's operators take a TypeError for an answer
            raise RuntimeError(str(error)) from error
        return
    if words in str(error):
        if isinstance(error, type(refused)):
            return
        words = str(error)  # of which class it is depends on PyTorch's release
    elif is_of_values and not isinstance(refused, (NotImplementedError, TypeError)):
        return
    elif isinstance(error, RuntimeError):
        words = f"{words}\n{error}"
    try:
        refusal = type(refused)(words)
    except Exception:  # it is made of something else
        refusal = refused
    raise refusal from error


def _is_jagged(args: tuple, kwargs: dict) -> bool:
    return any(type(x) is NestedTensor for x in flatten((args, kwargs))[0])


def _is_of_arguments(func: Any, rule: Any) -> bool:
    """Whether a function's refusals are of its arguments: one that is written in Python may run the user's code."""
    if rule is None or isinstance(rule, TensorRule):
        return not isinstance(func, types.FunctionType)
    return isinstance(rule, ArrayRule) and not rule.random and func is not rule.body


def _lacks_kernel(refused: Exception) -> bool:
    """Whether PyTorch has nothing to run on a device: it then lists what it has, kernels for meta tensors among it."""
    return isinstance(refused, NotImplementedError) and "meta" in str(refused).lower()
