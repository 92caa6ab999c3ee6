"""Products of selections by masks of unknown values: of matrices and vectors, ``einsum``, and distances of rows."""

from typing import Any

import torch

from ..rules.registry import implements_masked
from ..runtime.errors import TracedValueError
from ..values.masked import aligned_along, as_long, masked, ndim_of, unknown_dims, unnested, zeroed

Tensor = torch.Tensor


LETTERS = "abcdefghijklmnopqrstuvw"
"""Names of dimensions in equations."""


def _matmul(what: str):
    def matmul(input, other):
        one, two = ndim_of(input), ndim_of(other)
        batch = LETTERS[: max(one, two, 2) - 2]
        first = "x" if one == 1 else f"{batch[len(batch) - one + 2 :]}zx"
        second = "x" if two == 1 else f"{batch[len(batch) - two + 2 :]}xy"
        result = f"{batch}{'z' * (one > 1)}{'y' * (two > 1)}"
        strict = f"x{batch}" if what == "torch.bmm" else "x"
        return _contracted(torch.matmul, what, [first, second], result, [input, other], strict)

    return matmul


def _contracted(function, what: str, letters: list[str], result: str, operands: list, strict: str = "") -> Any:
    """A contraction with letters for dimensions, as in ``einsum``: it sums over those that the result lacks.

    Args:
        strict: the dimensions along which a size of one fits no other.
    """
    dims = [{names[dim]: dim for dim in unknown_dims(x)} for names, x in zip(letters, operands, strict=True)]
    unknown = dict.fromkeys(letter for each in dims for letter in each)
    for letter in unknown:
        if any(names.count(letter) > 1 for names in letters):
            raise TracedValueError(f"{what} along a diagonal of boolean-mask selections")
        at = [names.find(letter) for names in letters]
        beside = [(x, dim) for x, dim in zip(operands, at, strict=True) if dim >= 0 and dim not in unknown_dims(x)]
        sizes = {x.shape[dim] for x, dim in beside} - (set() if letter in strict else {1})
        if sizes:
            size, has = max(sizes), lambda x, dim: dim in unknown_dims(x)
            operands = [as_long(x, dim, size) if has(x, dim) else x for x, dim in zip(operands, at, strict=True)]
        else:
            operands = aligned_along(operands, [each.get(letter) for each in dims], what)
    tensors, masks = [], {}
    for names, x in zip(letters, operands, strict=True):
        tensor, found = unnested(x, zeroed)
        tensors.append(tensor)
        masks.update({names[dim]: mask for dim, mask in found.items()})
    made = function(*tensors)
    return masked(made, {result.index(letter): mask for letter, mask in masks.items() if letter in result})


for _functions in (
    (torch.matmul, Tensor.matmul, Tensor.__matmul__),
    (torch.mm, Tensor.mm),
    (torch.mv, Tensor.mv),
    (torch.bmm, Tensor.bmm),
    (torch.dot, Tensor.dot),
):
    implements_masked(*_functions)(_matmul(f"torch.{_functions[0].__name__}"))


@implements_masked(torch.outer, Tensor.outer, torch.ger, Tensor.ger)
def outer(input, vec2):
    return _contracted(torch.outer, "torch.outer", ["x", "y"], "xy", [input, vec2])


@implements_masked(torch.einsum)
def einsum(equation, *operands):
    operands = list(operands[0]) if len(operands) == 1 and isinstance(operands[0], (tuple, list)) else list(operands)
    if not isinstance(equation, str) or "." in equation:
        raise TracedValueError("torch.einsum by an equation with an ellipsis, or by lists, of a boolean-mask selection")
    left, arrow, right = equation.replace(" ", "").partition("->")
    letters = left.split(",")
    if not arrow:
        right = "".join(sorted(x for x in {*left} - {","} if left.count(x) == 1))
    if [len(x) for x in letters] != list(map(ndim_of, operands)):
        raise RuntimeError(
            f"einsum(): got {equation!r} and operands of {list(map(ndim_of, operands))} dimensions; wanted a letter "
            "for each dimension"
        )
    return _contracted(lambda *x: torch.einsum(equation, *x), "torch.einsum", letters, right, operands)


@implements_masked(torch.cdist)
def cdist(x1, x2, p=2.0, compute_mode="use_mm_for_euclid_dist_if_necessary"):
    one, two = ndim_of(x1), ndim_of(x2)
    batch = LETTERS[: max(one, two) - 2]
    letters = [f"{batch[len(batch) - one + 2 :]}zx", f"{batch[len(batch) - two + 2 :]}yx"]
    distances = lambda *x: torch.cdist(*x, p=p, compute_mode=compute_mode)
    return _contracted(distances, "torch.cdist", letters, f"{batch}zy", [x1, x2], "x")
