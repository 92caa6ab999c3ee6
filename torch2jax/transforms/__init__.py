"""PyTorch's own transformations within translated code, as JAX's."""
