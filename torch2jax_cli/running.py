"""How each command runs: what it imports, how it tells of progress and of errors, and its exit code."""

import contextlib
import json
import os
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, NoReturn

import typer
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from . import leaves

DIFFERS = 1
_NOTHING = 2  # also what is typed wrong, as for every command
CANNOT = 3
_WIDTH_OF_FILES = 120


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
    ) -> Any:
        """The model that the options tell of, with its inputs."""
        from torch2jax.tools.models import read_branches

        chosen = read_branches(branches or [])
        self.step(f"building {spec}")
        subject = self.tools.build(spec, shapes=shapes or [], inputs=inputs, weights=weights, dtype=dtype)
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
    with _progress(quiet) as step, warnings.catch_warnings():
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


def console() -> Console:
    """The console for results: as wide as the terminal or, where the output goes elsewhere, as COLUMNS says."""
    found = Console()
    return found if found.is_terminal or os.environ.get("COLUMNS") else Console(width=_WIDTH_OF_FILES)


def give(result: Any, as_json: bool) -> None:
    """Prints a result, as `reports` has it."""
    from .reports import record, show

    if as_json:
        write_json(record(result))
    else:
        show(result, console())


def write_json(record: dict[str, Any]) -> None:
    """Prints one object."""
    typer.echo(json.dumps(record, indent=2, allow_nan=False))


def _fail(code: int, message: str, as_json: bool) -> NoReturn:
    Console(stderr=True).print(f"torch2jax: {message}", style="red", markup=False, highlight=False, soft_wrap=True)
    if as_json:
        write_json({"error": message, "exit_code": code})
    raise typer.Exit(code)


@contextlib.contextmanager
def _progress(quiet: bool) -> Iterator[Callable[[str], None]]:
    """A function that is told what begins, and shows it on the standard error: a spinner at a terminal, else a line."""
    console = Console(stderr=True)
    if quiet:
        yield lambda text: None
    elif console.is_terminal:
        columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
        with Progress(*columns, console=console, transient=True) as shown:
            task = shown.add_task("")
            yield lambda text: shown.update(task, description=text)
    else:
        started = time.perf_counter()

        def tell(text: str) -> None:
            line = f"[{time.perf_counter() - started:6.1f} s] {text}"
            console.print(line, markup=False, highlight=False, soft_wrap=True)

        yield tell
