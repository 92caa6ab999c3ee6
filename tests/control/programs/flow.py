"""Programs that people write, by name: solvers and searches, decoding and training, and what Python has for flow."""

import sys

from tests.control.programs import language, learning, numerics
from tests.control.programs.outcomes import Graph, Outcome, Program, graph, outcome
from tests.control.programs.table import PROGRAMS

__all__ = ["names", "run", "subject", "traced"]

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


def traced(name: str, limit: float = 8) -> Graph | None:
    """What tracing the program of a name takes and gives."""
    each = PROGRAMS[name]
    return graph(lambda: Program(each.build()), each.inputs, limit)


def subject(name: str) -> str:
    """What the programs of a file have in common, in words."""
    return (sys.modules[PROGRAMS[name].file].__doc__ or "").split("\n")[0].rstrip(".")
