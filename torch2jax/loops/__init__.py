"""Loops in a graph: identical iterations become one `lax.scan`."""
