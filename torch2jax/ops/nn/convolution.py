"""Convolutions and their transposes, folding and unfolding."""
