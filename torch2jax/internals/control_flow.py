"""PyTorch's control flow, below the public functions."""

import importlib
from typing import Any

from torch import _higher_order_ops
from torch._higher_order_ops import utils as _utils

__all__ = ["associative_scan", "associative_scan_module", "scan", "utils"]

scan = _higher_order_ops.scan
"""Checks its arguments, and goes on to the operator of that name."""

associative_scan = _higher_order_ops.associative_scan
"""The same."""

# Modules in which something is exchanged.

associative_scan_module: Any = importlib.import_module("torch._higher_order_ops.associative_scan")
"""The module of `associative_scan`, whose parent has the function under that name."""

utils = _utils
"""The module of what operators of control flow compile themselves with."""
