"""Leaf rules for ``torch.ops.prims``, where PyTorch's reference decompositions end."""
