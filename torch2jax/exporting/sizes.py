"""Symbolic sizes, the sample sizes that stand for them, and numbers that depend on them."""

import itertools
import math
import random
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

__all__ = ["NotAnExpressionError", "Sizes", "SizesError"]

_SAMPLES = 5
_CHECKS = 2  # so many more samples than terms there are
_SPREAD = 24
_ATTEMPTS = 2000
_TURN = 200  # so many attempts from the smallest sizes, by turns away from what the constraints just allow


class SizesError(ValueError):
    """What a function does depends on symbolic sizes in a way that no program has."""


class NotAnExpressionError(ValueError):
    """A number depends on sizes otherwise than by a polynomial of few terms."""


class Sizes:
    """What is known of the symbols in the shapes of arguments.

    Args:
        shapes: the shapes, some of whose dimensions are symbolic, of one scope.

    Raises:
        ValueError: no sizes were found that satisfy the constraints of the scope.
    """

    def __init__(self, shapes: Iterable[tuple]):
        every: list[Any] = [dim for shape in shapes for dim in shape]
        dims: list[Any] = [dim for dim in every if jax.export.is_symbolic_dim(dim)]
        self._fixed = {dim for dim in every if not jax.export.is_symbolic_dim(dim)}
        self.scope = dims[0].scope
        names = sorted(set().union(*(dim._get_vars() for dim in dims)))
        self._symbols = dict(zip(names, jax.export.symbolic_shape(",".join(names), scope=self.scope), strict=True))
        self.samples = self._drawn()
        products = [
            product for degree in (1, 2, 3) for product in itertools.combinations_with_replacement(names, degree)
        ]
        self._terms = [
            (_product(self._symbols, names), np.array([_product(sample, names) for sample in self.samples], np.int64))
            for names in products
        ]

    def at(self, shape: tuple, sample: int) -> tuple[int, ...]:
        """A shape with the sizes of one of the samples."""
        return tuple(
            int(dim._evaluate(dict(self.samples[sample]))) if jax.export.is_symbolic_dim(dim) else dim for dim in shape
        )

    def expression(self, numbers: Sequence[int]) -> Any:
        """The expression with these values for the samples.

        Raises:
            NotAnExpressionError: none of few terms has.
        """
        wanted = np.asarray(numbers)
        if (wanted == wanted[0]).all():
            return int(wanted[0])
        constant = (1, np.ones(len(wanted), np.int64))
        for terms in self._candidates(constant):
            if len(terms) + _CHECKS > len(wanted):
                break
            columns = np.stack([values for _, values in terms], 1)
            if np.linalg.matrix_rank(columns) < len(terms):
                continue
            factors = np.rint(np.linalg.lstsq(columns.astype(float), wanted.astype(float))[0]).astype(np.int64)
            if (columns @ factors == wanted).all():
                return sum(int(factor) * term for factor, (term, _) in zip(factors, terms, strict=True))
        raise NotAnExpressionError(f"{', '.join(map(str, numbers))} for {self}")

    def _candidates(self, constant: Any) -> Iterable[tuple]:
        yield from ((term,) for term in self._terms)
        yield from ((constant, term) for term in self._terms)
        yield from itertools.combinations(self._terms, 2)
        yield from ((constant, *pair) for pair in itertools.combinations(self._terms, 2))

    def __str__(self) -> str:
        texts = (", ".join(f"{name}={size}" for name, size in sample.items()) for sample in self.samples)
        return " | ".join(texts)

    def _drawn(self) -> list[dict[str, Any]]:
        """Small sizes that satisfy the constraints, and none twice for one symbol or in one sample.

        If there are such, none is a size of something else: code does otherwise where two are equal by chance.
        """
        draw, found, low = random.Random(0), [], {}
        for attempt in range(_ATTEMPTS):
            if attempt % _TURN == 0:
                low = dict.fromkeys(self._symbols, 2)  # one is broadcast
            sample = {name: size + draw.randrange(1 + attempt % _SPREAD) for name, size in low.items()}
            failing = [name for name in low if not self._allows(name, sample, 1 - attempt // _TURN % 2)]
            if failing:
                for name in failing:
                    low[name] = max(2, low[name] + draw.choice((-1, 1, 1, 1 + low[name] // 2)))
            elif attempt < _ATTEMPTS // 2 and not self._fixed.isdisjoint(
                (*sample.values(), math.prod(sample.values()))
            ):
                continue
            elif len(set(sample.values())) == len(sample) and not any(_overlap(sample, other) for other in found):
                found.append(sample)
                if len(found) == _SAMPLES:
                    break
        if len(found) <= _CHECKS:
            raise ValueError(
                f"found {len(found)} sizes for {', '.join(low)} that satisfy the constraints; wanted at least "
                f"{_CHECKS + 1}, larger than one and all different, or a program for each of them"
            )
        return found

    def _allows(self, name: str, sample: dict[str, int], more: int) -> bool:
        """Whether the constraints on a symbol allow a sample, where there are to be so many `more` than at least."""
        for constraint in self.scope._explicit_constraints:
            if name in constraint.diff._get_vars():
                size = int(constraint.diff._evaluate({name: np.int64(size) for name, size in sample.items()}))
                if size != 0 if constraint.cmp.name == "EQ" else size < more:
                    return False
        return True


def _product(values: Mapping[str, Any], names: Iterable[str]) -> Any:
    return math.prod(values[name] for name in names)


def _overlap(one: dict[str, int], other: dict[str, int]) -> bool:
    return any(other[name] == size for name, size in one.items())
