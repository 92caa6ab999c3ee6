"""`torch.utils.checkpoint`."""

from torch.utils import checkpoint

__all__ = ["ALLOWED_DETERMINISM_CHECKS", "DEFAULT_DETERMINISM_MODE", "checkpoint_debug_enabled"]

DEFAULT_DETERMINISM_MODE = checkpoint._DEFAULT_DETERMINISM_MODE
"""The ``determinism_check`` where none is given."""

ALLOWED_DETERMINISM_CHECKS = checkpoint._allowed_determinism_checks_to_fns
"""Those that may be given are its keys."""


def checkpoint_debug_enabled() -> bool | None:
    """What `torch.utils.checkpoint.set_checkpoint_debug_enabled` set, None without."""
    return checkpoint._checkpoint_debug_enabled
