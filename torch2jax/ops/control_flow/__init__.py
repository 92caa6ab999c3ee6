"""PyTorch's control flow operators, as JAX's."""

from . import conditions as conditions, loops as loops
