"""Trees of arguments and results, and the objects in them that hold tensors: they are taken apart and rebuilt.

JAX, and what builds on it, puts other things where the arrays are: None, flags, axes, placeholders. So an object that
was put together remembers which of its attributes these are, and no constructor is run.
"""

import dataclasses
import itertools
import threading
import types
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
import optree
import torch
from jax.tree_util import DictKey, GetAttrKey, SequenceKey

from ..runtime.caches import remembered
from .padded import Padded
from .wrapped import Wrapped

_TENSORS = (torch.Tensor, jax.Array, jax.ShapeDtypeStruct)
_NAMES = "_torch2jax_children"
_OPEN: set[str] = set()
"""The modules whose objects are containers also while they hold no tensors, as caches that are empty do."""


class ContainerCodec(NamedTuple):
    """The functions that flatten and unflatten the objects of a class."""

    flatten: Callable[[Any], tuple[tuple, Any]]
    """Gives the children of an object, and the rest of it, which can be compared and hashed."""
    unflatten: Callable[[Any, Iterable], Any]
    """The object with this rest and these children."""
    keys: Callable[[Any, Sequence], Iterable]
    """Returns the key that leads to each child, given the rest and the children."""


def codec_of(node: Any) -> ContainerCodec | None:
    """The codec of the class of `node`; None if it is no container."""
    cls = type(node)
    if isinstance(node, (*_TENSORS, torch.nn.Module, torch.Size, type)):
        return None
    if not jax.tree_util.all_leaves([node]):
        return ContainerCodec(_flatten_for_jax, lambda treedef, children: treedef.unflatten(children), _by_index)
    if isinstance(node, (tuple, list)):
        return ContainerCodec(lambda node: (tuple(node), None), lambda _, children: cls(tuple(children)), _by_index)
    return _object_codec(cls) if isinstance(node, dict) or _holds_tensors(node, set()) else None


def open_up(node: object) -> None:
    """Makes the classes of an object's module containers, also of objects without tensors."""
    if _is_plain(node):
        _OPEN.add(type(node).__module__)


def _is_plain(node: object) -> bool:
    """Returns True if an object is nothing but what it holds: no code, no value type, no `__del__`."""
    cls = type(node)
    if callable(node) or isinstance(node, (torch.nn.Module, types.ModuleType)) or hasattr(cls, "__del__"):
        return False
    return hasattr(node, "__dict__") and cls.__hash__ in (None, object.__hash__)


def _flatten_for_jax(node: object):
    children, treedef = jax.tree_util.tree_flatten(node, is_leaf=lambda x: x is not node)
    return tuple(children), treedef


def _by_index(_, children: Sequence) -> Iterable:
    return map(SequenceKey, range(len(children)))


def _object_codec(cls: Any) -> ContainerCodec:
    kind: Any = next((base for base in (OrderedDict, dict) if issubclass(cls, base)), object)
    of_slots: set[str] = set()  # what objects that have no room for it remember together

    def flatten(node: Any):
        items: dict = dict(kind.items(node)) if kind is not object else {}
        attributes = {name: value for name, value in attributes_of(node).items() if name not in items}
        remembered = attributes.pop(_NAMES, of_slots)
        children_by_name = {name: x for name, x in attributes.items() if name in remembered or _holds_tensors(x, set())}
        static = {name: _copied(value) for name, value in attributes.items() if name not in children_by_name}
        return (*items.values(), *children_by_name.values()), _Rest(tuple(items), tuple(children_by_name), static)

    def unflatten(rest: "_Rest", children: Iterable):
        node, children = kind.__new__(cls), tuple(children)
        items = dict(zip(rest.items, children, strict=False))
        for name, child in items.items():
            kind.__setitem__(node, name, child)
        children_by_name = dict(zip(rest.names, children[len(items) :], strict=True))
        shown = items if dataclasses.is_dataclass(cls) else {}  # as attributes too
        for name, value in {**_copied(rest.static), **shown, **children_by_name}.items():
            object.__setattr__(node, name, value)
        if hasattr(node, "__dict__"):
            object.__setattr__(node, _NAMES, rest.names)
        else:
            of_slots.update(rest.names)
        return node

    return ContainerCodec(flatten, unflatten, lambda rest, _: [*map(DictKey, rest.items), *map(GetAttrKey, rest.names)])


def attributes_of(node: object) -> dict[str, Any]:
    """The attributes of an object, in its slots and in its dictionary."""
    children_by_name = {name: getattr(node, name) for name in slots_of(type(node)) if hasattr(node, name)}
    return {**children_by_name, **getattr(node, "__dict__", {})}


@remembered(1024)
def slots_of(kind: type) -> tuple[str, ...]:
    """The attributes that objects of a class have elsewhere than in their dictionary."""
    return tuple(name for base in kind.__mro__ for name in _own_slots(base))


def _own_slots(base: type) -> tuple[str, ...]:
    names = vars(base).get("__slots__", ())
    names = (names,) if isinstance(names, str) else names
    prefix = f"_{base.__name__.lstrip('_')}"
    return tuple(prefix + name if name.startswith("__") else name for name in names if not name.endswith("__"))


def _copied(value: Any):
    """A copy of an object's rest, so that no two objects share a list or dictionary that code may change."""
    if type(value) in (list, set):
        return type(value)(_copied(item) for item in value)
    return {key: _copied(item) for key, item in value.items()} if type(value) is dict else value


@dataclasses.dataclass(frozen=True, eq=False)
class _Rest:
    """The rest of an object without its children; two are equal if their values are, as far as these compare."""

    items: tuple
    names: tuple[str, ...]
    static: dict[str, Any]

    def __eq__(self, other: object):
        if not isinstance(other, _Rest) or (self.items, self.names) != (other.items, other.names):
            return False
        return _are_equal(self.static, other.static)

    def __hash__(self):
        return hash((self.items, self.names, tuple(self.static)))


def _are_equal(one: Any, other: Any) -> bool:
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    if type(one) in (tuple, list):
        return len(one) == len(other) and all(map(_are_equal, one, other))
    if type(one) is dict:
        return one.keys() == other.keys() and all(_are_equal(value, other[key]) for key, value in one.items())
    return np.array_equal(one, other) if isinstance(one, np.ndarray) else bool(one == other)


def _holds_tensors(node: object, seen: set[int]) -> bool:
    """Returns True if `node` is or holds a tensor, or is of a class that `open_up` has declared a container."""
    if isinstance(node, _TENSORS):
        return True
    if id(node) in seen or isinstance(node, (torch.nn.Module, type, str, bytes)):
        return False
    seen.add(id(node))
    if isinstance(node, dict):
        return any(_holds_tensors(item, seen) for item in node.values())
    if isinstance(node, (list, tuple, set, frozenset)):
        return any(_holds_tensors(item, seen) for item in node)
    if callable(node):
        return False
    if type(node).__module__ in _OPEN and _is_plain(node):
        return True
    return any(_holds_tensors(item, seen) for item in attributes_of(node).values())


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
