"""Compares derivatives at special points with PyTorch's, for the whole operator database, and writes a page of them.

Points are zeros of both signs, ones, halves, ties, the numbers among an entry's arguments, infinities, and equal
arguments. An entry that takes longer than a minute is left where it is.

    python -m scripts.special_points                   # all, and docs/special-points.md
    python -m scripts.special_points 'nn.functional.*' # some, without the page
"""

import argparse
import collections
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import torch

from tests.compiling import keep_context, set_flags
from tests.ops.database import Refused, cases, entries, full_name
from tests.ops.database.exceptions import excluded, has_values, is_drawn
from tests.ops.database.special import compared, points

PAGE = Path(__file__).parents[1] / "docs" / "special-points.md"
SAMPLES = 2
LARGEST = 600  # elements of a sample's tensors
SECONDS = 60
REASONS = {
    "first": "the gradient",
    "second": "the derivative of the gradient",
    "forward": "`jax.jvp`",
}


class Row(NamedTuple):
    """A derivative of an entry, and the points where it differs."""

    entry: str
    order: str
    points: tuple[str, ...]
    got: str
    wanted: str


class Tried(NamedTuple):
    """How many comparisons there were, by what came of them, and where derivatives differ."""

    counts: collections.Counter
    rows: list[Row]


def _expire(*_) -> None:
    raise TimeoutError


def tried(pattern: str) -> Tried:
    """What comes of the entries whose name matches."""
    counts: collections.Counter = collections.Counter()
    rows: list[Row] = []
    signal.signal(signal.SIGALRM, _expire)
    for op in entries(pattern):
        name = full_name(op)
        left_out = excluded(name, "gradients") or is_drawn(name) or not op.supports_autograd
        if left_out or not op.supports_dtype(torch.float64, "cpu"):
            continue
        counts["entries"] += 1
        signal.alarm(SECONDS)
        try:
            found = list(_of_entry(op, counts))
        except TimeoutError:
            found = [Row(name, "first", (), f"took longer than {SECONDS} s", "")]
        finally:
            signal.alarm(0)
        for row in found:
            print(*row, flush=True)
        rows += found
    return Tried(counts, rows)


def _of_entry(op: Any, counts: collections.Counter) -> Iterator[Row]:
    differing: dict[str, list] = collections.defaultdict(list)
    for case in cases(op, torch.float64, SAMPLES):
        if sum(x.numel() for x in case.tensors) > LARGEST or not has_values(case):
            continue
        for point in points(case):
            try:
                found = compared(case.function, point.tensors)
            except Refused:
                counts["refused"] += 1
                continue
            except TimeoutError:
                raise
            except Exception as error:
                differing[f"error: {type(error).__name__}"].append((point.name, str(error)[:120], ""))
                continue
            for each in found:
                counts[each.kind] += 1
                if each.kind == "differs":
                    differing[each.order].append((point.name, each.got, each.wanted))
    for order, places in differing.items():
        names = tuple(dict.fromkeys(name for name, _, _ in places))
        yield Row(full_name(op), order, names, places[0][1], places[0][2])


def page(found: Tried) -> Iterator[str]:
    """The lines of the page."""
    counts = found.counts
    yield "# Special points"
    yield ""
    yield "Derivatives where functions have kinks, ties or bounds, against PyTorch's: zeros of both signs, ones,"
    yield "halves, the numbers among an entry's arguments, infinities, and equal arguments, in float64. The first"
    yield "derivative is that of `jax.vjp`, the second one is taken of it, and `jax.jvp` is compared with PyTorch's"
    yield "gradient. Where PyTorch has nan, a number counts as better. Written by"
    version = torch.__version__.partition("+")[0]
    yield f"`python -m scripts.special_points` with PyTorch {version} and JAX {jax.__version__}."
    yield ""
    yield f"{counts['entries']} entries of the operator database: {counts['agrees']} derivatives agree,"
    yield f"{counts['better']} are better, {counts['differs']} differ, of which the table has one line for each entry."
    yield ""
    yield "Most of what differs is at infinities, where one of the two has nan or an infinity of another sign, or a"
    yield "second derivative at a kink, which does not exist."
    yield ""
    yield "| entry | what | points | here | PyTorch |"
    yield "|---|---|---|---|---|"
    for row in found.rows:
        what = REASONS.get(row.order, row.order)
        got, wanted = (" ".join(x.split()).replace("|", r"\|")[:90] for x in (row.got, row.wanted))
        yield f"| {row.entry} | {what} | {', '.join(row.points)} | `{got}` | `{wanted or '-'}` |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pattern", nargs="?", default="*")
    parser.add_argument("--output", type=Path, default=PAGE)
    arguments = parser.parse_args()
    set_flags()
    keep_context()
    with jax.enable_x64(True):
        found = tried(arguments.pattern)
    print(dict(found.counts))
    if arguments.pattern == "*":
        arguments.output.write_text("\n".join(page(found)) + "\n")


if __name__ == "__main__":
    main()
