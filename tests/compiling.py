"""How tests, and scripts that run as many, compile: thousands of small programs, each of which is run once or twice."""

import functools
import os

__all__ = ["FLAGS", "keep_context", "set_flags"]

# What LLVM does not optimise compiles in a third of the time.
FLAGS = (
    "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true --xla_cpu_use_fusion_emitters=false "
    "--xla_cpu_parallel_codegen_split_count=1 --xla_disable_hlo_passes=constant_folding"
)


def set_flags(*others: str) -> None:
    """For this process and those that it starts, unless `XLA_FLAGS` is set; JAX reads them when it first computes."""
    os.environ.setdefault("XLA_FLAGS", " ".join((FLAGS, *others)))


def keep_context() -> None:
    """Lets JAX lower all programs in one context of MLIR, which takes longer to make than an operator to lower."""
    from jax._src.interpreters import mlir

    if not hasattr(mlir.make_ir_context, "cache_clear"):
        mlir.make_ir_context = functools.cache(mlir.make_ir_context)
