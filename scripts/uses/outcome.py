"""What became of a use, and the file of all of them."""

import dataclasses
from pathlib import Path

from scripts.records import append_record, records

__all__ = ["Outcome", "Results"]


@dataclasses.dataclass
class Outcome:
    """One use, run once. Differences are relative; seconds are of the gradient's program, or else the forward's."""

    use: str
    version: str
    torch: str = ""
    jax: str = ""
    pytorch: bool = False  # whether PyTorch runs it
    forward: float | None = None
    gradient: float | None = None
    trace: float | None = None
    compile: float | None = None
    agrees: bool = False
    error: str = ""
    traceback: str = ""


class Results:
    """The last outcome of each use, in a file of one JSON object a line."""

    def __init__(self, path: Path):
        self.path = path
        self.outcomes = {found.use: found for found in (Outcome(**record) for record in records(path))}

    def append(self, outcome: Outcome) -> None:
        self.outcomes[outcome.use] = outcome
        append_record(self.path, dataclasses.asdict(outcome))
