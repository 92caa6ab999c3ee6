"""Activations constrained to a plan, by hooks on a copy of the module."""

import functools
from typing import Any

import torch
from jax.sharding import AbstractMesh, Mesh, PartitionSpec

from ..modules.skeleton import copy_structure
from ..modules.states import named_tensors
from ..rules.array_rule import InnerRule
from ..runtime.translation import current, this_call
from ..tensors.array_buffer import ArrayBuffer
from ..tensors.sharding_constraints import laid_out
from ..tensors.storage import Storage
from ..tensors.tensor import Torchish
from .plans import EXPERTS, TENSOR, Layout, ShardingPlan, Style
from .specs import Axes, expect_axes, names_of, resolve, size_of

_LAID_OUT = "_torch2jax_laid_out"


def constrained(
    module: torch.nn.Module,
    mesh: Mesh | AbstractMesh | None = None,
    *,
    data: Axes = None,
    tensor: Axes = None,
    plan: object = None,
) -> torch.nn.Module:
    """Returns a copy of a module, with the same weights, that constrains the sharding of its activations.

    Args:
        module: the module; it is only read.
        mesh: the mesh; None for the current one (`jax.set_mesh`).
        data: the axis, or axes, that shard the batch: the first dimension of the results of every module that has its
            own weights of two dimensions or more. For FSDP, pass its axis here too.
        tensor: the axis, or axes, of tensor parallelism: `plan` sets the sharding of the inputs and results of its
            modules.
        plan: as in `specs`.

    Returns:
        The copy, to pass to `t2j`. In PyTorch it runs like the module. XLA chooses the sharding of a dimension that the
        number of devices does not divide.

    Raises:
        ValueError: there is no mesh, it lacks an axis, an axis is given twice, or the plan is invalid.
        TypeError: the plan has a style of another kind.
    """
    mesh = resolve(mesh)
    expect_axes(mesh, data=data, tensor=tensor)
    axes, batch = names_of(tensor), names_of(data)
    styles = ShardingPlan(module, plan, {TENSOR: bool(axes), EXPERTS: False}).styles
    copied = copy_structure(module, {id(x): x for x in named_tensors(module).values()})
    layer = functools.partial(_Layer, mesh, batch, axes)
    for path, part in copied.named_modules():
        style = styles.get(path, Style())
        if style.inputs or style.keywords:
            part.register_forward_pre_hook(layer(style).before, with_kwargs=True)
        if style.outputs or (batch and _multiplies(part)):
            part.register_forward_hook(layer(style).after)
    return copied


def _multiplies(part: torch.nn.Module) -> bool:
    """True if a module has weights of two dimensions or more, as products and tables: the results of others follow."""
    return any(weight.ndim > 1 for weight in part.parameters(recurse=False))


class _Layer:
    """The hooks of one module."""

    def __init__(self, mesh: Mesh | AbstractMesh, batch: tuple[str, ...], axes: tuple[str, ...], style: Style):
        self._mesh, self._batch, self._axes, self._style = mesh, batch, axes, style

    def __deepcopy__(self, memo: dict) -> "_Layer":
        return self

    def before(self, module: torch.nn.Module, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
        layouts = [*self._style.inputs, *[None] * len(args)]
        args = tuple(self._lay(x, layout) for x, layout in zip(args, layouts, strict=False))
        return args, {name: self._lay(x, self._style.keywords.get(name)) for name, x in kwargs.items()}

    def after(self, module: torch.nn.Module, args: tuple, result: Any) -> object:
        outputs = self._style.outputs
        if isinstance(result, torch.Tensor):
            return self._lay(result, outputs[0] if outputs else None, is_result=True)
        if type(result) not in (tuple, list) or not result:
            return result
        layouts = enumerate([*outputs, *[None] * len(result)])
        return type(result)([self._lay(x, at, is_result=i == 0) for x, (i, at) in zip(result, layouts, strict=False)])

    def _lay(self, value: object, layout: Layout | None, is_result: bool = False) -> object:
        is_told = layout is not None or (is_result and self._batch)
        call = current()
        if call is None or not is_told or not isinstance(value, torch.Tensor) or value.ndim == 0:
            return value
        spec = self._spec(value, layout)
        return value if spec is None else _laid(call.constants.lift(value), self._mesh, spec)

    def _spec(self, value: torch.Tensor, layout: Layout | None) -> PartitionSpec | None:
        """The spec of a value; None if the value lacks the dimension."""
        free = PartitionSpec.UNCONSTRAINED
        if layout is None:
            entries = [self._batch, *[free] * (value.ndim - 1)]
        else:
            others = set(self._mesh.axis_names) - set(self._axes)
            entries = [self._batch or (free if others else ()), *[()] * (value.ndim - 1)]
            if layout.dim is not None:
                if not -value.ndim <= layout.dim < value.ndim:
                    return None
                before = entries[layout.dim]
                entries[layout.dim] = self._axes if before is free else (*before, *self._axes)
        shapes = zip(value.shape, entries, strict=True)
        fitting = [x if x is free or size % size_of(self._mesh, x) == 0 else free for size, x in shapes]
        return PartitionSpec(*[x or None for x in fitting])


def _laid(tensor: Torchish, mesh: Mesh | AbstractMesh, spec: PartitionSpec) -> Torchish:
    """The tensor with a sharding constraint on its values; the same object, except for views and within derivatives."""
    if tensor.known is not None:  # a constant
        return tensor
    before = vars(tensor).get(_LAID_OUT)
    if before is not None and before[0] is tensor.buffer.array and before[1] == spec:  # as what three projections take
        return tensor
    call = this_call()
    if call.tape is not None or call.dual is not None or call.transformations or not isinstance(tensor._node, Storage):
        return _CONSTRAIN((tensor,), {"mesh": mesh, "spec": spec})
    array = laid_out(tensor.read(), mesh, spec)
    if array is tensor.read():
        return tensor
    tensor.write(ArrayBuffer(array, None), keeps_derivatives=True)
    vars(tensor)[_LAID_OUT] = (array, spec)
    return tensor


_CONSTRAIN = InnerRule(laid_out, "sharding")
