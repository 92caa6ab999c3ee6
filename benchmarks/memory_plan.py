"""Plans the memory of models that no machine here holds: weights on the meta device, a mesh of abstract devices.

    python -m benchmarks.memory_plan                      # what the shardings tell, and how long traces take
    python -m benchmarks.memory_plan --compile 8          # what XLA's memory analysis tells, of few layers

The configurations are those that Meta and Mistral AI published. A training step is forward, gradient and AdamW, in
bfloat16, of sequences of 4096 tokens, one for each device of the axis of data.
"""

import argparse
import os
import time
from collections.abc import Iterable
from typing import Any

TENSOR = 8
"""Devices of the axis of tensor parallelism; all others are of FSDP's."""
LENGTH = 4096
GIB = 2**30

LLAMA_3_70B = {
    "hidden_size": 8192,
    "intermediate_size": 28672,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
    "rope_parameters": {"rope_type": "default", "rope_theta": 500000.0},
    "rms_norm_eps": 1e-5,
    "use_cache": False,
}
MIXTRAL_8X7B = {
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "vocab_size": 32000,
    "max_position_embeddings": 32768,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0},
    "rms_norm_eps": 1e-5,
    "use_cache": False,
}
MODELS = {"Llama-3-70B": ("Llama", LLAMA_3_70B), "Mixtral-8x7B": ("Mixtral", MIXTRAL_8X7B)}


class Plan:
    """A training step of a model on a mesh, and all that it takes, without values.

    Args:
        name: of `MODELS`.
        mesh: with the axes ``"data"`` and ``"model"``.
        layers: how many, None for all.
        checkpointing: compute what is in a layer again for its gradient.
    """

    def __init__(self, name: str, mesh: Any, layers: int | None = None, checkpointing: bool = False):
        import jax
        import jax.numpy as jnp
        import optax
        import torch
        import transformers
        from jax.sharding import NamedSharding, PartitionSpec

        from torch2jax import sharding, t2j

        family, sizes = MODELS[name]
        config = getattr(transformers, f"{family}Config")(**sizes)
        config.num_hidden_layers = layers or config.num_hidden_layers
        with torch.device("meta"):
            model = getattr(transformers, f"{family}ForCausalLM")(config).to(torch.bfloat16).train()
        if checkpointing:
            model.gradient_checkpointing_enable()
        experts = {"experts": "model"} if family == "Mixtral" else {}
        specs = sharding.specs(model, mesh, tensor="model", fsdp="data", **experts)
        self.params = dict(sharding.put(model.state_dict(), specs, mesh))
        buffers = t2j(dict(model.named_buffers()))
        jax_model = t2j(sharding.constrained(model, mesh, data="data", tensor="model"))
        optimizer = optax.adamw(1e-4)
        self.moments = sharding.put(jax.eval_shape(optimizer.init, self.params), specs, mesh)

        def step(params, moments, buffers, tokens):
            def loss_of(params):
                return jax_model(tokens, labels=tokens, state_dict={**params, **buffers}).loss

            loss, gradients = jax.value_and_grad(loss_of)(params)
            updates, moments = optimizer.update(gradients, moments, params)
            return optax.apply_updates(params, updates), moments, loss

        batch = NamedSharding(mesh, PartitionSpec("data"))
        tokens = jax.ShapeDtypeStruct((mesh.shape["data"], LENGTH), jnp.int32, sharding=batch)
        self.arguments = self.params, self.moments, buffers, tokens
        results = *(sharding.shardings(x, specs, mesh) for x in (self.params, self.moments)), None
        self.step = jax.jit(step, donate_argnums=(0, 1), out_shardings=results)


def bytes_of(tree: Any) -> int:
    """Those that each device holds of arrays to be."""
    import jax

    return sum(_bytes(x.sharding.shard_shape(x.shape), x.dtype) for x in jax.tree.leaves(tree))


def _bytes(shape: Iterable[int], dtype: Any) -> int:
    size = dtype.itemsize
    for length in shape:
        size *= length
    return size


def plan(name: str, devices: int) -> None:
    """Prints a row: from shardings alone, and from tracing and lowering the whole model."""
    from jax.sharding import AbstractMesh, AxisType

    mesh = AbstractMesh((devices // TENSOR, TENSOR), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    start = time.process_time()
    planned = Plan(name, mesh)
    built = time.process_time()
    traced = planned.step.trace(*planned.arguments)
    halfway = time.process_time()
    traced.lower(lowering_platforms=("tpu",))
    times = built - start, halfway - built, time.process_time() - halfway
    weights, moments = bytes_of(planned.params) / GIB, bytes_of(planned.moments) / GIB
    shape = f"{devices // TENSOR} x {TENSOR}"
    seconds = " | ".join(f"{seconds:.1f}" for seconds in times)
    print(f"| {name} | {shape} | {weights:.2f} | {moments:.2f} | {weights:.2f} | {seconds} |", flush=True)


def compile_few(name: str, devices: int, layers: int, checkpointing: bool) -> None:
    """Prints what XLA says of the compiled step of a model of so many layers."""
    import jax
    from jax.sharding import AxisType

    mesh = jax.make_mesh((devices // TENSOR, TENSOR), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    planned = Plan(name, mesh, layers, checkpointing)
    start = time.process_time()
    compiled = planned.step.lower(*planned.arguments).compile()
    memory = compiled.memory_analysis()
    found = [memory.argument_size_in_bytes, memory.temp_size_in_bytes, memory.alias_size_in_bytes]
    sizes = " | ".join(f"{size / GIB:.2f}" for size in found)
    print(f"| {name} | {layers} layers | {devices} | {sizes} | {time.process_time() - start:.0f} s |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=MODELS, action="append")
    parser.add_argument("--devices", type=int, nargs="+", default=[8, 64, 256])
    parser.add_argument("--compile", type=int, metavar="DEVICES", help="as many virtual ones, on the CPU")
    parser.add_argument("--layers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--checkpointing", action="store_true")
    options = parser.parse_args()
    if options.compile:
        os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={options.compile}"
    from torch2jax.tools.models import define_vision_operators

    define_vision_operators()
    for name in options.model or MODELS:
        if options.compile:
            for layers in options.layers:
                compile_few(name, options.compile, layers, options.checkpointing)
            continue
        for devices in options.devices:
            plan(name, devices)


if __name__ == "__main__":
    main()
