"""Products of sparse and strided matrices: translated, JAX's own ``BCOO @`` and ``BCSR @``, and PyTorch.

    python -m benchmarks.sparse              # the product, and the product with gradients
    python -m benchmarks.sparse --others     # the product in other ways that JAX has

The times are the best of many rounds, in each of which all take their turn, in milliseconds, of compiled programs that
hold the matrix; PyTorch has as many threads as the machine has cores. A turn is many runs of a fast program, or one of
a slow one: all have the same chance to find the machine idle.
"""

import argparse
import functools
import time
import warnings
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax.experimental import sparse

from torch2jax import t2j

SIZES = ((10_000, 10, 64), (10_000, 10, 1), (2_000, 50, 128))
"""Rows, elements in each, and columns of the strided matrix."""


def best(runs: dict[str, Callable[[], object]], seconds: float = 6, turn: float = 0.05) -> dict[str, float]:
    """The least time of each, in rounds of some seconds in all, in which each has turns of some seconds."""
    found = dict.fromkeys(runs, float("inf"))
    for run in runs.values():
        jax.block_until_ready(run())
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        for name, run in runs.items():
            start = now = time.perf_counter()
            while now < start + turn:
                before = now
                jax.block_until_ready(run())
                now = time.perf_counter()
                found[name] = min(found[name], 1000 * (now - before))
    return found


def matrix_of(rows: int, degree: int) -> torch.Tensor:
    random = np.random.default_rng(0)
    indices = random.integers(0, rows, (2, rows * degree))
    values = random.standard_normal(rows * degree).astype(np.float32)
    return torch.sparse_coo_tensor(torch.from_numpy(indices), torch.from_numpy(values), (rows, rows)).coalesce()


def times_of(rows: int, degree: int, columns: int) -> dict[str, tuple[float, float]]:
    """The times of the product, and of it with the gradients for values and strided matrix, by who computes it."""
    coo = matrix_of(rows, degree)
    csr, x = coo.to_sparse_csr(), torch.randn(rows, columns)
    indices, values = coo.indices(), coo.values()
    weights = torch.randn(rows, columns)

    def product(values, x):
        return torch.sparse_coo_tensor(indices, values, (rows, rows), is_coalesced=True) @ x

    arrays = jnp.asarray(values), jnp.asarray(x)
    places = jnp.asarray(indices).T
    facts = {"shape": (rows, rows), "indices_sorted": True, "unique_indices": True}
    bcsr = sparse.BCSR.from_bcoo(sparse.BCOO((arrays[0], places), **facts))
    functions = {
        "translated": t2j(product),
        "BCOO @": lambda values, x: sparse.BCOO((values, places), **facts) @ x,
        "BCSR @": lambda values, x: sparse.BCSR((values, bcsr.indices, bcsr.indptr), shape=(rows, rows)) @ x,
    }
    forward: dict[str, Callable[[], object]] = {}
    both: dict[str, Callable[[], object]] = {}
    for name, function in functions.items():
        forward[name] = functools.partial(jax.jit(function), *arrays)
        loss = lambda values, x, function=function: (function(values, x) * jnp.asarray(weights)).sum()
        both[name] = functools.partial(jax.jit(jax.grad(loss, (0, 1))), *arrays)
        np.testing.assert_allclose(forward[name](), csr @ x, rtol=1e-3, atol=1e-3)

    def backward():
        leaf, other = coo.detach().requires_grad_(), x.detach().requires_grad_()
        (torch.sparse.mm(leaf, other) * weights).sum().backward()

    forward["PyTorch"], both["PyTorch"] = lambda: csr @ x, backward
    times, with_gradients = best(forward), best(both, 12)
    return {name: (times[name], with_gradients[name]) for name in forward}


def other_times_of(rows: int, degree: int, columns: int) -> dict[str, float]:
    """The times of the product by JAX's kernel, as a sum by rows, and of rows that are padded to one length (ELL)."""
    coo = matrix_of(rows, degree)
    values, x = jnp.asarray(coo.values()), jnp.asarray(torch.randn(rows, columns))
    row, column = (np.asarray(index, np.int32) for index in coo.indices())
    counts = np.bincount(row, minlength=rows)
    within = np.arange(len(row)) - np.repeat(counts.cumsum() - counts, counts)
    places = np.full((counts.max(), rows), len(row), np.int32)  # the last is a zero
    places[within, row] = np.arange(len(row))
    chosen = np.append(column, 0)[places]

    def kernel(values, x):
        begins = jnp.asarray(np.concatenate([[0], counts.cumsum()]).astype(np.int32))
        return sparse.BCSR((values, jnp.asarray(column), begins), shape=(rows, rows)) @ x

    def summed(values, x):
        return jax.ops.segment_sum(x[column] * values[:, None], row, rows, indices_are_sorted=True)

    def padded(values, x):
        weights = jnp.append(values, 0)[places]
        return sum(weights[i][:, None] * x[chosen[i]] for i in range(len(places)))

    functions = {"BCSR @": kernel, "sorted segment sum": summed, "padded rows": padded}
    runs = {name: functools.partial(jax.jit(function), values, x) for name, function in functions.items()}
    for run in runs.values():
        np.testing.assert_allclose(run(), coo @ torch.tensor(np.asarray(x)), rtol=1e-3, atol=1e-3)
    return best(runs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--others", action="store_true")
    warnings.filterwarnings("ignore", message="Sparse")
    if parser.parse_args().others:
        found = {size: other_times_of(*size) for size in SIZES}
        print("| rows, elements in each, columns |", " | ".join(found[SIZES[0]]), "|")
        print("|---" * (1 + len(found[SIZES[0]])) + "|")
        for size, times in found.items():
            print("|", " | ".join([", ".join(map(str, size)), *(f"{x:.2f}" for x in times.values())]), "|")
        return
    names = ("translated", "BCOO @", "BCSR @", "PyTorch")
    print("| rows, elements in each, columns |", " | ".join(f"{name} | with gradients" for name in names), "|")
    print("|---" * (1 + 2 * len(names)) + "|")
    for size in SIZES:
        found = times_of(*size)
        cells = [f"{number:.2f}" for name in names for number in found[name]]
        print("|", " | ".join([", ".join(map(str, size)), *cells]), "|")


if __name__ == "__main__":
    main()
