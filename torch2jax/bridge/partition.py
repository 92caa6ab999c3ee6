"""Calls in programs for several devices whose types do not say how arrays are sharded.

XLA's partitioner decides there, and would gather the inputs of a call that it knows nothing of. So the call is left to
a partitioning rule, which refuses inputs that arrive sharded.
"""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

from jax.experimental.custom_partitioning import custom_partitioning
from jax.extend.core import Primitive
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from ..internals.jax_traces import prim_requires_devices_during_lowering

__all__ = ["needs_devices", "refusing_shards"]


def needs_devices(primitive: Primitive) -> None:
    """Has JAX tell the lowering rule of a primitive for which devices it lowers, which partitioning rules need."""
    prim_requires_devices_during_lowering.add(primitive)


def refusing_shards(call: Callable, name: str, operands: Sequence, results: Sequence) -> Callable:
    """``call``, as a function that XLA does not compile for inputs that it has sharded.

    Args:
        call: from arrays to a list of arrays.
        name: what an error calls it.
        operands, results: types of what it takes and returns.
    """

    def partition(mesh: Mesh, argument_types: Sequence[Any], result_types: Sequence[Any]):
        for index, argument in enumerate(argument_types):
            if not argument.sharding.is_fully_replicated:
                raise ValueError(
                    f"input {index} of {name} is sharded as {argument.sharding} and there is no out_specs=. Call it "
                    "inside jax.shard_map, or on a mesh with explicit axes pass out_specs=, to call it on each shard; "
                    "or gather the input first, with jax.lax.with_sharding_constraint"
                )
        replicated = NamedSharding(mesh, PartitionSpec())
        return mesh, call, [replicated] * len(result_types), tuple(replicated for _ in argument_types)

    guarded = custom_partitioning(call)
    guarded.def_partition(partition, sharding_rule=_unrelated(operands, results))
    return guarded


def _unrelated(operands: Sequence, results: Sequence) -> str:
    """The rule that no dimension of a result comes from one of an operand."""
    names = (f"d{index}" for index in itertools.count())
    write = lambda types: ", ".join(" ".join(next(names) for _ in type_.shape) for type_ in types)
    return f"{write(operands)} -> {write(results)}"
