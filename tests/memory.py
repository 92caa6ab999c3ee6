"""Keeps a process that compiles thousands of programs, one after the other, from keeping them all."""

import ctypes
import gc
import os
from pathlib import Path

__all__ = ["Bound", "memory"]

_STATM = Path("/proc/self/statm")


class Bound:
    """A limit to a process's memory, in GB, beyond which it lets go of what JAX has compiled."""

    def __init__(self, limit: float):
        self._limit = self._bound = limit

    def keep(self) -> None:
        """Lets go if the limit is passed, and not again before the process has grown: not all memory comes back."""
        if memory() > self._bound:
            import jax  # not before conftest.py has set the environment

            gc.collect()
            jax.clear_caches()
            trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
            if trim is not None:  # glibc would keep most of it
                trim(0)
            self._bound = max(self._limit, memory() + 1)


def memory() -> float:
    """The memory of this process, in GB; 0 where the system does not say."""
    pages = int(_STATM.read_text().split()[1]) if _STATM.exists() else 0
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e9
