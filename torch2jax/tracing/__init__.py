"""JAX's traces: the current one, what it records, and code in its own trace."""
