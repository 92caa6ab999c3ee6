"""Trees of arguments and results: optree's containers, JAX's registered ones, and any object that holds tensors."""

import dataclasses
import threading
from collections.abc import Callable
from typing import Any

import jax
import optree
import torch

__all__ = ["flatten", "map_arguments", "map_results"]

_NAMESPACE = "torch2jax"
_REGISTERING = threading.Lock()
_BUILTIN = (tuple, list, dict, set, frozenset, str, bytes, int, float, complex, bool, type(None))


def map_arguments(fn: Callable, tree) -> Any:
    """Maps the leaves of a tree; containers are rebuilt, and the caller's are left as they are."""
    return optree.tree_map(fn, tree, is_leaf=_opens, none_is_leaf=True, namespace=_NAMESPACE)


def flatten(tree) -> tuple[list, Any]:
    """The leaves of a tree, and its structure: hashable, with a method ``unflatten(leaves)``."""
    leaves, structure = optree.tree_flatten(tree, is_leaf=_opens, none_is_leaf=True, namespace=_NAMESPACE)
    return leaves, structure


def map_results(fn: Callable, tree) -> Any:
    """As `map_arguments`, and containers that JAX does not know become pytrees, so that results can leave ``jit``."""
    return optree.tree_map(fn, tree, is_leaf=_opens_for_jax, none_is_leaf=True, namespace=_NAMESPACE)


def _opens(node) -> bool:
    """Registers the type of `node` with optree if it is a container; never makes it a leaf."""

    def register(cls, flatten, unflatten):
        optree.register_pytree_node(cls, flatten, unflatten, namespace=_NAMESPACE)

    _register(node, _is_leaf, register)
    return False


def _opens_for_jax(node) -> bool:
    _opens(node)
    _register(node, lambda node: jax.tree_util.all_leaves([node]), jax.tree_util.register_pytree_node)
    return False


def _register(node, is_leaf: Callable, register: Callable) -> None:
    """Registers the type of `node` if it is a container that is not known yet."""
    if type(node) in _BUILTIN or isinstance(node, (torch.Tensor, jax.Array)) or not is_leaf(node):
        return
    codec = _codec(node)
    if codec is not None:
        with _REGISTERING:
            if is_leaf(node):  # another thread may have been faster
                register(type(node), *codec)


def _is_leaf(node) -> bool:
    return optree.tree_is_leaf(node, none_is_leaf=True, namespace=_NAMESPACE)


def _codec(node) -> tuple[Callable, Callable] | None:
    """How to take objects of the type of `node` apart and put them together, or None if it is no container."""
    cls = type(node)
    if isinstance(node, (torch.nn.Module, torch.Size, type)):
        return None
    if not jax.tree_util.all_leaves([node]):
        return _jax_codec()
    if isinstance(node, tuple) and hasattr(cls, "n_sequence_fields"):  # torch.return_types
        return (lambda seq: (tuple(seq), None)), (lambda _, children: cls(children))
    if isinstance(node, dict):
        return _mapping_codec(cls)
    if isinstance(node, (tuple, list)):
        return (lambda seq: (tuple(seq), None)), (lambda _, children: cls(children))
    if (dataclasses.is_dataclass(node) or hasattr(node, "__dict__")) and _holds_arrays(node, set()):
        return _object_codec(cls)
    return None


def _jax_codec():
    def flatten(node):
        children, treedef = jax.tree_util.tree_flatten(node, is_leaf=lambda x: x is not node)
        return tuple(children), treedef

    return flatten, lambda treedef, children: treedef.unflatten(children)


def _mapping_codec(cls: Any):
    def flatten(mapping):
        return tuple(mapping.values()), tuple(mapping.keys())

    def unflatten(keys, children):
        items = dict(zip(keys, children, strict=True))
        return cls(**items) if dataclasses.is_dataclass(cls) else cls(items)  # pyright: ignore[reportCallIssue]

    return flatten, unflatten


def _object_codec(cls):
    def flatten(node):
        attributes: dict[str, Any] = vars(node)
        static = {key: value for key, value in attributes.items() if not _may_hold(value)}
        dynamic = {key: value for key, value in attributes.items() if key not in static}
        return tuple(dynamic.values()), _Static(tuple(dynamic), static)

    def unflatten(aux, children):
        node = object.__new__(cls)
        node.__dict__.update(aux.static)
        node.__dict__.update(zip(aux.names, children, strict=True))
        return node

    return flatten, unflatten


@dataclasses.dataclass(frozen=True, eq=False)
class _Static:
    """The part of an object that is no array; two are equal if their values are, as far as that can be told."""

    names: tuple[str, ...]
    static: dict[str, Any]

    def __eq__(self, other):
        return isinstance(other, _Static) and self.names == other.names and self.static == other.static

    def __hash__(self):
        return hash((self.names, tuple(self.static)))


def _may_hold(value) -> bool:
    return _holds_arrays(value, set())


def _holds_arrays(node, seen: set[int]) -> bool:
    if isinstance(node, (torch.Tensor, jax.Array)):
        return True
    if id(node) in seen or isinstance(node, (torch.nn.Module, type, str, bytes)):
        return False
    seen.add(id(node))
    if isinstance(node, dict):
        return any(_holds_arrays(item, seen) for item in node.values())
    if isinstance(node, (list, tuple, set, frozenset)):
        return any(_holds_arrays(item, seen) for item in node)
    if callable(node) or not hasattr(node, "__dict__"):
        return False
    return any(_holds_arrays(item, seen) for item in vars(node).values())
