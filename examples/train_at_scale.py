"""Trains a causal language model at scale: tensor parallelism, FSDP, layers in a loop, gradient accumulation, and
checkpoints to resume from. The same file runs on one device, on many, and in many processes.

python examples/train_at_scale.py [--steps 20] [--tensor 1] [--accumulate 2] [--folder FOLDER] [--text FILE]

With several processes, tell each one the address of the first and its own number. (On Cloud TPU and under Slurm, JAX
finds both.)

python examples/train_at_scale.py --coordinator localhost:9876 --processes 2 --process 0 &
python examples/train_at_scale.py --coordinator localhost:9876 --processes 2 --process 1
"""

import argparse
import json
from pathlib import Path

import grain
import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
import torch
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec as P
from transformers import LlamaConfig, LlamaForCausalLM

from torch2jax import sharding, stack_layers, t2j


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--batch", type=int, default=16, help="sequences of a step, of all processes together")
    parser.add_argument("--length", type=int, default=64, help="tokens of a sequence")
    parser.add_argument("--accumulate", type=int, default=2, help="parts of a batch that are computed in turn")
    parser.add_argument("--tensor", type=int, default=1, help="devices of a process for tensor parallelism")
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--remat", action="store_true", help="recompute each layer in the backward pass")
    parser.add_argument("--text", type=Path, help="a file to learn; by default the source of Python's json")
    parser.add_argument("--folder", type=Path, help="where checkpoints are, and what training goes on from")
    parser.add_argument("--save-every", type=int, default=10)
    parser.add_argument("--coordinator", help="host:port of the first of several processes")
    parser.add_argument("--processes", type=int)
    parser.add_argument("--process", type=int)
    return parser.parse_args()


def make_mesh(tensor: int) -> Mesh:
    """Devices by data and by tensor parallelism, which communicates most and so stays within a process."""
    if jax.local_device_count() % tensor:
        raise SystemExit(
            f"--tensor got {tensor}; wanted a divisor of the {jax.local_device_count()} devices of a process"
        )
    sizes = jax.device_count() // tensor, tensor
    return jax.make_mesh(sizes, ("data", "model"), axis_types=(AxisType.Auto,) * 2)


def make_model(layers: int, width: int, length: int, remat: bool) -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=256, hidden_size=width, intermediate_size=3 * width, num_hidden_layers=layers,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=length,
    )  # fmt: skip
    torch.manual_seed(0)  # all processes have the same weights, and put their parts of them on their devices
    model = LlamaForCausalLM(config).train()
    if remat:
        model.activation_checkpointing_enable()
    return model


def make_batches(text: Path | None, batch: int, length: int, accumulate: int):
    """This process's part of each batch, by the number of the step: bytes of shape (accumulate, part, length)."""
    files = [text] if text else sorted(Path(json.__file__).parent.glob("*.py"))
    data = np.frombuffer(b"".join(file.read_bytes() for file in files), np.uint8).astype(np.int32)
    sequences = data[: len(data) // length * length].reshape(-1, length)
    mine = slice(jax.process_index(), None, jax.process_count())
    shuffled = grain.MapDataset.source(sequences).shuffle(seed=0).repeat()[mine]
    return shuffled.batch(batch // jax.process_count() // accumulate).batch(accumulate)


def make_step(model, optimizer: optax.GradientTransformation, mesh: Mesh):
    jax_model = t2j(sharding.constrained(model, mesh, tensor="model", data="data"))

    def loss_of(params, tokens):
        return jax_model(tokens, labels=tokens, use_cache=False, state_dict=params).loss

    def step(params, moments, batch):
        def add(total, tokens):
            loss, grads = jax.value_and_grad(loss_of)(params, tokens)
            return jax.tree.map(jnp.add, total, grads), loss

        grads, losses = jax.lax.scan(add, jax.tree.map(jnp.zeros_like, params), batch)
        grads = jax.tree.map(lambda x: x / len(batch), grads)
        updates, moments = optimizer.update(grads, moments, params)
        return optax.apply_updates(params, updates), moments, losses.mean()

    return step


def main():
    options = arguments()
    if options.coordinator:
        jax.config.update("jax_cpu_collectives_implementation", "gloo")  # how processes without accelerators talk
        jax.distributed.initialize(options.coordinator, options.processes, options.process)
    mesh = make_mesh(options.tensor)
    model = make_model(options.layers, options.width, options.length, options.remat)
    batches = make_batches(options.text, options.batch, options.length, options.accumulate)
    schedule = optax.warmup_cosine_decay_schedule(0.0, 3e-3, 5, max(options.steps, 10))
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(schedule))

    # Stacked layers become a loop over one layer. Their arrays are sharded by the model's plan and by FSDP.
    specs = stack_layers(sharding.specs(model, mesh, tensor="model", fsdp="data"))
    params = sharding.put(stack_layers(t2j(model.state_dict())), specs, mesh)
    where = sharding.shardings(jax.eval_shape(optimizer.init, params), specs, mesh)
    moments = jax.jit(optimizer.init, out_shardings=where)(params)
    step = make_step(model, optimizer, mesh)
    train = jax.jit(step, donate_argnums=(0, 1), out_shardings=(sharding.shardings(params, specs, mesh), where, None))

    start, manager = 0, None
    if options.folder:
        keeping = ocp.CheckpointManagerOptions(max_to_keep=2, save_interval_steps=options.save_every)
        manager = ocp.CheckpointManager(options.folder.absolute(), options=keeping)
        if manager.latest_step() is not None:
            start = manager.latest_step()
            like = jax.tree.map(ocp.utils.to_shape_dtype_struct, {"params": params, "moments": moments})
            state = manager.restore(start, args=ocp.args.StandardRestore(like))
            params, moments = state["params"], state["moments"]

    by_data = NamedSharding(mesh, P(None, "data"))
    for i in range(start, options.steps):
        batch = jax.make_array_from_process_local_data(by_data, batches[i])
        params, moments, loss = train(params, moments, batch)
        if jax.process_index() == 0:
            print(f"step {i + 1}: loss {loss:.6f}", flush=True)
        if manager is not None:
            state = {"params": params, "moments": moments}
            manager.save(i + 1, args=ocp.args.StandardSave(state), force=i + 1 == options.steps)
    if manager is not None:
        manager.close()


if __name__ == "__main__":
    main()
