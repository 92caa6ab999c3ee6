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


def written(target: Any, result: Any) -> Any:
    """The sparse tensor, which is the result from now on; it keeps its dtype.

    Raises:
        RuntimeError: the result's dtype cannot be cast to it.
    """
    check_cast(result, target)
    return target.become(result if result.dtype == target.dtype else result.to(target.dtype))


def expect_no_out(name: str, out: Any) -> None:
    """Refuses ``out=``, where PyTorch has no such form of a function for sparse tensors."""
    if out is not None:
        raise NotImplementedError(f"torch.{name} of a sparse tensor has no out=, as in PyTorch: take what it gives")


def implements_forms(*names: str) -> Callable[[Callable], Callable]:
    """Declares the rule of functions by their names, in all forms, and of the forms that write in place."""

    def register(body: Callable) -> Callable:
        def in_place(self, *args, **kwargs):
            return written(self, body(self, *args, **kwargs))

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
