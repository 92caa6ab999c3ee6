"""Modules whose gradients are means over devices: `DistributedDataParallel` and `fully_shard`.

In a forward pass of `DistributedDataParallel`, parameters whose gradients are means over devices are in place of the
module's own.

JAX differentiates functions, so a module computes with what an identity gives for each parameter, whose transpose
averages: that serves `jax.grad` and ``.backward()``. What a ``.grad`` holds already, of passes that were not averaged,
is averaged after the backward pass has added to it. Means of means are the same means, so the order does not count.

`torch.nn.SyncBatchNorm`: statistics over all devices. PyTorch has kernels for GPUs only.

Outside of `jax.shard_map` the parameters of `fully_shard` lie as PyTorch's processes have them, where there is a mesh
to say so, and XLA is told that a forward pass has them whole: it gathers them, and scatters the sums of gradients.
Within it each device has them whole, and gradients are means over the devices.
"""

import contextlib
import functools
import inspect
import weakref
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import torch
from torch.nn.parallel import DistributedDataParallel

from ...internals.distributed import Gathered, StateOfCopy, class_of_wrapped, is_of_several
from ...internals.jax import varying_axes
from ...internals.tensors import tree_map
from ...modules.fully_sharded import FullySharded, own_state, set_state
from ...modules.skeleton import refuse_fsdp
from ...rules.registry import implements_tensors
from ...runtime.patches import replaces, runs_instead_of
from ...runtime.translation import current, lift, this_call
from ...tensors.distributed import names_in
from ...tracing.traces import axes_in_types, varying
from ...values.distributed import FullTensor, layout_of, placed, plain
from .distributed_tensors import replicated
from .groups import MeshGroup, axes_of_mesh, default_group, expect_group, group_of_axes, is_alone
from .operations import all_reduce, all_reduced, broadcast, computed, write

Axes = tuple[str, ...]


class Exchanged:
    """A replacement of a module's parameters by other tensors, until it is closed.

    `functional_call` leaves some there if a part is in two places.

    Args:
        given: the tensors, by the ids of the parameters.
    """

    def __init__(self, module: torch.nn.Module, given: Mapping[int, torch.Tensor]):
        self._exchanged = []
        for part in module.modules():
            table = vars(part)["_parameters"]
            for name, parameter in table.items():
                if id(parameter) in given:
                    self._exchanged.append((table, name, parameter, given[id(parameter)]))
                    table[name] = given[id(parameter)]

    def close(self) -> None:
        for table, name, parameter, tensor in self._exchanged:
            if table.get(name) is tensor:  # the module may have put another there
                table[name] = parameter


def averaged(parameter: torch.Tensor, group: MeshGroup, when: str, dtype: torch.dtype | None = None) -> torch.Tensor:
    """The value of a parameter in a module's computation.

    Args:
        when: its gradients are averaged over a group: ``"now"``, ``"later"`` or ``"never"``.
        dtype: in which they are; that of the parameter by default.
    """
    if when == "now" and torch.is_grad_enabled() and parameter.grad is not None:
        _average_after(parameter, group)
    value = parameter if dtype is None else parameter.to(dtype)
    return computed("average_gradient", _averaging, [value], group.axes, when)


def _average_after(parameter: torch.Tensor, group: MeshGroup) -> None:
    """Averages all that a parameter's gradient holds after the next backward pass."""

    def average(parameter: torch.Tensor) -> None:
        handle.remove()
        with torch.no_grad():
            assert parameter.grad is not None  # it has just been added to
            parameter.grad.copy_(all_reduced(parameter.grad, "avg", group))

    handle = parameter.register_post_accumulate_grad_hook(average)


def _averaging(x: jax.Array, axes: Axes, when: str) -> jax.Array:
    """The array, whose cotangents are averaged over some axes.

    It is typed as one that differs over them (``check_vma``): else JAX would sum the cotangents of one that is the same
    on all devices before they come here. In JAX's types such a one has no cotangent of its own on each device, so what
    is to be averaged later is averaged now, which gives the same in the end; and one that never is cannot be right.

    Args:
        when: ``"now"``, ``"later"`` or ``"never"``.
    """
    before, differing = varying_axes(x), axes_in_types().intersection(axes)
    return _identity(x, axes, differing, before, when) if when == "now" or differing - before else x


@functools.partial(jax.custom_vjp, nondiff_argnums=(1, 2, 3, 4))
def _identity(x: jax.Array, axes: Axes, differing: frozenset[str], before: frozenset[str], when: str) -> jax.Array:
    del axes, before, when
    return varying(x, differing)


def _forward_of_identity(x: jax.Array, *args: object) -> tuple[jax.Array, None]:
    return _identity(x, *args), None


def _backward_of_identity(
    axes: Axes, differing: frozenset[str], before: frozenset[str], when: str, _: None, cotangent: jax.Array
) -> tuple[jax.Array]:
    del differing
    if when == "never":
        raise ValueError(
            f"the wrapper ignores a parameter, whose gradient then differs over {', '.join(axes)}; for "
            "jax.shard_map its value is the same there, and so is its gradient. Use check_vma=False, and take the "
            "gradient within"
        )
    return (varying(all_reduce(cotangent, axes, "avg"), before),)


_identity.defvjp(_forward_of_identity, _backward_of_identity)


_UNSERVED = {
    "mixed_precision": "mixed_precision=: use torch.autocast",
    "_comm_hooks": "hooks of communication: change the gradients after the backward pass",
    "_delay_all_reduce_params": "delay_all_reduce_named_params=",
    "delay_all_reduce_named_params": "delay_all_reduce_named_params=",
}
_OPTIONS = inspect.signature(DistributedDataParallel)


@replaces(DistributedDataParallel, "__init__")
def _init(self, *args, **kwargs):
    """The attributes of the wrapper that code reads; there is no reducer and no process to agree with."""
    options = _OPTIONS.bind(*args, **kwargs).arguments
    torch.nn.Module.__init__(self)
    module, process_group, mesh = (options.get(name) for name in ("module", "process_group", "device_mesh"))
    assert isinstance(module, torch.nn.Module)
    if process_group is not None and mesh is not None:
        raise RuntimeError("Cannot specify both process_group and device_mesh arguments.")
    for name in ("mixed_precision", "delay_all_reduce_named_params"):
        if options.get(name) is not None:
            raise _unserved(name)
    self.parameters_to_ignore = set(getattr(module, "_ddp_params_and_buffers_to_ignore", ()))
    if not any(x.requires_grad for name, x in module.named_parameters() if name not in self.parameters_to_ignore):
        raise RuntimeError(
            "DistributedDataParallel is not needed when a module doesn't have any parameter that requires a gradient."
        )
    self.module, self.device_ids, self.dim = module, options.get("device_ids"), options.get("dim", 0)
    self.process_group = process_group if mesh is None else mesh.get_group(mesh_dim=0)
    vars(self)["forward_sync_buffers"] = _first_of(options, "forward_sync_buffers", "broadcast_buffers")
    self.require_backward_grad_sync = self.require_forward_param_sync = True


def _first_of(options: dict[str, Any], *names: str) -> bool:
    """The first of some options that is given; PyTorch's default is True for each."""
    return next((options[name] for name in names if options.get(name) is not None), True)


def _unserved(name: str) -> NotImplementedError:
    return NotImplementedError(f"DistributedDataParallel within jax.shard_map does not serve {_UNSERVED[name]}")


@replaces(DistributedDataParallel, "register_comm_hook")
def _register_comm_hook(self, state, hook):
    raise _unserved("_comm_hooks")


@replaces(DistributedDataParallel, "forward")
def _forward(self, *inputs, **kwargs):
    """Outside of a mesh it is the module below: JAX alone decides where arrays are."""
    group = _group_of(self)
    if group is None:
        return self.module(*inputs, **kwargs)
    for name in _UNSERVED:
        if vars(self).get(name):
            raise _unserved(name)
    _share_buffers(self, group)
    self.require_forward_param_sync = self.require_backward_grad_sync or not torch.is_grad_enabled()
    with contextlib.closing(Exchanged(self.module, dict(_averaged(self, group)))):
        return self.module(*inputs, **kwargs)


def _averaged(wrapper: DistributedDataParallel, group: MeshGroup) -> Iterator[tuple[int, torch.Tensor]]:
    """The values of parameters in the module's computation, by the ids of the parameters."""
    for name, parameter in wrapper.module.named_parameters():
        if not (parameter.is_floating_point() or parameter.is_complex()):
            continue
        is_synced = wrapper.require_backward_grad_sync
        when = "never" if name in wrapper.parameters_to_ignore else "now" if is_synced else "later"
        yield id(parameter), averaged(parameter, group, when)


def _group_of(wrapper: DistributedDataParallel) -> MeshGroup | None:
    """The mesh group of a wrapper; None outside of a mesh.

    Raises:
        ValueError: it is a group that stands for nothing.
    """
    group = vars(wrapper).get("process_group")
    if isinstance(group, MeshGroup):
        return group
    if any(given is group for given, _ in current().execution.path.policy.groups if given is not None):
        return expect_group(group)
    world = default_group()
    # PyTorch calls the default one so, which may be gone by now: a wrapper that is translated needs none.
    if world is None or group is None or group.group_desc == "default_pg":
        return world
    return expect_group(group)


def _share_buffers(wrapper: DistributedDataParallel, group: MeshGroup) -> None:
    """Gives all devices the buffers of the first one, as PyTorch does before each forward pass that counts."""
    if not (
        _first_of(vars(wrapper), "forward_sync_buffers", "broadcast_buffers") and wrapper.require_forward_param_sync
    ):
        return
    with torch.no_grad():
        for name, buffer in wrapper.module.named_buffers():
            if name not in wrapper.parameters_to_ignore:
                write(buffer, computed("broadcast", broadcast, [buffer], group.axes, 0))


@implements_tensors(torch.nn.SyncBatchNorm)
def _sync_batch_norm(module, input):
    if not module.training or (module.process_group is None and default_group() is None):
        return module(input)  # as BatchNorm does
    module._check_input_dim(input)
    group = expect_group(module.process_group)
    dims = [0, *range(2, input.ndim)]
    shape = [1, -1, *[1] * (input.ndim - 2)]
    wide = input.float() if input.dtype in (torch.float16, torch.bfloat16) else input
    mean = all_reduced(wide.mean(dims), "avg", group)
    centred = wide - mean.view(shape)
    variance = all_reduced(centred.square().mean(dims), "avg", group)
    if module.track_running_stats:
        _track(module, mean, variance, input.numel() // input.shape[1] * group.size())
    result = centred * torch.rsqrt(variance + module.eps).view(shape)
    if module.affine:
        result = result * module.weight.view(shape) + module.bias.view(shape)
    return result.to(input.dtype)


def _track(module: torch.nn.SyncBatchNorm, mean: torch.Tensor, variance: torch.Tensor, count: int) -> None:
    """Moves the running statistics towards those of a batch of so many elements a channel."""
    if module.num_batches_tracked is not None:
        module.num_batches_tracked.add_(1)
    momentum = module.momentum
    if momentum is None:  # the average of all batches
        momentum = 1 / lift(module.num_batches_tracked).to(mean.dtype)
    unbiased = variance * (count / (count - 1))
    with torch.no_grad():
        for running, found in ((module.running_mean, mean), (module.running_var, unbiased)):
            assert running is not None  # since it is tracked
            running.copy_(running + momentum * (found.to(running.dtype) - running))


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
    group = _averaging_group(state.mesh)

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


def _averaging_group(mesh: Any) -> MeshGroup | None:
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
