"""A process that runs uses, and that another process watches: one may hang it or end it."""

from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection

from scripts.uses.outcome import Outcome
from scripts.uses.use import Use, all_uses
from scripts.watched import each, silence

__all__ = ["outcomes"]

_BATCH = 20  # uses that one process runs: what libraries and compilers keep grows


def outcomes(uses: Sequence[Use], timeout: float) -> Iterator[Outcome]:
    """The outcome of each use, in as many processes, one after the other, as that takes."""
    versions = {use.name: use.version for use in uses}
    for name, found in each(_run, list(versions), _BATCH, timeout):
        yield found if isinstance(found, Outcome) else Outcome(name, versions[name], error=found)


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
