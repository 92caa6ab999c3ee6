"""PyTorch's rules of how operators of `DTensor`s split what they give, and what they want of their operands."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch._subclasses.fake_tensor import DynamicOutputShapeException

from .guards import DisableTorchFunction

__all__ = ["Decision", "decided", "is_spec", "needs_whole_operands", "spec_of"]


class Decision(NamedTuple):
    """How an operator runs on parts."""

    operator: Any
    args: tuple
    """As those given, with the specs that operands are to have."""
    results: Any
    """The spec of each result; None for what is no tensor."""


def spec_of(mesh: Any, placements: tuple, shape: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype) -> Any:
    """The spec of a `DTensor`: it has ``placements``, and ``tensor_meta`` with ``shape``, ``stride`` and ``dtype``."""
    from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta

    return DTensorSpec(mesh, placements, tensor_meta=TensorMeta(torch.Size(shape), stride, dtype))


def is_spec(thing: object) -> bool:
    """Whether a thing is such a spec."""
    from torch.distributed.tensor._dtensor_spec import DTensorSpec

    return isinstance(thing, DTensorSpec)


def decided(operator: Any, args: tuple, kwargs: dict) -> Decision:
    """What PyTorch decides for an operator.

    Args:
        args, kwargs: its arguments, with specs for `DTensor`s.

    Raises:
        NotImplementedError: PyTorch has no rule for it, or data decide the shape of what it gives.
        RuntimeError: its rule refuses the operands.
    """
    from torch.distributed.tensor import DTensor
    from torch.distributed.tensor._op_schema import OpSchema

    rules = DTensor._op_dispatcher.sharding_propagator
    others = getattr(rules, "op_to_schema_info_for_single_dim_strategy", {})
    info = rules.op_to_schema_info.get(operator) or others.get(operator)
    find: Callable = getattr(rules, "propagate_op_sharding_non_cached")  # noqa: B009 - for type checkers
    schema = OpSchema(operator, args, kwargs, schema_info=info)
    try:
        with DisableTorchFunction():
            found = find(schema)
    except DynamicOutputShapeException as error:
        raise NotImplementedError("data decide the shape of the result") from error
    wanted = found.redistribute_schema if found.needs_redistribute else None
    if wanted is None:
        return Decision(operator, args, found.output_spec)
    return Decision(wanted.op, tuple(wanted.args_schema), found.output_spec)


def needs_whole_operands(operator: Any) -> bool:
    """Whether PyTorch does more for an operator than to run it on parts, so that it runs on whole operands here."""
    from torch.distributed.tensor import DTensor

    return operator in DTensor._op_dispatcher._custom_op_handlers and operator not in _ON_PARTS


_aten = torch.ops.aten
_ON_PARTS = (_aten.convolution.default, _aten.convolution_backward.default)  # but where devices need their neighbours'
