"""How PyTorch reads tensors from files: modules in which torch2jax replaces functions."""

from torch import _utils, _weights_only_unpickler

__all__ = ["rebuilding", "weights_only_unpickler"]

rebuilding = _utils
"""The module of the functions that pickled tensors name."""

weights_only_unpickler = _weights_only_unpickler
"""The module of ``torch.load(..., weights_only=True)``, which knows what a file may name."""
