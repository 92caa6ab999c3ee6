"""Rules of sparse tensors: functions of their indices and values, which are tensors of the call."""

from . import (
    checks as checks,
    construction as construction,
    conversion as conversion,
    elementwise as elementwise,
    likes as likes,
    metadata as metadata,
    products as products,
    reductions as reductions,
    resizing as resizing,
    shapes as shapes,
)
