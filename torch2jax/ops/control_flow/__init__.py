"""PyTorch's control flow operators, as JAX's."""

from . import (
    compilation as compilation,
    cond as cond,
    scan as scan,
    while_loop as while_loop,
)
