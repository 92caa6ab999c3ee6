"""`torch.distributed`: modules in which torch2jax replaces functions, and arrays of all devices at once."""

from typing import Any

from jax._src import shard_map
from torch.distributed import c10d_logger as _logger, distributed_c10d

__all__ = ["ShardMapTracer", "c10d", "c10d_logger", "current_device_mesh", "world"]

# Modules in which something is exchanged.

c10d = distributed_c10d
"""The module of process groups and of the collectives over them."""

c10d_logger = _logger
"""The module that logs what goes wrong there."""

world = distributed_c10d._world
"""All that PyTorch knows of process groups: the default one, and the ranks and names of each. What comes in its place
(its own tests do that with threads) is asked by every function of the module."""

ShardMapTracer = shard_map.ShardMapTracer
"""An array within `jax.shard_map` that computes at once: ``val`` has those of all devices along a first dimension, for
the axes ``mat.varying``; its trace has the ``mesh``."""


def current_device_mesh() -> Any:
    """The `DeviceMesh` that code has entered (``with mesh:``); RuntimeError if there is none."""
    from torch.distributed import device_mesh  # takes a third of a second, and who has one has it

    return device_mesh._mesh_resources.get_current_mesh()
