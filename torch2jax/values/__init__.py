"""Tensors of a call that are no plain ones: known values, selections by a mask, without values, of subclasses."""
