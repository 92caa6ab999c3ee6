"""Rules of sparse tensors: functions of their indices and values, which are tensors of the call."""

from . import (
    construction as construction,
    conversion as conversion,
    elementwise as elementwise,
    metadata as metadata,
    products as products,
    shapes as shapes,
)
