"""Programs that people write, by name: solvers and searches, decoding and training, and what Python has for flow."""

from tests.control.programs import language, learning, numerics
from tests.control.programs.outcomes import Outcome, Program, outcome
from tests.control.programs.table import PROGRAMS

__all__ = ["names", "run"]

_FILES = language, learning, numerics  # each puts its programs into the table


def names() -> list[str]:
    """The names of the programs whose libraries are installed."""
    return list(PROGRAMS)


def run(name: str, limit: float = 8) -> Outcome:
    """How the program of a name ends."""
    each = PROGRAMS[name]
    return outcome(
        lambda: Program(each.build()), each.inputs, gradients=each.gradients, limit=limit, tolerance=each.tolerance
    )
