"""Interpolation, grids, padding and pixel shuffling."""
