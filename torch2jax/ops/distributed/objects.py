"""Collectives of Python objects.

All devices run the same lines with the same objects, so what one of them has the others have too. Tensors within, and
numbers that are traced, may differ: they go by the collectives of tensors. An object is copied, as by a process.
"""

import copy
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from ...internals.pytree import tree_flatten, tree_unflatten
from ...values.item import Item
from .groups import MeshGroup, expect_group, number_in
from .operations import all_gathered, broadcasted, exchanged
from .serving import serves

__all__: list[str] = []


def _shared(thing: Any, share: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """A copy of an object, with what `share` makes of the tensors and traced numbers in it."""
    leaves, structure = tree_flatten(thing)
    return tree_unflatten([_shared_leaf(leaf, share) for leaf in leaves], structure)


def _shared_leaf(leaf: Any, share: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    if type(leaf) is Item:
        return Item.out_of(share(leaf.tensor()))
    if isinstance(leaf, torch.Tensor):
        return share(leaf.detach())
    _expect_none_within(leaf)
    return copy.deepcopy(leaf)


def _expect_none_within(thing: Any) -> None:
    """Refuses an object of code's own that has tensors.

    Raises:
        TypeError: it has.
    """
    held = vars(thing).values() if hasattr(thing, "__dict__") and not isinstance(thing, type) else ()
    if any(isinstance(x, torch.Tensor) for x in held):
        raise TypeError(
            f"a collective of objects got a {type(thing).__name__} with tensors; wanted these in lists, tuples or "
            "dictionaries, which are looked into, or a collective of tensors"
        )


def _expect_list(name: str, objects: Any, count: int) -> None:
    if not isinstance(objects, list) or len(objects) != count:
        got = f"a list of {len(objects)}" if isinstance(objects, list) else f"a {type(objects).__name__}"
        raise ValueError(f"{name} got {got}; wanted a list of {count}")


def _of_all(thing: Any, group: MeshGroup) -> list[Any]:
    """What each device of a group has in the place of an object."""
    leaves, structure = tree_flatten(thing)
    gathered: dict[int, torch.Tensor] = {}

    def of_rank(rank: int) -> Any:
        def chosen(place: int, leaf: Any) -> Any:
            def share(tensor: torch.Tensor) -> torch.Tensor:
                if place not in gathered:
                    gathered[place] = all_gathered(tensor.unsqueeze(0), group)
                return gathered[place][rank]

            return _shared_leaf(leaf, share)

        return tree_unflatten([chosen(*each) for each in enumerate(leaves)], structure)

    return [of_rank(rank) for rank in range(group.size())]


@serves(dist.all_gather_object)
def _all_gather_object(object_list, obj, group=None):
    group = expect_group(group)
    _expect_list("all_gather_object", object_list, group.size())
    object_list[:] = _of_all(obj, group)


@serves(dist.gather_object)
def _gather_object(obj, object_gather_list=None, dst=None, group=None, group_dst=None):
    group = expect_group(group)
    number_in(group, 0 if dst is None and group_dst is None else dst, group_dst)
    if object_gather_list is not None:  # which all devices get
        _expect_list("gather_object", object_gather_list, group.size())
        object_gather_list[:] = _of_all(obj, group)


@serves(dist.broadcast_object_list)
def _broadcast_object_list(object_list, src=None, group=None, device=None, group_src=None):
    del device
    group = expect_group(group)
    source = number_in(group, 0 if src is None and group_src is None else src, group_src)
    object_list[:] = [_shared(x, lambda tensor: broadcasted(tensor, source, group)) for x in object_list]


@serves(dist.scatter_object_list)
def _scatter_object_list(
    scatter_object_output_list, scatter_object_input_list=None, src=None, group=None, group_src=None
):
    group = expect_group(group)
    source = number_in(group, 0 if src is None and group_src is None else src, group_src)
    _expect_list("scatter_object_list", scatter_object_input_list, group.size())
    flat, structures = zip(*map(tree_flatten, scatter_object_input_list), strict=True)
    if any(structure != structures[0] for structure in structures):
        raise _differ()
    leaves = [_scattered(list(parts), source, group) for parts in zip(*flat, strict=True)]
    scatter_object_output_list[0] = tree_unflatten(leaves, structures[0])


def _scattered(parts: list[Any], source: int, group: MeshGroup) -> Any:
    """A device's one of some leaves: whole numbers that differ become traced, what is no tensor has to be equal.

    Raises:
        ValueError: they are not.
    """
    if any(isinstance(x, torch.Tensor) and type(x) is not Item for x in parts):
        if not all(isinstance(x, torch.Tensor) and x.shape == parts[0].shape for x in parts):
            raise _differ()
        return exchanged(torch.stack([x.detach() for x in parts]), group)[source]
    if all(type(x) is not Item and x == parts[0] for x in parts):
        return copy.deepcopy(parts[0])
    if not all(type(x) in (int, Item) for x in parts):
        raise _differ()
    numbers = [x.tensor() if type(x) is Item else torch.tensor(x) for x in parts]
    return Item.out_of(exchanged(torch.stack(numbers), group)[source])


def _differ() -> ValueError:
    return ValueError(
        "scatter_object_list got objects that differ between ranks in more than whole numbers and tensors of one "
        "shape; all devices run one program, with the same objects"
    )
