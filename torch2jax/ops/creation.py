"""Tensors from nothing, from Python values, or like other tensors."""
