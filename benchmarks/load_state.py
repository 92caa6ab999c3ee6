"""Peak memory while a checkpoint is loaded: ``python -m benchmarks.load_state``.

Each case runs in a process of its own. Weights of 1.5 GB, none larger than a 24th of that; on 8 devices the CPU is
divided by XLA.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

_COUNT, _ROWS, _COLUMNS = 24, 4096, 8192
_CASES = (
    "safetensors",
    "safetensors sharded",
    "safetensors as float32",
    "pickle",
    "pickle sharded",
    "torch.load and t2j",
)


def _write(folder: Path) -> None:
    import torch
    from safetensors.torch import save_file

    state = {f"layers.{i}.weight": torch.randn(_ROWS, _COLUMNS).to(torch.bfloat16) for i in range(_COUNT)}
    save_file(state, folder / "model.safetensors")
    torch.save(state, folder / "model.pt")


def _measure(case: str, folder: Path) -> None:
    if "sharded" in case:
        os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
    import jax
    import jax.numpy as jnp
    import torch
    from jax.sharding import NamedSharding, PartitionSpec

    from torch2jax import load_state, t2j

    path = folder / ("model.safetensors" if "safetensors" in case else "model.pt")
    mesh = jax.make_mesh((len(jax.devices()),), ("x",))
    shardings = NamedSharding(mesh, PartitionSpec("x", None)) if "sharded" in case else None
    jax.block_until_ready(jnp.ones(1))
    before, started = _memory("VmRSS"), time.perf_counter()
    if "t2j" in case:
        state = t2j(torch.load(path, weights_only=True))
    else:
        state = load_state(path, shardings=shardings, dtype=jnp.float32 if "float32" in case else None)
    seconds = time.perf_counter() - started
    size, peak = sum(array.nbytes for array in state.values()), _memory("VmHWM") - before
    print(f"| {case} | {size / 1e9:.2f} GB | {peak / 1e9:.2f} GB | {peak / size:.2f} | {seconds:.1f} s |")


def _memory(field: str) -> int:
    status = Path("/proc/self/status").read_text()
    return int(status.split(f"{field}:")[1].split()[0]) * 1024


def main() -> None:
    """Prints a table of all cases."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--case", choices=_CASES)
    parser.add_argument("--folder", type=Path)
    arguments = parser.parse_args()
    if arguments.case:
        _measure(arguments.case, arguments.folder)
        return
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(
            [
                sys.executable,
                "-c",
                f"import pathlib; from benchmarks.load_state import _write; _write(pathlib.Path({folder!r}))",
            ],
            check=True,
        )
        print("| case | weights | peak | ratio | time |\n|---|---|---|---|---|", flush=True)
        for case in _CASES:
            subprocess.run(
                [sys.executable, "-m", "benchmarks.load_state", "--case", case, "--folder", folder], check=True
            )


if __name__ == "__main__":
    main()
