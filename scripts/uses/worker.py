"""A process that runs uses, and that another process watches: one may hang it or end it."""

from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection

from scripts.uses.outcome import Outcome
from scripts.uses.use import Use, all_uses
from scripts.watched import silence, watched

__all__ = ["outcomes"]

_BATCH = 20  # uses that one process runs: what libraries and compilers keep grows
_LOAD = 120  # seconds for its imports


def outcomes(uses: Sequence[Use], timeout: float) -> Iterator[Outcome]:
    """The outcome of each use, in as many processes, one after the other, as that takes."""
    left = list(uses)
    while left:
        with watched(_run, [use.name for use in left[:_BATCH]]) as (receive, _):
            loaded = _next(receive, _LOAD)
            for use in left[:_BATCH]:
                found = _next(receive, timeout) if loaded is None else loaded
                left.remove(use)
                yield found if isinstance(found, Outcome) else Outcome(use.name, use.version, error=str(found))
                if not isinstance(found, Outcome):
                    break


def _next(receive: Connection, seconds: float) -> Outcome | str | None:
    try:
        return receive.recv() if receive.poll(seconds) else f"TimeoutError: more than {seconds:g} s"
    except EOFError:
        return "the process ended"


# What follows runs in the worker.


def _run(send: Connection, names: list[str]) -> None:
    silence()
    import jax
    import torch

    from scripts.uses.running import run

    torch.set_num_threads(1)
    uses = all_uses()
    send.send(None)
    for name in names:
        send.send(run(uses[name]))
        jax.clear_caches()
