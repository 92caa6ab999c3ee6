"""PyTorch's errors for calls that a rule cannot serve: users and their tests know these messages.

They are found by a call of PyTorch with small tensors of the same dtypes and shapes.
"""

import functools
import inspect
import re
import traceback
import types
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import torch

from ..internals.dispatch import DisableTorchDispatch, DisableTorchFunction
from ..rules.array_rule import ArrayRule
from ..rules.features import Feature, in_every_call
from ..rules.options import Rule
from ..rules.registry import is_provided
from ..rules.rule import TensorRule
from ..runtime.errors import StridedNestedError, TracedValueError
from ..runtime.errors.locations import is_jax, is_translator
from ..tensors.dtypes import has_doubles, is_integral
from ..tensors.tensor import Torchish
from ..tensors.trees import flatten
from ..tensors.wrapped import NestedTensor
from ..transforms.vmap import Batch
from ..values.valueless import natively

if TYPE_CHECKING:
    from .dispatch import Call

_MOST = 2**20  # elements of a tensor of which PyTorch is given another one, to refuse


class Numbers(NamedTuple):
    """The whole numbers that stand in for others."""

    value: int = 1
    is_wide: bool = False
    """True if int32 stands for int64, as it does in arrays."""


def other_numbers() -> list[Numbers]:
    """Other numbers than the default ones, to find out if an error is about these numbers alone."""
    x64 = has_doubles()
    return [Numbers(value=0)] + [Numbers(is_wide=True)] * (not x64)


def refusal_of(
    call: "Call",
    func: Callable[..., object],
    args: tuple,
    kwargs: dict,
    device: str,
    integers: Numbers = Numbers(),  # noqa: B008
) -> Exception | None:
    """PyTorch's error for such tensors on a device; None if it raises none."""
    try:
        with DisableTorchFunction(), DisableTorchDispatch():
            run = _call_of_pytorch(call, func, args, kwargs, device, integers)
        with natively(call), torch.no_grad(), torch.random.fork_rng([]), warnings.catch_warnings(action="ignore"):
            run()
    except MemoryError:
        return None
    except Exception as refused:
        return refused.with_traceback(None)
    return None


def _call_of_pytorch(
    call: "Call", func: Callable, args: tuple, kwargs: dict, device: str, integers: Numbers
) -> Callable[[], object]:
    """The call of PyTorch: within a `torch.vmap`, where a tensor is an example of one."""
    if any(isinstance(x, (torch.UntypedStorage, torch.TypedStorage)) for x in (*args, *kwargs.values())):
        raise MemoryError  # there is none that PyTorch could read
    leaves, structure = flatten((args, kwargs))
    if any(isinstance(leaf, slice) and _has_tensor(leaf) for leaf in leaves):
        raise MemoryError  # nothing stands in for what a slice holds
    positions = [position for position, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
    given = [_substitute(device, leaves[position], integers) for position in positions]
    level = call.transformations[-1] if call.transformations and isinstance(call.transformations[-1], Batch) else None
    dims = [None if level is None else _dim(level, leaves[position]) for position in positions]

    def run(*tensors: torch.Tensor):
        found = dict(zip(positions, tensors, strict=True))
        args, kwargs = structure.unflatten([found.get(position, leaf) for position, leaf in enumerate(leaves)])
        func(*args, **kwargs)
        return torch.zeros(())

    if all(dim is None for dim in dims):
        return functools.partial(run, *given)
    stacked = [tensor if dim is None else torch.stack([tensor] * 2) for tensor, dim in zip(given, dims, strict=True)]
    return lambda: torch.vmap(run, tuple(dims), randomness="same")(*stacked)


def _has_tensor(item: slice) -> bool:
    return any(isinstance(end, torch.Tensor) for end in (item.start, item.stop, item.step))


def _dim(level: Batch, tensor: torch.Tensor) -> int | None:
    return 0 if isinstance(tensor, Torchish) and level.is_batched(tensor) else None


def _substitute(device: str, tensor: torch.Tensor, integers: Numbers) -> torch.Tensor:
    if device == "cpu" and tensor.numel() > _MOST:
        raise MemoryError
    dtype = torch.int64 if integers.is_wide and tensor.dtype == torch.int32 else tensor.dtype
    made = torch.empty_strided(tensor.shape, tensor.stride(), dtype=dtype, device=device)
    return made if device == "meta" else made.fill_(integers.value if is_integral(dtype) else 1)


_KINDS = (LookupError, RuntimeError, TypeError, ValueError)  # of refusals; others are accidents
_OF_PYTORCHS_INSIDE = re.compile(
    r"[Ii]nternal error|INTERNAL ASSERT|SymInt|NestedTensorImpl|empty_strided not supported"
)
"""Words of messages that are about PyTorch's internals: the rule's own message is better."""


@in_every_call
class _Words(Feature):
    """The standing feature that refuses arguments in PyTorch's words, or names the rule that does."""

    def explain(
        self, call: "Call", function: Callable[..., object], rule: Rule, args: tuple, kwargs: dict, error: Exception
    ) -> None:
        refuse_rule_as_pytorch(call, function, rule, args, kwargs, error)
        explain_rule(error, function, rule)


def refuse_rule_as_pytorch(
    call: "Call", func: Callable[..., object], rule: Rule, args: tuple, kwargs: dict, error: Exception
) -> None:
    """As `refuse_as_pytorch`, where a rule raised `error`, unless that may be about values, or is JAX's own.

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


_NEEDS_VALUE = (
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
)


def explain_rule(error: Exception, func: object, rule: Rule) -> None:
    """Notes the user's own rule in which a call fails, unless the error names it.

    Raises:
        TracedValueError: a rule of this package has asked JAX for a value that is traced.
    """
    if isinstance(error, _NEEDS_VALUE) and _is_raised_here(error):
        name = getattr(rule, "name", None) or getattr(func, "__name__", str(func))
        raise TracedValueError(f"{name}, which has to know one of its options,") from error
    if hasattr(error, "is_of_results"):
        return
    body: Any = getattr(rule, "body", None)
    if isinstance(error, TypeError) and not is_provided(rule) and hasattr(body, "__code__"):
        note = (
            f"raised by the rule for {rule.name} at {body.__code__.co_filename}:{body.__code__.co_firstlineno}, which "
            f"takes {inspect.signature(body)}: wanted the parameters of PyTorch's function, by the names in its "
            "documentation"
        )
        if note not in getattr(error, "__notes__", ()):  # a feature may have run the rule in its own way
            error.add_note(note)


def _is_raised_here(error: BaseException) -> bool:
    """Returns True if code of this package, and not user code that it has called, has caused an error of JAX."""
    files = [frame.f_code.co_filename for frame, _ in traceback.walk_tb(error.__traceback__)]
    files = [file for file in files if not is_jax(file)]
    return bool(files) and is_translator(files[-1])


def refuse_as_pytorch(
    call: "Call",
    func: Callable[..., object],
    args: tuple,
    kwargs: dict,
    error: Exception,
    *,
    is_of_values: bool = False,
) -> None:
    """Raises PyTorch's error for tensors of these shapes and dtypes, whatever their values are.

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


def _is_of_arguments(func: object, rule: object) -> bool:
    """True if a function's errors are about its arguments: one that is written in Python may run the user's code."""
    if rule is None or isinstance(rule, TensorRule):
        return not isinstance(func, types.FunctionType)
    return isinstance(rule, ArrayRule) and not rule.random and func is not rule.body


def _lacks_kernel(refused: Exception) -> bool:
    """True if PyTorch has no kernel for a device: the error then lists those that it has, "Meta" among them."""
    return isinstance(refused, NotImplementedError) and "meta" in str(refused).lower()
