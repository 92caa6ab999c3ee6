"""`DTensor`s: outside of `jax.shard_map` whole arrays that XLA lays out, within it the parts of devices.

PyTorch's own code of `parallelize_module` and its styles runs on these; only what it would send is served here.
"""

from typing import Any

from ...calls.call import this_call
from ...internals.distributed import current_device_mesh
from ...patches import runs_instead_of
from ...tensors.distributed import parts_over
from ...tensors.history import Source
from ...values.distributed import Whole, layout_of, placed, plain
from .device_meshes import groups_of
from .groups import is_alone
from .parts import DevicePart, PartLayout, changed, local_of, part, part_layout, split_from_first

__all__: list[str] = []

_TENSORS = "torch.distributed.tensor"


def _mesh_of(given: Any) -> Any:
    return current_device_mesh() if given is None else given


def _expect_placements(placements: Any, mesh: Any, ndim: int) -> tuple:
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
    if isinstance(tensor, (Whole, DevicePart)):
        if (tensor.device_mesh, tensor.placements) != (mesh, placements):
            raise ValueError(
                f"Cannot distribute a DTensor with placements {tensor.placements} to a different placements "
                f"{placements}. do you want to call `redistribute` instead?"
            )
        return tensor
    history = getattr(this_call().lift(tensor), "history", None)
    if not tensor.is_leaf:
        raise RuntimeError("`distribute_tensor` should be used to distribute leaf tensors! but found non-leaf tensor!")
    begins = isinstance(history, Source) and not history.is_given  # JAX differentiates on through what it gives
    lifted = this_call().lift(tensor.detach() if begins else tensor)
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
    lifted = this_call().lift(local_tensor)
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


def _expect_default(name: str, grad_placements: Any) -> None:
    if grad_placements is not None:
        raise NotImplementedError(
            f"{name} got grad_placements; wanted none: JAX's derivatives do not depend on placements"
        )


def _expect_one_view(name: str, mesh: Any, placements: tuple, instead: str) -> None:
    """Expects what a process has of a tensor to be what all of them have.

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
    if not isinstance(self, (Whole, DevicePart)):
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
    whole = plain(self) if forward_dtype is None else plain(self).to(forward_dtype)
    return placed(this_call().lift(whole), mesh, placements)


@runs_instead_of(_TENSORS + ":DTensor.full_tensor")
def _full_tensor(self, *, grad_placements=None):
    _expect_default("full_tensor", grad_placements)
    whole = _redistribute(self, placements=_expect_placements(None, self.device_mesh, 0))
    return local_of(whole) if isinstance(whole, DevicePart) else plain(whole)
