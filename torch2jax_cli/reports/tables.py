"""Tables that fit the width there is, and how numbers are spelt in them."""

import os
from collections.abc import Sequence

from rich.console import Console, RenderableType
from rich.measure import Measurement
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

__all__ = ["console", "duration", "fitted", "number", "plain_table"]

_WIDTH_OF_FILES = 120
_BETWEEN = (0, 2, 0, 0)
_PREFIXES = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def console() -> Console:
    """The console for results: as wide as the terminal or, where the output goes elsewhere, as COLUMNS says."""
    found = Console()
    return found if found.is_terminal or os.environ.get("COLUMNS") else Console(width=_WIDTH_OF_FILES)


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


def duration(seconds: float | None) -> str:
    """A time with three digits, as ``1.23 s``, ``4.5 ms`` or ``67 µs``."""
    if seconds is None:
        return ""
    if seconds >= 1:
        return f"{seconds:.2f} s"
    return f"{seconds * 1e3:.1f} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.0f} µs"


def number(value: float, unit: str = "") -> str:
    """A count with three digits and a decimal prefix, as ``1.82 G``."""
    for size, prefix in _PREFIXES:
        if value >= size:
            return f"{value / size:.3g} {prefix}{unit}"
    return f"{value:.3g} {unit}".strip()
