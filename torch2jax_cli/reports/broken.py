"""What ``torch2jax doctor`` tells where PyTorch, JAX or torch2jax cannot be imported: it imports none of them."""

import importlib.metadata
import platform
import re
from typing import Any

from rich.console import Console

from .tables import plain_table

__all__ = ["record", "show"]

_REMEDY = "install the versions that are wanted; a fresh environment is the shortest way"


def record(error: str) -> dict[str, Any]:
    """The error, and the versions that are installed and wanted, as JSON has them."""
    return {"error": error, "healthy": False, "Python": platform.python_version(), "packages": _packages()}


def show(error: str, console: Console) -> None:
    """Prints the error, and the versions that are installed and wanted."""
    console.print(f"torch2jax cannot be imported: {error}", style="red", markup=False, highlight=False)
    table = plain_table("package", "installed", "wanted", left=["package", "installed", "wanted"])
    for name, versions in _packages().items():
        table.add_row(name, versions["installed"] or "nothing", versions["wanted"])
    console.print(table)
    console.print(_REMEDY)


def _packages() -> dict[str, dict[str, str | None]]:
    """The packages that torch2jax needs, with the versions that are there and those that it asks for."""
    found: dict[str, dict[str, str | None]] = {}
    for text in importlib.metadata.requires("torch2jax") or []:
        match = re.fullmatch(r"([\w.-]+)([^;]*)", text)  # without a condition: no extra's
        if match is not None:
            try:
                installed = importlib.metadata.version(match[1])
            except importlib.metadata.PackageNotFoundError:
                installed = None
            found[match[1]] = {"installed": installed, "wanted": match[2]}
    return found
