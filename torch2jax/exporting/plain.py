"""Trees of dictionaries, lists and tuples only, which a process without PyTorch knows."""

from typing import Any

import jax
from jax.tree_util import FlattenedIndexKey, GetAttrKey, SequenceKey

__all__ = ["plain"]


def plain(tree: Any) -> Any:
    """A tree with the same leaves, its containers as dictionaries, lists and tuples.

    A container with names for what it holds, as a `ModelOutput`, a cache or a dataclass, becomes a dictionary, a named
    tuple a tuple; keys are strings. What such a container holds beside arrays is left out.

    Args:
        tree: a pytree of JAX's.
    """
    if tree is None or jax.tree_util.all_leaves([tree]):
        return tree
    children, _ = jax.tree_util.tree_flatten_with_path(tree, is_leaf=lambda node: node is not tree)
    keys, values = [path[0] for path, _ in children], [plain(child) for _, child in children]
    if isinstance(tree, list):
        return values
    if isinstance(tree, tuple) or any(isinstance(key, (SequenceKey, FlattenedIndexKey)) for key in keys):
        return tuple(values)
    return {_name(key): value for key, value in zip(keys, values, strict=True)}


def _name(key: Any) -> str:
    return key.name if isinstance(key, GetAttrKey) else str(key.key)  # the files of programs know no other keys
