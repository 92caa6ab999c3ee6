"""How the parameters and buffers of a module are split over a mesh."""

from typing import Any

import torch
from jax.sharding import AbstractMesh, Mesh, PartitionSpec

from .meshes import Axes, expect_axes, names_of, resolve, size_of
from .plans import ShardingPlan
from .styles import EXPERTS, TENSOR

__all__ = ["specs"]


def specs(
    module: torch.nn.Module,
    mesh: Mesh | AbstractMesh | None = None,
    *,
    tensor: Axes = None,
    experts: Axes = None,
    fsdp: Axes = None,
    plan: Any = None,
) -> dict[str, PartitionSpec]:
    """Returns how to shard each tensor of ``module.state_dict()`` over the axes of a mesh.

    Args:
        module: the module, which may be on the meta device; it is only read.
        mesh: the mesh, of which only the sizes matter; None for the current one (`jax.set_mesh`).
        tensor: the axis, or axes, of tensor parallelism, by `plan`.
        experts: the axis, or axes, of expert parallelism, by transformers' ``_ep_plan`` or by ``"grouped_gemm"`` in
            `plan`.
        fsdp: the axis, or axes, that shard everything else: each tensor of two dimensions or more is split along the
            largest dimension that the number of devices divides and that is not split yet. Without such a dimension,
            it is replicated.
        plan: styles by path, as `torch.distributed.tensor.parallel.parallelize_module` takes them, or their names in
            transformers; None for the ``_tp_plan`` of a transformers model.

    Returns:
        A `PartitionSpec` for each name of the state, in its order. Tied weights have one for all of their names.

    Raises:
        ValueError: the mesh lacks an axis, an axis is given twice, the number of devices does not divide a dimension
            that the plan splits, the plan has an unknown style, or there is no plan.
        TypeError: the plan has a style of another kind.
    """
    mesh = resolve(mesh)
    expect_axes(mesh, tensor=tensor, fsdp=fsdp)
    expect_axes(mesh, experts=experts)
    axes, over = {TENSOR: names_of(tensor), EXPERTS: names_of(experts)}, names_of(fsdp)
    styles = ShardingPlan(module, plan, {kind: bool(names) for kind, names in axes.items()})
    parts = dict(module.named_modules())
    found: dict[int, PartitionSpec] = {}
    state = {name: x for name, x in module.state_dict(keep_vars=True).items() if isinstance(x, torch.Tensor)}
    for name, value in state.items():
        style = styles.of_parameter(name)
        if style is None or not axes[style.axis]:
            continue
        owner, _, leaf = name.rpartition(".")
        dim = style.dimension(parts[owner], leaf, value)
        if dim is not None and id(value) not in found:
            found[id(value)] = _along(value, dim, axes[style.axis], mesh, name)
    result = {name: found.get(id(value), PartitionSpec()) for name, value in state.items()}
    return {name: _spread(state[name], spec, over, mesh) for name, spec in result.items()}


def _along(value: torch.Tensor, dim: int, axes: tuple[str, ...], mesh: Any, name: str) -> PartitionSpec:
    count = size_of(mesh, axes)
    if value.shape[dim] % count:
        raise ValueError(
            f"the plan splits dimension {dim} of {name!r}, of shape {tuple(value.shape)}, over the {count} devices of "
            f"{', '.join(map(repr, axes))}, which do not divide it; pass a plan= with another style for it, such as "
            "'replicate'"
        )
    return PartitionSpec(*[None] * dim, _entry(axes))


def _spread(value: torch.Tensor, spec: PartitionSpec, axes: tuple[str, ...], mesh: Any) -> PartitionSpec:
    """Splits the largest dimension that can be, over the axes that are not in use yet."""
    used = {name for entry in spec for name in names_of(entry)}
    axes = tuple(axis for axis in axes if axis not in used)
    if not axes or value.ndim < 2:
        return spec
    entries = [*spec, *[None] * (value.ndim - len(spec))]
    count = size_of(mesh, axes)
    fitting = [dim for dim in range(value.ndim) if entries[dim] is None and value.shape[dim] % count == 0]
    if not fitting:
        return spec
    entries[max(fitting, key=lambda dim: value.shape[dim])] = _entry(axes)
    return PartitionSpec(*entries)


def _entry(axes: tuple[str, ...]) -> str | tuple[str, ...]:
    return axes[0] if len(axes) == 1 else axes
