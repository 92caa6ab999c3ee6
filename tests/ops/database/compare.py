"""What it means that two results agree."""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import torch
from torch.utils import _pytree as pytree

from torch2jax import t2j

__all__ = ["TOLERANCES", "Tolerance", "compare", "compare_trees", "describe", "sizes"]


class Tolerance(NamedTuple):
    rtol: float
    atol: float


TOLERANCES = {
    torch.float16: Tolerance(2e-3, 2e-3),
    torch.bfloat16: Tolerance(2e-2, 2e-2),
    torch.float32: Tolerance(2e-5, 2e-5),
    torch.complex64: Tolerance(2e-5, 2e-5),
    torch.float64: Tolerance(1e-7, 1e-7),
    torch.complex128: Tolerance(1e-7, 1e-7),
}
_WIDE = {torch.float64: torch.float32, torch.complex128: torch.complex64}


def tolerance_of(dtype: torch.dtype, wanted: Tolerance | None = None) -> Tolerance:
    """How far values of a dtype may be off; 64-bit types are held in 32 bits with ``jax_enable_x64`` off."""
    held = dtype if jax.config.jax_enable_x64 else _WIDE.get(dtype, dtype)
    usual = TOLERANCES.get(held, Tolerance(0, 0))
    return usual if wanted is None else Tolerance(max(usual.rtol, wanted.rtol), max(usual.atol, wanted.atol))


def compare(actual, expected: torch.Tensor, what: str = "", tolerance: Tolerance | None = None) -> None:
    """Asserts that an array has a tensor's shape and dtype and, to tolerance, its values."""
    assert isinstance(actual, (jax.Array, np.ndarray, int, float, bool, complex)), f"{what}: got {type(actual)}"
    if not isinstance(expected, torch.Tensor):
        np.testing.assert_allclose(np.asarray(actual), np.asarray(expected), err_msg=what)
        return
    assert tuple(np.shape(actual)) == tuple(expected.shape), f"{what}: {np.shape(actual)} != {tuple(expected.shape)}"
    assert jnp.asarray(actual).dtype == t2j(expected.dtype), f"{what}: {actual.dtype} != {expected.dtype}"
    rtol, atol = tolerance_of(expected.dtype, tolerance)
    wide = np.complex128 if expected.is_complex() else np.float64
    if expected.dtype in (torch.int64, torch.uint64):
        wide = np.int64
    want = np.asarray(t2j(expected.detach())).astype(wide)
    np.testing.assert_allclose(np.asarray(actual).astype(wide), want, rtol, atol, err_msg=what)


def compare_trees(actual, expected, what: str = "", tolerance: Tolerance | None = None) -> None:
    """Asserts that two results agree leaf by leaf."""
    got, want = pytree.tree_leaves(actual), pytree.tree_leaves(expected)
    assert len(got) == len(want), f"{what}: {len(got)} results, expected {len(want)}"
    for a, e in zip(got, want, strict=True):
        if isinstance(e, torch.Tensor):
            compare(a, e, what, tolerance)
        elif isinstance(e, float):
            assert math.isclose(a, e, rel_tol=1e-5) or (a != a and e != e), f"{what}: {a!r} != {e!r}"
        else:
            assert type(a) is type(e), f"{what}: {a!r} is a {type(a).__name__}, {e!r} is a {type(e).__name__}"
            assert a == e, f"{what}: {a!r} != {e!r}"


def describe(result) -> tuple:
    """What code can see of a result without its values: its tree, shapes, and PyTorch's dtypes."""
    leaves, spec = pytree.tree_flatten(result)
    return spec, [(x.dtype, tuple(x.shape)) if isinstance(x, torch.Tensor) else type(x) for x in leaves]


def sizes(result) -> list:
    """The shapes and dtypes in a result as JAX has them."""
    return [
        (tuple(x.shape), t2j(x.dtype) if isinstance(x, torch.Tensor) else x.dtype)
        for x in pytree.tree_leaves(result)
        if hasattr(x, "dtype")
    ]
