"""`torch.distributed.fsdp.fully_shard`: a module that computes with whole parameters, whose gradients are averaged.

Outside of `jax.shard_map` parameters lie as PyTorch's processes have them, where there is a mesh to say so, and XLA is
told that a forward pass has them whole: it gathers them, and scatters the sums of gradients. Within it each device has
them whole, and gradients are means over the devices.
"""

import functools
import weakref
from collections.abc import Iterator
from typing import Any

import jax
import torch

from ...internals.distributed import Gathered, StateOfCopy, class_of_wrapped, is_of_several
from ...internals.tensors import tree_map
from ...modules.fully_sharded import FullySharded, own_state, set_state
from ...modules.skeleton import refuse_fsdp
from ...runtime.patches import runs_instead_of
from ...runtime.translation import lift, this_call
from ...tensors.distributed import names_in
from ...values.distributed import FullTensor, layout_of, placed, plain
from .data_parallel import averaged
from .distributed_tensors import replicated
from .groups import MeshGroup, axes_of_mesh, default_group, group_of_axes, is_alone

_FSDP = "torch.distributed.fsdp"
_STATE = _FSDP + "._fully_shard._fsdp_state:FSDPState."


@runs_instead_of(_FSDP + ":FullyShardedDataParallel.__init__")
@runs_instead_of(_FSDP + ":FullyShardedDataParallel.forward")
def _fully_sharded_data_parallel(self, *args, **kwargs):
    refuse_fsdp()


@runs_instead_of(_FSDP + ".fully_shard")
def _fully_shard(module, *, mesh=None, mp_policy=None, ignored_params=None, dp_mesh_dims=None, **options):
    """Wraps a module in code: no process has a part of it yet."""
    del options  # when something is sent, and where to
    if dp_mesh_dims is not None:
        raise NotImplementedError("fully_shard got dp_mesh_dims; wanted a mesh of the dimensions that split the data")
    from torch.distributed.fsdp import MixedPrecisionPolicy

    modules = [module] if isinstance(module, torch.nn.Module) else list(module)
    requested = StateOfCopy(mp_policy or MixedPrecisionPolicy(), mesh=mesh)
    state = FullySharded(requested, _gathered(modules, set(map(id, ignored_params or ()))))
    for part in modules:
        if own_state(part) is not None:
            raise AssertionError("Each distinct composable distributed API can only be applied to a module once.")
        set_state(part, state)
        part.__class__ = class_of_wrapped(type(part))
        part.register_forward_pre_hook(functools.partial(_pre_forward, state), prepend=True, with_kwargs=True)
        part.register_forward_hook(functools.partial(_post_forward, state))
    return module


def _gathered(modules: list[torch.nn.Module], ignored: set[int]) -> Iterator[Gathered]:
    """The parameters of modules that no wrapped part of them has."""
    seen: set[object] = set()
    for module in modules:
        for part in module.modules():
            inner = own_state(part)
            seen.update(() if inner is None else inner.owned_names)
    for module in modules:
        for owner in module.modules():
            for name, parameter in vars(owner)["_parameters"].items():
                if parameter is not None and id(parameter) not in ignored and (owner, name) not in seen:
                    seen.add((owner, name))
                    yield Gathered(owner, name, layout_of(parameter) if isinstance(parameter, FullTensor) else None)


@runs_instead_of(_STATE + "_pre_forward")
def _pre_forward(self, module, args, kwargs):
    state = own_state(module) or _state_of_captured(module, self)
    group = _group_of(state.mesh)

    def full(parameter: object, layout: object) -> torch.Tensor:
        return _full(parameter, layout, state, group)

    dtype = state.policy.param_dtype if state.policy.cast_forward_inputs else None
    given = _cast((args, kwargs), dtype)
    state.enter(module, full)
    return given


@runs_instead_of(_STATE + "_post_forward")
def _post_forward(self, module, input, output):
    state = own_state(module) or _state_of_captured(module, self)
    state.leave()
    return _cast(output, state.policy.output_dtype)


_captured: weakref.WeakKeyDictionary[object, dict[int, tuple[object, FullySharded]]] = weakref.WeakKeyDictionary()


def _state_of_captured(module: torch.nn.Module, state: object) -> FullySharded:
    """The state of a module that code uses though it is no argument; its parameters are restored when the call ends.

    Raises:
        NotImplementedError: it is one of a list of modules that were wrapped together, whose hooks count their passes.
    """
    if is_of_several(state):
        raise NotImplementedError(
            f"fully_shard: got a {type(module).__name__}, of a list of modules that were wrapped together, which the "
            "code has from outside; wanted the module that holds them, given to t2j"
        )
    settings = this_call().settings
    known = _captured.setdefault(settings, {})
    if id(state) not in known:
        known[id(state)] = state, FullySharded.of(state)
        settings.undo_later(known[id(state)][1].leave_all)
    return known[id(state)][1]


def _cast(tree: Any, dtype: torch.dtype | None) -> Any:
    if dtype is None:
        return tree
    return tree_map(lambda x: x.to(dtype) if isinstance(x, torch.Tensor) and x.is_floating_point() else x, tree)


def _full(parameter: Any, layout: Any, state: FullySharded, group: MeshGroup | None) -> torch.Tensor:
    """The value of a parameter in a forward pass.

    Args:
        layout: the mesh and placements of one that is still a `DTensor` then; None for others.
    """
    dtype = state.policy.param_dtype if parameter.is_floating_point() else None
    if group is not None:
        if layout is not None:
            raise NotImplementedError(
                "fully_shard of a DTensor, as of tensor parallelism, within jax.shard_map; wanted the code under "
                "jax.jit outside of it, where XLA splits both ways"
            )
        when = "now" if state.is_synced else "later"
        return _cast(averaged(parameter, group, when, state.policy.reduce_dtype or dtype), dtype)
    value = _cast(plain(lift(parameter)), dtype)
    if layout is not None:
        return placed(value, *layout)
    if not isinstance(parameter, FullTensor):
        return value
    return plain(placed(value, parameter.device_mesh, (replicated(),) * parameter.device_mesh.ndim))


def _group_of(mesh: Any) -> MeshGroup | None:
    """The devices over which gradients are averaged; None outside of `jax.shard_map` over axes of a mesh.

    Raises:
        ValueError: the mesh stands for nothing that the code is within, or for axes of other sizes.
    """
    world = None if is_alone() else default_group()
    given = None if world is None or mesh is None else axes_of_mesh(mesh)
    if given is not None:
        return group_of_axes(given)
    if world is None or mesh is None or mesh.mesh_dim_names is None:
        return world
    around = jax.sharding.get_abstract_mesh()
    names = names_in(mesh)
    if set(names) <= set(around.axis_names) and not set(names) & set(around.manual_axes):
        return None
    group = group_of_axes(names)
    if any(size not in (1, own) for size, own in zip(mesh.shape, group.sizes, strict=True)):
        raise ValueError(
            f"fully_shard has a DeviceMesh of {dict(zip(names, mesh.shape, strict=True))}; the axes of jax.shard_map "
            f"have {dict(zip(names, group.sizes, strict=True))} devices"
        )
    return group


@runs_instead_of(_FSDP + ":FSDPModule._get_fsdp_state", with_original=True)
def _get_fsdp_state(original, self):
    state = own_state(self)
    return original(self) if state is None else state.requested
