"""Tensors that hold arrays: storages, views, dtypes, and what becomes an array or a tensor."""
