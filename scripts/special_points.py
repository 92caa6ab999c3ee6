"""Compares derivatives at special points with PyTorch's, and writes a page of them.

Points are zeros of both signs, ones, halves, ties, the numbers among an entry's arguments, infinities, and equal
arguments. One table of the page is of the operator database, in double precision; an entry that takes longer than a
minute is left where it is. The other is of losses, activations, distances, norms and other functions with their
options (tests/ops/database/functionals.py), in single precision too.

    python -m scripts.special_points                          # all, and docs/tested/special-points.md
    python -m scripts.special_points --table functionals      # one table, and its part of the page
    python -m scripts.special_points 'nn.functional.*'        # some, without the page
"""

import argparse
import collections
import fnmatch
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import torch

from tests.compiling import keep_context, set_flags
from tests.ops.database import Refused, cases, entries, full_name
from tests.ops.database.exceptions import excluded, has_values, is_drawn
from tests.ops.database.functionals import FUNCTIONALS, Functional
from tests.ops.database.special import Found, compared, points

PAGE = Path(__file__).parents[1] / "docs" / "tested" / "special-points.md"
SAMPLES = 2
LARGEST = 600  # elements of a sample's tensors
SECONDS = 60
REASONS = {
    "first": "the gradient",
    "second": "the derivative of the gradient",
    "forward": "`jax.jvp`",
}

# Why derivatives differ, by a short name.
WHY = {
    "infinity": "an infinity minus, times or over another: whether the result is NaN, 0 or infinity depends on how a "
    "formula is written, and none of these is a derivative",
    "choice": "equal elements, of which PyTorch may choose any",
    "self": "with `include_self=False` PyTorch also gives a share of the gradient to elements outside the result",
    "bounds": "PyTorch gives no gradient to either of two equal bounds",
    "degenerate": "a matrix without full rank, or with equal eigenvalues: there is no derivative, and rounding decides",
    "kink": "the first derivative jumps or has a kink: the second derivative is that of one side",
    "forward": "PyTorch's own `torch.func.jvp` returns NaN too",
    "once": "where several factors are zero, a product of scattered factors has only a first derivative, and NaN for "
    "the second",
    "numpy": "numpy, which the comparison needs, has no such dtype",
    "pole": "the function or its derivative has a pole: the sign of an infinity, or NaN, is a choice",
    "rounding": "rounding, in the precision that the result has",
    "empty": "the value itself is NaN, because there is no target",
    "not PyTorch's": "PyTorch's second derivative is 0, which is wrong: its backward treats a variable as a constant",
}
# Which of these a difference has: by entries, derivatives ("*" for all), and points ("*" for all).
_INFINITE = ("infinities", "an infinity")
_CHOSEN = (
    ("clamp*", "*", "*", "bounds"),
    ("*", "*", _INFINITE, "infinity"),
    ("kthvalue", "*", "*", "choice"),
    ("topk", "*", "*", "choice"),
    ("index_reduce.am*", "*", "*", "self"),
    ("scatter_reduce.am*", "*", "*", "self"),
    ("*lowrank", "*", "*", "degenerate"),
    ("*qr", "*", "*", "degenerate"),
    ("norm.nuc", "*", "*", "degenerate"),
    ("linalg.norm*", "*", "*", "degenerate"),
    ("linalg.matrix_norm*", "*", "*", "degenerate"),
    ("linalg.cholesky*", "*", "*", "degenerate"),
    ("linalg.c*", "*", "*", "degenerate"),
    ("linalg.eig*", "*", "*", "degenerate"),
    ("linalg.svd*", "*", "*", "degenerate"),
    ("nn.functional.linear_cross_entropy.chunked*", "second", "*", "not PyTorch's"),
    ("grid_sample*", "second", "*", "kink"),
    ("*prelu", "second", "*", "kink"),
    ("lp_pool*", "forward", "*", "forward"),
    ("*_reduce.prod", "second", "*", "once"),
    ("bfloat16", "error: TypeError", "*", "numpy"),
    ("gelu*", "second", "*", "rounding"),
    ("special.log_ndtr", "second", "*", "rounding"),
    ("half", "*", "*", "rounding"),
    ("*gamma*", "*", "*", "pole"),
    ("special.psi", "*", "*", "pole"),
    ("atanh", "*", "*", "pole"),
    ("special.erfcx", "*", "*", "pole"),
    ("rsqrt", "*", "*", "pole"),
    ("logit, eps=0.0", "*", "*", "pole"),
    ("x[*][*]*", "second", "*", "pole"),
    ("poisson_nll_loss*", "*", "*", "pole"),
    ("*binary_cross_entropy", "second", "*", "pole"),
    ("__r*__", "second", "*", "pole"),
    ("cross_entropy, all ignored*", "*", "*", "empty"),
)


class Row(NamedTuple):
    """A derivative of an entry, and the points where it differs."""

    entry: str
    order: str
    points: tuple[str, ...]
    got: str
    wanted: str

    @property
    def why(self) -> str:
        """The short name of why it differs; "open" if that is not known, or is to be mended."""
        places = {point.removesuffix(" (float32)") for point in self.points}
        for pattern, order, where, why in _CHOSEN:
            is_there = where == "*" or places.issubset(where)
            if is_there and order in ("*", self.order) and fnmatch.fnmatchcase(self.entry, pattern):
                return why
        return "open"


class Tried(NamedTuple):
    """How many comparisons there were, by what came of them, and where derivatives differ."""

    counts: collections.Counter
    rows: list[Row]


class _Differing:
    """Where the derivatives of an entry differ, by order."""

    def __init__(self, name: str, counts: collections.Counter):
        self._name, self._counts = name, counts
        self._places: dict[str, list] = collections.defaultdict(list)

    def compare(self, point: str, function: Callable, tensors: list[torch.Tensor]) -> None:
        """Compares the derivatives at a point."""
        try:
            found: list[Found] = compared(function, tensors)
        except Refused:
            self._counts["refused"] += 1
            return
        except TimeoutError:
            raise
        except Exception as error:
            self._places[f"error: {type(error).__name__}"].append((point, str(error)[:120], ""))
            return
        for each in found:
            self._counts[each.kind] += 1
            if each.kind == "differs":
                self._places[each.order].append((point, each.got, each.wanted))

    def rows(self) -> list[Row]:
        """One for each order."""
        return [
            Row(self._name, order, tuple(dict.fromkeys(name for name, _, _ in places)), places[0][1], places[0][2])
            for order, places in self._places.items()
        ]


def _expire(*_) -> None:
    raise TimeoutError


def tried(pattern: str) -> Tried:
    """What comes of the entries of the database whose name matches."""
    counts: collections.Counter = collections.Counter()
    rows: list[Row] = []
    signal.signal(signal.SIGALRM, _expire)
    for op in entries(pattern):
        name = full_name(op)
        left_out = excluded(name, "gradients") or is_drawn(name) or not op.supports_autograd
        if left_out or not op.supports_dtype(torch.float64, "cpu"):
            continue
        counts["entries"] += 1
        differing = _Differing(name, counts)
        signal.alarm(SECONDS)
        try:
            _try_entry(op, differing)
            found = differing.rows()
        except TimeoutError:
            found = [*differing.rows(), Row(name, "first", (), f"took longer than {SECONDS} s", "")]
        finally:
            signal.alarm(0)
        _show(found)
        rows += found
    return Tried(counts, rows)


def _show(rows: list[Row]) -> None:
    for row in rows:
        print(*row, flush=True)


def _try_entry(op: Any, differing: _Differing) -> None:
    for case in cases(op, torch.float64, SAMPLES):
        if sum(x.numel() for x in case.tensors) > LARGEST or not has_values(case):
            continue
        for point in points(case):
            differing.compare(point.name, case.function, point.tensors)


def tried_functionals(pattern: str) -> Tried:
    """What comes of the functionals whose name matches, in double and in single precision."""
    counts: collections.Counter = collections.Counter()
    rows: list[Row] = []
    for functional in FUNCTIONALS:
        if not fnmatch.fnmatchcase(functional.name, pattern):
            continue
        counts["entries"] += 1
        differing = _Differing(functional.name, counts)
        for dtype in (torch.float64, torch.float32):
            _try_functional(functional, dtype, differing)
        _show(differing.rows())
        rows += differing.rows()
    return Tried(counts, rows)


def _try_functional(functional: Functional, dtype: torch.dtype, differing: _Differing) -> None:
    suffix = " (float32)" if dtype == torch.float32 else ""
    for name, tensors in functional.tensors(dtype):
        differing.compare(name + suffix, functional.function, tensors)


HEAD = """# Special points

This page compares derivatives with PyTorch's at points where functions have kinks, ties or bounds. The
points are zeros of both signs, ones, halves, the numbers among an entry's arguments, infinities, and
equal arguments. The first derivative is that of `jax.vjp`, the second is its derivative, and `jax.jvp` is
compared with PyTorch's gradient. Where PyTorch returns NaN, a number counts as better. The page is written
by `python -m scripts.special_points`, with PyTorch {torch} and JAX {jax}.

Each table has one row for an entry and a kind of derivative, with the values at the first point and the
reason for the difference:

{reasons}
- *open*: not known, or not fixed yet.
"""
TABLES = {
    "database": ("The operator database", tried),
    "functionals": ("Functions with their options", tried_functionals),
}
INTRODUCTIONS = {
    "database": "{entries} entries, in float64",
    "functionals": "{entries} losses, activations, distances, norms, densities and others, in float64 and float32",
}


def section(table: str, found: Tried) -> Iterator[str]:
    """The lines of a table."""
    counts = found.counts
    yield f"## {TABLES[table][0]}"
    yield ""
    yield INTRODUCTIONS[table].format(entries=counts["entries"]) + ":"
    yield f"{counts['agrees']} derivatives agree, {counts['better']} are better, {counts['differs']} differ."
    yield ""
    yield "| entry | what | points | here | PyTorch | why |"
    yield "|---|---|---|---|---|---|"
    for row in found.rows:
        what = REASONS.get(row.order, row.order)
        got, wanted = (" ".join(x.split()).replace("|", r"\|")[:90] for x in (row.got, row.wanted))
        yield f"| {row.entry} | {what} | {', '.join(row.points)} | `{got}` | `{wanted or '-'}` | {row.why} |"


def _sections(path: Path) -> dict[str, str]:
    """Those of a page that is there, by title."""
    parts = path.read_text().split("\n## ")[1:] if path.exists() else []
    return {part.partition("\n")[0]: "## " + part.rstrip("\n") for part in parts}


def write(path: Path, found: dict[str, Tried]) -> None:
    """Writes the page, with the tables that were not tried as they were."""
    sections = _sections(path)
    for table, each in found.items():
        sections[TABLES[table][0]] = "\n".join(section(table, each))
    reasons = "\n".join(f"- *{name}*: {text}." for name, text in WHY.items())
    head = HEAD.format(torch=torch.__version__.partition("+")[0], jax=jax.__version__, reasons=reasons)
    titles = [title for title, _ in TABLES.values() if title in sections]
    path.write_text("\n".join([head, *("\n".join((sections[title], "")) for title in titles)]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pattern", nargs="?", default="*")
    parser.add_argument("--table", choices=TABLES)
    parser.add_argument("--output", type=Path, default=PAGE)
    arguments = parser.parse_args()
    set_flags()
    keep_context()
    tables = [arguments.table] if arguments.table else list(TABLES)
    with jax.enable_x64(True):
        found = {table: TABLES[table][1](arguments.pattern) for table in tables}
    print({table: dict(each.counts) for table, each in found.items()})
    if arguments.pattern == "*":
        write(arguments.output, found)


if __name__ == "__main__":
    main()
