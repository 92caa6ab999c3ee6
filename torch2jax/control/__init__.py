"""Conditions and loops on traced values, read from the source: each side runs once, and what it writes is journaled."""
