"""Tensors to another dtype, device or memory format."""
