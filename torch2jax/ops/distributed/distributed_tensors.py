"""Functions that split tensors over processes: in JAX the sharding of an array does that, from outside of the call."""

from typing import NoReturn

from ...patches import runs_instead_of

__all__: list[str] = []


def _refuse(name: str) -> NoReturn:
    raise NotImplementedError(
        f"{name} within a translated function gives each process a part, where JAX has one array with a sharding. "
        "Wanted the plan from outside: sharding.specs(module, mesh, tensor='model', plan=...) for the parameters and "
        "sharding.constrained(module, mesh, tensor='model', plan=...) for what modules take and give, with the styles "
        "of parallelize_module; or within jax.shard_map the collectives of torch.distributed"
    )


@runs_instead_of("torch.distributed.tensor.distribute_tensor")
def _distribute_tensor(*args, **kwargs):
    _refuse("distribute_tensor")


@runs_instead_of("torch.distributed.tensor.distribute_module")
def _distribute_module(*args, **kwargs):
    _refuse("distribute_module")


@runs_instead_of("torch.distributed.tensor.parallel.parallelize_module")
def _parallelize_module(*args, **kwargs):
    _refuse("parallelize_module")
