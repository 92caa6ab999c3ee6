"""Trees of arguments and results: optree's containers, JAX's registered ones, and any object that holds tensors."""

import itertools
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Any

import jax
import optree
import torch

from .containers import ContainerCodec, codec_of
from .padded import Padded
from .wrapped import Wrapped

_NAMESPACE = "torch2jax"
_REGISTERING = threading.Lock()
_decided: set[type] = {tuple, list, dict, set, frozenset, str, bytes, int, float, complex, bool, type(None)}
"""Types that need not be registered: Python's own, and the array types met so far."""


class TensorSlot:
    """The place of a tensor among others, where a tree is kept without its tensors."""

    def __init__(self, index: int):
        self.index = index


def map_arguments(fn: Callable, tree: Any) -> Any:
    """Maps the leaves of a tree; containers are rebuilt, and the caller's are left as they are."""
    return optree.tree_map(fn, tree, is_leaf=_opens, none_is_leaf=True, namespace=_NAMESPACE)


def map_given(fn: Callable, tree: Any) -> Any:
    """As `map_arguments`, with padded and sparse arrays and other stand-ins for tensors as single leaves."""
    return optree.tree_map(fn, tree, is_leaf=_is_opaque, none_is_leaf=True, namespace=_NAMESPACE)


def flatten(tree: Any) -> tuple[list, Any]:
    """The leaves of a tree, and its structure: hashable, with a method ``unflatten(leaves)``."""
    leaves, structure = optree.tree_flatten(tree, is_leaf=_opens, none_is_leaf=True, namespace=_NAMESPACE)
    return leaves, structure


def flatten_given(tree: Any) -> tuple[list, optree.PyTreeSpec]:
    """As `flatten`, with padded and sparse arrays and other stand-ins for tensors as single leaves."""
    leaves, structure = optree.tree_flatten(tree, is_leaf=_is_opaque, none_is_leaf=True, namespace=_NAMESPACE)
    return leaves, structure


def entries(structure: optree.PyTreeSpec) -> list:
    """The keys, indices or attribute names of a container's parts."""
    return list(getattr(structure.type, "_fields", structure.entries()))


def shown(structure: optree.PyTreeSpec, leaves: Iterable[str] = itertools.repeat("*")) -> str:
    """A structure of `flatten` as Python writes it, with a text for each leaf."""
    leaves = iter(leaves)
    if structure.type is None:
        return next(leaves)
    children = [shown(child, leaves) for child in structure.children()]  # also of what is not written out
    kind, inside = structure.type, ", ".join(children)
    if kind is Padded:
        return "Padded(values, length)"
    if kind is tuple:
        return f"({inside},)" if len(children) == 1 else f"({inside})"
    if kind is list:
        return f"[{inside}]"
    named = zip(entries(structure), children, strict=True)
    if issubclass(kind, dict):
        text = "{" + ", ".join(f"{key!r}: {child}" for key, child in named) + "}"
        return text if kind is dict else f"{kind.__name__}({text})"
    return f"{kind.__name__}({', '.join(f'{key}={child}' for key, child in named)})"


def map_results(fn: Callable, tree: Any) -> object:
    """As `map_arguments`; containers unknown to JAX become pytrees, so that results can leave ``jit``.

    JAX sorts the keys of a dictionary. One whose keys have no order, as members of an `Enum`, becomes an `OrderedDict`.
    """
    if isinstance(tree, torch.Tensor):
        return fn(tree)
    unordered = False

    def opens(node: object) -> bool:
        nonlocal unordered
        unordered = unordered or (type(node) is dict and not _is_sortable(node))
        return _opens_for_jax(node)

    found = optree.tree_map(fn, tree, is_leaf=opens, none_is_leaf=True, namespace=_NAMESPACE)
    return ordered(found) if unordered else found


def ordered(tree: Any) -> Any:
    """A tree of dictionaries, lists and tuples with an `OrderedDict` for each dictionary that JAX cannot sort."""
    if type(tree) is dict:
        children = {key: ordered(value) for key, value in tree.items()}
        return children if _is_sortable(tree) else OrderedDict(children)
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree)(*map(ordered, tree))  # pyright: ignore[reportArgumentType]
    return type(tree)(map(ordered, tree)) if type(tree) in (list, tuple) else tree


def is_sparse_array(thing: object) -> bool:
    """Returns True for a sparse array of JAX or a `CompressedArray`."""
    return type(thing).__module__.startswith(_SPARSE)


_SPARSE = ("jax.experimental.sparse.", __name__.replace("trees", "sparse_arrays"))


def _is_opaque(node: object) -> bool:
    if type(node) in (Padded, Wrapped) or (type(node) not in _decided and is_sparse_array(node)):
        return True
    return _opens(node)


def _is_sortable(keys: dict) -> bool:
    try:
        sorted(keys)
    except TypeError:
        return False
    return True


def _opens(node: object) -> bool:
    """Registers the type of `node` with optree if it is a container; never makes it a leaf."""

    if type(node) not in _decided:
        _register(node, _is_leaf, _with_optree)
    return False


def _with_optree(cls: type, codec: ContainerCodec) -> None:
    optree.register_pytree_node(cls, codec.flatten, codec.unflatten, namespace=_NAMESPACE)


def _opens_for_jax(node: object) -> bool:
    if type(node) not in _decided:
        _register(node, _is_leaf, _with_optree)
        _register(node, _is_leaf_to_jax, _with_jax)
    return False


def _with_jax(cls: type, codec: ContainerCodec) -> None:
    def flatten_with_keys(node: object):
        children, rest = codec.flatten(node)
        return tuple(zip(codec.keys(rest, children), children, strict=True)), rest

    jax.tree_util.register_pytree_with_keys(cls, flatten_with_keys, codec.unflatten, codec.flatten)


def _register(node: object, is_leaf: Callable, register: Callable) -> None:
    """Registers the type of `node` if it is a container that is not known yet."""
    if isinstance(node, jax.Array):
        _decided.add(type(node))
        return
    if isinstance(node, torch.Tensor) or not is_leaf(node):
        return
    codec = codec_of(node)
    if codec is not None:
        with _REGISTERING:
            if is_leaf(node):  # another thread may have been faster
                register(type(node), codec)


def _is_leaf_to_jax(node: object) -> bool:
    return jax.tree_util.all_leaves([node])


def _is_leaf(node: Any) -> bool:
    return optree.tree_is_leaf(node, none_is_leaf=True, namespace=_NAMESPACE)
