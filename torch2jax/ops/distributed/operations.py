"""What collectives on tensors share: operands, results, writes, and waiting."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import torch
import torch.distributed as dist

from ...autograd.manual_axes import own_axes
from ...rules.operands import as_result, lift
from ...tracing.manual_axes import varying
from .collectives import all_gather, all_reduce, all_to_all, broadcast, reduce_scatter
from .groups import MeshGroup

__all__ = [
    "Done",
    "all_gathered",
    "all_reduced",
    "broadcasted",
    "computed",
    "exchanged",
    "finished",
    "op_name",
    "scattered",
    "write",
]

_NAMES = {
    dist.ReduceOp.SUM: "sum",
    dist.ReduceOp.AVG: "avg",
    dist.ReduceOp.MIN: "min",
    dist.ReduceOp.MAX: "max",
    dist.ReduceOp.PRODUCT: "product",
    dist.ReduceOp.BAND: "band",
    dist.ReduceOp.BOR: "bor",
    dist.ReduceOp.BXOR: "bxor",
}


def op_name(op: Any, dtype: torch.dtype) -> str:
    """The name of a reduction, also of one that goes by it.

    Raises:
        ValueError: it is not defined for a dtype, or it is none that JAX can compute.
    """
    name = op.lower() if isinstance(op, str) else next((x for other, x in _NAMES.items() if op == other), "")
    if name not in _NAMES.values():
        raise ValueError(f"got the reduction {op}; wanted one of {', '.join(x.upper() for x in _NAMES.values())}")
    if dtype.is_complex and name in ("min", "max", "product", "band", "bor", "bxor"):
        raise ValueError(f"all_reduce does not support {name.upper()} on complex tensors")
    if name in ("band", "bor", "bxor") and dtype.is_floating_point:
        raise RuntimeError(f"Cannot use ReduceOp.{name.upper()} with non-integral dtype {dtype}")
    return name


def computed(name: str, body: Callable[..., Any], tensors: Sequence[torch.Tensor], *args: Any) -> Any:
    """The tensor, or a list of them, of what a function of arrays gives for those of tensors.

    It is traced where the mesh is, also for tensors whose values are known. Where the code differentiates it, each
    device has a derivative of its own, as each process has in PyTorch.
    """
    lifted = [lift(x) for x in tensors]
    result = body(*[x.read() for x in lifted], *args)
    axes = own_axes(lifted)
    if axes:
        result = jax.tree.map(lambda x: varying(x, axes), result)
    if isinstance(result, (list, tuple)):
        return [as_result(x, None, lifted, name=name) for x in result]
    return as_result(result, None, lifted, name=name)


def all_reduced(tensor: torch.Tensor, op: Any, group: MeshGroup) -> torch.Tensor:
    """A reduction of the tensors of all devices."""
    return computed("all_reduce", all_reduce, [tensor], group.axes, op_name(op, tensor.dtype))


def broadcasted(tensor: torch.Tensor, source: int, group: MeshGroup) -> torch.Tensor:
    """The tensor of one device."""
    return computed("broadcast", broadcast, [tensor], group.axes, source)


def all_gathered(tensor: torch.Tensor, group: MeshGroup, is_alike: bool = False) -> torch.Tensor:
    """The tensors of all devices, one after the other along the first dimension.

    Args:
        is_alike: all devices have the same cotangent of the result, as none needs it, or as they have it by
            definition.
    """
    return computed("all_gather", all_gather, [tensor], group.axes, is_alike or not torch.is_grad_enabled())


def scattered(tensor: torch.Tensor, op: Any, group: MeshGroup) -> torch.Tensor:
    """The device's part, along the first dimension, of a reduction of the tensors of all."""
    if tensor.shape[0] % group.size():
        raise ValueError(
            f"reduce_scatter got a first dimension of size {tensor.shape[0]}; wanted a multiple of "
            f"{group.size()}, the number of ranks in the group"
        )
    return computed("reduce_scatter", reduce_scatter, [tensor], group.axes, op_name(op, tensor.dtype))


def exchanged(
    tensor: torch.Tensor, group: MeshGroup, output_sizes: Any = None, input_sizes: Any = None
) -> torch.Tensor:
    """What all devices have for this one, one after the other along the first dimension.

    Args:
        output_sizes: how many rows come from each.
        input_sizes: how many rows are for each; all as many by default.

    Raises:
        ValueError: these are not as many, or do not divide the rows.
    """
    for name, sizes in (("output", output_sizes), ("input", input_sizes)):
        _expect_equal(name, sizes, tensor, group)
    if tensor.shape[0] % group.size():
        raise ValueError(
            f"all_to_all_single got a first dimension of size {tensor.shape[0]}; wanted a multiple of "
            f"{group.size()}, the number of ranks in the group"
        )
    return computed("all_to_all", all_to_all, [tensor], group.axes)


def _expect_equal(name: str, sizes: Any, tensor: torch.Tensor, group: MeshGroup) -> None:
    if not sizes:
        return
    sizes = [int(size) for size in sizes]
    if len(sizes) != group.size() or sum(sizes) != tensor.shape[0]:
        raise ValueError(
            f"all_to_all_single got {name}_split_sizes {sizes} for {tensor.shape[0]} rows; wanted one for each of "
            f"the {group.size()} ranks, with the number of rows as their sum"
        )
    if len(set(sizes)) > 1:
        raise ValueError(
            f"all_to_all_single got {name}_split_sizes {sizes}; wanted equal ones. All devices run one program, "
            "so a device cannot receive a length of its own: pad the part for each rank to the largest size"
        )


def write(target: torch.Tensor, value: torch.Tensor) -> None:
    """Writes what a collective gives into a tensor, which may be a parameter: PyTorch's do not ask.

    Raises:
        ValueError: they are of different dtypes or sizes.
    """
    if target.dtype != value.dtype:
        raise ValueError(f"Invalid usage of tensors with different dtypesFound {target.dtype} and  {value.dtype}")
    if target.shape != value.shape:
        if target.numel() != value.numel():
            raise ValueError(
                f"got a tensor of shape {tuple(target.shape)} for the result of a collective; wanted "
                f"{tuple(value.shape)}"
            )
        value = value.reshape(target.shape)
    is_leaf = target.requires_grad and target.is_leaf
    with torch.set_grad_enabled(torch.is_grad_enabled() and not is_leaf):
        target.copy_(value)


class Done(dist.Work):
    """The work of a collective, which XLA orders itself: there is nothing to wait for."""

    def __init__(self, results: Sequence[torch.Tensor] = ()):
        super().__init__()
        self._results = list(results)

    def wait(self, *args: Any, **kwargs: Any) -> bool:
        return True

    def is_completed(self) -> bool:
        return True

    def is_success(self) -> bool:
        return True

    def result(self) -> list[torch.Tensor]:
        return self._results

    def get_future(self) -> Any:
        future = torch.futures.Future()
        future.set_result(self._results)
        return future


def finished(is_async: bool, *results: torch.Tensor) -> Done | None:
    """What a collective gives that has written its results."""
    return Done(results) if is_async else None
