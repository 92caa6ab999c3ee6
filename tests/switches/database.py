"""Entries of PyTorch's operator database under switches of JAX's: the first sample of each, in its first dtype.

python -m tests.switches.database                      # everything
python -m tests.switches.database --every 18           # each entry under one switch, by turns
python -m tests.switches.database checking_leaks 'linalg.*'
"""

import argparse
import fnmatch
import zlib
from collections.abc import Iterator

import jax
import torch
from torch.testing._internal.opinfo.core import OpInfo
from torch.utils import _pytree as pytree

from tests.ops.database import attempt, columns_of, dtypes_of, entries, full_name, trials
from tests.ops.database.outcome import Refused, expected_of

from .agreement import prepare
from .switches import SWITCHES

__all__ = ["COLUMNS", "failures", "turns"]

COLUMNS = ("jit", "gradients")

_NUMBERS_OF_NO_USE = ("debug_nans", "debug_infs")


def failures(switch: str, op: OpInfo) -> Iterator[tuple[str, Exception]]:
    """What is wrong with an entry under a switch, with the column it is wrong in."""
    dtypes = dtypes_of(op)
    if not dtypes:
        return
    columns = [column for column in columns_of(op, dtypes[0]) if column in COLUMNS]
    for batch in list(trials(op, dtypes[0], columns, 1)):
        with SWITCHES[switch]():
            found = list(attempt(batch))
        for trial, error in found:
            if error is not None and not (switch in _NUMBERS_OF_NO_USE and _is_pytorchs(trial.case, error)):
                yield trial.column, error


def _is_pytorchs(case, error: Exception) -> bool:
    """Whether an error tells of a nan or an infinity that PyTorch gives as well."""
    if not isinstance(error, FloatingPointError):
        return False
    with jax.debug_nans(False):
        try:
            expected = [x for x in pytree.tree_leaves(expected_of(case)) if isinstance(x, torch.Tensor)]
        except Refused:
            return True
    return not all(x.isfinite().all() for x in expected)


def turns(every: int) -> Iterator[tuple[str, OpInfo]]:
    """Switches and entries: each entry under one switch in so many, by its name."""
    for place, switch in enumerate(SWITCHES):
        for op in entries():
            if (zlib.crc32(full_name(op).encode()) + place) % every == 0:
                yield switch, op


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.switches.database", description=__doc__)
    parser.add_argument("switch", nargs="?", default="*")
    parser.add_argument("entry", nargs="?", default="*")
    parser.add_argument("--every", type=int, default=1)
    options = parser.parse_args()
    prepare()
    total = failed = 0
    for switch, op in turns(options.every):
        if not fnmatch.fnmatch(switch, options.switch) or not fnmatch.fnmatch(full_name(op), options.entry):
            continue
        total += 1
        found = list(failures(switch, op))
        failed += bool(found)
        for column, error in found:
            print(f"{switch} | {full_name(op)} | {column} | {type(error).__name__}: ", end="")
            print(" ".join(str(error).split())[:300], flush=True)
    print(f"{total - failed} of {total} passed")


if __name__ == "__main__":
    main()
