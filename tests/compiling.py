"""How tests, and scripts that run as many, compile: thousands of small programs, each of which is run once or twice."""

import functools
import mmap
import os
import pathlib

import jaxlib

__all__ = ["keep_context", "known_flags", "set_flags"]

# What LLVM does not optimise compiles in a third of the time.
_FLAGS = {
    "xla_backend_optimization_level": "0",
    "xla_llvm_disable_expensive_passes": "true",
    "xla_cpu_use_fusion_emitters": "false",
    "xla_cpu_parallel_codegen_split_count": "1",
    "xla_disable_hlo_passes": "constant_folding",
}


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
