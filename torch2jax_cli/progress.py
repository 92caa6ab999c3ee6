"""What is going on: a spinner at a terminal, and a line for each step where the output goes elsewhere."""

import contextlib
import time
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

__all__ = ["progress"]


@contextlib.contextmanager
def progress(quiet: bool) -> Iterator[Callable[[str], None]]:
    """A function that is told what begins, and shows it on the standard error."""
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
