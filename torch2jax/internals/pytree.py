"""PyTorch's pytrees, for code in which PyTorch itself flattens: its containers, and those that users registered."""

from torch.utils import _pytree

__all__ = [
    "tree_any",
    "tree_flatten",
    "tree_leaves",
    "tree_map",
    "tree_map_only",
    "tree_unflatten",
    "treespec_pprint",
]

tree_flatten = _pytree.tree_flatten
"""The leaves of a tree, and its structure; None is a leaf."""

tree_unflatten = _pytree.tree_unflatten
"""The tree of leaves and a structure."""

tree_leaves = _pytree.tree_leaves
"""The leaves alone."""

tree_map = _pytree.tree_map
"""The tree with a function's results in place of its leaves."""

tree_map_only = _pytree.tree_map_only
"""The same for leaves of a class, with all others as they are."""

tree_any = _pytree.tree_any
"""Whether a predicate holds for any leaf."""

treespec_pprint = _pytree.treespec_pprint
"""A structure as text, as errors show it."""
