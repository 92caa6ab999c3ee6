"""Joining, repeating, flipping and padding without weights: results that are no views."""
