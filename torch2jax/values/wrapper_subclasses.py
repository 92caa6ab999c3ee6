"""Tensors that hold no values but wrap others: their own ``__torch_dispatch__`` computes with these."""

from typing import Any

import torch

from ..errors import WrapsOthersError
from ..internals.guards import DisableTorchFunction
from ..internals.operators import OpOverload, find_torch_dispatch_rule
from ..internals.pytree import tree_leaves
from ..rules.kinds import serves_without_values
from ..tensors.tensor import Torchish
from .call import ValuesCall


@serves_without_values(WrapsOthersError)
def _run(error: WrapsOthersError, call: ValuesCall, function: Any, args: tuple, kwargs: dict) -> Any:
    """What a function gives of tensors that wrap others: PyTorch's C++ runs it, and its operators are for these."""
    del error
    if not isinstance(function, OpOverload):
        with DisableTorchFunction(), call.aten_mode:
            return function(*args, **kwargs)
    with call.inside():
        return _run_by_wrappers(function, args, kwargs)


def _run_by_wrappers(operator: OpOverload, args: tuple, kwargs: dict) -> Any:
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
