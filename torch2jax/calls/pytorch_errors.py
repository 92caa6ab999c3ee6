"""What PyTorch says of a call that a rule cannot serve: users, and their tests, know its words."""

import functools
import inspect
import itertools
import types
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import torch

from ..errors import TracedValueError
from ..functional.vmap import Batch
from ..internals.guards import DisableTorchDispatch, DisableTorchFunction
from ..rules.registry import is_provided, name_of
from ..rules.rule import ArrayRule, TensorRule
from ..tensors.dtypes import FLOAT8, is_integral
from ..tensors.tensor import Torchish, strides_of_shape
from ..tensors.trees import flatten
from ..values.valueless import natively

if TYPE_CHECKING:
    from .dispatch import Call

__all__ = [
    "expect_kernel",
    "expect_kernel_unless_code",
    "expect_out_of_dtype",
    "name_rule",
    "refuse_as_pytorch",
    "refuse_rule_as_pytorch",
]

_TYPE_OF_8_BITS = "Float8"  # what PyTorch's errors call one
_KINDS = (LookupError, RuntimeError, TypeError, ValueError)  # of refusals; others are accidents
_FEW = 2**16  # elements that PyTorch may compute with, to refuse
_MOST = 2**20  # elements of a tensor of which PyTorch is given another one, to refuse
_SMALL = 8  # the largest size that tells which dtypes a kernel is for


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
        on_meta = _refusal(call, func, args, kwargs, "meta")
        is_of_values = on_meta is None or _lacks_kernel(on_meta)  # or PyTorch does not look on meta
    refuse_as_pytorch(call, func, args, kwargs, error, is_of_values=is_of_values)


def name_rule(error: Exception, rule: Any) -> None:
    """Notes which rule of the user's own a call fails in."""
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
    refused = _refusal(call, func, args, kwargs, "cpu")
    if refused is not None and _lacks_kernel(refused):  # it runs on other devices alone
        refused = _refusal(call, func, args, kwargs, "meta")
        if refused is not None and _lacks_kernel(refused):
            return
    if refused is not None and not all(_refusal(call, func, args, kwargs, "cpu", x) for x in _others()):
        return  # it is of the values that stand in, or of int32 where int64 was meant
    if not isinstance(refused, _KINDS) or isinstance(refused, torch.linalg.LinAlgError):
        return
    words = str(refused)
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


def expect_out_of_dtype(call: "Call", func: Any, rule: Any, args: tuple, kwargs: dict) -> None:
    """Refuses an ``out`` of another dtype than the operands where PyTorch does for its sake.

    Only some functions cast to it.

    Raises:
        RuntimeError: it does, in its words.
    """
    operands = _tensors(args)
    given = (getattr(rule, "dtype", None), kwargs.get("dtype"))
    dtypes = {x.dtype for x in (*operands, *_tensors(kwargs))} | {x for x in given if isinstance(x, torch.dtype)}
    if len(dtypes) <= 1 and not callable(given[0]):  # which may give another one
        return
    device = "cpu" if sum(x.numel() for x in operands) <= _FEW else "meta"  # where PyTorch refuses less
    refused = _refusal(call, func, args, kwargs, device)
    if isinstance(refused, RuntimeError):
        rest = {name: value for name, value in kwargs.items() if name != "out"}
        if str(_refusal(call, func, args, rest, device)) != str(refused):
            raise refused


def expect_kernel(call: "Call", func: Callable, args: tuple, kwargs: dict) -> None:
    """Refuses 8-bit floats where PyTorch does on the CPU: it has few kernels for them, and promotes them to nothing.

    PyTorch is asked with small tensors. What these cannot tell, since sizes have to fit numbers among the arguments, it
    is asked with the whole ones.

    Raises:
        NotImplementedError: it has no kernel for the dtype, in its words.
        RuntimeError: there is no common dtype, in its words.
    """
    kwargs = {name: value for name, value in kwargs.items() if name not in ("out", "device")}
    for largest, whole in itertools.product((_SMALL, None), (_Whole(), *_others())):
        refused = _refusal(call, func, args, kwargs, "cpu", whole, largest)
        if refused is None:
            return
        if isinstance(refused, RuntimeError) and _TYPE_OF_8_BITS in str(refused):
            leaves = [x.dtype if isinstance(x, torch.Tensor) else x for x in flatten((args, kwargs))[0]]
            dtypes = ", ".join({str(x): None for x in leaves if isinstance(x, torch.dtype) and x in FLOAT8})
            raise type(refused)(f"{refused}\n{name_of(func)} got {dtypes}, which it does not take: convert it first")


def expect_kernel_unless_code(call: "Call", func: Callable, args: tuple, kwargs: dict) -> None:
    """As `expect_kernel`, for a function that other functions serve; if it may run the user's code, these are asked."""
    if not isinstance(func, type) and not any(callable(leaf) for leaf in flatten((args, kwargs))[0]):
        expect_kernel(call, func, args, kwargs)


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in flatten(tree)[0] if isinstance(leaf, torch.Tensor)]


def _is_of_arguments(func: Any, rule: Any) -> bool:
    """Whether a function's refusals are of its arguments: one that is written in Python may run the user's code."""
    if rule is None or isinstance(rule, TensorRule):
        return not isinstance(func, types.FunctionType)
    return isinstance(rule, ArrayRule) and not rule.random and func is not rule.body


def _lacks_kernel(refused: Exception) -> bool:
    """Whether PyTorch has nothing to run on a device: it then lists what it has, kernels for meta tensors among it."""
    return isinstance(refused, NotImplementedError) and "meta" in str(refused).lower()


class _Whole(NamedTuple):
    """Whole numbers that stand in for others."""

    value: int = 1
    is_wide: bool = False
    """Whether int32 stands for int64, as it does in arrays."""


def _others() -> list[_Whole]:
    x64: bool = jax.config.jax_enable_x64  # pyright: ignore[reportAttributeAccessIssue]
    return [_Whole(value=0)] + [_Whole(is_wide=True)] * (not x64)


def _refusal(
    call: "Call",
    func: Any,
    args: tuple,
    kwargs: dict,
    device: str,
    whole: _Whole = _Whole(),  # noqa: B008
    largest: int | None = None,
) -> Exception | None:
    """What PyTorch raises for such tensors on a device, if it does.

    Args:
        largest: the size that larger ones are cut to.
    """
    try:
        with DisableTorchFunction(), DisableTorchDispatch():
            run = _asked(call, func, args, kwargs, device, whole, largest)
        with natively(call), torch.no_grad(), torch.random.fork_rng([]), warnings.catch_warnings(action="ignore"):
            run()
    except MemoryError:
        return None
    except Exception as refused:
        return refused.with_traceback(None)
    return None


def _asked(
    call: "Call", func: Any, args: tuple, kwargs: dict, device: str, whole: _Whole, largest: int | None
) -> Callable[[], Any]:
    """The call of PyTorch: within a `torch.vmap`, where a tensor is an example of one."""
    if any(isinstance(x, (torch.UntypedStorage, torch.TypedStorage)) for x in (*args, *kwargs.values())):
        raise MemoryError  # there is none that PyTorch could read
    leaves, structure = flatten((args, kwargs))
    places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
    given = [_stand_in(device, leaves[place], whole, largest) for place in places]
    level = call.transformations[-1] if call.transformations and isinstance(call.transformations[-1], Batch) else None
    dims = [None if level is None else _dim(level, leaves[place]) for place in places]

    def run(*tensors: torch.Tensor):
        found = dict(zip(places, tensors, strict=True))
        args, kwargs = structure.unflatten([found.get(place, leaf) for place, leaf in enumerate(leaves)])
        func(*args, **kwargs)
        return torch.zeros(())

    if all(dim is None for dim in dims):
        return functools.partial(run, *given)
    stacked = [tensor if dim is None else torch.stack([tensor] * 2) for tensor, dim in zip(given, dims, strict=True)]
    return lambda: torch.vmap(run, tuple(dims), randomness="same")(*stacked)


def _dim(level: Batch, tensor: torch.Tensor) -> int | None:
    return 0 if isinstance(tensor, Torchish) and level.is_batched(tensor) else None


def _stand_in(device: str, tensor: torch.Tensor, whole: _Whole, largest: int | None) -> torch.Tensor:
    shape, strides = tuple(tensor.shape), tensor.stride()
    if largest is not None and max(shape, default=0) > largest:
        shape = tuple(min(size, largest) for size in shape)
        strides = strides_of_shape(shape)
    elif device == "cpu" and tensor.numel() > _MOST:
        raise MemoryError
    dtype = torch.int64 if whole.is_wide and tensor.dtype == torch.int32 else tensor.dtype
    made = torch.empty_strided(shape, strides, dtype=dtype, device=device)
    return made if device == "meta" else made.fill_(whole.value if is_integral(dtype) else 1)
