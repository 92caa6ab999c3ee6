"""Special tensors of a call: known values, selections by a mask, tensors without values, subclasses."""
