"""Questions of Python's about traced values: both answers are followed, and become a `lax.cond`."""
