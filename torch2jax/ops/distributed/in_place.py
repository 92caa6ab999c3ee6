"""The collectives of `torch.distributed` that write their results into tensors."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from .collectives import reduce
from .groups import MeshGroup, expect_group, number_in
from .operations import all_gathered, all_reduced, broadcasted, computed, exchanged, finished, op_name, scattered, write
from .serving import serves

__all__: list[str] = []


@serves(dist.all_reduce)
def _all_reduce(tensor, op=dist.ReduceOp.SUM, group=None, async_op=False):
    write(tensor, all_reduced(tensor, op, expect_group(group)))
    return finished(async_op, tensor)


@serves(dist.all_reduce_coalesced)
def _all_reduce_coalesced(tensors, op=dist.ReduceOp.SUM, group=None, async_op=False):
    for tensor in tensors if isinstance(tensors, (list, tuple)) else [tensors]:
        write(tensor, all_reduced(tensor, op, expect_group(group)))
    return finished(async_op, *tensors)


@serves(dist.reduce)
def _reduce(tensor, dst=None, op=dist.ReduceOp.SUM, group=None, async_op=False, group_dst=None):
    group = expect_group(group)
    target = number_in(group, dst, group_dst)
    write(tensor, computed("reduce", reduce, [tensor], group.axes, op_name(op, tensor.dtype), target))
    return finished(async_op, tensor)


@serves(dist.broadcast)
def _broadcast(tensor, src=None, group=None, async_op=False, group_src=None):
    group = expect_group(group)
    write(tensor, broadcasted(tensor, number_in(group, src, group_src), group))
    return finished(async_op, tensor)


@serves(dist.all_gather)
def _all_gather(tensor_list, tensor, group=None, async_op=False):
    group = expect_group(group)
    _expect_parts("all_gather", tensor_list, group)
    _write_all(tensor_list, all_gathered(tensor.unsqueeze(0), group).unbind(0))
    return finished(async_op, *tensor_list)


@serves(getattr(dist, "all_gather_single", dist.all_gather_into_tensor))  # the newer name runs for both
def _all_gather_into_tensor(output_tensor, input_tensor, group=None, async_op=False):
    group = expect_group(group)
    _expect_times("all_gather_into_tensor", output_tensor, input_tensor, group)
    write(output_tensor, all_gathered(_in_one(input_tensor), group))
    return finished(async_op, output_tensor)


def _in_one(tensor: torch.Tensor) -> torch.Tensor:
    """What can be put together along its first dimension."""
    return tensor.unsqueeze(0) if tensor.ndim == 0 else tensor


@serves(dist.gather)
def _gather(tensor, gather_list=None, dst=None, group=None, async_op=False, group_dst=None):
    group = expect_group(group)
    target = number_in(group, 0 if dst is None and group_dst is None else dst, group_dst)
    del target  # other devices have the same: there is one program for all
    found = all_gathered(tensor.unsqueeze(0), group).unbind(0)
    if gather_list:
        _expect_parts("gather", gather_list, group)
        _write_all(gather_list, found)
    return finished(async_op, *(gather_list or ()))


@serves(dist.scatter)
def _scatter(tensor, scatter_list=None, src=None, group=None, async_op=False, group_src=None):
    group = expect_group(group)
    source = number_in(group, 0 if src is None and group_src is None else src, group_src)
    if not scatter_list:
        raise ValueError(
            "Argument ``scatter_list`` must be specified on source rank. In JAX all devices run one program: "
            "pass the list on all of them; that of the source counts"
        )
    _expect_parts("scatter", scatter_list, group)
    write(tensor, exchanged(torch.stack(list(scatter_list)), group)[source])
    return finished(async_op, tensor)


@serves(dist.reduce_scatter)
def _reduce_scatter(output, input_list, op=dist.ReduceOp.SUM, group=None, async_op=False):
    group = expect_group(group)
    _expect_parts("reduce_scatter", input_list, group)
    write(output, scattered(torch.stack(list(input_list)), op, group)[0])
    return finished(async_op, output)


@serves(getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor))
def _reduce_scatter_tensor(output, input, op=dist.ReduceOp.SUM, group=None, async_op=False):
    group = expect_group(group)
    _expect_times("reduce_scatter_tensor", input, output, group)
    if input.ndim == 0 or input.shape[0] % group.size():
        input = input.reshape(group.size(), -1)
    write(output, scattered(input, op, group))
    return finished(async_op, output)


@serves(dist.all_to_all)
def _all_to_all(output_tensor_list, input_tensor_list, group=None, async_op=False):
    group = expect_group(group)
    _expect_parts("all_to_all", input_tensor_list, group)
    _expect_parts("all_to_all", output_tensor_list, group)
    _write_all(output_tensor_list, exchanged(torch.stack(list(input_tensor_list)), group).unbind(0))
    return finished(async_op, *output_tensor_list)


@serves(dist.all_to_all_single)
def _all_to_all_single(output, input, output_split_sizes=None, input_split_sizes=None, group=None, async_op=False):
    group = expect_group(group)
    write(output, exchanged(input, group, output_split_sizes, input_split_sizes))
    return finished(async_op, output)


def _write_all(targets: Sequence[torch.Tensor], values: Sequence[torch.Tensor]) -> None:
    for target, value in zip(targets, values, strict=True):
        write(target, value)


def _expect_parts(name: str, parts: Any, group: MeshGroup) -> None:
    """Expects a list with a tensor for each device."""
    if not isinstance(parts, (list, tuple)) or len(parts) != group.size():
        got = f"{len(parts)} tensors" if isinstance(parts, (list, tuple)) else f"a {type(parts).__name__}"
        raise ValueError(f"{name} got {got}; wanted a list of {group.size()}, one for each rank of the group")
    shapes = [tuple(part.shape) for part in parts]
    if len(set(shapes)) > 1:
        raise ValueError(
            f"{name} got tensors of the shapes {shapes}; wanted one shape. All devices run one program, so a "
            "device cannot receive a length of its own: pad the tensor for each rank to the largest size"
        )


def _expect_times(name: str, large: torch.Tensor, small: torch.Tensor, group: MeshGroup) -> None:
    """Expects one tensor to have as many elements as others on all devices together."""
    if large.numel() != small.numel() * group.size():
        raise ValueError(
            f"{name} got tensors of shapes {tuple(large.shape)} and {tuple(small.shape)}; wanted {group.size()} "
            "times as many elements in the first, one share for each rank"
        )
