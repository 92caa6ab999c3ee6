"""The files that ``torch2jax export`` has written."""

from typing import Any

from rich.console import Console
from rich.filesize import decimal

from torch2jax.tools import Written

from .plain import plain

__all__ = ["record", "show"]


def record(written: Written) -> dict[str, Any]:
    """The files as JSON has them."""
    return plain(written)


def show(written: Written, console: Console) -> None:
    """Prints what ``torch2jax export`` has written, and how to call it."""
    paths = [(written.program, "")]
    if written.weights is not None:
        paths.append((written.weights, f", {written.tensors} tensors"))
    for path, more in paths:
        console.print(
            f"wrote {path} ({decimal(path.stat().st_size)}{more})", highlight=False, markup=False, soft_wrap=True
        )
    call = f"jax.export.deserialize(...).{written.call}"
    console.print(call, style="dim", highlight=False, markup=False, soft_wrap=True)
