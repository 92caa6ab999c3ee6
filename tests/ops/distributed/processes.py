"""Runs the programs of a file in processes that talk by gloo.

python -m tests.ops.distributed.processes cases FOLDER
"""

import importlib
import os
import subprocess
import sys
import tempfile
import traceback
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

__all__ = ["main", "results_of"]


def results_of(cases: Any, folder: Path) -> dict[str, np.ndarray]:
    """What each rank has, in rows, by names of the programs of a module.

    Args:
        folder: an empty one, for what the processes write.
    """
    command = [sys.executable, "-m", __name__, cases.__name__.rpartition(".")[2], str(folder)]
    subprocess.run(command, check=True, cwd=Path(__file__).parents[3], timeout=120)
    ranks = [np.load(folder / f"{rank}.npz") for rank in range(cases.RANKS)]
    return {name: np.stack([found[name] for found in ranks]) for name in ranks[0]}


def _run(cases: Any, rank: int, store: str, folder: Path) -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=cases.RANKS)
    found = {}
    for name, case in cases.CASES.items():
        program, has_gradient = case if isinstance(case, tuple) else (case, True)
        x = cases.given(rank).requires_grad_(has_gradient)
        result = program(x)
        found[name] = result.detach().numpy()
        if has_gradient and result.requires_grad:
            result.sum().backward()
            found[name + ".grad"] = x.grad.numpy()
    np.savez(folder / f"{rank}.npz", **found)
    dist.barrier()
    dist.destroy_process_group()


def main(name: str, folder: Path) -> None:
    cases = importlib.import_module(f"tests.ops.distributed.{name}")
    store = tempfile.mktemp()
    children = []
    for rank in range(cases.RANKS):
        child = os.fork()
        if not child:
            try:
                _run(cases, rank, store, folder)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        children.append(child)
    failed = [os.waitpid(child, 0)[1] for child in children]
    sys.exit(any(failed))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
