"""The report of ``torch2jax doctor``."""

from typing import Any

from rich.console import Console
from rich.text import Text

from torch2jax.tools import Diagnosis

from .plain import plain
from .tables import plain_table

__all__ = ["record", "show"]

_STYLES = {"ok": "green", "note": "cyan", "warning": "yellow", "error": "bold red"}


def record(diagnosis: Diagnosis) -> dict[str, Any]:
    """The report as JSON has it."""
    return {"healthy": diagnosis.healthy, **plain(diagnosis)}


def show(diagnosis: Diagnosis, console: Console) -> None:
    """Prints versions, devices, and what was found with what to do about it."""
    versions = ", ".join(f"{name} {version}" for name, version in diagnosis.versions.items())
    facts = plain_table("", "", wraps=[""])
    facts.show_header = False
    facts.add_row("versions", versions)
    for side, devices in diagnosis.devices.items():
        facts.add_row(side, ", ".join(devices))
    console.print(facts, highlight=False)
    console.print()
    findings = plain_table("", "", wraps=[""])
    findings.show_header = False
    for finding in sorted(diagnosis.findings, key=lambda finding: [*_STYLES].index(finding.level)):
        text = Text(f"{finding.subject}: {finding.found}")
        if finding.remedy:
            text.append(f"\n→ {finding.remedy}", "bold" if finding.level in ("warning", "error") else "dim")
        findings.add_row(Text(finding.level, _STYLES[finding.level]), text)
    console.print(findings, highlight=False)
