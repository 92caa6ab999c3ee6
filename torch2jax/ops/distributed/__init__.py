"""`torch.distributed` within `jax.shard_map`: process groups as mesh axes, collectives as those of `jax.lax`."""

from . import (
    data_parallel as data_parallel,
    device_meshes as device_meshes,
    distributed_tensors as distributed_tensors,
    fully_sharded as fully_sharded,
    functional as functional,
    in_place as in_place,
    messages as messages,
    objects as objects,
    sync_batch_norm as sync_batch_norm,
    world as world,
)
