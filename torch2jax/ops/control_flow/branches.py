"""Branches that a traced value chooses between, as JAX's."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ...branches.block import Block, BlockEffects, trace_blocks, uncaptured
from ...calls.call import current
from ...internals.pytree import tree_any
from ...tensors.known import evaluate
from ...values.selected import Chosen
from .results import Rooms, Tensors

__all__ = ["known_number", "one_of"]


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
