"""What ``torch2jax bisect`` has found."""

import os
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from torch2jax.tools import Agreement, Bisection

from .plain import plain
from .subject import of_subject, summary
from .tables import plain_table

__all__ = ["record", "show"]


def record(found: Bisection) -> dict[str, Any]:
    """What was found as JSON has it."""
    return {
        **of_subject(found.subject),
        "verdict": found.verdict,
        "agrees": found.agrees,
        **{
            name: plain(getattr(found, name))
            for name in ("agreed", "drawn", "step", "agreement", "alone", "error", "of_gradient")
        },
    }


def show(found: Bisection, console: Console) -> None:
    """Prints how many operators agree, and the first that does not."""
    console.print(Text.assemble((found.subject.name, "bold"), " ", (summary(found.subject), "dim")))
    drawn = f", {found.drawn} with PyTorch's random numbers" if found.drawn else ""
    console.print(f"{found.agreed} calls of operators agree{drawn}", highlight=False)
    step = found.step
    if step is not None:
        table = plain_table("", "", wraps=[""])
        table.show_header = False
        table.add_row("operator", Text(f"{step.operator}, call {step.index}", "bold"))
        table.add_row("inputs", step.inputs)
        table.add_row("module", step.module)
        table.add_row("line", step.line.removeprefix(f"{Path.cwd()}{os.sep}") or "in PyTorch's own code")
        if found.agreement is not None:
            table.add_row("gradient" if found.of_gradient else "beside", _distance(found.agreement))
        if found.alone is not None:
            table.add_row("alone", _distance(found.alone))
        console.print(table, highlight=False)
    console.print(found.verdict, style="green" if found.agrees else "red", markup=False, highlight=False)


def _distance(agreement: Agreement) -> str:
    sizes = f"{agreement.worst}: abs error {agreement.absolute:.1e}, rel error {agreement.relative:.1e}"
    return agreement.problem or (sizes if not agreement.agrees else f"agrees, {sizes}")
