"""What a test may change in its process, put back after it."""

import contextlib
import os
import random
import warnings
from collections.abc import Iterator

import numpy as np
import torch

__all__ = ["kept", "seed"]

# pairs of functions: what gives a setting, and what takes it
_SETTINGS = (
    (os.getcwd, os.chdir),
    (torch.get_default_dtype, torch.set_default_dtype),
    (lambda: None, torch.set_default_device),  # none was set
    (torch.is_grad_enabled, torch.set_grad_enabled),
    (torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode),
    (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    (torch.get_num_threads, torch.set_num_threads),
    (torch.is_warn_always_enabled, torch.set_warn_always),
    (torch.is_anomaly_enabled, torch.set_anomaly_enabled),
    (torch._C._is_multithreading_enabled, torch._C._set_multithreading_enabled),
    (torch._C._is_fwd_grad_enabled, torch._C._set_fwd_grad_enabled),
    (torch.sparse.check_sparse_tensor_invariants.is_enabled, torch._C._set_check_sparse_tensor_invariants),
    (torch._C._get_cudnn_enabled, torch._C._set_cudnn_enabled),
    (torch._C._get_mkldnn_enabled, torch._C._set_mkldnn_enabled),
    (lambda: torch.is_autocast_enabled("cpu"), lambda on: torch.set_autocast_enabled("cpu", on)),
    (torch.get_rng_state, torch.set_rng_state),
    (np.random.get_state, np.random.set_state),
    (random.getstate, random.setstate),
    (lambda: dict(os.environ), lambda found: (os.environ.clear(), os.environ.update(found))),
)  # fmt: skip


@contextlib.contextmanager
def kept() -> Iterator[None]:
    """Puts back defaults, modes, generators, the environment and the filters of warnings."""
    before = [get() for get, _ in _SETTINGS]
    with warnings.catch_warnings():
        warnings.simplefilter("default")  # as unittest does: tests look for warnings
        try:
            yield
        finally:
            for (_, put), value in zip(_SETTINGS, before, strict=True):
                with contextlib.suppress(RuntimeError):  # of what a broken test has left
                    put(value)


def seed(number: int = 0) -> None:
    """The generators as every test finds them."""
    torch.manual_seed(number)
    np.random.seed(number)  # noqa: NPY002  (the tests use it)
    random.seed(number)
