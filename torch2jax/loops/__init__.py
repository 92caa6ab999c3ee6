"""Loops in a graph: turns that are alike become one `lax.scan`."""
