"""A whole training step of PyTorch, translated, against `jax.value_and_grad` and optax by hand, and PyTorch itself.

    python -m benchmarks.training_step [adamw sgd] [--width 512] [--layers 6] [--batch 256] [--rounds 20]

The step is `loss.backward(); optimizer.step(); optimizer.zero_grad()` of a network of linear layers. All start from the
same weights, and their losses agree over some steps. The three take turns, and a time is the best of its rounds.
"""

import argparse

import jax
import jax.numpy as jnp
import numpy as np
import optax
import torch

from torch2jax import t2j

from .models import compile_counted, fresh, in_turns

CLASSES, RATE, STEPS = 10, 1e-3, 5
OPTIMIZERS = {
    "adamw": (lambda p: torch.optim.AdamW(p, lr=RATE, weight_decay=1e-2), optax.adamw(RATE, weight_decay=1e-2)),
    "sgd": (lambda p: torch.optim.SGD(p, lr=RATE, momentum=0.9), optax.sgd(RATE, momentum=0.9)),
}


def network(width: int, layers: int) -> torch.nn.Sequential:
    torch.manual_seed(0)
    hidden = [module for _ in range(layers - 1) for module in (torch.nn.Linear(width, width), torch.nn.ReLU())]
    return torch.nn.Sequential(*hidden, torch.nn.Linear(width, CLASSES))


def train(model, optimizer, x, y):
    loss = torch.nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss


def by_hand(optimizer: optax.GradientTransformation, layers: int):
    def apply(params, x):
        for weight, bias in params[:-1]:
            x = jax.nn.relu(jax.lax.dot_general(x, weight, (((1,), (1,)), ((), ()))) + bias)
        weight, bias = params[-1]
        return jax.lax.dot_general(x, weight, (((1,), (1,)), ((), ()))) + bias

    def loss(params, x, y):
        return optax.softmax_cross_entropy_with_integer_labels(apply(params, x), y).mean()

    def step(state, x, y):
        params, optimizer_state = state
        value, gradients = jax.value_and_grad(loss)(params, x, y)
        updates, optimizer_state = optimizer.update(gradients, optimizer_state, params)
        return value, (optax.apply_updates(params, updates), optimizer_state)

    return step


def compare(name: str, width: int, layers: int, batch: int, rounds: int) -> None:
    """Prints the rows of one optimizer."""
    model = network(width, layers)
    torch_optimizer, optimizer = OPTIMIZERS[name]
    torch_optimizer = torch_optimizer(model.parameters())
    x = np.random.default_rng(0).standard_normal((batch, width), np.float32)
    y = np.random.default_rng(1).integers(0, CLASSES, batch)
    arrays = jnp.asarray(x), jnp.asarray(y, jnp.int32)
    translated = t2j(train, state=(model, torch_optimizer))
    params = [(jnp.array(m.weight.detach().numpy()), jnp.array(m.bias.detach().numpy())) for m in model[::2]]
    steps = translated, by_hand(optimizer, layers)
    states = [translated.init(*arrays), (params, optimizer.init(params))]
    tensors = torch.from_numpy(x), torch.from_numpy(y)
    first, states[0] = jax.jit(translated)(states[0], *arrays)  # it makes PyTorch's moments, and is another program
    programs = [compile_counted(step, state, *arrays) for step, state in zip(steps, states, strict=True)]
    other, states[1] = programs[1].run(states[1], *arrays)
    losses = [[float(first)], [float(other)], [train(model, torch_optimizer, *tensors).item()]]
    for _ in range(1, STEPS):
        for i, program in enumerate(programs):
            value, states[i] = program.run(states[i], *arrays)
            losses[i].append(float(value))
        losses[2].append(train(model, torch_optimizer, *tensors).item())
    np.testing.assert_allclose(losses[0], losses[2], rtol=1e-4)
    np.testing.assert_allclose(losses[1], losses[2], rtol=1e-4)
    lowering = [lambda f=f, s=s: jax.jit(fresh(f)).lower(s, *arrays) for f, s in zip(steps, states, strict=True)]
    running = [lambda p=p, s=s: jax.block_until_ready(p.run(s, *arrays)) for p, s in zip(programs, states, strict=True)]
    traced = in_turns(lowering, max(3, rounds // 4))
    ran = in_turns([*running, lambda: train(model, torch_optimizer, *tensors)], rounds)
    a, b = programs
    for figure, mine, other in (
        ("trace + lower (s)", *traced),
        ("compile (s)", a.compile_s, b.compile_s),
        ("run (s)", *ran[:2]),
        ("StableHLO operations", a.operations, b.operations),
        ("Gflop", a.flops / 1e9, b.flops / 1e9),
        ("GB accessed", a.bytes / 1e9, b.bytes / 1e9),
    ):
        print(f"| {name} | {figure} | {mine:.4g} | {other:.4g} | {mine / other:.3f} |", flush=True)
    print(f"| {name} | run, PyTorch eager (s) | {ran[0]:.4g} | {ran[2]:.4g} | {ran[0] / ran[2]:.3f} |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("optimizers", nargs="*", metavar="OPTIMIZER", help="adamw, sgd; both by default")
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=20)
    options = parser.parse_args()
    print("| optimizer | figure | translated | other | ratio |\n|---|---|---|---|---|")
    for name in options.optimizers or OPTIMIZERS:
        compare(name, options.width, options.layers, options.batch, options.rounds)


if __name__ == "__main__":
    main()
