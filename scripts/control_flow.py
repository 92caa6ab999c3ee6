"""Runs programs with conditions and loops on data in PyTorch and translated, and counts how they end.

The programs change objects of many kinds on one side of a condition (`objects`), are made at random (`random`), or are
what people write (`flow`). They run in processes of their own, so a crash or an endless loop ends only one program.

    python -m scripts.control_flow objects                          # each kind of object
    python -m scripts.control_flow objects --only 'list*closed*'
    python -m scripts.control_flow random --family loops --seeds 0:200
    python -m scripts.control_flow flow --only '*newton*'
    python -m scripts.control_flow flow --page docs/control-flow-programs.md   # and how long each takes to trace
    python -m scripts.control_flow once                             # what runs twice, and changes objects before
    python -m scripts.control_flow random --family aliases --seeds 7:8 --minimal   # what matters of a program
"""

import argparse
import collections
import concurrent.futures
import fnmatch
import importlib.metadata
import json
import os
import queue
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

__all__ = ["Row", "page", "rows", "table"]

CHUNK = 60
"""How many programs run in one process."""
GRACE = 30
"""Seconds that a process may be silent beyond a program's limits before it is ended."""
AGAIN = 3
"""The code of a process that interrupted a program: what JAX was about to do then, its caches may wait for."""

Row = tuple[str, str, str, float, tuple[float, int, int] | None]
"""A program's name, its outcome, what there is to say of it, seconds, and where it was traced for that what came of it:
seconds, loops and conditions."""


def _named(gauge: str, options: argparse.Namespace) -> list[str]:
    """The names of the programs to run."""
    if gauge == "objects":
        from tests.control.programs import objects

        found = objects.names()
    elif gauge == "flow":
        from tests.control.programs import flow

        found = flow.names()
    elif gauge == "once":
        from tests.control.programs import once

        found = once.names()
    else:
        from tests.control.programs import generator

        first, last = map(int, options.seeds.split(":"))
        families = [options.family] if options.family else generator.FAMILIES
        found = [f"{family} {seed}" for family in families for seed in range(first, last)]
    return [name for name in found if fnmatch.fnmatch(name, options.only)]


def _runner(gauge: str) -> Callable:
    """What runs a program of a name within a limit."""
    if gauge == "objects":
        from tests.control.programs import objects

        return objects.run
    if gauge == "flow":
        from tests.control.programs import flow

        return flow.run
    if gauge == "once":
        from tests.control.programs import once

        return once.run
    from tests.control.programs import generator

    return generator.run


def _child(gauge: str, limit: float, traces: bool) -> None:
    """Runs the programs whose names come in, and says how each ended."""
    import jax

    from tests.compiling import keep_context
    from tests.control.programs import flow

    keep_context()
    run, answers = _runner(gauge), os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what programs print
    for number, name in enumerate(json.load(sys.stdin)):
        graph = flow.traced(name, limit) if traces else None
        found = run(name, limit)
        print(json.dumps([name, found.kind, found.text, round(found.seconds, 3), graph]), file=answers, flush=True)
        if found.kind == "late":
            sys.exit(AGAIN)
        if number % 20 == 19:
            jax.clear_caches()


def _lines(process: subprocess.Popen, seconds: float) -> Iterator[str]:
    """The lines of a process, until it ends or is silent for too long."""
    found: queue.SimpleQueue[str | None] = queue.SimpleQueue()

    def read() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            found.put(line)
        found.put(None)

    threading.Thread(target=read, daemon=True).start()
    while True:
        try:
            line = found.get(timeout=seconds)
        except queue.Empty:
            return process.kill()
        if line is None:
            return None
        yield line


def rows(
    gauge: str,
    names: list[str],
    limit: float,
    note: Callable[[Row], object] = lambda row: None,
    options: tuple[str, ...] = (),
) -> list[Row]:
    """Runs programs in a process; what ends or hangs it is noted, and another process goes on with the rest."""
    found: list[Row] = []
    while len(found) < len(names):
        before = len(found)
        command = [sys.executable, "-m", "scripts.control_flow", gauge, "--limit", str(limit), "--child", *options]
        environment = {"JAX_PLATFORMS": "cpu", "OMP_NUM_THREADS": "1", **os.environ}
        folder = Path(__file__).parents[1]
        with (
            tempfile.TemporaryFile("w+") as errors,
            subprocess.Popen(
                command,
                env=environment,
                cwd=folder,
                text=True,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
            ) as process,
        ):
            assert process.stdin is not None
            process.stdin.write(json.dumps(names[before:]))
            process.stdin.close()
            start = time.monotonic()
            for line in _lines(process, 10 * limit + GRACE):  # on a machine with other work
                found.append(tuple(json.loads(line)))
                note(found[-1])
                start = time.monotonic()
            code = process.wait()
            errors.seek(0)
            if code == 1:  # an exception of the gauge itself
                raise RuntimeError(errors.read()[-3000:])
        if len(found) < len(names) and code != AGAIN:
            is_hung = code == -9
            text = "hangs outside of Python" if is_hung else f"its process ended with {code}"
            found.append((names[len(found)], "late" if is_hung else "error", text, time.monotonic() - start, None))
            note(found[-1])
    return found


def table(found: list[Row], group: Callable[[str], str]) -> Iterator[str]:
    """How many programs of each group ended how, as a table in Markdown."""
    from tests.control.programs.outcomes import OUTCOMES

    groups: dict[str, list[Row]] = collections.defaultdict(list)
    for row in found:
        groups[group(row[0])].append(row)
        groups["all"].append(row)
    groups["all"] = groups.pop("all", [])
    yield f"| programs | number | {' | '.join(OUTCOMES)} | seconds, median | 95 % | most |"
    yield "|---|" + "---|" * (len(OUTCOMES) + 4)
    for name, members in groups.items():
        counts = collections.Counter(row[1] for row in members)
        seconds = sorted(row[3] for row in members) or [0.0]
        times = (seconds[min(int(share * len(seconds)), len(seconds) - 1)] for share in (0.5, 0.95, 1))
        cells = [str(counts[kind]) for kind in OUTCOMES]
        yield f"| {name} | {len(members)} | {' | '.join(cells)} | {' | '.join(f'{t:.2f}' for t in times)} |"


_PAGE = """---
nosearch: true
---

# Programs with conditions and loops

Programs that people write, run in PyTorch and translated: eagerly, as one compiled program for several inputs, and
many with gradients. [Control flow](control-flow.md) has the rules.

- **right**: values, gradients and what is left of objects from outside are PyTorch's
- **refused**: torch2jax raises an error, and what it says

*Seconds* are those of `jax.make_jaxpr`, on one core, in a process that has traced other programs before. *Loops* and
*conditions* are the `while`, `scan` and `cond` of the graph.
"""


def page(found: list[Row], subject: Callable[[str], str]) -> Iterator[str]:
    """How each program ended and what tracing it takes, as a page in Markdown."""
    yield _PAGE
    counts = collections.Counter(row[1] for row in found)
    yield ", ".join(f"{count} {kind}" for kind, count in counts.most_common()) + f", of {len(found)}."
    head = None
    for name, kind, text, _, graph in found:
        if subject(name) != head:
            head = subject(name)
            yield f"\n## {head}\n\n| program | result | seconds to trace | loops | conditions |\n|---|---|---|---|---|"
        said = kind if kind == "right" else f"{kind}: {_short(text)}"
        cells = ("", "", "") if graph is None else (f"{graph[0]:.2f}", *map(str, graph[1:]))
        yield f"| {name.replace('_', ' ')} | {said} | {' | '.join(cells)} |"
    yield f"\nThe page is written by `python -m scripts.control_flow flow --limit 150 --page FILE`,\n{_versions()}."


def _short(text: str) -> str:
    """The first sentence of an error, without the way the program was run, the class and folders."""
    _, _, said = text.partition(": ")
    said = re.sub(r"^\w+Error: ", "", said)
    said = re.sub(r"(/[^\s:]+/)+(?=[^\s/:]+\.py)", "", said)
    return re.split(r"\. |; wanted | \(", said)[0].replace("|", "\\|").replace("*", "\\*")[:200]


def _versions() -> str:
    torch, jax = (importlib.metadata.version(x).partition("+")[0] for x in ("torch", "jax"))
    return f"with PyTorch {torch} and JAX {jax}"


def _group(gauge: str) -> Callable[[str], str]:
    """What a row of the table is of."""
    if gauge == "objects":
        return lambda name: name.partition(" / ")[2]
    return lambda name: name.split(" ")[0] if gauge == "random" else gauge


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("gauge", choices=["objects", "random", "flow", "once"])
    parser.add_argument("--only", default="*", metavar="PATTERN", help="programs whose names match")
    parser.add_argument("--family", help="of random programs: one family")
    parser.add_argument("--seeds", default="0:40", metavar="A:B", help="of random programs (default: %(default)s)")
    parser.add_argument("--limit", type=float, default=8, help="processor seconds for a program (default: %(default)s)")
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time")
    parser.add_argument("--results", type=Path, help="a file for all outcomes, a line of JSON each")
    parser.add_argument("--show", default="wrong,error", help="outcomes to list (default: %(default)s)")
    parser.add_argument("--minimal", action="store_true", help="print the shortest random programs that end alike")
    parser.add_argument("--page", type=Path, metavar="FILE", help="of flow: a page with a row for each program")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.page and options.gauge != "flow":
        parser.error("--page is for flow alone")
    if options.child:
        return _child(options.gauge, options.limit, options.page is not None)
    names = _named(options.gauge, options)
    if options.minimal:
        from tests.control.programs import generator

        for name in names:
            print(name, generator.minimal(name, limit=options.limit), sep="\n", end="\n\n")
        return None
    shown, start, log = options.show.split(","), time.monotonic(), options.results and options.results.open("w")

    def note(row: Row) -> None:
        if row[1] in shown:
            print(f"{row[1]}: {row[0]}: {row[2]}", flush=True)
        if log:
            print(json.dumps(row), file=log, flush=True)

    parts = [names[i : i + CHUNK] for i in range(0, len(names), CHUNK)]
    further = ("--page", str(options.page)) if options.page else ()
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        found = [
            row
            for part in pool.map(lambda part: rows(options.gauge, part, options.limit, note, further), parts)
            for row in part
        ]
    if options.page:
        from tests.control.programs import flow

        options.page.write_text("\n".join(page(found, flow.subject)) + "\n")
    print("\n".join(table(found, _group(options.gauge))))
    print(f"{time.monotonic() - start:.0f} s")


if __name__ == "__main__":
    main()
