"""Collectives that return new tensors, with derivatives: those of compilers, and `torch.distributed.nn.functional`."""

import torch
import torch.distributed as dist
from jax import lax

from ...rules.registry import implements_tensors
from ...runtime.patches import replaces, runs_instead_of
from .groups import expect_group, number_in
from .operations import (
    all_gathered,
    all_reduced,
    broadcasted,
    computed,
    exchanged,
    index_along,
    op_name,
    permute,
    reduce,
    scattered,
    write,
)

_ops = torch.ops._c10d_functional
_COMPILERS = "torch.distributed._functional_collectives"
_DIFFERENTIABLE = "torch.distributed.nn.functional."


@implements_tensors(_ops.all_reduce)
def _all_reduce(input, reduce_op, group_name):
    return all_reduced(input, reduce_op, expect_group(group_name))


@implements_tensors(_ops.all_reduce_)
def _all_reduce_in_place(input, reduce_op, group_name):
    write(input, all_reduced(input, reduce_op, expect_group(group_name)))
    return input


@implements_tensors(_ops.all_reduce_coalesced)
def _all_reduce_coalesced(inputs, reduce_op, group_name):
    return [all_reduced(x, reduce_op, expect_group(group_name)) for x in inputs]


@implements_tensors(_ops.all_reduce_coalesced_)
def _all_reduce_coalesced_in_place(inputs, reduce_op, group_name):
    return [_all_reduce_in_place(x, reduce_op, group_name) for x in inputs]


@implements_tensors(_ops.broadcast)
def _broadcast(input, src, group_name):
    group = expect_group(group_name)
    return broadcasted(input, number_in(group, None, src), group)


@implements_tensors(_ops.broadcast_)
def _broadcast_in_place(input, src, group_name):
    write(input, _broadcast(input, src, group_name))
    return input


@implements_tensors(_ops.all_gather_into_tensor)
def _all_gather_into_tensor(input, group_size, group_name):
    del group_size
    return all_gathered(input.unsqueeze(0) if input.ndim == 0 else input, expect_group(group_name))


@implements_tensors(_ops.all_gather_into_tensor_out)
def _all_gather_into_tensor_out(input, group_size, group_name, *, out):
    write(out, _all_gather_into_tensor(input, group_size, group_name))
    return out


@implements_tensors(_ops.all_gather_into_tensor_coalesced)
def _all_gather_into_tensor_coalesced(inputs, group_size, group_name):
    return [_all_gather_into_tensor(x, group_size, group_name) for x in inputs]


@implements_tensors(_ops.reduce_scatter_tensor)
def _reduce_scatter_tensor(input, reduce_op, group_size, group_name):
    del group_size
    return scattered(input, reduce_op, expect_group(group_name))


@implements_tensors(_ops.reduce_scatter_tensor_coalesced)
def _reduce_scatter_tensor_coalesced(inputs, reduce_op, group_size, group_name):
    return [_reduce_scatter_tensor(x, reduce_op, group_size, group_name) for x in inputs]


@implements_tensors(_ops.all_to_all_single)
def _all_to_all_single(input, output_split_sizes, input_split_sizes, group_name):
    return exchanged(input, expect_group(group_name), output_split_sizes, input_split_sizes)


@implements_tensors(_ops.wait_tensor)
def _wait_tensor(tensor):
    return tensor


@replaces(_COMPILERS, "_maybe_wrap_tensor")
def _maybe_wrap_tensor(tensor):
    return tensor  # nobody has to wait


@runs_instead_of(_COMPILERS + ".permute_tensor")
def _permute_tensor(self, src_dst, group, tag=""):
    del tag
    return computed("permute_tensor", permute, [self], expect_group(group).axes, tuple(map(int, src_dst)))


# What PyTorch differentiates by collectives JAX does too, in each direction and again.


@runs_instead_of(_DIFFERENTIABLE + "all_reduce")
def _nn_all_reduce(tensor, op=dist.ReduceOp.SUM, group=None):
    return all_reduced(tensor, op, expect_group(group))


@runs_instead_of(_DIFFERENTIABLE + "broadcast")
def _nn_broadcast(tensor, src, group=None):
    group = expect_group(group)
    return broadcasted(tensor, number_in(group, src, None), group)


@runs_instead_of(_DIFFERENTIABLE + "reduce")
def _nn_reduce(tensor, dst, op=dist.ReduceOp.SUM, group=None):
    group = expect_group(group)
    return computed("reduce", reduce, [tensor], group.axes, op_name(op, tensor.dtype), number_in(group, dst, None))


@runs_instead_of(_DIFFERENTIABLE + "gather")
def _nn_gather(tensor, dst=0, group=None):
    group = expect_group(group)
    parts = all_gathered(tensor.unsqueeze(0), group)
    return computed("gather", _only_on, [parts], group.axes, number_in(group, dst, None)).unbind(0)


def _only_on(x, axes, target):
    """An array on one device, and zeros on all others."""
    mine = lax.eq(index_along(axes), target)
    return lax.mul(x, lax.convert_element_type(mine, x.dtype)) if x.dtype != bool else x & mine


@runs_instead_of(_DIFFERENTIABLE + "scatter")
def _nn_scatter(tensors, src=0, group=None):
    group = expect_group(group)
    return exchanged(torch.stack(list(tensors)), group)[number_in(group, src, None)]


@runs_instead_of(_DIFFERENTIABLE + "reduce_scatter")
def _nn_reduce_scatter(output, input_list, op=dist.ReduceOp.SUM, group=None):
    write(output, scattered(torch.stack(list(input_list)), op, expect_group(group))[0])
    return output


@runs_instead_of(_DIFFERENTIABLE + "all_gather")
def _nn_all_gather(tensor, group=None):
    return all_gathered(tensor.unsqueeze(0), expect_group(group)).unbind(0)


@runs_instead_of(_DIFFERENTIABLE + "all_to_all")
def _nn_all_to_all(output_tensor_list, input_tensor_list, group=None):
    del output_tensor_list  # which say how large the results are
    return exchanged(torch.stack(list(input_tensor_list)), expect_group(group)).unbind(0)


@runs_instead_of(_DIFFERENTIABLE + "all_to_all_single")
def _nn_all_to_all_single(output, input, output_split_sizes=None, input_split_sizes=None, group=None):
    write(output, exchanged(input, expect_group(group), output_split_sizes, input_split_sizes))
    return output
