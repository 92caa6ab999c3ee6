"""Declares rules of sparse tensors: by the name of a function, for all its forms in PyTorch."""

from collections.abc import Callable
from typing import Any

import torch

from ...rules.inplace import check_cast
from ...rules.registry import implements_sparse
from ...rules.tables import OPERATORS

Tensor = torch.Tensor


def forms_of(name: str) -> list[Any]:
    """The functions, the method, the operator of Python, and the ATen operator of this name."""
    owners = (torch, Tensor, torch.sparse, torch.nn.functional, torch.special, torch.ops.aten)
    found = [getattr(owner, name) for owner in owners if hasattr(owner, name)]
    if name in OPERATORS and hasattr(Tensor, f"__{OPERATORS[name]}__"):
        found.append(getattr(Tensor, f"__{OPERATORS[name]}__"))
    return found


def written(target: Any, result: Any, in_values: bool = False) -> Any:
    """The sparse tensor, which is the result from now on; it keeps its dtype.

    Args:
        in_values: whether a function writes to the values of COO tensors too, which others may share. To those of the
            compressed layouts all functions do. Where the places change, there are other values.

    Raises:
        RuntimeError: the result's dtype cannot be cast to it.
    """
    check_cast(result, target)
    if (in_values or target.kind is not torch.sparse_coo) and _has_the_places_of(target, result):
        target.elements.copy_(result.elements)
        return target
    return target.become(result if result.dtype == target.dtype else result.to(target.dtype))


def _has_the_places_of(target: Any, result: Any) -> bool:
    return (
        result.kind is target.kind
        and all(x is y for x, y in zip(result.index, target.index, strict=True))
        and result.elements.shape == target.elements.shape
        and result.length is target.length
    )


def expect_no_out(name: str, out: Any) -> None:
    """Refuses ``out=``, where PyTorch has no such form of a function for sparse tensors."""
    if out is not None:
        raise NotImplementedError(f"torch.{name} of a sparse tensor has no out=, as in PyTorch: take what it gives")


def implements_forms(*names: str, in_values: bool = False) -> Callable[[Callable], Callable]:
    """Declares the rule of functions by their names, in all forms, and of the forms that write in place.

    Args:
        in_values: see `written`.
    """

    def register(body: Callable) -> Callable:
        def in_place(self, *args, **kwargs):
            return written(self, body(self, *args, **kwargs), in_values)

        for name in names:
            implements_sparse(*forms_of(name))(body)
            in_place_forms = forms_of(name + "_")
            operator = f"__i{OPERATORS[name]}__" if name in OPERATORS else ""
            if hasattr(Tensor, operator):
                in_place_forms.append(getattr(Tensor, operator))
            implements_sparse(*in_place_forms)(in_place)
        return body

    return register


def implements_reflected(*names: str) -> Callable[[Callable], Callable]:
    """Declares the rule of operators of Python, their operands exchanged."""

    def register(body: Callable) -> Callable:
        methods = [getattr(Tensor, f"__r{OPERATORS[name]}__") for name in names]
        implements_sparse(*methods)(lambda self, other: body(other, self))
        return body

    return register
