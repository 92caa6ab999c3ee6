"""Collectives of `torch.distributed` against the same written in JAX by hand, within `jax.shard_map`.

    python -m benchmarks.distributed

Each row: StableHLO operations, and collectives, of a translated program and of the one by hand, forward and with the
gradient. They are counts, and exact. The programs are those of tests/ops/distributed/cases.py, on four devices.
"""

import functools
import math
import os
import re
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

if "device_count" not in os.environ.get("XLA_FLAGS", ""):
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=4"

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import AxisType, PartitionSpec as P

from tests.ops.distributed import cases
from torch2jax import t2j

__all__ = ["ROWS", "Counts", "counts", "main"]

AXIS, DEVICES = "ranks", 4
_COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "collective_permute")


def layer(x, column, row):
    """A Megatron layer."""
    hidden = x @ column
    return lax.psum(jax.nn.silu(hidden) @ row, AXIS)


def experts(x):
    exchange = functools.partial(lax.all_to_all, axis_name=AXIS, split_axis=0, concat_axis=0, tiled=True)
    done = jnp.tanh(exchange(jnp.sin(x)) * (1.0 + lax.axis_index(AXIS)))
    return exchange(done) * x


def ring_attention(x):
    q, k, v = x, jnp.cos(x), jnp.sin(x)
    best, total, out = jnp.full((x.shape[0], 1), -jnp.inf), jnp.zeros((x.shape[0], 1)), jnp.zeros_like(x)
    ring = [(i, (i + 1) % DEVICES) for i in range(DEVICES)]
    for step in range(DEVICES):
        scores = q @ k.T / math.sqrt(x.shape[-1])
        new = jnp.maximum(best, scores.max(-1, keepdims=True))
        weights, scale = jnp.exp(scores - new), jnp.exp(best - new)
        total, out, best = total * scale + weights.sum(-1, keepdims=True), out * scale + weights @ v, new
        if step < DEVICES - 1:
            k, v = lax.ppermute(jnp.stack([k, v]), AXIS, ring)
    return out / total


class Row(NamedTuple):
    """A program, that by hand, and how their arrays lie on the devices."""

    program: Callable
    by_hand: Callable
    shapes: tuple[tuple[int, ...], ...]
    specs: tuple[P, ...]
    result: P


ROWS = {
    "Megatron layer": Row(cases.tensor_parallel, layer, ((8, 6), (6, 16), (16, 6)), (P(), P(None, AXIS), P(AXIS)), P()),
    "expert dispatch": Row(cases.experts, experts, ((32, 6),), (P(AXIS),), P(AXIS)),
    "ring attention": Row(cases.ring_attention, ring_attention, ((32, 6),), (P(AXIS),), P(AXIS)),
}


class Counts(NamedTuple):
    """What is in a program."""

    operations: int
    collectives: dict[str, int]


def counts(function: Callable, row: Row, has_gradient: bool) -> Counts:
    """What is in the StableHLO of a function on the devices of a row."""
    mesh = jax.make_mesh((DEVICES,), (AXIS,), axis_types=(AxisType.Auto,), devices=jax.devices()[:DEVICES])
    mapped = jax.shard_map(function, mesh=mesh, in_specs=row.specs, out_specs=row.result)
    if has_gradient:
        whole, arguments = mapped, tuple(range(len(row.shapes)))
        mapped = jax.grad(lambda *args: jnp.sum(jnp.sin(whole(*args))), arguments)
    text = jax.jit(mapped).lower(*(jnp.ones(shape) for shape in row.shapes)).as_text()
    names = re.findall(r'= "?stablehlo\.(\w+)', text)
    return Counts(len(names), dict(sorted(Counter(name for name in names if name in _COLLECTIVES).items())))


def main() -> None:
    print("| program | | operations | by hand | ratio | collectives | by hand |")
    print("|---|---|---|---|---|---|---|")
    for name, row in ROWS.items():
        for has_gradient in (False, True):
            found = counts(t2j(row.program), row, has_gradient)
            wanted = counts(row.by_hand, row, has_gradient)
            kind = "with gradient" if has_gradient else "forward"
            ratio = f"{found.operations / wanted.operations:.2f}"
            operations = [str(each.operations) for each in (found, wanted)]
            listed = [", ".join(f"{count} {x}" for x, count in each.collectives.items()) for each in (found, wanted)]
            print("|", " | ".join([name, kind, *operations, ratio, *listed]), "|")


if __name__ == "__main__":
    main()
