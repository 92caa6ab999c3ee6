"""How tests, and scripts that run as many, compile: thousands of small programs, each of which is run once or twice."""

import functools
import mmap
import os
import pathlib
import shutil
import threading

import jaxlib

__all__ = ["keep_context", "keep_programs", "known_flags", "set_flags"]

# What LLVM does not optimise compiles in a third of the time.
_FLAGS = {
    "xla_backend_optimization_level": "0",
    "xla_llvm_disable_expensive_passes": "true",
    "xla_cpu_use_fusion_emitters": "false",
    "xla_cpu_parallel_codegen_split_count": "1",
    "xla_disable_hlo_passes": "constant_folding",
}

# The bytes of programs that are kept. JAX's own limit reads the whole folder whenever it writes, under a lock.
_MOST = 2_000_000_000


@functools.cache
def known_flags() -> str:
    """The flags that this XLA knows; one that it does not know ends the process. Its library has their names."""
    found = set()
    for path in pathlib.Path(jaxlib.__file__).parent.glob("*.so"):
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as library:
            found.update(name for name in _FLAGS if library.find(b"\0" + name.encode() + b"\0") >= 0)
    return " ".join(f"--{name}={value}" for name, value in _FLAGS.items() if name in found)


def set_flags(*others: str) -> None:
    """For this process and those that it starts, unless `XLA_FLAGS` is set; JAX reads them when it first computes."""
    if "XLA_FLAGS" not in os.environ:
        os.environ["XLA_FLAGS"] = " ".join((known_flags(), *others))


def keep_context() -> None:
    """Lets JAX lower all programs in one context of MLIR, which takes longer to make than an operator to lower."""
    from jax._src.interpreters import mlir

    if not hasattr(mlir.make_ir_context, "cache_clear"):
        mlir.make_ir_context = functools.cache(mlir.make_ir_context)


def keep_programs() -> None:
    """Has JAX keep XLA's programs between runs, in a folder that is emptied once it has grown beyond `_MOST`.

    A program's key is its text, XLA's flags and release: what is kept is XLA's work, and all values are computed anew.
    `TORCH2JAX_TESTS_CACHE` names another folder, or is empty so that nothing is kept. Processes that tests start keep
    nothing: their programs would not appear whole (`_put`).
    """
    default = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "torch2jax-tests"
    folder = os.environ.get("TORCH2JAX_TESTS_CACHE", str(default))
    if not folder or "JAX_COMPILATION_CACHE_DIR" in os.environ:
        return
    path = pathlib.Path(folder) / "xla"
    if path.is_dir() and sum(entry.stat().st_size for entry in os.scandir(path)) > _MOST:
        shutil.rmtree(path, ignore_errors=True)

    import jax
    from jax._src.lru_cache import LRUCache

    jax.config.update("jax_compilation_cache_dir", str(path))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)  # to write one takes less than most compile
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    _put.__code__ = _put.__code__.replace(co_filename=LRUCache.put.__code__.co_filename)  # to a watch on users' code
    LRUCache.put = _put


def _put(self, key: str, value: bytes) -> None:
    """Keeps a program, which appears whole: what another process reads meanwhile, or what ends early, is no part."""
    path = pathlib.Path(self.path) / f"{key}-cache"
    if not path.exists():
        part = path.with_name(f"{os.getpid()}-{threading.get_ident()}.part")
        part.write_bytes(value)
        part.replace(path)
