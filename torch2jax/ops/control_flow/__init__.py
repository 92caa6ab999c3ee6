"""PyTorch's control flow operators, as JAX's."""

from . import conditions as conditions, generation as generation, loops as loops
