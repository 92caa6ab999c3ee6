"""`torch.distributed`: the modules in which something is exchanged."""

from torch.distributed import distributed_c10d

__all__ = ["c10d", "world"]

# Modules in which something is exchanged.

c10d = distributed_c10d
"""The module of process groups and of the collectives over them."""

world = distributed_c10d._world
"""All that PyTorch knows of process groups: the default one, and the ranks and names of each. What comes in its place
(its own tests do that with threads) is asked by every function of the module."""
