"""Which tensors around compiled parts are PyTorch's own, and whether they require grad: an attribute says so."""

from typing import Any

__all__ = ["NO", "WANTING", "YES", "state_of"]

NO, YES, WANTING = 0, 1, 2
"""What a tensor is: none of these; one; one that requires grad."""


def state_of(value: Any) -> int:
    return getattr(value, "_is_host", NO)
