"""PyTorch's control flow operators, as JAX's."""

from . import (
    associative_scan as associative_scan,
    compilation as compilation,
    cond as cond,
    scan as scan,
    switch as switch,
    while_loop as while_loop,
)
