"""Leaf rules for ATen operators that no torch-level rule serves."""
