"""PyTorch's mixed precision, below the functions of `torch` that are exchanged while calls are translated."""

import torch

__all__ = [
    "autocast_decrement_nesting",
    "autocast_increment_nesting",
    "autocast_supported_devices",
    "is_any_autocast_enabled",
    "set_autocast_cache_enabled",
    "set_autocast_dtype",
    "set_autocast_enabled",
]

is_any_autocast_enabled = torch._C._is_any_autocast_enabled
"""Whether this thread is within a region, of any device."""

autocast_supported_devices = torch._C._autocast_supported_devices
"""The types of devices that have regions."""

set_autocast_enabled = torch._C.set_autocast_enabled
"""Makes what follows a region of a device, or none."""

set_autocast_dtype = torch._C.set_autocast_dtype
"""Sets what regions of a device cast to."""

set_autocast_cache_enabled = torch._C.set_autocast_cache_enabled
"""Sets whether what has been cast is kept for the next use."""

autocast_increment_nesting = torch._C.autocast_increment_nesting
"""Goes into one more region, and gives how many there are."""

autocast_decrement_nesting = torch._C.autocast_decrement_nesting
"""Goes out of one, and gives how many there are."""
