"""Operators of `DTensor`s within `jax.shard_map`: on the parts of devices, by PyTorch's sharding rules.

PyTorch decides for each operator which placements its operands are to have, and which its results have: those rules
look at shapes and placements alone. Operands are moved so, the operator runs on each device's parts, and JAX
differentiates that.

Derivatives. What a device has as the cotangent of its part is, for a part of a split tensor, that part of the whole
cotangent; and for a tensor that is whole, or a sum that has not been made, the whole cotangent, the same on all
devices. Moves keep to this (`parts`). An operator on parts does, but for two things. Where an operand is whole and a
result is not, devices have summands of the operand's cotangent: they are summed. Where a result is a mean that has not
been made, a device's own mean is one of as many parts of it, and has that part of the cotangent.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch

from ...internals.dispatch import DisableTorchFunction, disabled_torch_function_impl
from ...internals.distributed import Decision, decided, is_spec, needs_full_operands, spec_of
from ...internals.tensors import make_wrapper_subclass, tree_leaves, tree_map
from ...runtime.translation import hidden, lift, this_call
from ...values.distributed import FullTensor, layout_of, plain
from .distributed_tensors import (
    DevicePart,
    PartLayout,
    local_of,
    may_differ,
    part,
    part_layout,
    redistributed,
    replicated,
)
from .groups import MeshGroup
from .operations import all_reduced

_aten = torch.ops.aten


class _Distributed(torch.Tensor):
    """The stand-in for a `DTensor` in PyTorch's C++: its whole shape, and no values."""

    local: Any
    parts: PartLayout

    __torch_function__ = disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        del types
        return _run_operator(func, args, kwargs or {})


def _distributed(local: torch.Tensor, layout: PartLayout) -> _Distributed:
    shape, stride = layout.full_shape(local.shape), _full_stride(local, layout)
    made = make_wrapper_subclass(_Distributed, shape, stride, 0, dtype=local.dtype)
    made.local, made.parts = local, layout
    return made


def _full_stride(local: torch.Tensor, layout: PartLayout) -> tuple[int, ...]:
    """The strides of the whole, whose dimensions are in memory in the order of a part's."""
    strides = list(local.stride())
    for group, placement in zip(layout.groups, layout.placements, strict=True):
        if placement.is_shard():
            own = strides[placement.dim]
            strides = [
                stride * group.size() if dim != placement.dim and stride >= own else stride
                for dim, stride in enumerate(strides)
            ]
    return tuple(strides)


def run_on_parts(function: Callable, args: tuple, kwargs: dict) -> object:
    """The result of a function of PyTorch's C++ for `DTensor`s and others.

    Raises:
        RuntimeError: it got a `DTensor` and another tensor that is no number.
    """
    layout = next(part_layout(x) for x in tree_leaves((args, kwargs)) if isinstance(x, DevicePart))
    given: dict[int, Any] = {}

    def entering(value: object) -> object:
        if not isinstance(value, torch.Tensor):
            return value
        if isinstance(value, DevicePart):
            made = _distributed(local_of(value), part_layout(value))
        elif (
            isinstance(value, FullTensor)
            and layout_of(value).placements is not None
            and layout_of(value).mesh == layout.mesh
        ):
            made = _distributed(*_own_part(value, layout))
        elif value.ndim == 0:
            made = _distributed(lift(value), layout._replace(placements=(replicated(),) * len(layout.groups)))
        else:
            raise RuntimeError(
                f"{getattr(function, '__name__', function)}: got mixed torch.Tensor and DTensor, need to convert all "
                "torch.Tensor to DTensor before calling distributed operators! Wanted distribute_tensor or "
                "DTensor.from_local of the tensor, or to_local() of the DTensor"
            )
        given[id(made)] = value, made
        return made

    def leaving(value: object) -> Any:
        if not isinstance(value, _Distributed):
            return value
        return given[id(value)][0] if id(value) in given else part(value.local, value.parts)

    args, kwargs = tree_map(entering, (args, kwargs))
    with DisableTorchFunction():
        result = function(*args, **kwargs)
    return tree_map(leaving, result)


def _own_part(tensor: object, layout: PartLayout) -> tuple[torch.Tensor, PartLayout]:
    """The part that a device has of a `DTensor` from outside, which it has whole, and so the gradient."""
    own = layout._replace(placements=layout_of(tensor).placements)
    with this_call().inside():
        full = plain(lift(tensor))
        return redistributed(full, own.groups, (replicated(),) * len(own.groups), own.placements), own


def _run_operator(operator: Callable[..., object], args: tuple, kwargs: dict) -> object:
    if operator is _aten._fused_sdp_choice.default:
        return 0  # as products and a softmax
    if operator._can_decompose():
        return operator.decompose(*args, **kwargs)
    layout = next(x.parts for x in tree_leaves((args, kwargs)) if isinstance(x, _Distributed))
    _expect_supported(operator, args, kwargs)
    specs, named = tree_map(_spec, (args, kwargs))
    with hidden():  # for PyTorch's own code, which asks a mesh for the rank
        decision = _decided(operator, len(layout.groups), specs, named)
    operands = [x for x in tree_leaves(decision.args) if is_spec(x)]
    means = [not any(_is_average(x.placements[i]) for x in operands) for i in range(len(layout.groups))]
    writes = operator._schema.is_mutable
    if writes and tree_map(_placements, specs[0]) != tree_map(_placements, decision.args[0]):
        raise RuntimeError(f"{operator}: in-place operations that require placement changes are not supported")
    with this_call().inside():
        locals_ = _operands(args, decision, means)
        result = decision.operator(*locals_, **tree_map(_local, kwargs))
        if writes:
            return args[0] if operator._schema.returns else None
        return _result(result, decision.results, layout, means)


def _placements(spec: Any) -> object:
    return spec.placements if is_spec(spec) else None


def _operands(args: tuple, decision: Decision, means: list[bool]) -> list[Any]:
    """The arguments of an operator, with devices' parts of tensors as it wants them."""
    reductions = [_cotangent_reduction(_along(decision.results, i), begins) for i, begins in enumerate(means)]
    found = []
    for i, wanted in enumerate(decision.args):
        given = args[i] if i < len(args) else None
        if isinstance(wanted, (list, tuple)) and any(map(is_spec, wanted)):
            found.append([_operand(x, each, reductions) for x, each in zip(given, wanted, strict=True)])  # pyright: ignore
        else:
            found.append(_operand(given, wanted, reductions))
    return found


def _spec(value: object) -> object:
    if not isinstance(value, _Distributed):
        return value
    shape, stride = tuple(value.shape), value.stride()
    return spec_of(value.parts.mesh, value.parts.placements, shape, stride, value.dtype)


def _local(value: object) -> object:
    return value.local if isinstance(value, _Distributed) else value


def _expect_supported(operator: Callable[..., object], args: tuple, kwargs: dict) -> None:
    """Refuses operators whose result the parts alone do not decide.

    Raises:
        NotImplementedError: it draws random numbers for a split tensor, or writes to ``out=``.
    """
    split = [
        placement
        for x in tree_leaves((args, kwargs))
        if isinstance(x, _Distributed)
        for placement in x.parts.placements
        if not placement.is_replicate()
    ]
    if torch.Tag.nondeterministic_seeded in operator.tags and split:
        raise _unserved(operator, f"random numbers for a DTensor with {split[0]}")
    if operator is _aten.convolution.default and any(x.is_shard() and x.dim > 1 for x in split):
        raise _unserved(operator, f"a convolution of a DTensor with {split[0]}, which is split within an image")
    if kwargs and any(argument.is_out for argument in operator._schema.arguments):
        raise _unserved(operator, "out=")


def _unserved(operator: Callable[..., object], what: str) -> NotImplementedError:
    return NotImplementedError(
        f"{operator._schema.name.partition('::')[2]}: got {what} within jax.shard_map; wanted that of x.to_local() or "
        "x.full_tensor(), or the code under jax.jit outside of jax.shard_map, where a DTensor is a whole array that "
        "XLA splits"
    )


def _decided(operator: Callable[..., object], count: int, args: tuple, kwargs: dict) -> Decision:
    """PyTorch's decision, with whole operands where its result could not be moved and differentiated.

    Args:
        count: the number of dimensions of the mesh.
    """
    if needs_full_operands(operator):
        args, kwargs = tree_map(functools.partial(_with_full, range(count)), (args, kwargs))
    try:
        decision = decided(operator, args, kwargs)
        unknown = _unknown(decision, count)
        if unknown:
            args, kwargs = tree_map(functools.partial(_with_full, unknown), (args, kwargs))
            decision = decided(operator, args, kwargs)
    except NotImplementedError as error:
        raise _unserved(operator, "DTensors, for which PyTorch has no rule") from error
    if _unknown(decision, count):
        raise _unserved(operator, f"DTensors, of which PyTorch makes {decision.results}")
    return decision


def _unknown(decision: Decision, count: int) -> list[int]:
    """The mesh dimensions with a placement that can be neither moved nor differentiated."""
    specs = [x for x in tree_leaves((decision.args, decision.results)) if is_spec(x)]
    return [i for i in range(count) if not all(_is_known(spec.placements[i]) for spec in specs)]


def _is_known(placement: Any) -> bool:
    from torch.distributed.tensor import Partial, Replicate, Shard

    kind = type(placement)
    return kind in (Replicate, Shard) or (kind is Partial and placement.reduce_op in ("sum", "avg"))


def _with_full(dims: Any, value: Any) -> object:
    """A spec with operands that are whole along some dimensions of the mesh."""
    if not is_spec(value):
        return value
    placements = tuple(replicated() if i in dims else x for i, x in enumerate(value.placements))
    meta = value.tensor_meta
    return spec_of(value.mesh, placements, meta.shape, meta.stride, meta.dtype)


def _along(results: object, dim: int) -> list[object]:
    """The placements of an operator's results along a dimension of the mesh."""
    return [x.placements[dim] for x in tree_leaves(results) if is_spec(x)]


def _cotangent_reduction(results: list[Any], begins_means: bool) -> str:
    """The reduction of whole operands' cotangents, by the placements of results; none if these are whole."""
    if all(x.is_replicate() for x in results):
        return ""
    return "avg" if not begins_means and any(map(_is_average, results)) else "sum"


def _operand(given: Any, wanted: Any, reductions: list[str]) -> Any:
    """A device's part of an operand, as an operator wants it.

    Args:
        reductions: for each dimension of the mesh, how the cotangents of whole operands are reduced.
    """
    if not isinstance(given, _Distributed):
        return wanted
    local, groups = given.local, given.parts.groups
    before, after = list(given.parts.placements), tuple(wanted.placements)
    for i, group in enumerate(groups):
        if after[i].is_partial() and before[i].is_replicate():
            local = _as_partial(local, group, after[i].reduce_op)
            before[i] = after[i]
    local = redistributed(local, groups, tuple(before), after)
    for i, group in enumerate(groups):
        if after[i].is_replicate() and reductions[i] and _differentiates(local):
            local = _ReducedCotangent.apply(local, group, reductions[i])
    return local


def _as_partial(local: torch.Tensor, group: MeshGroup, reduction: str) -> torch.Tensor:
    """A whole tensor as a sum or a mean that has not been made.

    All devices have the whole cotangent of it, which is that of the tensor. JAX, where its types say that the tensor is
    the same on all devices, would sum it over these, so that it is reduced there.
    """
    if _differentiates(local) and not may_differ(local, group):
        local = _ReducedCotangent.apply(local, group, reduction)
        return local / group.size() if reduction == "sum" else local
    return _Summand.apply(local, group.size()) if reduction == "sum" else local


def _differentiates(local: torch.Tensor) -> bool:
    return torch.is_grad_enabled() and (local.is_floating_point() or local.is_complex())


class _ReducedCotangent(torch.autograd.Function):
    """A whole operand of an operator whose results are none: the cotangents that devices have are its summands."""

    @staticmethod
    def forward(ctx, local, group, reduction):
        ctx.way = reduction, group
        return local.view_as(local)

    @staticmethod
    def backward(ctx, gradient):
        return all_reduced(gradient, *ctx.way), None, None


class _Summand(torch.autograd.Function):
    """A whole tensor as a sum of equal parts; the cotangent of each part is that of the whole."""

    @staticmethod
    def forward(ctx, local, count):
        return local / count

    @staticmethod
    def backward(ctx, gradient):
        return gradient, None


class _OfMean(torch.autograd.Function):
    """The mean of a device's elements, before the mean over devices."""

    @staticmethod
    def forward(ctx, local, count):
        ctx.count = count
        return local.view_as(local)

    @staticmethod
    def backward(ctx, gradient):
        return gradient / ctx.count, None


def _result(local: torch.Tensor, spec: Any, layout: PartLayout, means: list[bool]) -> object:
    """The probe of an operator's result on parts, or a list of them.

    Args:
        means: for each dimension of the mesh, whether the operator begins means along it.
    """
    if isinstance(local, (tuple, list)):
        found = [_result(x, each, layout, means) for x, each in zip(local, spec, strict=True)]
        return found if isinstance(local, list) else tuple(found)
    if not isinstance(local, torch.Tensor):
        return local
    made = layout._replace(placements=tuple(spec.placements))
    for group, placement, begins in zip(made.groups, made.placements, means, strict=True):
        if begins and _is_average(placement) and _differentiates(local):
            local = _OfMean.apply(local, group.size())
    if made.full_shape(local.shape) != spec.tensor_meta.shape:
        raise NotImplementedError(
            f"got a DTensor of shape {tuple(spec.tensor_meta.shape)} with {made.placements}, of which devices have "
            "parts of other sizes; wanted dimensions that the devices divide: pad them"
        )
    return _distributed(local, made)


def _is_average(placement: Any) -> bool:
    return placement.is_partial() and placement.reduce_op == "avg"
