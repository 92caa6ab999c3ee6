"""The report of ``torch2jax check``."""

import collections
from typing import Any

from rich.console import Console, Group
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from torch2jax.tools import Check, Report, Route

from .plain import plain
from .subject import of_subject, summary
from .tables import duration, fitted, plain_table

__all__ = ["record", "show"]

_BORDER = 4


def record(report: Report) -> dict[str, Any]:
    """The report as JSON has it."""
    return {
        **of_subject(report.subject),
        "verdict": report.verdict,
        "passed": report.passed,
        "checks": [{**plain(check), "passed": check.passed} for check in report.checks],
        "operators": {level.value: dict(names) for level, names in report.operators.items()},
        "loops": report.loops,
    }


def show(report: Report, console: Console) -> None:
    """Prints the one table of ``torch2jax check``."""
    style = "bold green" if report.passed else "bold red"
    title = Text.assemble((report.subject.name, "bold"), " ", (report.verdict, style))
    note = [Text(report.subject.note, "yellow")] if report.subject.note else []
    parts = [Text(summary(report.subject), "dim"), *note, "", fitted(_checks(report.checks), console, _BORDER)]
    for check in report.checks:
        if check.error:
            parts += ["", Text(f"{check.name}: {check.error}", "red")]
    if report.operators:
        parts += ["", _used_operators(report.operators)]
    if report.loops:
        parts += ["", *(Text(f"loops: {text}", "dim") for text in report.loops)]
    console.print(Panel(Group(*parts), title=title, title_align="left"))


def _checks(checks: list[Check]) -> Table:
    table = plain_table(
        *("check", "tensors", "abs error", "rel error", "trace", "compile", "run", "PyTorch", "result"),
        left=["check"],
        wraps=["result"],
    )
    for check in checks:
        table.add_row(*_row(check), style=None if check.passed else "red")
    return table


def _row(check: Check) -> list[str]:
    agreement, times = check.agreement, check.times
    cells = [check.name, str(agreement.count) if agreement else ""]
    cells += [f"{agreement.absolute:.1e}", f"{agreement.relative:.1e}"] if agreement else ["", ""]
    cells += map(duration, (times.trace, times.compile, times.run, times.pytorch)) if times else [""] * 4
    return [*cells, _remark(check)]


def _remark(check: Check) -> str:
    if check.error:
        return f"{check.stage} fails, see below"
    if check.agreement is None:
        return check.note
    if check.agreement.agrees:
        moved = check.agreement.moved
        return f"agrees: rounding moves PyTorch's by {moved:.1e}" if moved else "agrees"
    return check.agreement.problem or f"differs, most in {check.agreement.worst}"


def _used_operators(operators: dict[Route, collections.Counter[str]]) -> Table:
    columns = "implemented by", "operators, and how often each is called"
    table = plain_table(*columns, left=columns[:1], wraps=columns[1:])
    for level in Route:
        if level in operators:
            names = ", ".join(f"{name} {count}" for name, count in operators[level].most_common())
            table.add_row(level.value, names)
    return table
