"""Dtypes, dimensions and strides, as PyTorch's own Python code computes them."""

import torch._prims_common as _common

__all__ = [
    "ELEMENTWISE_TYPE_PROMOTION_KIND",
    "alert_not_deterministic",
    "canonicalize_dim",
    "canonicalize_dims",
    "computation_dtype",
    "corresponding_complex_dtype",
    "corresponding_real_dtype",
    "elementwise_dtypes",
]

ELEMENTWISE_TYPE_PROMOTION_KIND = _common.ELEMENTWISE_TYPE_PROMOTION_KIND
"""How an operator's dtypes follow from its arguments': ``DEFAULT``, ``INT_TO_FLOAT``, ``ALWAYS_BOOL``, …"""

elementwise_dtypes = _common.elementwise_dtypes
"""The dtypes that an elementwise operator computes in and gives, for tensors and numbers."""

computation_dtype = _common.get_computation_dtype
"""The dtype that an elementwise operator computes in, for operands of a dtype."""

canonicalize_dim = _common.canonicalize_dim
"""A dimension counted from the front; IndexError for one that is not there."""

canonicalize_dims = _common.canonicalize_dims
"""The same of one or several."""

corresponding_real_dtype = _common.corresponding_real_dtype
"""The dtype of a complex dtype's parts."""

corresponding_complex_dtype = _common.corresponding_complex_dtype
"""The dtype whose parts are of a dtype."""

alert_not_deterministic = _common.alert_not_deterministic
"""The error, or warning, that `torch.use_deterministic_algorithms` asked for, if it did."""
