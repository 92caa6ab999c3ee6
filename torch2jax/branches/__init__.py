"""Conditions on traced values: both branches are traced, and become a `lax.cond`."""
