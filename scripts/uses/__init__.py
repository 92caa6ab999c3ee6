"""Typical uses of libraries that build on PyTorch, a file for each group of fields, and what became of them."""
