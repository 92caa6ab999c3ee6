"""``torch2jax ops``."""

from typing import Annotated

import typer

from .. import options as take
from ..running import give, running

__all__ = ["ops"]


def ops(
    pattern: Annotated[
        str, typer.Argument(metavar="PATTERN", help="A part of a name, or a shell pattern: 'nn.functional.*pool*'.")
    ] = "*",
    aten: Annotated[bool, typer.Option("--aten", help="List ATen operators instead of torch functions.")] = False,
    json: take.Json = False,
    quiet: take.Quiet = False,
) -> None:
    """List PyTorch's operators, and how each is implemented."""
    with running(as_json=json, quiet=quiet) as run:
        served = run.tools.operators(pattern, aten)
        if not served:
            raise run.tools.SpecError(f"no operator matches {pattern!r}")
    from ..reports import ops as form

    give(form, served, json)
