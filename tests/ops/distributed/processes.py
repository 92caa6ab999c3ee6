"""Runs the programs of `cases` in processes that talk by gloo: ``python -m tests.ops.distributed.processes FOLDER``."""

import os
import sys
import tempfile
import traceback
import warnings
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist

from tests.ops.distributed.cases import CASES, RANKS, given

__all__ = ["main"]


def _run(rank: int, store: str, folder: Path) -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=RANKS)
    found = {}
    for name, (program, has_gradient) in CASES.items():
        x = given(rank).requires_grad_(has_gradient)
        result = program(x)
        found[name] = result.detach().numpy()
        if has_gradient:
            result.sum().backward()
            found[name + ".grad"] = x.grad.numpy()
    np.savez(folder / f"{rank}.npz", **found)
    dist.barrier()
    dist.destroy_process_group()


def main(folder: Path) -> None:
    store = tempfile.mktemp()
    children = []
    for rank in range(RANKS):
        child = os.fork()
        if not child:
            try:
                _run(rank, store, folder)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        children.append(child)
    failed = [os.waitpid(child, 0)[1] for child in children]
    sys.exit(any(failed))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
