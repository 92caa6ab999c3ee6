"""The tree of ``torch2jax explain``."""

import dataclasses
import re
from collections.abc import Iterator
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from torch2jax.tools import Cost, Explanation, Scope

from .plain import plain
from .subject import of_subject, summary
from .tables import fitted, number, plain_table

__all__ = ["Levels"]

_NUMBERED = re.compile(r"(.*?)(\d+)")


@dataclasses.dataclass(frozen=True)
class Levels:
    """The form of an explanation.

    Args:
        depth: how many levels of modules are shown to people; 0 for all.
    """

    depth: int

    def record(self, explanation: Explanation) -> dict[str, Any]:
        """The whole tree as JSON has it."""
        return {
            **of_subject(explanation.subject),
            "total": plain(explanation.root.cost),
            "scopes": [_record(scope) for scope in explanation.root.scopes.values()],
            "compiled": plain(explanation.compiled),
            "notes": list(explanation.notes),
        }

    def show(self, explanation: Explanation, console: Console) -> None:
        """Prints a row for each module; neighbours that cost the same are one."""
        root = explanation.root
        console.print(Text.assemble((explanation.subject.name, "bold"), " ", (summary(explanation.subject), "dim")))
        console.print()
        table = plain_table("module", "operations", "flops", "share", "bytes", left=["module"])
        _add(table, _label(0, root.name or "total", root.kind), root.cost, root)
        for level, name, scope in _rows(root, 1):
            if not self.depth or level <= self.depth:
                _add(table, _label(level, name, scope.kind), scope.cost, root)
        console.print(fitted(table, console))
        compiled = explanation.compiled
        if compiled is not None:
            console.print(
                f"\ncompiled: {number(compiled.flops)} flops, {number(compiled.bytes, 'B')} read and written; memory: "
                f"{number(compiled.arguments, 'B')} weights and inputs, {number(compiled.results, 'B')} results, "
                f"{number(compiled.temporary, 'B')} temporary",
                highlight=False,
            )
        for note in explanation.notes:
            console.print(f"note: {note}", style="yellow", highlight=False, markup=False)


def _record(scope: Scope) -> dict[str, Any]:
    inner = [_record(each) for each in scope.scopes.values()]
    return {"name": scope.name, "class": scope.kind or None, **plain(scope.cost), "scopes": inner}


def _label(level: int, name: str, kind: str) -> Text:
    return Text.assemble("  " * level, name, (f"  {kind}" if kind else "", "dim"))


def _add(table: Table, label: Text, cost: Cost, root: Scope) -> None:
    share = f"{100 * cost.flops / root.cost.flops:.1f} %" if root.cost.flops else ""
    table.add_row(label, f"{cost.operations:,}", number(cost.flops), share, number(cost.bytes, "B"))


def _rows(scope: Scope, level: int) -> Iterator[tuple[int, str, Scope]]:
    """The scopes within one, each with its level and its name; of several alike in a row, the first stands for all."""
    scopes, i = list(scope.scopes.values()), 0
    while i < len(scopes):
        first, many = scopes[i], 1
        while i + many < len(scopes) and _follows(scopes[i + many], first, many):
            many += 1
        name = first.name if many == 1 else f"{first.name} … {scopes[i + many - 1].name}, each"
        yield level, name, first
        yield from _rows(first, level + 1)
        i += many


def _follows(scope: Scope, first: Scope, by: int) -> bool:
    """Whether a scope has a name that counts on from that of another, and is like it."""
    mine, its = _NUMBERED.fullmatch(scope.name), _NUMBERED.fullmatch(first.name)
    counts_on = mine is not None and its is not None and mine[1] == its[1] and int(mine[2]) == int(its[2]) + by
    return counts_on and _alike(scope, first)


def _alike(one: Scope, other: Scope) -> bool:
    return (one.kind, one.cost, [*one.scopes]) == (other.kind, other.cost, [*other.scopes]) and all(
        _alike(one.scopes[name], other.scopes[name]) for name in one.scopes
    )
