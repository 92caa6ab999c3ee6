"""What PyTorch says of a call that a rule cannot serve: users, and their tests, know its words."""

import functools
import warnings
from typing import Any

import torch

from ..errors import TracedValueError
from ..rules.rule import ArrayRule
from ..tensors.trees import map_arguments
from .native import natively

__all__ = ["refuse_as_pytorch", "refuse_rule_as_pytorch"]

_KINDS = (LookupError, RuntimeError, TypeError, ValueError)  # of refusals; others are accidents
_MOST = 2**20  # elements of a tensor of which PyTorch is given another one, to refuse


def refuse_rule_as_pytorch(call: Any, func: Any, rule: Any, args: tuple, kwargs: dict, error: Exception) -> None:
    """As `refuse_as_pytorch`, where a rule raised `error`: unless that may be of values, or of JAX's own."""
    if not isinstance(rule, ArrayRule) or rule.random or func is rule.body or isinstance(error, TracedValueError):
        return
    on_meta = _refusal(call, func, args, kwargs, "meta")
    if isinstance(error, RuntimeError) and (on_meta is None or isinstance(on_meta, NotImplementedError)):
        return  # the rule's own words, of values perhaps
    refuse_as_pytorch(call, func, args, kwargs, error)


def refuse_as_pytorch(call: Any, func: Any, args: tuple, kwargs: dict, error: Exception) -> None:
    """Raises what PyTorch does for tensors of these shapes and dtypes, whatever their values are.

    Args:
        error: why the call cannot be served. JAX's own words for it are left out.
    """
    refused = _refusal(call, func, args, kwargs, "cpu")
    if not isinstance(refused, _KINDS) or isinstance(refused, torch.linalg.LinAlgError) or str(refused) in str(error):
        return
    ours = f"\n{error}" if isinstance(error, RuntimeError) else ""
    try:
        refusal = type(refused)(f"{refused}{ours}")
    except Exception:  # it is made of something else
        refusal = refused
    raise refusal from error


def _refusal(call: Any, func: Any, args: tuple, kwargs: dict, device: str) -> Exception | None:
    """What PyTorch raises for such tensors on a device, if it does."""
    try:
        with torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch():
            args, kwargs = map_arguments(functools.partial(_stand_in, device), (args, kwargs))
        with natively(call), torch.no_grad(), warnings.catch_warnings(action="ignore"):
            func(*args, **kwargs)
    except MemoryError:
        return None
    except Exception as refused:
        return refused.with_traceback(None)
    return None


def _stand_in(device: str, leaf: Any) -> Any:
    if not isinstance(leaf, torch.Tensor):
        return leaf
    if device == "cpu" and leaf.numel() > _MOST:
        raise MemoryError
    made = torch.empty_strided(tuple(leaf.shape), leaf.stride(), dtype=leaf.dtype, device=device)
    return made if device == "meta" else made.fill_(1)
