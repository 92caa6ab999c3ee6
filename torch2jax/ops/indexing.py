"""Gathers, scatters, masked and advanced indexing."""
