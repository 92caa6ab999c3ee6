"""Runs random programs in PyTorch and translated, and writes `docs/tested/random-programs.md`: how many agree.

The programs are those that the tests draw a few of: of aliases, writes and gradients, of branches on data, of
loops, of lengths that data decide. A seed stands for some `PER_SEED` programs of a kind. The counts of each seed are
appended to a file, and what was run before is not run again; programs that do not agree are printed.

    python -m scripts.random_programs                          # what is missing of `SEEDS`, and the page
    python -m scripts.random_programs --minutes 5              # begin none after so many minutes
    python -m scripts.random_programs branches --first 100 --seeds 10
    python -m scripts.random_programs --page                   # only write the page
"""

import argparse
import collections
import functools
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import hypothesis
import jax
import torch
from hypothesis import strategies as st

from scripts.records import append_record, records
from tests.calls.compiled import test_aliasing as compiled
from tests.compiling import keep_context, set_flags
from tests.control import random_loops
from tests.ops import random_selections
from tests.tensors import test_aliasing as aliasing
from tests.tracing import test_scope as scopes
from tests.tracing.loops import test_random as rolled
from torch2jax.runtime.errors import TracedValueError

__all__ = ["KINDS", "OUTCOMES", "PAGE", "Kind", "counted"]

PAGE = Path(__file__).parents[1] / "docs" / "tested" / "random-programs.md"
PER_SEED = 20
OUTCOMES = {
    "equal": "values, and where they are compared gradients, metadata and exceptions, are PyTorch's",
    "refused": "the translation raises an error that says what it does not do, where PyTorch does it",
    "wrong": "something differs",
    "crashed": "the translation raises something else",
    "left out": "PyTorch refuses the program itself, its branches end in other shapes, or rounding decides",
}


class Kind(NamedTuple):
    """Some random programs.

    Args:
        text: what they are made of, and what is compared.
        run: calls the second argument with the first's seed, and for each program a function that compares it, which
            gives an outcome or raises, and what to print of it.
        seeds: how many of them the page is of.
    """

    text: str
    run: Callable[[int, Callable[[Callable[[], str], object], None]], None]
    seeds: int


def _drawn(check: Callable[..., str], *strategies: st.SearchStrategy) -> Callable:
    """Programs that Hypothesis draws; the simplest, with which it begins whatever the seed, is left out."""

    def run(seed: int, note: Callable) -> None:
        simplest = True

        @hypothesis.seed(seed)
        @hypothesis.settings(aliasing.random_programs(PER_SEED + 1, is_quick=False), phases=[hypothesis.Phase.generate])
        @hypothesis.given(st.tuples(*strategies))
        def each(program):
            nonlocal simplest
            if not simplest:
                note(lambda: check(*program), program)
            simplest = False

        each()

    return run


def _numbered(check: Callable[[int], str], text: Callable[[int], object]) -> Callable:
    """Programs that have numbers."""

    def run(seed: int, note: Callable) -> None:
        for number in range(seed * PER_SEED, (seed + 1) * PER_SEED):
            note(lambda number=number: check(number), (number, text(number)))

    return run


def _aliases(program: list, eager: int) -> str:
    aliasing.check(program, jit=True)
    if not eager:
        aliasing.check(program, jit=False)
    return "equal"


def _branches(program: list) -> str:
    return "equal" if aliasing.check_choices(program) else "left out"


def _scopes(program: list, begin: int, length: int, nested: bool) -> str:
    scopes.check_in_parts(program, begin, length, nested)
    return "equal"


def _compiled(segments: list) -> str:
    return "equal" if compiled.check(segments) else "refused"


def _loops_on_data(number: int, *, is_entangled: bool = False) -> str:
    outcome = random_loops.outcome(number, is_entangled=is_entangled)
    return {"equal": "equal", "PyTorch": "left out", "shapes": "left out"}.get(outcome.partition(":")[0], "refused")


def _rolled(number: int) -> str:
    rolled.run(number)
    return "equal"


def _lengths(number: int) -> str:
    found = random_selections.run(number)
    outcome = found.partition(":")[0] if found else "equal"
    assert outcome in OUTCOMES, found
    return outcome


KINDS = {
    "aliases": Kind(
        "views, copies, writes in place, tensors that change themselves, `.backward()` and `torch.autograd.grad`; "
        "jitted, and one in eight eagerly: values, strides, exceptions, gradients from outside",
        _drawn(_aliases, aliasing.programs, st.integers(0, aliasing.EAGER_SHARE - 1)),
        150,
    ),
    "branches": Kind(
        "the same around one or two branches on data that decide what is written; one compiled program is "
        "compared, with its gradients, for inputs of both signs",
        _drawn(_branches, aliasing.choosing_programs),
        60,
    ),
    "checkpoints": Kind(
        "views, copies and writes, some of which run in a `checkpoint`, or in one in another",
        _drawn(_scopes, *scopes.PARTS),
        30,
    ),
    "compiled parts": Kind(
        "views, copies and writes to arguments, buffers and tensors from outside, some in compiled parts; called twice",
        _drawn(_compiled, compiled.PROGRAMS_IN_PARTS),
        20,
    ),
    "loops on data": Kind(
        "one or two `for` and `while`, or one in another, that end when data say so, with aliases, writes, counters "
        "and containers; one compiled program is compared for three inputs",
        _numbered(_loops_on_data, lambda number: random_loops.program(number)[0]),
        75,
    ),
    "entangled loops": Kind(
        "the same with conditions anywhere and tensors that change their shapes; with at most 16 paths",
        _numbered(
            functools.partial(_loops_on_data, is_entangled=True),
            lambda number: random_loops.program(number, is_entangled=True)[0],
        ),
        8,
    ),
    "rolled loops": Kind(
        "loops of equal iterations with aliases, writes and lists, rolled; gradients from outside or inside",
        _numbered(_rolled, rolled.program),
        25,
    ),
    "lengths": Kind(
        "masks, gathers, sorts, joins, writes and products of rows whose number data decide; for masks of some rows, "
        "one, all and none, with gradients; one in four by `vmap` as well, and one in four by `scan`",
        _numbered(_lengths, lambda number: random_selections.Program(number).names),
        100,
    ),
}


def counted(kind: str, seed: int, say: Callable[[str], object] = print) -> collections.Counter[str]:
    """How the programs of a seed end, by outcome; those that do not agree are said."""
    outcomes: collections.Counter[str] = collections.Counter()

    def note(check: Callable[[], str], program: object) -> None:
        outcome, text = "", ""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                outcome = check()
            except (NotImplementedError, TracedValueError) as error:
                outcome, text = "refused", f"{type(error).__name__}: {error}"
            except AssertionError as error:
                outcome, text = "wrong", str(error)
            except Exception:
                outcome, text = "crashed", traceback.format_exc()
        outcomes[outcome] += 1
        if outcome in ("wrong", "crashed"):
            say(f"== {kind}, seed {seed}: {outcome}: {text}\n{program}")

    KINDS[kind].run(seed, note)
    return outcomes


class Results:
    """The counts of each kind and seed, kept in a file."""

    def __init__(self, path: Path):
        self._path = path
        self.counts = {(kind, seed): counts for kind, seed, counts in records(path)}

    def append(self, kind: str, seed: int, counts: dict[str, int]) -> None:
        self.counts[kind, seed] = counts
        append_record(self._path, [kind, seed, counts])

    def rows(self) -> Iterator[tuple[str, collections.Counter[str]]]:
        """Each kind's counts, and those of all."""
        total: collections.Counter[str] = collections.Counter()
        for kind in KINDS:
            row: collections.Counter[str] = collections.Counter()
            for (name, _), counts in self.counts.items():
                row.update(counts if name == kind else {})
            total += row
            yield kind, row
        yield "all", total


def page(results: Results) -> Iterator[str]:
    """The lines of the page."""
    yield "# Random programs"
    yield ""
    yield "Programs are drawn at random, and run in PyTorch and translated. What each kind is made of:"
    yield ""
    for name, kind in KINDS.items():
        yield f"- **{name}**: {kind.text}"
    yield ""
    yield "How they end:"
    yield ""
    for name, text in OUTCOMES.items():
        yield f"- **{name}**: {text}"
    yield ""
    yield f"| programs | number | {' | '.join(OUTCOMES)} |"
    yield "|---|" + "---|" * (1 + len(OUTCOMES))
    for name, row in results.rows():
        yield f"| {name} | {row.total()} | {' | '.join(str(row[each]) for each in OUTCOMES)} |"
    yield ""
    yield "The page is written by `python -m scripts.random_programs`,"
    yield f"with PyTorch {torch.__version__.partition('+')[0]} and JAX {jax.__version__}."


def run(results: Results, options: argparse.Namespace) -> None:
    """Runs what is missing, a seed of each kind in turn."""
    start, total = time.monotonic(), collections.Counter[str]()
    most = options.seeds or max(KINDS[kind].seeds for kind in options.kinds)
    for seed in range(options.first, options.first + most):
        for kind in options.kinds:
            if (kind, seed) in results.counts or (not options.seeds and seed - options.first >= KINDS[kind].seeds):
                continue
            if options.minutes is not None and time.monotonic() - start > options.minutes * 60:
                return
            found: Any = counted(kind, seed, lambda text: print(text, flush=True))
            results.append(kind, seed, found)
            total += found
            print(f"{time.monotonic() - start:.0f} s: {kind} {seed}: {dict(found)}", file=sys.stderr, flush=True)
        jax.clear_caches()
    print(dict(total))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kinds", nargs="*", default=list(KINDS), metavar="KIND", help=", ".join(KINDS))
    parser.add_argument("--seeds", type=int, help="how many of each kind (default: what the page is of)")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--minutes", type=float, help="begin none after so many minutes")
    parser.add_argument("--results", type=Path, default=Path("build/random_programs.jsonl"))
    parser.add_argument("--output", type=Path, default=PAGE, help="the page (default: docs/tested/random-programs.md)")
    parser.add_argument("--page", action="store_true", help="run nothing, write the page")
    options = parser.parse_args()
    set_flags()
    keep_context()
    results = Results(options.results)
    if not options.page:
        run(results, options)
    options.output.write_text("\n".join(page(results)) + "\n")


if __name__ == "__main__":
    main()
