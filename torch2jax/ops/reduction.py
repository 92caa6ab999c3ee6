"""Reductions and scans: sums, means, extrema, norms, cumulative operators."""
