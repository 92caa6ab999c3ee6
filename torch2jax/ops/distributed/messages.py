"""Messages between devices: `send`, `recv` and the like, which become a `jax.lax.ppermute`.

All devices run the same lines, so that a device which sends to its neighbour gets what its other neighbour sends. A
message waits until code asks for it, or the other way round: the two are put together as soon as both are there.
"""

import sys
import weakref
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from ...calls.call import current
from .collectives import permute
from .groups import MeshGroup, expect_group
from .operations import Done, computed, write
from .ranks import peers
from .serving import serves

__all__: list[str] = []


class _Sent(NamedTuple):
    """A message on its way."""

    group: MeshGroup
    tag: int
    targets: tuple[int, ...]
    """To whom each device sends it."""
    values: torch.Tensor

    def fits(self, wanted: "_AwaitedTensor") -> bool:
        is_alike = self.group is wanted.group and self.tag == wanted.tag
        sources = wanted.sources
        return is_alike and (sources is None or all(self.targets[sources[i]] == i for i in range(len(sources))))


class _AwaitedTensor(NamedTuple):
    """A tensor that waits for a message."""

    group: MeshGroup
    tag: int
    sources: tuple[int, ...] | None
    """From whom each device gets it; None for anybody."""
    tensor: torch.Tensor
    work: "_Arrival"


class _Arrival(Done):
    """The work of a tensor that waits for a message."""

    has_come = False

    def wait(self, *args: Any, **kwargs: Any) -> bool:
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
        self._wanted: list[_AwaitedTensor] = []

    def send(self, sent: _Sent) -> None:
        for wanted in self._wanted:
            if sent.fits(wanted):
                self._wanted.remove(wanted)
                _deliver(sent, wanted)
                return
        self._sent.append(sent)

    def want(self, wanted: _AwaitedTensor) -> None:
        for sent in self._sent:
            if sent.fits(wanted):
                self._sent.remove(sent)
                _deliver(sent, wanted)
                return
        self._wanted.append(wanted)

    def end(self) -> None:
        """Refuses what is left, where nothing else has gone wrong.

        Raises:
            RuntimeError: a message has met nobody who wants it.
        """
        if sys.exc_info()[0] is None and (self._sent or self._wanted):
            sent, wanted = [x.targets for x in self._sent], [x.sources for x in self._wanted]
            raise RuntimeError(
                f"got messages to {sent} that no device receives, and tensors that wait for messages from "
                f"{wanted}, by device number; wanted, for each send, a recv from each device's own source"
            )


def _deliver(sent: _Sent, wanted: _AwaitedTensor) -> None:
    counts = len(set(sent.targets))
    if counts < len(sent.targets):
        raise ValueError(
            f"all devices send to {sent.targets}; wanted a different target for each of them, such as (rank + "
            "1) % world_size"
        )
    write(wanted.tensor, computed("send", permute, [sent.values], sent.group.axes, sent.targets))
    wanted.work.has_come = True


_mails: weakref.WeakKeyDictionary[Any, _Mail] = weakref.WeakKeyDictionary()


def _mail() -> _Mail:
    call = current()
    found = _mails.get(call.settings)
    if found is None:
        found = _mails[call.settings] = _Mail()
        call.ends.append(found.end)
    return found


def _send(tensor: torch.Tensor, dst: Any, group: Any, tag: int, group_dst: Any) -> Done:
    group = expect_group(group)
    targets = peers(group, dst, group_dst, "dst")
    _mail().send(_Sent(group, tag, targets, tensor.clone()))  # it may be written to meanwhile
    return Done([tensor])


def _receive(tensor: torch.Tensor, src: Any, group: Any, tag: int, group_src: Any) -> "_Arrival":
    group = expect_group(group)
    sources = None if src is None and group_src is None else peers(group, src, group_src, "src")
    work = _Arrival([tensor])
    _mail().want(_AwaitedTensor(group, tag, sources, tensor, work))
    return work


@serves(dist.isend)
def _isend(tensor, dst=None, group=None, tag=0, group_dst=None):
    return _send(tensor, dst, group, tag, group_dst)


@serves(dist.irecv)
def _irecv(tensor, src=None, group=None, tag=0, group_src=None):
    return _receive(tensor, src, group, tag, group_src)


@serves(dist.send)
def _send_now(tensor, dst=None, group=None, tag=0, group_dst=None):
    _send(tensor, dst, group, tag, group_dst)


@serves(dist.recv)
def _receive_now(tensor, src=None, group=None, tag=0, group_src=None):
    _receive(tensor, src, group, tag, group_src).wait()
    return src
