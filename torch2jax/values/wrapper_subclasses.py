"""Tensors that hold no values but wrap others: their own ``__torch_dispatch__`` computes with these."""

from typing import Any

import torch

from ..internals.operators import OpOverload, find_torch_dispatch_rule
from ..internals.pytree import tree_leaves
from ..tensors.tensor import Torchish

__all__ = ["run_by_wrappers"]


def run_by_wrappers(operator: OpOverload, args: tuple, kwargs: dict) -> Any:
    """Runs an operator as the first class of its arguments does that knows how to.

    Raises:
        TypeError: none does.
    """
    kinds = dict.fromkeys(type(x) for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor))
    plain = (torch.Tensor, torch.nn.Parameter)
    types = tuple(kind for kind in kinds if kind not in plain and not issubclass(kind, Torchish))
    for kind in types:
        rule = find_torch_dispatch_rule(operator, kind)
        if rule is not None:
            return rule(kind, operator, types, args, kwargs)
        result = kind.__torch_dispatch__(operator, types, args, kwargs)  # pyright: ignore[reportAttributeAccessIssue]
        if result is not NotImplemented:
            return result
    names = ", ".join(kind.__name__ for kind in types)
    raise TypeError(f"no class of the arguments of {operator.name()} implements it in its __torch_dispatch__: {names}")
