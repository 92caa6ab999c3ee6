"""What the command line prints."""

import collections

import torch
from rich.console import Console, Group
from rich.filesize import decimal
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from .check import Check, Report
from .export import Written
from .routes import Route

__all__ = ["console", "show_operators", "show_report", "show_written"]

_NARROWEST = 120
_COLUMNS = ("abs error", "rel error", "trace", "compile", "run", "PyTorch")


def console() -> Console:
    """The console for results; where the output is no terminal, lines are not cut to 80 columns."""
    plain = Console()
    return plain if plain.is_terminal else Console(width=max(plain.width, _NARROWEST))


def show_report(report: Report, console: Console) -> None:
    """Prints the one table of ``torch2jax check``."""
    verdict = Text("agrees with PyTorch", "bold green") if report.passed else Text("does not agree", "bold red")
    title = Text.assemble((report.subject.name, "bold"), " ", verdict)
    summary = Text(_summary(report), "dim")
    note = [Text(report.subject.note, "yellow")] if report.subject.note else []
    parts = [summary, *note, "", _checks(report.checks)]
    for check in report.checks:
        if check.error:
            parts += ["", Text(f"{check.name}: {check.error}", "red")]
    if report.operators:
        parts += ["", _used_operators(report.operators)]
    console.print(Panel(Group(*parts), title=title, title_align="left"))


def _summary(report: Report) -> str:
    subject = report.subject
    parts = [subject.describe_inputs()]
    if isinstance(subject.target, torch.nn.Module):
        parameters = list(subject.target.parameters())
        size = decimal(sum(parameter.nbytes for parameter in parameters))
        parts.append(f"{sum(parameter.numel() for parameter in parameters):,} parameters ({size})")
    return " · ".join(parts)


def _checks(checks: list[Check]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("check", no_wrap=True)
    table.add_column("tensors", justify="right")
    for column in _COLUMNS:
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("")
    for check in checks:
        table.add_row(*_row(check), style=None if check.passed else "red")
    return table


def _row(check: Check) -> list[str]:
    agreement, times = check.agreement, check.times
    cells = [check.name, str(agreement.count) if agreement else ""]
    cells += [f"{agreement.absolute:.1e}", f"{agreement.relative:.1e}"] if agreement else ["", ""]
    cells += (
        [_time(seconds) for seconds in (times.trace, times.compile, times.run, times.pytorch)] if times else [""] * 4
    )
    return [*cells, _remark(check)]


def _remark(check: Check) -> str:
    if check.error:
        return "fails, see below"
    if check.agreement is None:
        return check.note
    if check.agreement.agrees:
        moved = check.agreement.moved
        return f"agree: rounding moves PyTorch's by {moved:.1e}" if moved else "agree"
    return check.agreement.problem or f"differ, most in {check.agreement.worst}"


def _time(seconds: float | None) -> str:
    if seconds is None:
        return ""
    if seconds >= 1:
        return f"{seconds:.2f} s"
    return f"{seconds * 1e3:.1f} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.0f} µs"


def _used_operators(operators: dict[Route, collections.Counter[str]]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("implemented by", no_wrap=True)
    table.add_column("operators, and how often each is called")
    for level in Route:
        if level in operators:
            names = ", ".join(f"{name} {count}" for name, count in operators[level].most_common())
            table.add_row(level.value, names)
    return table


def show_operators(served: dict[str, Route], console: Console) -> None:
    """Prints the list of ``torch2jax ops``."""
    width = max(map(len, served), default=0)
    for name, level in served.items():
        console.print(f"{name:{width}}  {level.value}", style="red" if level is Route.NONE else None, highlight=False)
    counts = collections.Counter(served.values())
    console.print(
        f"{len(served)} operators: " + ", ".join(f"{counts[level]} {level.value}" for level in Route if counts[level]),
        style="bold",
        highlight=False,
    )


def show_written(written: Written, console: Console) -> None:
    """Prints what ``torch2jax export`` has written, and how to call it."""
    paths = [(written.program, "")]
    if written.weights is not None:
        paths.append((written.weights, f", {written.tensors} tensors"))
    for path, more in paths:
        console.print(f"wrote {path} ({decimal(path.stat().st_size)}{more})", highlight=False, markup=False)
    console.print(f"jax.export.deserialize(...).{written.call}", style="dim", highlight=False, markup=False)
