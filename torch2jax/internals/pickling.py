"""How PyTorch reads tensors from files: the module in which torch2jax replaces functions."""

from torch import _utils

__all__ = ["rebuilding"]

rebuilding = _utils
"""The module of the functions that pickled tensors name."""
