"""The command line of torch2jax, a thin layer over `torch2jax.tools`.

It is a package beside `torch2jax`, not within: whatever is imported of that package has its rules registered, so
PyTorch and JAX are imported first, which takes seconds. What is here imports them once a command runs.
"""

import sys

__all__ = ["main"]


def main() -> None:
    """Runs the command line; the console script of the package."""
    from .interrupts import ends_silently

    with ends_silently():
        _run()


def _run() -> None:
    try:
        from .app import app
        from .running import BrokenError
    except ModuleNotFoundError as error:
        if error.name not in ("rich", "typer"):
            raise
        from torch2jax.hints import how_to_install

        print(f"torch2jax: the command line needs {error.name}: {how_to_install('cli')}", file=sys.stderr)
        sys.exit(2)
    try:
        app(prog_name="torch2jax")
    except BrokenError as error:
        print(f"torch2jax cannot be imported: {error}\n`torch2jax doctor` tells what is installed", file=sys.stderr)
        sys.exit(2)
