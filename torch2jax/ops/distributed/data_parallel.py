"""`torch.nn.parallel.DistributedDataParallel`: a module whose gradients are means over devices."""

import contextlib
import inspect
from collections.abc import Iterator
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from ...calls.call import current
from ...patches import stands_in
from .averages import Exchanged, averaged
from .collectives import broadcast
from .groups import MeshGroup, default_group, expect_group
from .operations import computed, write

__all__: list[str] = []

_UNSERVED = {
    "mixed_precision": "mixed_precision=: use torch.autocast",
    "_comm_hooks": "hooks of communication: change the gradients after the backward pass",
    "_delay_all_reduce_params": "delay_all_reduce_named_params=",
    "delay_all_reduce_named_params": "delay_all_reduce_named_params=",
}
_OPTIONS = inspect.signature(DistributedDataParallel)


@stands_in(DistributedDataParallel, "__init__")
def _init(self, *args, **kwargs):
    """What the wrapper is asked for in code; there is no reducer and no process to agree with."""
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


@stands_in(DistributedDataParallel, "register_comm_hook")
def _register_comm_hook(self, state, hook):
    raise _unserved("_comm_hooks")


@stands_in(DistributedDataParallel, "forward")
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
    """By the ids of parameters, what the module computes with."""
    for name, parameter in wrapper.module.named_parameters():
        if not (parameter.is_floating_point() or parameter.is_complex()):
            continue
        is_synced = wrapper.require_backward_grad_sync
        when = "never" if name in wrapper.parameters_to_ignore else "now" if is_synced else "later"
        yield id(parameter), averaged(parameter, group, when)


def _group_of(wrapper: DistributedDataParallel) -> MeshGroup | None:
    """What a wrapper's group stands for; None outside of a mesh.

    Raises:
        ValueError: it is a group that stands for nothing.
    """
    group: Any = vars(wrapper).get("process_group")
    if isinstance(group, MeshGroup):
        return group
    if any(told is group for told, _ in current().attempt.path.policy.groups if told is not None):
        return expect_group(group)
    whole = default_group()
    # PyTorch calls the default one so, which may be gone by now: a wrapper that is translated needs none.
    if whole is None or group is None or group.group_desc == "default_pg":
        return whole
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
