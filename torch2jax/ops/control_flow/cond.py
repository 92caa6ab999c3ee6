"""`torch.cond` is `jax.lax.cond`, and the branch itself where the predicate is known."""

from collections.abc import Callable
from typing import Any

import torch
from jax import lax
from torch.utils._pytree import tree_any

from ...rules.registry import implements_tensors
from ...seams import runs_instead_of
from ...tensors.arrays import reshape
from ...tensors.known import evaluate
from ...transforms.block import Block, Effects, trace_blocks, uncaptured
from ...translation import current
from .results import Tensors

_NAME = "torch.cond"


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
    choice = known_truth(pred)
    if choice is not None:
        return (true_fn if choice else false_fn)(*operands)
    flag: Any = reshape(pred.read(), ())
    flag = flag if flag.dtype == bool else lax.ne(flag, flag.dtype.type(0))
    return trace_blocks(lambda effects: _follow_both(effects, flag, true_fn, false_fn, operands), _NAME)


def known_truth(pred) -> bool | None:
    """Whether something is true, None if a traced input decides that."""
    if not isinstance(pred, torch.Tensor):
        return bool(pred)
    known = current().lift(pred).known
    return None if known is None else bool(evaluate(known))


def _follow_both(effects: Effects, flag, true_fn: Callable, false_fn: Callable, operands):
    call: Any = current()
    functions = [Tensors(branch, _NAME, integers=True) for branch in (true_fn, false_fn)]
    first, second = (Block(function, effects) for function in functions)

    def run_second():
        arrays, written = second.trace(operands)
        _check_alike(functions, first, second)
        pairs = zip(first.given, second.given, arrays, strict=True)
        return [other.arranged(array, one.form.layout) for one, other, array in pairs], written

    arrays, written = lax.cond(flag, lambda: first.trace(operands), run_second)
    effects.leave(written)
    state = call.stream.state
    call.stream.state = state._replace(taken=state.taken + max(first.taken, second.taken))
    results = []
    for (form, _), (other, _), array in zip(first.given, second.given, arrays, strict=True):
        results.append(form._replace(wants_grad=form.wants_grad or other.wants_grad).result(array))
    return functions[0].restored(results)


def _check_alike(functions: list[Tensors], first: Block, second: Block) -> None:
    one, other = (function.signature for function in functions)
    if one != other:
        raise uncaptured(
            _NAME, f"expected both branches to give results of the same structure, but got {one[0]} and {other[0]}"
        )
    for number, (mine, others) in enumerate(zip(first.given, second.given, strict=True)):
        difference = mine.differs_from(others)
        if difference:
            raise uncaptured(
                _NAME, f"expected both branches to give tensors alike, but result {number} differs in {difference}"
            )
