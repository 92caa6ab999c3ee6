"""`torch.cond` is `jax.lax.cond`, and the branch itself where the predicate is known."""

import functools
from collections.abc import Callable
from typing import Any

import torch
from jax import lax

from ...internals.pytree import tree_any
from ...patches import runs_instead_of
from ...rules.registry import implements_tensors
from ...tensors.arrays import reshape
from .branches import known_number, one_of


@runs_instead_of(torch.cond)
def _cond(pred, true_fn, false_fn, operands=()):
    if isinstance(pred, (bool, int, float)):
        return true_fn(*operands) if pred else false_fn(*operands)
    if not isinstance(pred, torch.Tensor):
        raise RuntimeError(f"Expected pred to be bool or tensor, but got {pred}.")
    if pred.numel() != 1:
        raise RuntimeError(f"Expected pred to be bool or single-element tensor, but got {pred}.")
    if not callable(true_fn) or not callable(false_fn):
        raise RuntimeError("Expect both branches to be callable.")
    if not isinstance(operands, (tuple, list)) or tree_any(lambda x: not isinstance(x, torch.Tensor), operands):
        raise RuntimeError(
            "Expect operands to be a tuple of possibly nested dict/list/tuple that only consists of tensor leaves, "
            f"but got {operands}."
        )
    return cond(pred, true_fn, false_fn, operands)


@implements_tensors(torch.ops.higher_order.cond)
def cond(pred, true_fn: Callable, false_fn: Callable, operands=()):
    choice = known_number(pred)
    if choice is not None:
        return (true_fn if choice else false_fn)(*operands)
    flag: Any = reshape(pred.read(), ())
    flag = flag if flag.dtype == bool else lax.ne(flag, flag.dtype.type(0))
    return one_of(functools.partial(lax.cond, flag), (true_fn, false_fn), operands, "torch.cond")
