"""The command line: ``torch2jax check``, ``torch2jax export`` and ``torch2jax ops``."""

import sys

from ..hints import how_to_install

__all__ = ["main"]


def main() -> None:
    """Runs the command line; the console script of the package."""
    try:
        from .app import app
    except ModuleNotFoundError as error:
        if error.name not in ("rich", "typer"):
            raise
        print(f"torch2jax: the command line needs {error.name}: {how_to_install('cli')}", file=sys.stderr)
        sys.exit(2)
    app()
