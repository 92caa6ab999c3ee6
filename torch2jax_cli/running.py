"""How each command runs: what it imports, how it tells of progress and of errors, and its exit code."""

import contextlib
import json
import os
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, NoReturn

import typer
from rich.console import Console

from .interrupts import leaves
from .progress import progress
from .reports.tables import console

__all__ = ["CANNOT", "DIFFERS", "BrokenError", "RunningCommand", "give", "running"]

DIFFERS = 1
_NOTHING = 2  # also what is typed wrong, as for every command
CANNOT = 3


class RunningCommand(NamedTuple):
    """A command that runs.

    Attributes:
        tools: `torch2jax.tools`.
        step: is told what begins.
    """

    tools: ModuleType
    step: Callable[[str], None]

    def build(
        self,
        spec: str,
        shapes: list[str] | None,
        inputs: Path | None,
        weights: Path | None,
        dtype: str | None,
        branches: list[str] | None,
        allow_pickle: bool,
    ) -> Any:
        """The model that the options tell of, with its inputs."""
        from torch2jax.tools.subject import read_branches

        chosen = read_branches(branches or [])
        self.step(f"building {spec}")
        subject = self.tools.build(
            spec, shapes=shapes or [], inputs=inputs, weights=weights, dtype=dtype, allow_pickle=allow_pickle
        )
        subject.branches = chosen
        return subject


class BrokenError(Exception):
    """PyTorch, JAX or torch2jax cannot be imported."""


@contextlib.contextmanager
def running(*, as_json: bool, quiet: bool, dtype: str | None = None) -> Iterator[RunningCommand]:
    """Imports what commands need, tells of progress, and turns errors into a line, or an object, and an exit code.

    Raises:
        BrokenError: that cannot be imported.
    """
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    with progress(quiet) as step, warnings.catch_warnings():
        step("importing PyTorch and JAX")
        warnings.simplefilter("ignore")
        try:
            import jax

            from torch2jax import tools
        except Exception as error:
            raise BrokenError(f"{type(error).__name__}: {error}") from error
        wide = jax.enable_x64(True) if dtype == "float64" else contextlib.nullcontext()
        try:
            with leaves(), wide:
                yield RunningCommand(tools, step)
        except tools.SpecError as error:
            failure = _NOTHING, str(error)
        except tools.TranslationError as error:
            failure = CANNOT, str(error)
        else:
            return
    _fail(*failure, as_json)


def give(form: Any, result: Any, as_json: bool) -> None:
    """Prints a result in its form, which is a module of `reports`, or of a class there."""
    if as_json:
        _write_json(form.record(result))
    else:
        form.show(result, console())


def _write_json(record: dict[str, Any]) -> None:
    typer.echo(json.dumps(record, indent=2, allow_nan=False))


def _fail(code: int, message: str, as_json: bool) -> NoReturn:
    Console(stderr=True).print(f"torch2jax: {message}", style="red", markup=False, highlight=False, soft_wrap=True)
    if as_json:
        _write_json({"error": message, "exit_code": code})
    raise typer.Exit(code)
