"""The carry of a loop from one step to the next."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from ...branches.block import BlockEffects, Given, uncaptured
from ...calls.call import current
from ...tensors.known import evaluate
from ...tensors.physical import PhysicalArray
from ...tensors.tensor import Torchish
from ...tensors.traced import is_traced
from ...tracing.tensor_spec import TensorSpec
from ...values.traced_numbers import Number, number_of

__all__ = ["TensorCarry"]


class TensorCarry:
    """Tensors and Python's integers, which a loop may not know: these become numbers that are tensors.

    Args:
        operator: PyTorch's name of the loop.
        values: as they are before the first step.
    """

    def __init__(self, operator: str, values: Sequence):
        self._operator = operator
        self._is_number = [isinstance(value, (int, Number)) for value in values]
        self._tensors = [_lifted(value) for value in values]
        self.given = [_given(tensor) for tensor in self._tensors]
        self._is_arranged = False

    @property
    def arrays(self) -> list:
        """What is carried into the first step."""
        pairs = zip(self._tensors, self.given, strict=True)
        return [_literal(tensor.physical.arranged(given.spec.layout)) for tensor, given in pairs]

    @property
    def known(self) -> list:
        """Of the arrays, those that no traced input decides, and None for others."""
        pairs = zip(self._tensors, self.given, strict=True)
        return [
            None if tensor.known is None else PhysicalArray(evaluate(tensor.known), None).arranged(given.spec.layout)
            for tensor, given in pairs
        ]

    @property
    def wants_grad(self) -> bool:
        return any(given.spec.wants_grad for given in self.given)

    def tensors(self, arrays: Sequence) -> list[Torchish]:
        """What a step gets."""
        tensors = [given.spec.tensor(array) for given, array in zip(self.given, arrays, strict=True)]
        return [Number.of(x) if is_number else x for x, is_number in zip(tensors, self._is_number, strict=True)]

    def check(self, values: Sequence) -> None:
        """Refuses what a step has given.

        Raises:
            RuntimeError: it is not like what the step got.
        """
        self._check([_given(_lifted(value)) for value in values])

    def next(self, effects: BlockEffects, arrays: Sequence, found: list[Given]) -> list:
        """The arrays of what a step gives, as the next one gets them."""
        self._check(found)
        if not self._is_arranged:  # in the order of dimensions that a step gives, once that is known
            self._is_arranged, before = True, self.given
            pairs = zip(self.given, found, strict=True)
            self.given = [mine.in_order_of(other) for mine, other in pairs]
            if self.given != before:
                effects.trace_again()
        triples = zip(self.given, found, arrays, strict=True)
        return [other.arranged(array, mine.spec.layout) for mine, other, array in triples]

    def _check(self, found: list[Given]) -> None:
        if len(found) != len(self.given):
            raise uncaptured(
                self._operator, f"expected {len(self.given)} results to carry, as it began with, but got {len(found)}"
            )
        for number, (mine, other) in enumerate(zip(self.given, found, strict=True)):
            difference = mine.differs_from(other)
            if difference:
                raise uncaptured(
                    self._operator,
                    "expected what is carried to have the same metadata before and after each step, but tensor "
                    f"{number} differs in {difference}",
                )


def _lifted(value) -> Torchish:
    return current().lift(value) if isinstance(value, torch.Tensor) else number_of(value)


def _given(tensor: Torchish) -> Given:
    return Given(TensorSpec.of(tensor), tensor.shape)


def _literal(array) -> Any:
    """A known scalar as the graph shows it best: as a number."""
    return array if array.ndim or is_traced(array) else np.asarray(array)[()]
