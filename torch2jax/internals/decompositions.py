"""PyTorch's Python decompositions of operators. Slow to import."""

import torch._decomp

decomposition_table = torch._decomp.decomposition_table
"""A function of other operators, by overload."""
