"""Switches of JAX's, as contexts, and which samples do not run under one, with the reason."""

import contextlib
import fnmatch
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import jax

__all__ = ["SWITCHES", "is_excluded"]


@contextlib.contextmanager
def _option(name: str, value) -> Iterator[None]:
    before = getattr(jax.config, name)
    jax.config.update(name, value)
    try:
        yield
    finally:
        jax.config.update(name, before)


def _set(name: str, value) -> Callable[[], AbstractContextManager]:
    return lambda: _option(name, value)


SWITCHES: dict[str, Callable[[], AbstractContextManager]] = {
    "disable_jit": jax.disable_jit,
    "disable_jit for the process": _set("jax_disable_jit", True),
    "debug_nans": _set("jax_debug_nans", True),
    "debug_infs": _set("jax_debug_infs", True),
    "checking_leaks": jax.checking_leaks,
    "rank_promotion": _set("jax_numpy_rank_promotion", "raise"),
    "dtype_promotion": _set("jax_numpy_dtype_promotion", "strict"),
    "x64": lambda: jax.enable_x64(True),
    "matmul_precision": _set("jax_default_matmul_precision", "highest"),
    "rbg": _set("jax_default_prng_impl", "rbg"),
    "unsafe_rbg": _set("jax_default_prng_impl", "unsafe_rbg"),
    "threefry not partitionable": _set("jax_threefry_partitionable", False),
    "key_reuse": _set("jax_debug_key_reuse", True),
    "legacy_prng_key": _set("jax_legacy_prng_key", "error"),
    "traceback_filtering": _set("jax_traceback_filtering", "off"),
    "softmax_custom_jvp": _set("jax_softmax_custom_jvp", False),
    "enable_checks": _set("jax_enable_checks", True),
    "transfer_guard": _set("jax_transfer_guard", "log"),
}

# (switch, sample): why it does not run.
_EXCLUDED: dict[tuple[str, str], str] = {}


def is_excluded(switch: str, sample: str) -> bool:
    return any(fnmatch.fnmatch(switch, s) and fnmatch.fnmatch(sample, n) for s, n in _EXCLUDED)
