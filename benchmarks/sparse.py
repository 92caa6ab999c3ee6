"""Products of sparse and strided matrices: translated, JAX's own ``BCOO @`` and ``BCSR @``, and PyTorch.

    python -m benchmarks.sparse

The times are the best of many, in milliseconds, of compiled programs that hold the matrix; PyTorch has as many threads
as the machine has cores.
"""

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


def best(run: Callable[[], object], times: int = 30) -> float:
    jax.block_until_ready(run())
    found = []
    for _ in range(times):
        start = time.perf_counter()
        jax.block_until_ready(run())
        found.append(time.perf_counter() - start)
    return 1000 * min(found)


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
    found = {}
    for name, function in functions.items():
        forward = jax.jit(function)
        loss = lambda values, x, function=function: (function(values, x) * jnp.asarray(weights)).sum()
        both = jax.jit(jax.grad(loss, (0, 1)))
        np.testing.assert_allclose(forward(*arrays), csr @ x, rtol=1e-3, atol=1e-3)
        found[name] = best(lambda: forward(*arrays)), best(lambda: both(*arrays))  # noqa: B023 - called at once
    with torch.no_grad():
        forward = min(best(lambda: csr @ x), best(lambda: coo @ x))

    def backward():
        leaf, other = coo.detach().requires_grad_(), x.detach().requires_grad_()
        (torch.sparse.mm(leaf, other) * weights).sum().backward()

    found["PyTorch"] = forward, best(backward, 10)
    return found


def main() -> None:
    warnings.filterwarnings("ignore", message="Sparse")
    names = ("translated", "BCOO @", "BCSR @", "PyTorch")
    print("| rows, elements in each, columns |", " | ".join(f"{name} | with gradients" for name in names), "|")
    print("|---" * (1 + 2 * len(names)) + "|")
    for size in SIZES:
        found = times_of(*size)
        cells = [f"{number:.2f}" for name in names for number in found[name]]
        print("|", " | ".join([", ".join(map(str, size)), *cells]), "|")


if __name__ == "__main__":
    main()
