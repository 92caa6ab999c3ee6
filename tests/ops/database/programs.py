"""Runs checks that want programs compiled, alone or many together.

A check raises what is wrong, or returns. One that compiles is a generator: it yields each `Program` and is sent its
results, or thrown what it raises. Compiling costs more by program than by length, so that the programs of many checks
take a fraction of the time as one.
"""

import contextlib
from collections.abc import Callable, Generator, Sequence
from typing import Any, NamedTuple

import jax

__all__ = ["Check", "Program", "Steps", "alone", "together"]


class Program(NamedTuple):
    """A function of arrays, to be compiled, and the arrays; or one that alone runs operation by operation."""

    function: Callable
    arrays: list
    eager: bool = False


Steps = Generator[Program, Any, None]
Check = Callable[[], Steps | None]


def alone(check: Check) -> None:
    """Runs a check, each of its programs compiled for itself; raises what the check raises."""
    steps = _steps(check)
    with contextlib.suppress(StopIteration):
        program = next(steps)
        while True:
            try:
                call = program.function if program.eager else jax.jit(program.function)
                results = call(*program.arrays)
            except Exception as error:
                program = steps.throw(error)
            else:
                program = steps.send(results)


def together(checks: Sequence[Check]) -> list[bool]:
    """Whether each check passes with the programs of all compiled as one; of one that does not, `alone` tells why."""
    passed = [False] * len(checks)
    running = [_steps(check) for check in checks]
    sent: dict[int, Any] = dict.fromkeys(range(len(checks)))
    while sent:
        programs = {}
        for i, results in sent.items():
            try:
                programs[i] = running[i].send(results)
            except StopIteration:
                passed[i] = True
            except Exception:
                passed[i] = False
        sent = {}
        with contextlib.suppress(Exception):
            sent = dict(zip(programs, _as_one(list(programs.values())), strict=True))
    return passed


def _steps(check: Check) -> Steps:
    yield from check() or ()


def _as_one(programs: list[Program]) -> list:
    def every(arrays):
        return [program.function(*given) for program, given in zip(programs, arrays, strict=True)]

    return jax.jit(every)([program.arrays for program in programs]) if programs else []
