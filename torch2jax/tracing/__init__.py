"""JAX's traces as the package sees them: which is current, what it records, and code in a trace of its own."""
