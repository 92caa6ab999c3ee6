"""`docs/torch-tests.md` from outcomes."""

import collections
from collections.abc import Iterator
from dataclasses import dataclass, field

import jax
import torch

from scripts.suite.apart import APART
from scripts.suite.outcomes import Outcome, Results, reason

__all__ = ["page", "summary"]


@dataclass
class Row:
    """What the page says about a file."""

    collected: int = 0
    run: int = 0
    passed: int = 0  # in PyTorch
    apart: collections.Counter = field(default_factory=collections.Counter)
    translated: int = 0  # of the rest, those that ran
    agree: int = 0
    failures: list[Outcome] = field(default_factory=list)

    def cells(self) -> str:
        percent = f"{100 * self.agree / self.translated:.1f}" if self.translated else ""
        cells = (self.collected, self.run, self.passed, self.apart.total(), self.translated, self.agree, percent)
        return " | ".join(map(str, cells))


def _rows(results: Results) -> dict[str, Row]:
    rows = {file: Row(collected=found.tests) for file, found in results.files.items()}
    for outcome in results.outcomes.values():
        if outcome.mode == "translated":
            continue
        row = rows.setdefault(outcome.file, Row())
        row.run += 1
        if outcome.result != "ok":
            continue
        row.passed += 1
        if outcome.apart:
            row.apart[outcome.apart] += 1
        elif translated := results.outcomes.get((outcome.test, "translated")):
            row.translated += 1
            row.agree += translated.result == "ok"
            if translated.result != "ok":
                row.failures.append(translated)
    return {file: row for file, row in sorted(rows.items()) if row.run}


def _total(rows: dict[str, Row]) -> Row:
    total = Row()
    for row in rows.values():
        for name in ("collected", "run", "passed", "apart", "translated", "agree"):
            setattr(total, name, getattr(total, name) + getattr(row, name))
    return total


def summary(results: Results) -> Iterator[str]:
    """The table, for a terminal as well as for the page."""
    rows = _rows(results)
    yield "| file | tests | tried | pass in PyTorch | apart | the rest | pass translated | % |"
    yield "|---|---|---|---|---|---|---|---|"
    for file, row in (*rows.items(), ("all", _total(rows))):
        yield f"| {file if file == 'all' else f'`{file}`'} | {row.cells()} |"


def why(outcome: Outcome) -> str:
    """The reason of a failure, in words that other tests share."""
    match outcome.result:
        case "late":
            return "takes too long"
        case "crash":
            return "ends the process"
        case "skip":
            return "skipped when translated"
        case _:
            return reason(outcome.error)


def _sampled(total: Row) -> str:
    if total.run >= total.collected:
        return "All tests were tried."
    return f"Tried were {total.run} of {total.collected} tests: of some files all, of others one in so many."


def _reasons(row: Row, most: int) -> Iterator[str]:
    found = collections.defaultdict(list)
    for outcome in row.failures:
        found[why(outcome)].append(outcome.test.rpartition("::")[2])
    ordered = sorted(found.items(), key=lambda x: (-len(x[1]), x[0]))
    yield "| reason | tests | such as |"
    yield "|---|---|---|"
    for text, tests in ordered[:most]:
        yield f"| {_cell(text)} | {len(tests)} | `{min(tests, key=len)}` |"
    if rest := ordered[most:]:
        yield f"| {len(rest)} other reasons | {sum(len(tests) for _, tests in rest)} | |"


def _cell(text: str) -> str:
    """Text as code, in a table."""
    return f"`{text.replace('`', chr(39)).replace('|', chr(92) + '|')}`"


def page(results: Results, most: int = 25) -> Iterator[str]:
    """The page, line by line."""
    rows = _rows(results)
    total = _total(rows)
    waiting = total.passed - total.apart.total() - total.translated
    yield from (
        "# PyTorch's own tests",
        "",
        "Each test is run once in PyTorch and, if PyTorch passes it here, once within a translated call,",
        "`t2j(lambda: test())(rng=key)`: whatever the test makes, differentiates, trains and compares is then JAX's.",
        _sampled(total),
        "A test counts where PyTorch passes it: tests for another version of PyTorch,",
        "for devices that are not there and those that PyTorch expects to fail are not counted. The percentage is of",
        "those that do not stand [apart](#apart). Written by `python -m scripts.torch_tests`",
        f"with PyTorch {torch.__version__.split('+')[0]} and JAX {jax.__version__}, 64-bit types enabled.",
        "",
        *summary(results),
        "",
        *((f"{waiting} more wait to be run translated.", "") if waiting else ()),
        "## Apart",
        "",
        "What a test does when PyTorch runs it, its name or its text tell; these are not run translated.",
        "",
        "| class | reason | tests |",
        "|---|---|---|",
        *(f"| {x.name} | {x.reason} | {total.apart[x.name]} |" for x in APART),
        "",
        "## Why the others fail",
        "",
        "Numbers and shapes are left out of the messages, so that equal reasons count together.",
    )
    for file, row in rows.items():
        if row.failures:
            yield from ("", f"### `{file}`", "", *_reasons(row, most))
