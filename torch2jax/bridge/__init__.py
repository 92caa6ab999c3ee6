"""PyTorch called from JAX, and JAX called from PyTorch."""
