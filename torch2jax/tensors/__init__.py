"""Tensors that hold arrays: storages, views, dtypes, and conversion between tensors and arrays."""
