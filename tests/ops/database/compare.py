"""What it means that two results agree."""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import torch
from torch.utils import _pytree as pytree

from torch2jax import t2j
from torch2jax.tensors.dtypes import canonical

__all__ = ["TOLERANCES", "Tolerance", "compare", "compare_trees", "describe", "is_held", "precision_of", "sizes"]


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


def precision_of(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which floating-point numbers are held: one of 32 bits with ``jax_enable_x64`` off."""
    return dtype if jax.config.jax_enable_x64 else _WIDE.get(dtype, dtype)


def tolerance_of(dtype: torch.dtype, wanted: Tolerance | None = None) -> Tolerance:
    """How far values of a dtype may be off."""
    usual = TOLERANCES.get(precision_of(dtype), Tolerance(0, 0))
    return usual if wanted is None else Tolerance(max(usual.rtol, wanted.rtol), max(usual.atol, wanted.atol))


def _in_memory(expected: torch.Tensor):
    """An array of what 32 bits hold of a tensor, where they hold its dtype."""
    array_dtype = canonical(expected.dtype)
    if expected.dtype == torch.int64 and array_dtype == np.int32:
        return expected.clamp(-(2**31), 2**31 - 1).numpy().astype(np.int32)
    if expected.dtype == torch.uint64 and array_dtype == np.uint32:
        return expected.numpy().astype(np.uint32)
    return t2j(expected)


def compare(
    actual, expected, what: str = "", tolerance: Tolerance | None = None, precise=None, rounded=None, scaled=False
) -> None:
    """Asserts that an array has a tensor's shape and dtype and, to tolerance, its values.

    Args:
        actual: the array.
        expected: the tensor.
        what: names both in the message.
        tolerance: a looser one than the dtype's.
        precise: `expected` in double precision. An array that is no further from it than twice what `expected` is
            passes too: where PyTorch itself is inaccurate, its rounding errors are not asked for.
        rounded: what `expected` is in the precision of the array, if that is less than its dtype's.
        scaled: the absolute tolerance is one of the largest number in `expected`, if that is larger than 1: what
            remains of a sum of large numbers is as inexact as they are.
    """
    assert isinstance(actual, (jax.Array, np.ndarray, int, float, bool, complex)), f"{what}: got {type(actual)}"
    if not isinstance(expected, torch.Tensor):
        np.testing.assert_allclose(np.asarray(actual), np.asarray(expected), err_msg=what)
        return
    assert tuple(np.shape(actual)) == tuple(expected.shape), f"{what}: {np.shape(actual)} != {tuple(expected.shape)}"
    dtype = actual.dtype if hasattr(actual, "dtype") else jnp.asarray(actual).dtype
    assert dtype == canonical(expected.dtype), f"{what}: {dtype} != {expected.dtype}"
    rtol, atol = tolerance_of(expected.dtype, tolerance)
    got, want = _wide(actual, expected.dtype), _wide(_in_memory(expected.detach()), expected.dtype)
    if expected.dtype == torch.int64:  # what is not held has overflowed
        physical = is_held(expected).numpy()
        got, want = got * physical, want * physical
    if scaled:
        atol *= max(1, np.max(np.abs(want), where=np.isfinite(want), initial=0))
    try:
        np.testing.assert_allclose(got, want, rtol, atol, err_msg=what)
    except AssertionError:
        if precise is None or not (expected.is_floating_point() or expected.is_complex()):
            raise
        truth, witness = _exact(precise, expected.dtype), want if rounded is None else _exact(rounded, expected.dtype)
        with np.errstate(all="ignore"):
            scale = atol + rtol * np.abs(truth)
        overflown = np.isfinite(truth) & ~np.isfinite(witness)  # so may be the array
        off = _distance(np.where(overflown & ~np.isfinite(got), truth, got), truth, scale)
        usual = _distance(np.where(overflown, truth, witness), truth, scale)
        if not (off <= max(1, 2 * usual) and np.isfinite(off)):
            raise


def _exact(tensor: torch.Tensor, dtype: torch.dtype) -> np.ndarray:
    wide = torch.complex128 if dtype.is_complex else torch.float64
    return tensor.detach().resolve_conj().resolve_neg().to(wide).numpy()


def is_held(tensor: torch.Tensor) -> torch.Tensor:
    """Which elements JAX holds as what they are: not those of int64 that 32 bits cannot, with x64 off."""
    if tensor.dtype != torch.int64 or jax.config.jax_enable_x64:
        return torch.ones_like(tensor, dtype=torch.bool)
    return tensor == tensor.to(torch.int32)


def _wide(array, dtype: torch.dtype) -> np.ndarray:
    wide = np.complex128 if dtype.is_complex else np.int64 if dtype is torch.int64 else np.float64
    return np.asarray(array).astype(wide)


def _distance(values: np.ndarray, truth: np.ndarray, scale: np.ndarray) -> float:
    """The largest distance from `truth`, in units of `scale`; infinite if what is finite differs."""
    with np.errstate(all="ignore"):
        if not np.array_equal(np.isfinite(values), np.isfinite(truth)):
            return np.inf
        finite = np.isfinite(truth)
        return np.max(np.abs(values - truth)[finite] / scale[finite], initial=0)


def compare_trees(actual, expected, what: str = "", precise=None, rounded=None, **options) -> None:
    """Asserts that two results agree leaf by leaf, with the options of `compare`.

    `precise` and `rounded` are functions that give such results, called when needed.
    """
    got, want = pytree.tree_leaves(actual), pytree.tree_leaves(expected)
    assert len(got) == len(want), f"{what}: {len(got)} results, expected {len(want)}"
    none = [None] * len(want)
    try:
        _compare_leaves(got, want, none, none, what, options)
    except AssertionError:
        if precise is None:
            raise
        in_held = none if rounded is None else pytree.tree_leaves(rounded())
        _compare_leaves(got, want, pytree.tree_leaves(precise()), in_held, what, options)


def _compare_leaves(got: list, want: list, precise: list, rounded: list, what: str, options: dict) -> None:
    for a, e, p, r in zip(got, want, precise, rounded, strict=True):
        if isinstance(e, torch.Tensor):
            compare(a, e, what, precise=p, rounded=r, **options)
        elif isinstance(e, float):
            assert math.isclose(a, e, rel_tol=1e-5) or (a != a and e != e), f"{what}: {a!r} != {e!r}"
        elif isinstance(e, bool) and isinstance(a, (jax.Array, np.ndarray)):  # both answers to a question were followed
            assert a.dtype == bool, f"{what}: {a!r} != {e!r}"
            assert bool(a) == e, f"{what}: {a!r} != {e!r}"
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
        (tuple(x.shape), canonical(x.dtype) if isinstance(x, torch.Tensor) else x.dtype)
        for x in pytree.tree_leaves(result)
        if hasattr(x, "dtype")
    ]
