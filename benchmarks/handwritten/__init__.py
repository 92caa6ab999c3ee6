"""The benchmarked models in JAX, as an expert writes them by hand for speed on the CPU.

Each module has ``apply(params, x)``, on the weights of the PyTorch model under their names and in their layout.
"""
