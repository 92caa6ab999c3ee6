"""Wrappers that split parameters over processes, which in JAX the shardings of arrays do."""

from ...modules.skeleton import refuse_fsdp
from ...patches import runs_instead_of

__all__: list[str] = []


@runs_instead_of("torch.distributed.fsdp:FullyShardedDataParallel.__init__")
@runs_instead_of("torch.distributed.fsdp:FullyShardedDataParallel.forward")
def _fully_sharded_data_parallel(self, *args, **kwargs):
    refuse_fsdp("FullyShardedDataParallel")


@runs_instead_of("torch.distributed.fsdp.fully_shard")
def _fully_shard(module, *args, **kwargs):
    refuse_fsdp("fully_shard")
