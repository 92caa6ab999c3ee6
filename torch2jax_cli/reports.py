"""What the commands print of their results: `show` for people, `record` for ``--json``.

In records what is not finite is null, times are in seconds, and sizes in bytes.
"""

import collections
import dataclasses
import functools
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.filesize import decimal
from rich.measure import Measurement
from rich.padding import Padding
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from torch2jax.tools import (
    Agreement,
    Bench,
    Bisection,
    Check,
    Diagnosis,
    Report,
    Route,
    Subject,
    Written,
)

_BETWEEN = (0, 2, 0, 0)
_BORDER = 4
_STYLES = {"ok": "green", "note": "cyan", "warning": "yellow", "error": "bold red"}


def record(result: Any) -> dict[str, Any]:
    """A result as JSON has it."""
    match result:
        case Report():
            return {
                **_of_subject(result.subject),
                "verdict": result.verdict,
                "passed": result.passed,
                "checks": [{**_plain(check), "passed": check.passed} for check in result.checks],
                "operators": {level.value: dict(names) for level, names in result.operators.items()},
                "loops": result.loops,
            }
        case Bisection():
            names = ("verdict", "agrees", "agreed", "drawn", "step", "agreement", "alone", "error")
            return {**_of_subject(result.subject), **{name: _plain(getattr(result, name)) for name in names}}
        case Bench():
            others = {name: _plain(getattr(result, name)) for name in ("devices", "timings", "agreement")}
            return {**_of_subject(result.subject), **others}
        case Diagnosis():
            return {"healthy": result.healthy, **_plain(result)}
        case dict():
            return {"operators": {name: level.value for name, level in result.items()}}
    return _plain(result)


def _plain(value: Any) -> Any:
    """A value of plain types; what is not finite is None."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {str(name): _plain(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, (bool, int, str)) else str(value)


def _of_subject(subject: Subject) -> dict[str, Any]:
    """The model: its name, its inputs and the number of its parameters."""
    count = 0 if subject.module is None else sum(parameter.numel() for parameter in subject.module.parameters())
    return {"model": subject.name, "inputs": subject.describe_inputs(), "parameters": count}


@functools.singledispatch
def show(result: Any, console: Console) -> None:
    """Prints a result for people."""
    raise TypeError(f"got a {type(result).__name__}; wanted a result of torch2jax.tools")


def _show_subject(subject: Subject, console: Console) -> None:
    console.print(Text.assemble((subject.name, "bold"), " ", (_summary(subject), "dim")))


def _summary(subject: Subject) -> str:
    """The inputs of a model, and the size of its parameters."""
    parts = [subject.describe_inputs()]
    if subject.module is not None:
        parameters = list(subject.module.parameters())
        size = decimal(sum(parameter.nbytes for parameter in parameters))
        parts.append(f"{sum(parameter.numel() for parameter in parameters):,} parameters ({size})")
    return " · ".join(parts)


@show.register
def _(report: Report, console: Console) -> None:
    style = "bold green" if report.passed else "bold red"
    title = Text.assemble((report.subject.name, "bold"), " ", (report.verdict, style))
    parts = [Text(_summary(report.subject), "dim"), "", fitted(_checks(report.checks), console, _BORDER)]
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
        agreement, times = check.agreement, check.times
        cells = [check.name, str(agreement.count) if agreement else ""]
        cells += [f"{agreement.absolute:.1e}", f"{agreement.relative:.1e}"] if agreement else ["", ""]
        cells += map(_duration, (times.trace, times.compile, times.run, times.pytorch)) if times else [""] * 4
        table.add_row(*cells, _remark(check), style=None if check.passed else "red")
    return table


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


@show.register
def _(found: Bisection, console: Console) -> None:
    _show_subject(found.subject, console)
    drawn = f", {found.drawn} with PyTorch's random numbers" if found.drawn else ""
    console.print(f"{found.agreed} calls of operators agree{drawn}", highlight=False)
    step = found.step
    if step is not None:
        table = _pairs()
        table.add_row("operator", Text(f"{step.operator}, call {step.index}", "bold"))
        table.add_row("inputs", step.inputs)
        table.add_row("module", step.module)
        table.add_row("line", step.line.removeprefix(f"{Path.cwd()}{os.sep}") or "in PyTorch's own code")
        if found.agreement is not None:
            table.add_row("beside", _distance(found.agreement))
        if found.alone is not None:
            table.add_row("alone", _distance(found.alone))
        console.print(table, highlight=False)
    console.print(found.verdict, style="green" if found.agrees else "red", markup=False, highlight=False)


def _distance(agreement: Agreement) -> str:
    sizes = f"{agreement.worst}: abs error {agreement.absolute:.1e}, rel error {agreement.relative:.1e}"
    return agreement.problem or (sizes if not agreement.agrees else f"agrees, {sizes}")


@show.register
def _(found: Bench, console: Console) -> None:
    _show_subject(found.subject, console)
    console.print(", ".join(f"{side} on {device}" for side, device in found.devices.items()), style="dim")
    console.print()
    table = plain_table("backend", "first call", "a call", "spread", "speedup", left=["backend"])
    for timing in found.timings:
        if not timing.error:
            cells = map(_duration, (timing.first, timing.seconds, timing.spread))
            table.add_row(timing.name, *cells, f"{timing.speedup:.2f}x")
    console.print(fitted(table, console))
    for timing in found.timings:
        if timing.error:
            console.print(f"{timing.name} fails: {timing.error}", style="yellow", markup=False, highlight=False)
    unsteady = [timing.name for timing in found.timings if not timing.is_steady]
    if unsteady:
        console.print(
            f"The rounds of {', '.join(unsteady)} differ by more than a fifth: this machine is busy. Repeat this where "
            "nothing else runs, or with more --seconds",
            style="yellow",
            highlight=False,
        )
    if not found.agreement.agrees:
        problem = found.agreement.problem or f"by {found.agreement.relative:.1e}, relatively"
        console.print(f"The outputs differ, {problem}: see torch2jax check", style="red", highlight=False)


@show.register
def _(written: Written, console: Console) -> None:
    paths = [(written.program, "")]
    if written.weights is not None:
        paths.append((written.weights, f", {written.tensors} tensors"))
    for path, more in paths:
        console.print(
            f"wrote {path} ({decimal(path.stat().st_size)}{more})", highlight=False, markup=False, soft_wrap=True
        )
    call = f"jax.export.deserialize(...).{written.call}"
    console.print(call, style="dim", highlight=False, markup=False, soft_wrap=True)


@show.register
def _(diagnosis: Diagnosis, console: Console) -> None:
    """Versions, devices, and what was found with what to do about it."""
    facts = _pairs()
    facts.add_row("versions", ", ".join(f"{name} {version}" for name, version in diagnosis.versions.items()))
    for side, devices in diagnosis.devices.items():
        facts.add_row(side, ", ".join(devices))
    console.print(facts, highlight=False)
    console.print()
    findings = _pairs()
    for finding in sorted(diagnosis.findings, key=lambda finding: [*_STYLES].index(finding.level)):
        text = Text(f"{finding.subject}: {finding.found}")
        if finding.remedy:
            text.append(f"\n→ {finding.remedy}", "bold" if finding.level in ("warning", "error") else "dim")
        findings.add_row(Text(finding.level, _STYLES[finding.level]), text)
    console.print(findings, highlight=False)


@show.register
def _(served: dict, console: Console) -> None:
    """The operators of ``torch2jax ops``."""
    width = max(map(len, served), default=0)
    for name, level in served.items():
        style = "red" if level is Route.NONE else None
        console.print(f"{name:{width}}  {level.value}", style=style, highlight=False, soft_wrap=True)
    counts = collections.Counter(served.values())
    console.print(
        f"{len(served)} operator{'s' * (len(served) != 1)}: "
        + ", ".join(f"{counts[level]} {level.value}" for level in Route if counts[level]),
        style="bold",
        highlight=False,
        soft_wrap=not console.is_terminal,
    )


# Tables that fit the width there is, and how numbers are spelt in them.


def plain_table(*columns: str, left: Sequence[str] = (), wraps: Sequence[str] = ()) -> Table:
    """A table without lines.

    Args:
        columns: their headings; they are numbers, and align to the right.
        left: those that are text.
        wraps: those that may take several lines; any other keeps its cells whole.
    """
    table = Table(box=None, pad_edge=False, padding=_BETWEEN)
    for name in columns:
        table.add_column(name, justify="left" if name in left or name in wraps else "right", no_wrap=name not in wraps)
    return table


def _pairs() -> Table:
    """A table of names and texts."""
    table = plain_table("", "", wraps=[""])
    table.show_header = False
    return table


def fitted(table: Table, console: Console, margin: int = 0) -> RenderableType:
    """A table or, where that is too wide, its rows one below the other: a heading, then a line for each cell.

    Args:
        margin: columns that what is around the table takes.
    """
    options = console.options.update(width=max(console.width - margin, 1))
    for column in table.columns:
        if column.no_wrap:  # or the least that it needs is its longest word
            texts = [column.header, *column.cells]
            column.min_width = max(Measurement.get(console, console.options, text).maximum for text in texts)
    if Measurement.get(console, options.update(max_width=10_000), table).minimum <= options.max_width:
        return table
    first, *others = table.columns
    records = Table.grid(padding=_BETWEEN)
    records.add_column(no_wrap=True)
    records.add_column(overflow="fold")
    for row, (heading, *cells) in enumerate(zip(*(column.cells for column in table.columns), strict=True)):
        style = table.rows[row].style
        records.add_row(Text(str(first.header), "bold"), heading, style=style)
        for column, cell in zip(others, cells, strict=True):
            if str(cell):
                records.add_row(Padding(str(column.header), (0, 0, 0, 2)), cell, style=style)
    return records


def _duration(seconds: float | None) -> str:
    """A time with three digits, as ``1.23 s``, ``4.5 ms`` or ``67 µs``."""
    if seconds is None:
        return ""
    if seconds >= 1:
        return f"{seconds:.2f} s"
    return f"{seconds * 1e3:.1f} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.0f} µs"
