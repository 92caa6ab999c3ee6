"""Processes of their own for what takes several devices, and what their programs do between them."""

import os
import subprocess
import sys
from pathlib import Path

SETUP = """
import collections, re
import jax, jax.numpy as jnp, numpy as np, torch
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
from torch2jax import sharding, t2j

KINDS = "all-gather|all-reduce|reduce-scatter|all-to-all|collective-permute"
COLLECTIVE = re.compile(rf"= [^=\\n]*? ({KINDS})(?:-start)?\\(")

def collectives(function, *args, **options):
    compiled = jax.jit(function, **options).lower(*args).compile()
    return dict(collections.Counter(COLLECTIVE.findall(compiled.as_text()))), compiled

def close(actual, expected, tolerance=1e-5):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance), actual, expected)

class MLP(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = torch.nn.Linear(16, 64), torch.nn.Linear(64, 16)

    def forward(self, x):
        return self.down(torch.relu(self.up(x)))
"""
ROOT = Path(__file__).parents[2]


def start(code: str, *args: str, devices: int) -> subprocess.Popen:
    """Starts Python on `code`, behind `SETUP`, with so many virtual devices."""
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={devices}"
    environment = {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    return subprocess.Popen(
        [sys.executable, "-c", SETUP + code, *args],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        cwd=ROOT,
    )


def result_of(process: subprocess.Popen, seconds: float = 300) -> str:
    """What a process prints, when it has ended well."""
    try:
        output, errors = process.communicate(timeout=seconds)
    finally:
        process.kill()
    assert process.returncode == 0, output[-1000:] + errors[-5000:]
    return output
