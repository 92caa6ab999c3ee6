"""Records in a file of one JSON value a line: a run that was interrupted goes on with those that it has."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

__all__ = ["append_record", "records"]


def records(path: Path) -> Iterator[Any]:
    """The records of a file, in their order; none where there is no file."""
    yield from map(json.loads, path.read_text().splitlines() if path.exists() else [])


def append_record(path: Path, record: Any) -> None:
    """Appends a record to a file, which is made with its folder where there is none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        print(json.dumps(record), file=file)
