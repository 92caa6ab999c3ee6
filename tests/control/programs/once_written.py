"""Programs written by hand that change Python's objects, and whose first run tells what the call needs."""

from collections.abc import Callable

PROGRAMS: dict[str, Callable[[], tuple[Callable, Callable]]] = {}
