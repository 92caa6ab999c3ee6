"""The collectives of `torch.distributed` that write in place, those of Python objects, and messages.

All devices run the same lines with the same objects, so what one of them has the others have too. Tensors within, and
numbers that are traced, may differ: they go by the collectives of tensors. An object is copied, as by a process.

Messages, `send`, `recv` and the like, become a `jax.lax.ppermute`.

All devices run the same lines, so that a device which sends to its neighbour gets what its other neighbour sends. A
message waits until code asks for it, or the other way round: the two are put together as soon as both are there.
"""

import copy
import sys
import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from ...internals.tensors import tree_flatten, tree_unflatten
from ...runtime.translation import current
from ...values.item import Item
from .groups import MeshGroup, expect_group, number_in
from .operations import (
    Done,
    all_gathered,
    all_reduced,
    broadcasted,
    computed,
    exchanged,
    finished,
    handles,
    op_name,
    permute,
    reduce,
    scattered,
    write,
)
from .world import peers


@handles(dist.all_reduce)
def _all_reduce(tensor, op=dist.ReduceOp.SUM, group=None, async_op=False):
    write(tensor, all_reduced(tensor, op, expect_group(group)))
    return finished(async_op, tensor)


@handles(dist.all_reduce_coalesced)
def _all_reduce_coalesced(tensors, op=dist.ReduceOp.SUM, group=None, async_op=False):
    for tensor in tensors if isinstance(tensors, (list, tuple)) else [tensors]:
        write(tensor, all_reduced(tensor, op, expect_group(group)))
    return finished(async_op, *tensors)


@handles(dist.reduce)
def _reduce(tensor, dst=None, op=dist.ReduceOp.SUM, group=None, async_op=False, group_dst=None):
    group = expect_group(group)
    target = number_in(group, dst, group_dst)
    write(tensor, computed("reduce", reduce, [tensor], group.axes, op_name(op, tensor.dtype), target))
    return finished(async_op, tensor)


@handles(dist.broadcast)
def _broadcast(tensor, src=None, group=None, async_op=False, group_src=None):
    group = expect_group(group)
    write(tensor, broadcasted(tensor, number_in(group, src, group_src), group))
    return finished(async_op, tensor)


@handles(dist.all_gather)
def _all_gather(tensor_list, tensor, group=None, async_op=False):
    group = expect_group(group)
    _expect_parts("all_gather", tensor_list, group)
    _write_all(tensor_list, all_gathered(tensor.unsqueeze(0), group).unbind(0))
    return finished(async_op, *tensor_list)


@handles(getattr(dist, "all_gather_single", dist.all_gather_into_tensor))  # the newer name runs for both
def _all_gather_into_tensor(output_tensor, input_tensor, group=None, async_op=False):
    group = expect_group(group)
    _expect_times("all_gather_into_tensor", output_tensor, input_tensor, group)
    write(output_tensor, all_gathered(_in_one(input_tensor), group))
    return finished(async_op, output_tensor)


def _in_one(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor that can be concatenated along its first dimension."""
    return tensor.unsqueeze(0) if tensor.ndim == 0 else tensor


@handles(dist.gather)
def _gather(tensor, gather_list=None, dst=None, group=None, async_op=False, group_dst=None):
    group = expect_group(group)
    target = number_in(group, 0 if dst is None and group_dst is None else dst, group_dst)
    del target  # other devices have the same: there is one program for all
    found = all_gathered(tensor.unsqueeze(0), group).unbind(0)
    if gather_list:
        _expect_parts("gather", gather_list, group)
        _write_all(gather_list, found)
    return finished(async_op, *(gather_list or ()))


@handles(dist.scatter)
def _scatter(tensor, scatter_list=None, src=None, group=None, async_op=False, group_src=None):
    group = expect_group(group)
    source = number_in(group, 0 if src is None and group_src is None else src, group_src)
    if not scatter_list:
        raise ValueError(
            "Argument ``scatter_list`` must be specified on source rank. In JAX all devices run one program: "
            "pass the list on all of them; that of the source counts"
        )
    _expect_parts("scatter", scatter_list, group)
    write(tensor, exchanged(torch.stack(list(scatter_list)), group)[source])
    return finished(async_op, tensor)


@handles(dist.reduce_scatter)
def _reduce_scatter(output, input_list, op=dist.ReduceOp.SUM, group=None, async_op=False):
    group = expect_group(group)
    _expect_parts("reduce_scatter", input_list, group)
    write(output, scattered(torch.stack(list(input_list)), op, group)[0])
    return finished(async_op, output)


@handles(getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor))
def _reduce_scatter_tensor(output, input, op=dist.ReduceOp.SUM, group=None, async_op=False):
    group = expect_group(group)
    _expect_times("reduce_scatter_tensor", input, output, group)
    if input.ndim == 0 or input.shape[0] % group.size():
        input = input.reshape(group.size(), -1)
    write(output, scattered(input, op, group))
    return finished(async_op, output)


@handles(dist.all_to_all)
def _all_to_all(output_tensor_list, input_tensor_list, group=None, async_op=False):
    group = expect_group(group)
    _expect_parts("all_to_all", input_tensor_list, group)
    _expect_parts("all_to_all", output_tensor_list, group)
    _write_all(output_tensor_list, exchanged(torch.stack(list(input_tensor_list)), group).unbind(0))
    return finished(async_op, *output_tensor_list)


@handles(dist.all_to_all_single)
def _all_to_all_single(output, input, output_split_sizes=None, input_split_sizes=None, group=None, async_op=False):
    group = expect_group(group)
    write(output, exchanged(input, group, output_split_sizes, input_split_sizes))
    return finished(async_op, output)


def _write_all(targets: Sequence[torch.Tensor], values: Sequence[torch.Tensor]) -> None:
    for target, value in zip(targets, values, strict=True):
        write(target, value)


def _expect_parts(name: str, parts: list, group: MeshGroup) -> None:
    """Expects a list with a tensor for each device."""
    if not isinstance(parts, (list, tuple)) or len(parts) != group.size():
        got = f"{len(parts)} tensors" if isinstance(parts, (list, tuple)) else f"a {type(parts).__name__}"
        raise ValueError(f"{name} got {got}; wanted a list of {group.size()}, one for each rank of the group")
    shapes = [tuple(part.shape) for part in parts]
    if len(set(shapes)) > 1:
        raise ValueError(
            f"{name} got tensors of the shapes {shapes}; wanted one shape. All devices run one program, so a "
            "device cannot receive a length of its own: pad the tensor for each rank to the largest size"
        )


def _expect_times(name: str, large: torch.Tensor, small: torch.Tensor, group: MeshGroup) -> None:
    """Checks that one tensor has as many elements as others on all devices together."""
    if large.numel() != small.numel() * group.size():
        raise ValueError(
            f"{name} got tensors of shapes {tuple(large.shape)} and {tuple(small.shape)}; wanted {group.size()} "
            "times as many elements in the first, one share for each rank"
        )


def _shared(thing: object, share: Callable[[torch.Tensor], torch.Tensor]) -> object:
    """A copy of an object in which `share` has replaced the tensors and traced numbers."""
    leaves, structure = tree_flatten(thing)
    return tree_unflatten([_shared_leaf(leaf, share) for leaf in leaves], structure)


def _shared_leaf(leaf: object, share: Callable[[torch.Tensor], torch.Tensor]) -> object:
    if type(leaf) is Item:
        return Item.out_of(share(leaf.tensor()))
    if isinstance(leaf, torch.Tensor):
        return share(leaf.detach())
    _expect_none_within(leaf)
    return copy.deepcopy(leaf)


def _expect_none_within(thing: object) -> None:
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


def _expect_list(name: str, objects: object, count: int) -> None:
    if not isinstance(objects, list) or len(objects) != count:
        got = f"a list of {len(objects)}" if isinstance(objects, list) else f"a {type(objects).__name__}"
        raise ValueError(f"{name} got {got}; wanted a list of {count}")


def _of_all(thing: object, group: MeshGroup) -> list[object]:
    """The objects that the devices of a group have, one for each."""
    leaves, structure = tree_flatten(thing)
    gathered: dict[int, torch.Tensor] = {}

    def of_rank(rank: int) -> object:
        def chosen(position: int, leaf: Any) -> Any:
            def share(tensor: torch.Tensor) -> torch.Tensor:
                if position not in gathered:
                    gathered[position] = all_gathered(tensor.unsqueeze(0), group)
                return gathered[position][rank]

            return _shared_leaf(leaf, share)

        return tree_unflatten([chosen(*each) for each in enumerate(leaves)], structure)

    return [of_rank(rank) for rank in range(group.size())]


@handles(dist.all_gather_object)
def _all_gather_object(object_list, obj, group=None):
    group = expect_group(group)
    _expect_list("all_gather_object", object_list, group.size())
    object_list[:] = _of_all(obj, group)


@handles(dist.gather_object)
def _gather_object(obj, object_gather_list=None, dst=None, group=None, group_dst=None):
    group = expect_group(group)
    number_in(group, 0 if dst is None and group_dst is None else dst, group_dst)
    if object_gather_list is not None:  # which all devices get
        _expect_list("gather_object", object_gather_list, group.size())
        object_gather_list[:] = _of_all(obj, group)


@handles(dist.broadcast_object_list)
def _broadcast_object_list(object_list, src=None, group=None, device=None, group_src=None):
    del device
    group = expect_group(group)
    source = number_in(group, 0 if src is None and group_src is None else src, group_src)
    object_list[:] = [_shared(x, lambda tensor: broadcasted(tensor, source, group)) for x in object_list]


@handles(dist.scatter_object_list)
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
    """A device's leaf among those of all: integers that differ become traced; other objects must be equal.

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


class _Sent(NamedTuple):
    """A message on its way."""

    group: MeshGroup
    tag: int
    targets: tuple[int, ...]
    """To whom each device sends it."""
    values: torch.Tensor

    def fits(self, wanted: "_PendingTensor") -> bool:
        is_compatible = self.group is wanted.group and self.tag == wanted.tag
        sources = wanted.sources
        return is_compatible and (sources is None or all(self.targets[sources[i]] == i for i in range(len(sources))))


class _PendingTensor(NamedTuple):
    """A tensor that waits for a message."""

    group: MeshGroup
    tag: int
    sources: tuple[int, ...] | None
    """The source of each device's message; None for any."""
    tensor: torch.Tensor
    work: "_Arrival"


class _Arrival(Done):
    """The work of a tensor that waits for a message."""

    has_come = False

    def wait(self, *args: object, **kwargs: object) -> bool:
        if not self.has_come:
            raise RuntimeError(
                "recv waits for a message that no device has sent yet; wanted the line that sends it first, such "
                "as isend or batch_isend_irecv: all devices run the same lines in the same order"
            )
        return True

    def is_completed(self) -> bool:
        return self.has_come


class _Mail:
    """The messages of a call that have not met those who want them."""

    def __init__(self):
        self._sent: list[_Sent] = []
        self._wanted: list[_PendingTensor] = []

    def send(self, sent: _Sent) -> None:
        for wanted in self._wanted:
            if sent.fits(wanted):
                self._wanted.remove(wanted)
                _deliver(sent, wanted)
                return
        self._sent.append(sent)

    def want(self, wanted: _PendingTensor) -> None:
        for sent in self._sent:
            if sent.fits(wanted):
                self._sent.remove(sent)
                _deliver(sent, wanted)
                return
        self._wanted.append(wanted)

    def end(self) -> None:
        """Refuses messages that nobody received, unless another error is raised.

        Raises:
            RuntimeError: a message has met nobody who wants it.
        """
        if sys.exc_info()[0] is None and (self._sent or self._wanted):
            sent, wanted = [x.targets for x in self._sent], [x.sources for x in self._wanted]
            raise RuntimeError(
                f"got messages to {sent} that no device receives, and tensors that wait for messages from "
                f"{wanted}, by device number; wanted, for each send, a recv from each device's own source"
            )


def _deliver(sent: _Sent, wanted: _PendingTensor) -> None:
    counts = len(set(sent.targets))
    if counts < len(sent.targets):
        raise ValueError(
            f"all devices send to {sent.targets}; wanted a different target for each of them, such as (rank + "
            "1) % world_size"
        )
    write(wanted.tensor, computed("send", permute, [sent.values], sent.group.axes, sent.targets))
    wanted.work.has_come = True


_mails: weakref.WeakKeyDictionary[object, _Mail] = weakref.WeakKeyDictionary()


def _mail() -> _Mail:
    call = current()
    found = _mails.get(call.settings)
    if found is None:
        found = _mails[call.settings] = _Mail()
        call.ends.append(found.end)
    return found


def _send(tensor: torch.Tensor, dst: object, group: object, tag: int, group_dst: Any) -> Done:
    group = expect_group(group)
    targets = peers(group, dst, group_dst, "dst")
    _mail().send(_Sent(group, tag, targets, tensor.clone()))  # it may be written to meanwhile
    return Done([tensor])


def _receive(tensor: torch.Tensor, src: object, group: object, tag: int, group_src: Any) -> "_Arrival":
    group = expect_group(group)
    sources = None if src is None and group_src is None else peers(group, src, group_src, "src")
    work = _Arrival([tensor])
    _mail().want(_PendingTensor(group, tag, sources, tensor, work))
    return work


@handles(dist.isend)
def _isend(tensor, dst=None, group=None, tag=0, group_dst=None):
    return _send(tensor, dst, group, tag, group_dst)


@handles(dist.irecv)
def _irecv(tensor, src=None, group=None, tag=0, group_src=None):
    return _receive(tensor, src, group, tag, group_src)


@handles(dist.send)
def _send_now(tensor, dst=None, group=None, tag=0, group_dst=None):
    _send(tensor, dst, group, tag, group_dst)


@handles(dist.recv)
def _receive_now(tensor, src=None, group=None, tag=0, group_src=None):
    _receive(tensor, src, group, tag, group_src).wait()
    return src
