"""`docs/tested/torch-tests.md` from outcomes."""

import collections
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

import jax
import torch

from scripts.suite.apart import APART
from scripts.suite.outcomes import Outcome, Results, reason

__all__ = ["page", "rows", "summary"]


@dataclass
class Row:
    """What the page says about a file: its line of the table, and its section, why tests fail and which are apart."""

    collected: int = 0
    run: int = 0
    passed: int = 0  # in PyTorch
    apart: int = 0
    translated: int = 0  # of the rest, those that ran
    agree: int = 0
    section: list[str] = field(default_factory=list)

    def counts(self) -> tuple[int, ...]:
        return self.collected, self.run, self.passed, self.apart, self.translated, self.agree

    @property
    def settled(self) -> int:
        """How many need not be run again."""
        return self.apart + self.translated

    def cells(self) -> str:
        percent = f"{100 * self.agree / self.translated:.1f}" if self.translated else ""
        return " | ".join(map(str, (*self.counts(), percent)))


def _row(outcomes: list[Outcome], results: Results, collected: int) -> Row:
    """A file's row, from the outcomes of its tests in PyTorch."""
    row, apart, failures = Row(collected, len(outcomes)), collections.Counter(), []
    for outcome in outcomes:
        if outcome.result != "ok":
            continue
        row.passed += 1
        if outcome.apart:
            apart[outcome.apart] += 1
        elif translated := results.outcomes.get((outcome.test, "translated")):
            row.translated += 1
            row.agree += translated.result == "ok"
            if translated.result != "ok":
                failures.append(translated)
    row.apart = apart.total()
    row.section = [*_reasons(failures), *_apart(apart)]
    return row


def rows(results: Results, before: str = "") -> dict[str, Row]:
    """A row for each file: of the results, or of the page as it was before where that had tried more of its tests."""
    outcomes = collections.defaultdict(list)
    for outcome in results.outcomes.values():
        if outcome.mode == "pytorch":
            outcomes[outcome.file].append(outcome)
    found = {
        file: _row(tried, results, results.files[file].tests if file in results.files else 0)
        for file, tried in outcomes.items()
    }
    for file, row in _read(before).items():
        if file not in found or row.settled > found[file].settled:
            found[file] = row
    return dict(sorted(found.items()))


def _read(page: str) -> dict[str, Row]:
    """The rows of a page."""
    found = {
        file: Row(*(int(cell) for cell in cells.split("|")[:6]))
        for file, cells in re.findall(r"^\| `(\S+\.py)` \|(.*)\|$", page, re.MULTILINE)
    }
    for file, section in re.findall(r"^### `(\S+)`\n\n(.*?)(?=\n### |\Z)", page, re.MULTILINE | re.DOTALL):
        found[file].section = section.strip().splitlines()
    return found


def _total(rows: dict[str, Row]) -> Row:
    return Row(*map(sum, zip(*(row.counts() for row in rows.values()), strict=True)))


def summary(rows: dict[str, Row]) -> Iterator[str]:
    """The table, for a terminal as well as for the page."""
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
    return f"{total.run} of {total.collected} tests were tried: all tests of some files, and a sample of the others."


def _reasons(failures: list[Outcome], most: int = 25) -> Iterator[str]:
    if not failures:
        return
    found = collections.defaultdict(list)
    for outcome in failures:
        found[why(outcome)].append(outcome.test.rpartition("::")[2])
    ordered = sorted(found.items(), key=lambda x: (-len(x[1]), x[0]))
    yield "| reason | tests | such as |"
    yield "|---|---|---|"
    for text, tests in ordered[:most]:
        yield f"| {_cell(text)} | {len(tests)} | `{min(tests, key=len)}` |"
    if rest := ordered[most:]:
        yield f"| {len(rest)} other reasons | {sum(len(tests) for _, tests in rest)} | |"


def _apart(apart: collections.Counter) -> Iterator[str]:
    if apart:
        yield ""
        yield f"Apart: {', '.join(f'{name} ({count})' for name, count in apart.most_common())}."


def _ended(rows: dict[str, Row]) -> list[str]:
    """The classes that rows of the page as it was tell of, and that are none now."""
    lines = [line for row in rows.values() for line in row.section if line.startswith("Apart: ")]
    named = {name for line in lines for name in re.findall(r"(?:Apart:|,) (.+?) \(\d+\)", line)}
    return sorted(named - {x.name for x in APART})


def _cell(text: str) -> str:
    """Text as code, in a table."""
    return f"`{text.replace('`', chr(39)).replace('|', chr(92) + '|')}`"


def page(rows: dict[str, Row]) -> Iterator[str]:
    """The page, line by line."""
    total = _total(rows)
    waiting = total.passed - total.apart - total.translated
    yield from (
        "# PyTorch's own tests",
        "",
        "Each test runs once in PyTorch. If it passes there, it runs once within a translated call,",
        "`t2j(lambda: test())(rng=key)`: everything that the test makes, differentiates and trains is then JAX's.",
        "(`make_tensor` and `assertEqual` remain PyTorch's own, because they are not what is tested.)",
        _sampled(total),
        "A test counts if PyTorch passes it: tests for another version of PyTorch, tests for missing devices",
        "and tests that PyTorch expects to fail do not count. The percentage excludes",
        "the tests listed under [Apart](#apart). The page is written by `python -m scripts.torch_tests`",
        f"with PyTorch {torch.__version__.split('+')[0]} and JAX {jax.__version__}, 64-bit types enabled.",
        "",
        *summary(rows),
        "",
        *((f"{waiting} more wait to be run translated.", "") if waiting else ()),
        "## Apart",
        "",
        "These tests do not run translated. They are recognized by their name, their text, or what they do in PyTorch.",
        "",
        "| class | reason |",
        "|---|---|",
        *(f"| {x.name} | {x.reason} |" for x in APART),
        *(f"| {name} | no more: tests that wait to be tried again |" for name in _ended(rows)),
        "",
        "## Why the others fail",
        "",
        "Numbers and shapes are left out of the messages, so that equal reasons count together.",
    )
    for file, row in rows.items():
        if row.section:
            yield from ("", f"### `{file}`", "", *(line for i, line in enumerate(row.section) if i or line))
