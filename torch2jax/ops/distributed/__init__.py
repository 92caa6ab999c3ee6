"""`torch.distributed` within `jax.shard_map`: process groups as mesh axes, collectives as those of `jax.lax`."""

from . import (
    collectives as collectives,
    data_parallel as data_parallel,
    distributed_tensors as distributed_tensors,
    groups as groups,
    operations as operations,
    world as world,
)
