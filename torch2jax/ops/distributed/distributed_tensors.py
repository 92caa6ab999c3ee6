"""`DTensor`s: outside of `jax.shard_map` whole arrays that XLA lays out, within it the parts of devices.

PyTorch's own code of `parallelize_module` and its styles runs on these; only what it would send is served here.

Within `jax.shard_map` each device has its part, like each process in PyTorch. A part goes from one placement to another
by collectives, with the derivative that PyTorch's has; so do operands that operators want elsewhere (`operators`).
"""

import functools
import types as python_types
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from ...internals.distributed import current_device_mesh
from ...internals.jax import varying_axes
from ...runtime.patches import runs_instead_of
from ...runtime.translation import lift, this_call
from ...tensors.distributed import class_of_calls, parts_over
from ...tensors.history import Source
from ...tensors.tensor import Torchish
from ...tensors.wrapped import Derived, as_class
from ...tracing.traces import axes_in_types
from ...values.distributed import FullTensor, layout_of, placed, plain
from .groups import MeshGroup, groups_of, is_alone
from .operations import all_gathered, all_reduced, broadcasted, exchanged, scattered

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

_LAYOUT = "_torch2jax_part"


class PartLayout(NamedTuple):
    """The part of a tensor that each device has."""

    mesh: Any
    """The `DeviceMesh`."""
    groups: tuple[MeshGroup, ...]
    """The groups of the mesh's dimensions."""
    placements: tuple

    def full_shape(self, shape: Iterable[int]) -> torch.Size:
        """The shape of the whole, by that of a part."""
        sizes = list(shape)
        for group, placement in zip(self.groups, self.placements, strict=True):
            if placement.is_shard():
                sizes[placement.dim] *= group.size()
        return torch.Size(sizes)


class DevicePart(Derived):
    """The base of a call's classes for parts of a `DTensor`; see `class_of_calls`."""

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., object],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, object] | None = None,
    ):
        kwargs = kwargs or {}
        if func in _OF_THE_PART:
            found = func(local_of(args[0]), *args[1:], **kwargs)
            return args[0] if found is local_of(args[0]) else found
        call = this_call()
        if func in _OF_FULL_TENSORS:
            full = args[0].full_tensor()
            return func(full, *args[1:], **kwargs)
        if isinstance(func, python_types.FunctionType) and not call.is_own_body(func, args):
            return call.run_body(func, args, kwargs)
        from .operators import run_on_parts

        return run_on_parts(func, args, kwargs)

    @property
    def device_mesh(self) -> "DeviceMesh":
        return part_layout(self).mesh

    @property
    def placements(self) -> tuple:
        return part_layout(self).placements

    @property
    def shape(self) -> torch.Size:
        return part_layout(self).full_shape(local_of(self).shape)

    def size(self, dim: int | None = None) -> Any:
        return self.shape if dim is None else self.shape[dim]

    @property
    def grad(self) -> Any:
        gradient = local_of(self).grad
        return None if gradient is None else part(gradient, part_layout(self))

    @grad.setter
    def grad(self, gradient: Any) -> None:
        local_of(self).grad = local_of(gradient) if isinstance(gradient, DevicePart) else gradient

    def numel(self) -> int:
        return self.shape.numel()


_OF_THE_PART = frozenset(
    getattr(torch.Tensor, name).__get__ for name in ("dtype", "device", "layout", "is_leaf", "ndim", "requires_grad")
) | frozenset(
    getattr(torch.Tensor, name)
    for name in ("backward", "dim", "is_complex", "is_floating_point", "requires_grad_", "retain_grad")
)
"""Functions that the local part answers for the whole: it has the history, the gradient, and the value of a loss."""
_OF_FULL_TENSORS = frozenset(
    getattr(torch.Tensor, name) for name in ("item", "tolist", "numpy", "__bool__", "__float__", "__int__")
)
"""Methods that read values, which must be the same on all devices."""


def part(tensor: Torchish, layout: PartLayout) -> Any:
    """The `DTensor` of which a device has a part."""
    result = as_class(tensor, class_of_calls(DevicePart))
    vars(result)[_LAYOUT] = tensor, layout
    return result


def part_layout(tensor: object) -> PartLayout:
    """The mesh and placements of a `DTensor`."""
    return vars(tensor)[_LAYOUT][1]


def local_of(tensor: object) -> Torchish:
    """The part that a device has of a `DTensor`."""
    return vars(tensor)[_LAYOUT][0]


def changed(tensor: object, placements: tuple) -> object:
    """A `DTensor` with other placements."""
    mesh, groups, before = part_layout(tensor)
    return part(redistributed(local_of(tensor), groups, before, placements), PartLayout(mesh, groups, placements))


def redistributed(local: torch.Tensor, groups: tuple[MeshGroup, ...], before: tuple, after: tuple) -> torch.Tensor:
    steps = [i for i, (old, new) in enumerate(zip(before, after, strict=True)) if old != new]
    if _share_dimensions(steps, before, after):  # parts of parts: from the innermost to the whole, and back
        full = replicated()
        for i in reversed(range(len(before))):
            local = _redistributed(local, groups[i], before[i], full)
        before, steps = (full,) * len(before), list(range(len(after)))
    for i in steps:
        local = _redistributed(local, groups[i], before[i], after[i])
    return local


def _share_dimensions(steps: list[int], before: tuple, after: tuple) -> bool:
    """Returns True if a dimension that changes along one dimension of the mesh is split along another one too."""
    for i in steps:
        touched = {x.dim for x in (before[i], after[i]) if x.is_shard()}
        others = [x for placements in (before, after) for j, x in enumerate(placements) if j != i and x.is_shard()]
        if any(x.dim in touched for x in others):
            return True
    return False


@functools.cache
def replicated() -> object:
    from torch.distributed.tensor import Replicate

    return Replicate()


def _redistributed(local: torch.Tensor, group: MeshGroup, old: object, new: object) -> torch.Tensor:
    return local if old == new else _Redistribute.apply(local, group, old, new)


class _Redistribute(torch.autograd.Function):
    """Another placement of the same values along one mesh dimension; gradients go back to it, but never as sums."""

    @staticmethod
    def forward(ctx, local, group, old, new):
        ctx.way = group, new, replicated() if old.is_partial() else old
        return _move(local, group, old, new)

    @staticmethod
    def backward(ctx, gradient):
        return _move(gradient, *ctx.way), None, None, None


def _move(local: torch.Tensor, group: MeshGroup, old: Any, new: Any) -> torch.Tensor:
    """Moves a part; both placements are as `_Redistribute` takes them."""
    if old == new:
        return local.view_as(local)
    if new.is_partial():
        raise RuntimeError(f"Can not redistribute from {old} to {new}: it is for internal use only!")
    if old.is_partial():
        if new.is_replicate():
            return all_reduced(local, old.reduce_op, group)
        expect_even(local.shape[new.dim], group)
        return _along(new.dim, local, lambda x: scattered(x, old.reduce_op, group))
    if old.is_replicate():
        return _own_part(local, new.dim, group)
    if new.is_replicate():
        return _along(old.dim, local, lambda x: all_gathered(x, group, is_replicated=True))
    expect_even(local.shape[new.dim], group)
    return _exchanged_dims(local, old.dim, new.dim, group)


def _along(dim: int, tensor: torch.Tensor, run: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    """The result of a function that works along the first dimension, applied along `dim`."""
    return run(tensor.movedim(dim, 0)).movedim(0, dim) if dim else run(tensor)


def _own_part(tensor: torch.Tensor, dim: int, group: MeshGroup) -> torch.Tensor:
    expect_even(tensor.shape[dim], group)
    size = tensor.shape[dim] // group.size()
    return tensor.narrow(dim, group.rank() * size, size)


def _exchanged_dims(local: torch.Tensor, old: int, new: int, group: MeshGroup) -> torch.Tensor:
    """A tensor split along dimension `old`, redistributed to be split along `new`."""
    parts = torch.stack(local.chunk(group.size(), new))  # for each device
    return torch.cat(list(exchanged(parts, group)), old)


def expect_even(size: int, group: MeshGroup) -> None:
    """Expects devices to divide a dimension.

    Raises:
        ValueError: they do not.
    """
    if size % group.size():
        raise ValueError(
            f"got a DTensor with a dimension of size {size}, over {group.size()} devices; wanted a multiple of "
            "that number: all devices run one program, so their parts have one shape. Pad the dimension"
        )


def split_from_first(tensor: torch.Tensor, layout: PartLayout, is_shared: bool) -> Any:
    """The part that a device has of a whole tensor.

    Args:
        is_shared: whether the one of the first device counts, as where PyTorch scatters it.
    """
    local = tensor
    for group, placement in zip(layout.groups, layout.placements, strict=True):
        if is_shared and may_differ(local, group):
            local = broadcasted(local, 0, group)
        if placement.is_shard():
            local = _redistributed(local, group, replicated(), placement)
    return local


def may_differ(tensor: torch.Tensor, group: MeshGroup) -> bool:
    """Returns True if devices of a group may have different values of a tensor, according to JAX's types."""
    axes = frozenset(group.axes)
    return not axes <= axes_in_types() or not axes.isdisjoint(varying_axes(lift(tensor).read()))


_TENSORS = "torch.distributed.tensor"


def _mesh_of(given: object) -> Any:
    return current_device_mesh() if given is None else given


def _expect_placements(placements: Any, mesh: "DeviceMesh", ndim: int) -> tuple:
    """The placements, with dimensions that are counted from the first; replicated ones by default.

    Raises:
        ValueError: they are not as many as the dimensions of the mesh.
    """
    from torch.distributed.tensor import Replicate, Shard

    placements = (Replicate(),) * mesh.ndim if placements is None else tuple(placements)
    if len(placements) != mesh.ndim:
        raise ValueError(
            "`placements` must have the same length as `device_mesh.ndim`! Found placements length: "
            f"{len(placements)}, and device_mesh.ndim: {mesh.ndim}."
        )
    for placement in placements:
        if not (placement.is_shard() or placement.is_replicate() or placement.is_partial()):
            raise NotImplementedError(f"got the placement {placement!r}; wanted Shard(dim), Replicate() or Partial()")
        if placement.is_shard() and not -ndim <= placement.dim < ndim:
            raise ValueError(f"got {placement!r} for a tensor of {ndim} dimensions")
    return tuple(Shard(x.dim % ndim) if x.is_shard() else x for x in placements)


def _layout_on_devices(mesh: Any, placements: tuple) -> PartLayout | None:
    """The parts of devices; None where the code is within no axes of the mesh."""
    groups = None if is_alone() else groups_of(mesh)
    return None if groups is None else PartLayout(mesh, groups, placements)


@runs_instead_of(_TENSORS + ".distribute_tensor")
def _distribute_tensor(tensor, device_mesh=None, placements=None, *, src_data_rank=0):
    mesh = _mesh_of(device_mesh)
    placements = _expect_placements(placements, mesh, tensor.ndim)
    if isinstance(tensor, (FullTensor, DevicePart)):
        if (tensor.device_mesh, tensor.placements) != (mesh, placements):
            raise ValueError(
                f"Cannot distribute a DTensor with placements {tensor.placements} to a different placements "
                f"{placements}. do you want to call `redistribute` instead?"
            )
        return tensor
    history = getattr(lift(tensor), "history", None)
    if not tensor.is_leaf:
        raise RuntimeError("`distribute_tensor` should be used to distribute leaf tensors! but found non-leaf tensor!")
    begins = isinstance(history, Source) and not history.is_given  # JAX differentiates on through what it gives
    lifted = lift(tensor.detach() if begins else tensor)
    layout = _layout_on_devices(mesh, placements)
    if layout is None:
        made = placed(lifted, mesh, placements)
        return made.requires_grad_() if begins else made
    local = split_from_first(lifted, layout, src_data_rank is not None)
    return part(local.requires_grad_() if begins else local, layout)


@runs_instead_of(_TENSORS + ":DTensor.from_local")
def _from_local(
    local_tensor, device_mesh=None, placements=None, *, run_check=False, shape=None, stride=None, grad_placements=None
):
    del stride
    mesh = _mesh_of(device_mesh)
    _expect_default("from_local", grad_placements)
    placements = _expect_placements(placements, mesh, local_tensor.ndim)
    lifted = lift(local_tensor)
    layout = _layout_on_devices(mesh, placements)
    if layout is not None:
        is_checked = run_check and not any(parts_over(mesh, placements))
        made = part(split_from_first(lifted, layout, True) if is_checked else lifted, layout)
    else:
        _expect_one_view("from_local", mesh, placements, "distribute_tensor(x, mesh, placements) of the whole")
        made = placed(lifted, mesh, placements)
    if shape is not None and tuple(shape) != tuple(made.shape):
        raise ValueError(f"from_local got the shape {tuple(shape)}; wanted {tuple(made.shape)}: parts of equal sizes")
    return made


def _expect_default(name: str, grad_placements: object) -> None:
    if grad_placements is not None:
        raise NotImplementedError(
            f"{name} got grad_placements; wanted none: JAX's derivatives do not depend on placements"
        )


def _expect_one_view(name: str, mesh: Any, placements: tuple, instead: str) -> None:
    """Checks that the local view of a process is the same on all of them.

    Raises:
        NotImplementedError: it is a part.
    """
    if is_alone():
        return
    for _, size, placement in parts_over(mesh, placements):
        raise NotImplementedError(
            f"{name} is about each device's own part of a tensor, for {placement!r} over {size} devices, and "
            f"outside of jax.shard_map there is the whole alone. Wanted {instead}; or use_local_output=False for "
            "the styles of parallelize_module; or a DeviceMesh of one process, whose parts are the whole, with the "
            "axes of jax.set_mesh by its names; or jax.shard_map"
        )


@runs_instead_of(_TENSORS + ":DTensor.to_local", with_original=True)
def _to_local(original, self, *, grad_placements=None):
    if not isinstance(self, (FullTensor, DevicePart)):
        return original(self, grad_placements=grad_placements)
    _expect_default("to_local", grad_placements)
    if isinstance(self, DevicePart):
        return local_of(self)
    mesh, placements = layout_of(self)
    if placements is None and not is_alone() and any(size > 1 for size in mesh.shape):
        raise NotImplementedError(
            "to_local returns each device's own part of a tensor, but XLA chooses the placement of this one; "
            "wanted x.redistribute(placements=[Replicate()]) first, or x.full_tensor()"
        )
    if placements is not None:
        _expect_one_view("to_local", mesh, placements, "x.full_tensor()")
    return plain(self)


@runs_instead_of(_TENSORS + ":DTensor.redistribute")
def _redistribute(self, device_mesh=None, placements=None, *, async_op=False, forward_dtype=None, backward_dtype=None):
    del async_op
    if placements is None:
        raise RuntimeError("placements is needed for redistribute!")
    if backward_dtype is not None:
        raise NotImplementedError(
            "redistribute got backward_dtype; wanted none: JAX's gradients have the values' dtype"
        )
    mesh = self.device_mesh
    if device_mesh is not None and device_mesh != mesh:
        raise NotImplementedError("redistribute got another DeviceMesh; wanted the one of the tensor")
    placements = _expect_placements(placements, mesh, len(self.shape))
    for old, new in zip(self.placements, placements, strict=True):
        if new.is_partial() and old != new:
            raise RuntimeError(
                f"Can not redistribute from {old} to {new}, redistributing to Partial is for internal use only!"
            )
    if isinstance(self, DevicePart):
        made = changed(self, placements)
        if forward_dtype is not None:
            return part(local_of(made).to(forward_dtype), part_layout(made))
        return made
    full = plain(self) if forward_dtype is None else plain(self).to(forward_dtype)
    return placed(lift(full), mesh, placements)


@runs_instead_of(_TENSORS + ":DTensor.full_tensor")
def _full_tensor(self, *, grad_placements=None):
    _expect_default("full_tensor", grad_placements)
    full = _redistribute(self, placements=_expect_placements(None, self.device_mesh, 0))
    return local_of(full) if isinstance(full, DevicePart) else plain(full)
