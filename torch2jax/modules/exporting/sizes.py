"""Symbolic sizes, the samples of their values, and the questions that Python code asks of them.

PyTorch's functions are as good for one size as for another, and JAX checks the graph. Between them is Python code,
which sees integers. The integers that it reads of tensors in several runs tell what they depend on; in one more run it
gets such that know this, and compare by it.
"""

import contextlib
import itertools
import math
import operator
import random
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

import jax
import numpy as np
import torch
from torch.overrides import TorchFunctionMode

from ...runtime.errors.locations import is_translator, user_line
from ..translated import entered_around_code

_SAMPLES = 5
_CHECKS = 2  # so many more samples than terms there are
_SPREAD = 24
_ATTEMPTS = 2000
_TURN = 200  # so many attempts from the smallest sizes, by turns away from what the constraints just allow


class SizesError(ValueError):
    """The behavior of a function depends on symbolic sizes in a way that no program has."""


class NotAnExpressionError(ValueError):
    """A number depends on sizes otherwise than by a polynomial of few terms."""


class Sizes:
    """The symbols in the shapes of arguments, with samples of their values.

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

    def _candidates(self, constant: tuple[object, ...]) -> Iterable[tuple]:
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
        """Returns True if the constraints on a symbol allow a sample; inequalities must hold with a margin of
        `more`.
        """
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


Tensor: Any = torch.Tensor
_READS = frozenset((Tensor.shape.__get__, Tensor.size, Tensor.stride, Tensor.numel, Tensor.nelement, torch.numel))
_SLICED = frozenset((Tensor.__getitem__, Tensor.__setitem__))
_SPLIT = frozenset((torch.split, Tensor.split))
_SIGNS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}

Readings = list[tuple[int, ...]]
"""The sizes of tensors that code has read, one tuple for each reading."""


@contextlib.contextmanager
def reading() -> Iterator[Readings]:
    """Records the sizes that translated code reads within."""
    found: Readings = []
    with entered_around_code(lambda: _Reading(found)):
        yield found


@contextlib.contextmanager
def asking(samples: Sequence[Readings], sizes: Sizes) -> Iterator[None]:
    """Raises an error if translated code asks something of sizes that the constraints do not decide.

    Args:
        samples: what it has read in a run for each of the samples of `sizes`; this is one more run for the first.

    Raises:
        SizesError: it does; or it reads other sizes than before.
    """
    if len(set(map(len, samples))) > 1:
        raise SizesError(
            f"the code does something different for other sizes: it reads a different number of sizes for {sizes}"
        )
    comparisons = _Comparisons([_expressions(each, sizes) for each in zip(*samples, strict=True)])
    with entered_around_code(lambda: _Asking(comparisons)):
        try:
            yield
        finally:
            comparisons.have_ended = True
    if comparisons.remaining:
        raise SizesError("the code does something different each time that it runs")
    if comparisons.undecided:
        raise SizesError("\n".join(comparisons.undecided))


def _expressions(readings: Sequence[tuple[int, ...]], sizes: Sizes) -> tuple:
    if len(set(map(len, readings))) > 1:
        raise SizesError(
            f"the code does something different for other sizes: a tensor has different dimensions for {sizes}"
        )
    try:
        return tuple(sizes.expression(numbers) for numbers in zip(*readings, strict=True))
    except NotAnExpressionError as error:
        raise SizesError(f"the size of a tensor depends on sizes, and is no polynomial of them: {error}") from None


class _Reading(TorchFunctionMode):
    def __init__(self, found: Readings):
        super().__init__()
        self._found = found

    def __torch_function__(
        self, func: Callable[..., Any], types: Sequence[type], args: tuple = (), kwargs: dict[str, Any] | None = None
    ):
        if args and (func in _SLICED or func in _SPLIT):
            self._found.append(tuple(args[0].shape))
        result = func(*args, **(kwargs or {}))
        if func in _READS:
            self._found.append(tuple(result) if isinstance(result, tuple) else (result,))
        return result


class _Comparisons:
    """The sizes that code reads, one reading after another, and the undecided comparisons that it made."""

    def __init__(self, readings: list[tuple]):
        self.remaining = readings[::-1]
        self.undecided: list[str] = []
        self.have_ended = False

    def ask(self, name: str, one: object, other: object) -> None:
        """Records a comparison whose result may differ between allowed sizes."""
        if self.have_ended:
            return
        ours, theirs = cast(Any, _expression_of(one)), cast(Any, _expression_of(other))
        try:
            _decide(name, ours - theirs)
        except jax.errors.InconclusiveDimensionOperation:
            question = f"asks whether {ours} {_SIGNS[name]} {theirs}"
            self.note(f"{question}: say so in a constraint, as one for jax.export.symbolic_shape")

    def note(self, what: str) -> None:
        """Notes an action of the code that depends on the size."""
        text = f"{user_line()} {what}"
        if not self.have_ended and text not in self.undecided:
            self.undecided.append(text)


class _Asking(TorchFunctionMode):
    def __init__(self, comparisons: _Comparisons):
        super().__init__()
        self._comparisons = comparisons

    def __torch_function__(
        self,
        func: Callable[..., object],
        types: Sequence[type],
        args: tuple = (),
        kwargs: dict[str, object] | None = None,
    ):
        if func in _SLICED:
            self._ask_of_slices(self._known(args[0].shape), args[1])
        elif args and func in _SPLIT:
            self._ask_of_parts(self._known(args[0].shape), *args[1:], **(kwargs or {}))
        result = func(*_stripped(args), **_stripped(kwargs or {}))
        if func not in _READS:
            return result
        if isinstance(result, tuple):
            return type(result)(self._known(result))
        return self._known((result,))[0]

    def _known(self, sizes: Sequence[int]) -> list[int]:
        """The next sizes that were read, with the expressions that they depend on."""
        if not self._comparisons.remaining:
            raise SizesError("the code does something different each time that it runs")
        expressions = self._comparisons.remaining.pop()
        return [
            _Size(size, expression, self._comparisons) if jax.export.is_symbolic_dim(expression) else size
            for size, expression in zip(sizes, expressions, strict=True)
        ]

    def _ask_of_parts(
        self,
        sizes: list[int],
        split_size: int | Sequence[int] | None = None,
        dim: int = 0,
        split_size_or_sections: int | Sequence[int] | None = None,
    ) -> None:
        """Asks if equal parts leave a rest, which would be one more part."""
        size = split_size if split_size_or_sections is None else split_size_or_sections
        if isinstance(size, int):
            self._comparisons.ask("gt", sizes[dim], size)

    def _ask_of_slices(self, sizes: list[int], index: Any) -> None:
        """Asks if bounds of slices exceed the size, to which they would be cut."""
        items = [item for item in (index if isinstance(index, tuple) else (index,)) if item is not None]
        taken = [item.ndim if isinstance(item, Tensor) and item.dtype is torch.bool else 1 for item in items]
        dim = 0
        for position, item in enumerate(items):
            if item is Ellipsis:
                dim = len(sizes) - sum(taken[position + 1 :])
                continue
            if isinstance(item, slice) and dim < len(sizes):
                for bound in (item.start, item.stop):
                    if isinstance(bound, int) and bound != 0:
                        self._comparisons.ask("ge", sizes[dim], bound if int.__gt__(bound, 0) else -bound)
            dim += taken[position]


def _stripped(value: Any):
    if isinstance(value, _Size):
        return int.__int__(value)
    if type(value) in (tuple, list, torch.Size):
        return type(value)([_stripped(item) for item in value])
    if type(value) is dict:
        return {key: _stripped(item) for key, item in value.items()}
    if type(value) is slice:
        return slice(_stripped(value.start), _stripped(value.stop), _stripped(value.step))
    return value


class _Size(int):
    """An integer with the expression that it depends on."""

    _expression: object
    _comparisons: _Comparisons

    def __new__(cls, size: int, expression: object, comparisons: _Comparisons):
        made = super().__new__(cls, size)
        made._expression, made._comparisons = expression, comparisons
        return made

    def __hash__(self):
        return int.__hash__(self)

    def __reduce__(self):
        return int, (int.__int__(self),)

    def __bool__(self):
        self._comparisons.ask("ne", self, 0)
        return int.__bool__(self)

    def __int__(self):
        self._comparisons.note(f"asks for the number {self._expression}: leave out int(), as sizes are integers")
        return int.__int__(self)

    def __neg__(self):
        return 0 - self


def _expression_of(value: object):
    return value._expression if isinstance(value, _Size) else value


def _arithmetic(name: str):
    of_integers, of_expressions = getattr(int, f"__{name}__"), getattr(operator, name)

    def forwards(self: _Size, other: object):
        return made(
            self, other, of_integers(self, other), lambda: of_expressions(self._expression, _expression_of(other))
        )

    def backwards(self: _Size, other: object):
        if type(other) is not int:
            return NotImplemented
        return made(self, other, of_integers(other, self), lambda: of_expressions(other, self._expression))

    def made(self: Any, other: object, result: object, expression: Any):
        if type(result) is not int or not isinstance(other, int) or self._comparisons.have_ended:
            return result
        try:
            return _Size(result, expression(), self._comparisons)
        except (NotImplementedError, OverflowError, TypeError, ValueError):
            self._comparisons.note(f"computes {name} with {self._expression}, which is no dimension")
            return result

    setattr(_Size, f"__{name}__", forwards)
    setattr(_Size, f"__r{name}__", backwards)


def _comparison(name: str):
    of_integers = getattr(int, f"__{name}__")

    def compare(self: _Size, other: object):
        if isinstance(other, int) and not is_translator(sys._getframe(1).f_code.co_filename):
            self._comparisons.ask(name, self, other)
        return of_integers(self, other)

    setattr(_Size, f"__{name}__", compare)


def _decide(name: str, difference: Any) -> None:
    """Raises an exception unless the sign of a difference is known as far as a comparison needs it."""
    if not jax.export.is_symbolic_dim(difference):
        return
    if name not in ("eq", "ne"):
        _ = difference >= (0 if name in ("ge", "lt") else 1)
    elif not (_is_decided(lambda: difference >= 1) or _is_decided(lambda: difference <= -1)):
        _ = difference >= 1, difference <= -1  # neither, always: they are equal; or not known


def _is_decided(positive: Callable[[], bool]) -> bool:
    try:
        return positive()
    except jax.errors.InconclusiveDimensionOperation:
        return False


for _name in ("add", "sub", "mul", "floordiv", "mod", "pow"):
    _arithmetic(_name)
for _name in _SIGNS:
    _comparison(_name)
