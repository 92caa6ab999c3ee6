"""Two processes train as one does."""

import contextlib
import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
TRAIN = """
import sys
import jax, numpy as np, optax, torch
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
from tests.sharding.modules import MLP
from torch2jax import sharding, t2j

if len(sys.argv) > 1:
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(f"localhost:{sys.argv[1]}", num_processes=2, process_id=int(sys.argv[2]))
mesh = jax.make_mesh((len(jax.devices()),), ("data",), axis_types=(AxisType.Auto,))
torch.manual_seed(0)
module = MLP()
specs = sharding.specs(module, mesh, fsdp="data")
params = sharding.put(t2j(module.state_dict()), specs, mesh)
jax_model, optimizer = t2j(sharding.constrained(module, mesh, data="data")), optax.adam(1e-2)
moments = sharding.put(jax.jit(optimizer.init)(params), specs, mesh)

@jax.jit
def step(params, moments, x):
    loss, grads = jax.value_and_grad(lambda p: ((jax_model(x, state_dict=p) - x) ** 2).mean())(params)
    updates, moments = optimizer.update(grads, moments, params)
    return optax.apply_updates(params, updates), moments, loss

for i in range(5):
    x = np.sin(np.arange(8 * 16, dtype=np.float32) + i).reshape(8, 16)
    x = jax.make_array_from_callback(x.shape, NamedSharding(mesh, P("data")), lambda index: x[index])
    params, moments, loss = step(params, moments, x)
    print("loss", float(loss))
assert params["up.weight"].sharding.spec == P("data", None)
"""


def start(*args: str, devices: int) -> subprocess.Popen:
    """Starts training in a process with so many virtual devices."""
    return start_code(TRAIN, *args, devices=devices)


def start_code(code: str, *args: str, devices: int) -> subprocess.Popen:
    """Starts code in a process with so many virtual devices."""
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={devices}"
    return subprocess.Popen(
        [sys.executable, "-c", code, *args],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"},
        cwd=ROOT,
    )


def result_of(process: subprocess.Popen) -> str:
    """What a process prints, when it has ended well."""
    try:
        output, errors = process.communicate(timeout=300)
    finally:
        process.kill()
    assert process.returncode == 0, output[-1000:] + errors[-5000:]
    return output


def free_ports(count: int) -> list[str]:
    """Ports of this machine that nothing listens on."""
    with contextlib.ExitStack() as stack:
        free = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in free:
            each.bind(("localhost", 0))
        return [str(each.getsockname()[1]) for each in free]


def expect_done(code: str) -> None:
    """Runs code in two processes of one device each, which get their rank, a port for JAX, and one for PyTorch.

    Each says ``done`` at its end.
    """
    ports = free_ports(2)
    processes = [start_code(code, str(rank), *ports, devices=1) for rank in range(2)]
    for process in processes:
        assert "done" in result_of(process)


def losses(output: str) -> list[float]:
    return [float(line.split()[1]) for line in output.splitlines() if line.startswith("loss")]


@pytest.mark.slow("starts two processes")
def test_two_processes_train_as_one():
    (port,) = free_ports(1)
    processes = [start(devices=2), *(start(port, str(i), devices=1) for i in range(2))]
    alone, *together = [losses(result_of(process)) for process in processes]
    assert len(alone) == 5
    assert alone[-1] < alone[0]
    for each in together:
        np.testing.assert_allclose(each, alone, rtol=1e-5)
