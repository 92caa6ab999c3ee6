"""`torch.func` and `torch.vmap` within translated code, as JAX's transformations."""
