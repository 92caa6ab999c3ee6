"""Plans of parallelism, read into JAX's own types."""

from .constraints import constrained
from .placement import put, shardings
from .specs import specs

__all__ = ["constrained", "put", "shardings", "specs"]
