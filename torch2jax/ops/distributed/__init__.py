"""`torch.distributed` within `jax.shard_map`: a process group is axes of the mesh, a collective one of `jax.lax`."""

from . import in_place as in_place, world as world
