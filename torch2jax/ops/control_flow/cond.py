"""`torch.cond` and `torch.switch`: branches that a traced value chooses between, as JAX's.

Where the value is known, the branch itself runs.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from jax import lax

from ...branches.block import Block, BlockEffects, trace_blocks, uncaptured
from ...calls.call import current
from ...internals.pytree import tree_any
from ...patches import runs_instead_of
from ...rules.registry import implements_tensors
from ...tensors.arrays import reshape
from ...tensors.known import evaluate
from ...values.selected import Chosen
from .results import Rooms, Tensors


def known_number(choice) -> Any:
    """The number that a tensor of one element holds, None if a traced input decides it; numbers are themselves."""
    if not isinstance(choice, torch.Tensor):
        return choice
    known = current().lift(choice).known
    return None if known is None else evaluate(known).item()


def one_of(choose: Callable[..., tuple], branches: Sequence[Callable], operands: Sequence, operator: str) -> Any:
    """The result of the branch that is chosen.

    Args:
        choose: takes as many functions without arguments as there are branches, and lets JAX trace each in turn.
        branches: functions of `operands`.
        operator: PyTorch's name of what they are branches of.
    """
    if tree_any(lambda x: isinstance(x, Chosen), operands):  # a branch may as well see them around it
        branches, operands = [functools.partial(branch, *operands) for branch in branches], ()
    rooms = Rooms()
    return trace_blocks(lambda effects: _follow_all(effects, choose, branches, operands, operator, rooms), operator)


def _follow_all(
    effects: BlockEffects,
    choose: Callable[..., tuple],
    branches: Sequence[Callable],
    operands: Sequence,
    operator: str,
    rooms: Rooms,
):
    call: Any = current()
    functions = [Tensors(branch, operator, integers=True, rooms=rooms) for branch in branches]
    blocks = [Block(function, effects) for function in functions]
    first = blocks[0]

    def run(number: int):
        rooms.has_grown = False
        arrays, written = blocks[number].trace(operands)
        if number == 0:
            return arrays, written
        if rooms.has_grown:  # the branches before have to have as much
            effects.trace_again()
        _check_alike(functions[0], functions[number], first, blocks[number], operator)
        pairs = zip(first.given, blocks[number].given, arrays, strict=True)
        return [other.arranged(array, one.spec.layout) for one, other, array in pairs], written

    arrays, written = choose(*[lambda number=number: run(number) for number in range(len(blocks))])
    effects.leave(written)
    state = call.stream.state
    call.stream.state = state._replace(taken=state.taken + max(block.taken for block in blocks))
    results = []
    for place, array in enumerate(arrays):
        wants_grad = any(block.given[place].spec.wants_grad for block in blocks)
        results.append(first.given[place].spec._replace(wants_grad=wants_grad).result(array))
    return functions[0].restored(results)


def _check_alike(one: Tensors, other: Tensors, first: Block, second: Block, operator: str) -> None:
    if one.signature != other.signature:
        raise uncaptured(
            operator,
            "expected all branches to give results of the same structure, "
            f"but got {one.signature[0]} and {other.signature[0]}",
        )
    for number, (mine, others) in enumerate(zip(first.given, second.given, strict=True)):
        difference = mine.differs_from(others)
        if difference:
            raise uncaptured(
                operator, f"expected all branches to give tensors alike, but result {number} differs in {difference}"
            )


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


def switch(index, branches, operands=()):
    """PyTorch's own code checks the arguments, and brings the index within the branches."""
    number = known_number(index)
    if number is not None:
        return branches[int(number)](*operands)
    return one_of(functools.partial(_switch, reshape(index.read(), ())), branches, operands, "torch.switch")


def _switch(index, *branches):
    return lax.switch(index, branches)


if hasattr(torch.ops.higher_order, "switch"):
    implements_tensors(torch.ops.higher_order.switch)(switch)
