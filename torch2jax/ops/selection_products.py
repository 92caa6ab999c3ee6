"""Products of what masks of unknown values chose: of matrices and vectors, ``einsum``, and distances of rows."""

from typing import Any

import torch

from ..errors import TracedValueError, user_location
from ..rules.registry import implements_moved, implements_selected
from ..values.moved import front_of, moved
from ..values.selected import Chosen, aligned, compacted, like

Tensor = torch.Tensor


def _declares(*functions):
    def register(body):
        implements_selected(*functions)(body)
        return implements_moved(*functions)(body)

    return register


def _is_chosen(x) -> bool:
    return isinstance(x, Chosen)


def _ndim(x) -> int:
    return front_of(x)[0].row_ndim + 1 if _is_chosen(x) else x.ndim


def _of_all_rows(function, operands: list, at: int | None, what: str) -> Any:
    """A function of tensors that sums over the dimension that was chosen, or has it at a place of its result.

    Args:
        function: takes tensors in which all rows are, of which some do not count.
        operands: tensors, and such of which something was chosen, as long as each other.
        at: the place; None where there is a sum over it.
    """
    chosen = [x for x in operands if _is_chosen(x)]
    fronts = aligned([front_of(x)[0] for x in chosen], what)
    fronts = fronts if fronts[0].mask.ndim == 1 else [compacted(x) for x in fronts]
    found = iter(fronts)

    def whole(x):
        if not _is_chosen(x):
            return x
        front = next(found)
        rows = front.safe() if at is not None else torch.where(front.spread_mask(), front.rows, 0)
        return rows.movedim(0, front_of(x)[1])

    made = function(*map(whole, operands))
    return made if at is None else moved(like(made.movedim(at, 0), fronts[0], True), at)


def _refuse(what: str) -> RuntimeError:
    # No TypeError, which operators would take for "not implemented".
    return RuntimeError(
        f"{what} got tensors of which data decide how long they are along different dimensions, or one that is to be "
        f"as long as such a dimension, at {user_location()}; wanted one such dimension, chosen by a mask in all of them"
    )


_LETTERS = "abcdefghijklmnopqrstuvw"


def _matmul(what: str):
    def matmul(input, other):
        one, two = _ndim(input), _ndim(other)
        batch = _LETTERS[: max(one, two, 2) - 2]
        first = "x" if one == 1 else f"{batch[len(batch) - one + 2 :]}zx"
        second = "x" if two == 1 else f"{batch[len(batch) - two + 2 :]}xy"
        result = f"{batch}{'z' * (one > 1)}{'y' * (two > 1)}"
        return _contracted(torch.matmul, what, [first, second], result, [input, other])

    return matmul


def _contracted(function, what: str, letters: list[str], result: str, operands: list) -> Any:
    """A function whose dimensions have letters, as those of ``einsum``."""
    found = {names[front_of(x)[1]] for names, x in zip(letters, operands, strict=True) if _is_chosen(x)}
    if len(found) > 1:
        raise _refuse(what)
    (letter,) = found
    if any(letter in names for names, x in zip(letters, operands, strict=True) if not _is_chosen(x)):
        raise _refuse(what)
    return _of_all_rows(function, operands, result.index(letter) if letter in result else None, what)


for _functions in (
    (torch.matmul, Tensor.matmul, Tensor.__matmul__),
    (torch.mm, Tensor.mm),
    (torch.mv, Tensor.mv),
    (torch.bmm, Tensor.bmm),
    (torch.dot, Tensor.dot),
):
    _declares(*_functions)(_matmul(f"torch.{_functions[0].__name__}"))


@_declares(Tensor.__rmatmul__)
def rmatmul(self, other):
    return torch.matmul(other, self)


@_declares(torch.outer, Tensor.outer, torch.ger, Tensor.ger)
def outer(input, vec2):
    return _contracted(torch.outer, "torch.outer", ["x", "y"], "xy", [input, vec2])


@_declares(torch.addmm, Tensor.addmm)
def addmm(input, mat1, mat2, *, beta=1, alpha=1):
    return input * beta + torch.mm(mat1, mat2) * alpha


@_declares(torch.einsum)
def einsum(equation, *operands):
    operands = list(operands[0]) if len(operands) == 1 and isinstance(operands[0], (tuple, list)) else list(operands)
    if not isinstance(equation, str) or "." in equation:
        raise TracedValueError(
            "torch.einsum by an equation with an ellipsis, or by lists, of what a boolean mask chose"
        )
    left, arrow, right = equation.replace(" ", "").partition("->")
    letters = left.split(",")
    if not arrow:
        right = "".join(sorted(x for x in {*left} - {","} if left.count(x) == 1))
    if [len(x) for x in letters] != list(map(_ndim, operands)):
        raise RuntimeError(
            f"einsum(): got {equation!r} and operands of {list(map(_ndim, operands))} dimensions; wanted a letter for "
            "each dimension"
        )
    return _contracted(lambda *x: torch.einsum(equation, *x), "torch.einsum", letters, right, operands)


@_declares(torch.cdist)
def cdist(x1, x2, p=2.0, compute_mode="use_mm_for_euclid_dist_if_necessary"):
    one, two = _ndim(x1), _ndim(x2)
    batch = _LETTERS[: max(one, two) - 2]
    letters = [f"{batch[len(batch) - one + 2 :]}zx", f"{batch[len(batch) - two + 2 :]}yx"]
    if any(_is_chosen(x) and names[front_of(x)[1]] == "x" for names, x in zip(letters, (x1, x2), strict=True)):
        raise TracedValueError("torch.cdist of rows that are as long as data decide")
    distances = lambda *x: torch.cdist(*x, p=p, compute_mode=compute_mode)
    return _contracted(distances, "torch.cdist", letters, f"{batch}zy", [x1, x2])
