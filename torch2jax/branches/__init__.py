"""Conditions on traced values (*questions*): both branches are traced, and become a `lax.cond`."""
