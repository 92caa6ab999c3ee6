"""`torch.nn.attention.flex_attention`."""

from torch.nn.attention import flex_attention as _flex

__all__ = ["identity", "vmap_for_bhqkv"]

identity = _flex._identity
"""The function of scores that stands for none."""

vmap_for_bhqkv = _flex._vmap_for_bhqkv
"""A function of one score, by `torch.vmap` one of all, along batch, heads, queries and keys."""
