"""Collectives on tensors: operands, results, writes, waiting, and those that return new tensors.

Also here: the dispatch of the functions of `torch.distributed`; and collectives on arrays, by `jax.lax`, over axes of
the current mesh.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import torch
import torch.distributed as dist
from jax import lax

from ...internals.jax import varying_axes
from ...rules.operands import as_result
from ...rules.registry import implements_tensors
from ...runtime.patches import replaces, runs_instead_of
from ...runtime.translation import lift
from ...tracing.traces import varying
from ...transforms.linearization import own_axes
from .groups import MeshGroup, expect_group, number_in


def handles(*functions: Any) -> Callable[[Callable], Callable]:
    """Declares the decorated function to serve some functions.

    Most ask whether their call is overridden, and have a rule; in place of others it runs: releases differ.
    """

    def register(body: Callable) -> Callable:
        for function in functions:
            if _checks_override(function):
                implements_tensors(function)(body)
            else:
                runs_instead_of(function)(body)
        return body

    return register


def _checks_override(function: Any) -> bool:
    """Returns True if a function looks for `__torch_function__` overrides of its arguments."""
    inner = function
    while hasattr(inner, "__wrapped__"):
        inner = inner.__wrapped__
    return "has_torch_function" in inner.__code__.co_names


Axes = tuple[str, ...]


def index_along(axes: Axes) -> jax.Array:
    """The number of the device along some axes."""
    return lax.axis_index(axes[0] if len(axes) == 1 else axes)  # of several JAX computes it, also of one


def all_reduce(x: jax.Array, axes: Axes, op: str) -> jax.Array:
    """The reduction of the arrays of all devices along some axes, on each device.

    Args:
        op: ``"sum"``, ``"avg"``, ``"min"``, ``"max"``, ``"product"``, ``"band"``, ``"bor"`` or ``"bxor"``.
    """
    return _REDUCTIONS[op](x, axes)


def _on_bools(reduce: Callable[[jax.Array, Axes], jax.Array]) -> Callable[[jax.Array, Axes], jax.Array]:
    """A reduction of numbers, for bools too."""

    def reduced(x: jax.Array, axes: Axes) -> jax.Array:
        return reduce(x.astype(jnp.int32), axes).astype(bool) if x.dtype == bool else reduce(x, axes)

    return reduced


def _mean(x: jax.Array, axes: Axes) -> jax.Array:
    return _divided(lax.psum(x, axes), lax.axis_size(axes))


def _divided(x: jax.Array, count: int) -> jax.Array:
    return lax.div(x, lax.full_like(x, count))


@functools.partial(jax.custom_jvp, nondiff_argnums=(1, 2))
def _extreme(x: jax.Array, axes: Axes, is_largest: bool) -> jax.Array:
    return (lax.pmax if is_largest else lax.pmin)(x, axes)


@_extreme.defjvp
def _(axes, is_largest, primals, tangents):
    """The derivative is shared equally by all devices with the extreme value, as in `torch.amax`."""
    (x,), (tangent,) = primals, tangents
    found = _extreme(x, axes, is_largest)
    if not jnp.issubdtype(x.dtype, jnp.inexact):
        return found, tangent
    part = lax.convert_element_type(lax.eq(x, found), x.dtype)
    return found, lax.psum(tangent * (part / lax.psum(part, axes)), axes)


def _by_gathering(reduce: Callable[[jax.Array], jax.Array]) -> Callable[[jax.Array, Axes], jax.Array]:
    """A reduction that JAX has no collective for."""
    return lambda x, axes: reduce(lax.all_gather(x, axes))


def _bitwise(operation: Callable, start: int) -> Callable[[jax.Array], jax.Array]:
    def reduced(x: jax.Array) -> jax.Array:
        return lax.reduce(x, x.dtype.type(start), operation, (0,))

    return reduced


_PRODUCT = functools.partial(jnp.prod, axis=0, promote_integers=False)
_AND, _OR = _bitwise(lax.bitwise_and, -1), _bitwise(lax.bitwise_or, 0)
_XOR = _bitwise(lax.bitwise_xor, 0)

_REDUCTIONS: dict[str, Callable[[jax.Array, Axes], jax.Array]] = {
    "sum": _on_bools(lax.psum),
    "avg": _on_bools(_mean),
    "max": _on_bools(lambda x, axes: _extreme(x, axes, True)),
    "min": _on_bools(lambda x, axes: _extreme(x, axes, False)),
    "product": _on_bools(_by_gathering(_PRODUCT)),
    "band": _on_bools(_by_gathering(_AND)),
    "bor": _on_bools(_by_gathering(_OR)),
    "bxor": _on_bools(_by_gathering(_XOR)),
}
_OF_PARTS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "max": lambda x: jnp.max(x, 0),
    "min": lambda x: jnp.min(x, 0),
    "product": _PRODUCT,
    "band": _AND,
    "bor": _OR,
    "bxor": _XOR,
}


def reduce(x: jax.Array, axes: Axes, op: str, target: int) -> jax.Array:
    """The result of `all_reduce` on one device; the others keep their arrays."""
    found = all_reduce(x, axes, op)
    x = lax.stop_gradient(x)  # PyTorch leaves open what they have
    return lax.select_n(lax.eq(index_along(axes), target), *_varying_alike(x, found))


def _varying_alike(*arrays: jax.Array) -> list[jax.Array]:
    """The arrays as JAX's types have them together: those that are the same on all devices as if they were not."""
    axes = frozenset().union(*(varying_axes(x) for x in arrays))
    return [varying(x, axes) for x in arrays]


def broadcast(x: jax.Array, axes: Axes, source: int) -> jax.Array:
    """The array of one device, on all."""
    mine = lax.eq(index_along(axes), source)
    chosen = lax.select(lax.broadcast(mine, x.shape), *_varying_alike(x, lax.full_like(x, 0)))
    return all_reduce(chosen, axes, "sum")


def all_gather(x: jax.Array, axes: Axes, is_fixed: bool) -> jax.Array:
    """The arrays of all devices, one after the other along the first dimension.

    Args:
        is_fixed: nobody takes the derivative; an autograd function around it has its own.
    """
    if is_fixed and varying_axes(x):  # JAX notes what is the same on all devices (``check_vma``)
        return lax.all_gather(x, axes, axis=0, tiled=True, to="invarying")
    return lax.all_gather(x, axes, axis=0, tiled=True)


def reduce_scatter(x: jax.Array, axes: Axes, op: str) -> jax.Array:
    """The part of each device, along the first dimension, of a reduction of the arrays of all."""
    if op in ("sum", "avg"):
        found = lax.psum_scatter(x, axes, scatter_dimension=0, tiled=True)
        return _divided(found, lax.axis_size(axes)) if op == "avg" else found
    count = lax.axis_size(axes)
    parts = lax.reshape(x, (count, x.shape[0] // count, *x.shape[1:]))
    return _OF_PARTS[op](lax.all_to_all(parts, axes, 0, 0))


def all_to_all(x: jax.Array, axes: Axes) -> jax.Array:
    """The parts that all devices have for this one, concatenated along the first dimension."""
    return lax.all_to_all(x, axes, 0, 0, tiled=True)


def permute(x: jax.Array, axes: Axes, targets: tuple[int, ...]) -> jax.Array:
    """The array of the device whose target this one is; zeros if there is none."""
    return lax.ppermute(x, axes, [(source, target) for source, target in enumerate(targets) if target >= 0])


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


def op_name(op: object, dtype: torch.dtype) -> str:
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
    """The tensor, or a list of them, with the result of a function of arrays for those of tensors.

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


def all_reduced(tensor: torch.Tensor, op: object, group: MeshGroup) -> torch.Tensor:
    """A reduction of the tensors of all devices."""
    return computed("all_reduce", all_reduce, [tensor], group.axes, op_name(op, tensor.dtype))


def broadcasted(tensor: torch.Tensor, source: int, group: MeshGroup) -> torch.Tensor:
    """The tensor of one device."""
    return computed("broadcast", broadcast, [tensor], group.axes, source)


def all_gathered(tensor: torch.Tensor, group: MeshGroup, is_replicated: bool = False) -> torch.Tensor:
    """The tensors of all devices, one after the other along the first dimension.

    Args:
        is_replicated: all devices have the same cotangent of the result, as none needs it, or as they have it by
            definition.
    """
    return computed("all_gather", all_gather, [tensor], group.axes, is_replicated or not torch.is_grad_enabled())


def scattered(tensor: torch.Tensor, op: object, group: MeshGroup) -> torch.Tensor:
    """The device's part, along the first dimension, of a reduction of the tensors of all."""
    if tensor.shape[0] % group.size():
        raise ValueError(
            f"reduce_scatter got a first dimension of size {tensor.shape[0]}; wanted a multiple of "
            f"{group.size()}, the number of ranks in the group"
        )
    return computed("reduce_scatter", reduce_scatter, [tensor], group.axes, op_name(op, tensor.dtype))


def exchanged(
    tensor: torch.Tensor, group: MeshGroup, output_sizes: object = None, input_sizes: object = None
) -> torch.Tensor:
    """The parts that all devices have for this one, concatenated along the first dimension.

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
    """Writes the result of a collective to a tensor, which may be a parameter: PyTorch's collectives do not ask.

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
    """The finished work of a collective, which XLA orders itself: there is nothing to wait for."""

    def __init__(self, results: Sequence[torch.Tensor] = ()):
        super().__init__()
        self._results = list(results)

    def wait(self, *args: object, **kwargs: object) -> bool:
        return True

    def is_completed(self) -> bool:
        return True

    def result(self) -> list[torch.Tensor]:
        return self._results

    def get_future(self) -> object:
        future = torch.futures.Future()
        future.set_result(self._results)
        return future


def finished(is_async: bool, *results: torch.Tensor) -> Done | None:
    """The result of a collective that has written its results."""
    return Done(results) if is_async else None


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
