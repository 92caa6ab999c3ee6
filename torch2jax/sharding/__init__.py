"""Reads parallelism plans into JAX's own sharding types."""

from .constraints import constrained
from .specs import put, shardings, specs

__all__ = ["constrained", "put", "shardings", "specs"]
