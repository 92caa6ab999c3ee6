"""Reads parallelism plans into JAX's own sharding types."""

from .constraints import constrained
from .placement import put, shardings
from .specs import specs

__all__ = ["constrained", "put", "shardings", "specs"]
