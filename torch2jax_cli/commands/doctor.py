"""``torch2jax doctor``."""

import typer

from .. import options as take
from ..reports import broken
from ..running import BrokenError, give, running

__all__ = ["doctor"]

_UNHEALTHY = 1


def doctor(json: take.Json = False, quiet: take.Quiet = False) -> None:
    """Check the installation, and say what to do about problems."""
    try:
        with running(as_json=json, quiet=quiet) as run:
            diagnosis = run.tools.doctor(step=run.step)
    except BrokenError as error:  # which is what it is for, so it tells what can be told without
        give(broken, str(error), json)
        raise typer.Exit(_UNHEALTHY) from None
    from ..reports import doctor as form

    give(form, diagnosis, json)
    raise typer.Exit(0 if diagnosis.healthy else _UNHEALTHY)
