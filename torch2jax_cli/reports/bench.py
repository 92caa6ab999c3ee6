"""The times of ``torch2jax bench``."""

from typing import Any

from rich.console import Console
from rich.text import Text

from torch2jax.tools import Bench

from .plain import plain
from .subject import of_subject, summary
from .tables import duration, fitted, plain_table

__all__ = ["record", "show"]


def record(found: Bench) -> dict[str, Any]:
    """The times as JSON has them."""
    return {
        **of_subject(found.subject),
        "devices": found.devices,
        "timings": plain(found.timings),
        "agreement": plain(found.agreement),
    }


def show(found: Bench, console: Console) -> None:
    """Prints a row for each way of running the model."""
    console.print(Text.assemble((found.subject.name, "bold"), " ", (summary(found.subject), "dim")))
    console.print(", ".join(f"{side} on {device}" for side, device in found.devices.items()), style="dim")
    console.print()
    table = plain_table("backend", "first call", "a call", "spread", "speedup", left=["backend"])
    for timing in found.timings:
        if not timing.error:
            cells = map(duration, (timing.first, timing.seconds, timing.spread))
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
