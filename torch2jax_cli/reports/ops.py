"""The list of ``torch2jax ops``."""

import collections
from typing import Any

from rich.console import Console

from torch2jax.tools import Route

__all__ = ["record", "show"]


def record(served: dict[str, Route]) -> dict[str, Any]:
    """The list as JSON has it."""
    return {"operators": {name: level.value for name, level in served.items()}}


def show(served: dict[str, Route], console: Console) -> None:
    """Prints the list of ``torch2jax ops``."""
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
