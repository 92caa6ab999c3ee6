"""Runs the tests in two processes, each with its own share of the files, so that no file is imported twice for nothing.

    python -m scripts.tests                      # all, as CI does
    python -m scripts.tests tests/ops -k cumsum  # some: paths, and any options of pytest
    python -m scripts.tests --full               # all there is, as at night
    python -m scripts.tests --record             # and write tests/durations.json, by which the shares are made

A failure is shown when it happens. `.cache/durations.txt` has the slowest tests of the last run, and the last line
counts the outcomes. One file is run by `pytest` itself: `pytest tests/ops/test_views.py`.
"""

import argparse
import collections
import contextlib
import functools
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from tests.durations import LIMIT, SLOWEST, written

__all__ = ["DURATIONS", "Outcomes", "durations", "files", "keep", "run", "shares"]

ROOT = Path(__file__).parents[1]
DURATIONS = ROOT / "tests" / "durations.json"
_UNKNOWN = 2  # seconds, of a file without a duration
_READS_DATABASE = re.compile(r"\b(entry|entries)\(")
_EVERY = 30.0  # seconds between two lines that tell how far it is


def durations() -> dict[str, float]:
    """The seconds of each test file, as they were recorded."""
    return json.loads(DURATIONS.read_text()) if DURATIONS.exists() else {}


def files(paths: Iterable[str]) -> list[str]:
    """The test files of some files and folders, and single tests as they are, from the root of the repository."""
    found: dict[str, None] = {}
    for path in paths:
        name = path.partition("::")[0]
        absolute = (Path.cwd() / name).resolve()
        inner = sorted(absolute.rglob("test_*.py")) if absolute.is_dir() else [absolute]
        for each in inner:
            found.setdefault(each.relative_to(ROOT).as_posix() + path[len(name) :])
    return list(found)


def shares(names: Iterable[str], count: int, seconds: dict[str, float]) -> list[list[str]]:
    """Divides files into shares that take as long as each other. A folder's files stay together, its heaviest first.

    What files of one folder import is often the same: PyTorch's operator database, libraries of models.
    """
    names = list(names)
    took = {name: seconds.get(name.partition("::")[0], _UNKNOWN) if "::" not in name else 1 for name in names}
    by_folder: dict[str, float] = collections.defaultdict(float)
    for name in names:
        by_folder[_folder(name)] += took[name]
    names.sort(key=lambda name: (-by_folder[_folder(name)], _folder(name)))
    found: list[list[str]] = [[] for _ in range(count)]
    total, done = sum(took.values()), 0.0
    for name in names:
        middle = done + took[name] / 2
        found[min(int(middle * count / total), count - 1) if total else 0].append(name)
        done += took[name]
    return [share for share in found if share]


@functools.cache
def _folder(name: str) -> str:
    """The folder right below `tests` that a file is in; `ops`, if it reads the operator database as many there do."""
    path, parts = ROOT / name.partition("::")[0], name.split("/")
    if path.is_file() and _READS_DATABASE.search(path.read_text()):
        return "ops"
    return parts[1] if len(parts) > 2 else ""


class Outcomes:
    """What came of the tests so far."""

    def __init__(self):
        self.counts: collections.Counter[str] = collections.Counter()
        self.seconds: dict[str, float] = {}
        self.collecting: dict[str, float] = {}
        self.unmarked: dict[str, float] = {}
        self.failed: list[str] = []

    def add(self, record: dict) -> None:
        """Adds a test's outcome, and shows it if it failed."""
        name, outcome = record["name"], record["outcome"]
        if outcome == "ended":
            return
        if outcome == "collected":
            self.collecting[name.partition("::")[0]] = record["seconds"]
            return
        self.counts[outcome] += 1
        self.seconds[name] = record["seconds"]
        if record.get("slow"):
            self.unmarked[name] = record["seconds"]
        if outcome == "failed":
            self.failed.append(name)
            print(f"\n{' FAILED ' + name + ' ':=^120}\n{record['text']}\n", flush=True)

    def by_file(self) -> dict[str, int]:
        """The whole seconds of each file, its import among them."""
        found = collections.Counter(self.collecting)
        for name, seconds in self.seconds.items():
            found[name.partition("::")[0]] += seconds
        return {name: round(seconds) for name, seconds in sorted(found.items())}

    def __str__(self) -> str:
        told = f"{self.counts['passed']} passed, {self.counts['failed']} failed"
        return told + (f", {self.counts['skipped']} skipped" if self.counts["skipped"] else "")


class _Share:
    """A process of pytest with its share of the tests."""

    def __init__(self, number: int, names: list[str], options: list[str], folder: Path, python: str):
        self.number = number
        self._record, self._log = folder / f"{number}.jsonl", folder / f"{number}.log"
        self._record.touch()
        self._read, self._last, self._has_ended = self._record.open(), "", False
        command = [python, "-m", "pytest", "-q", *options, "--record-outcomes", str(self._record), *names]
        environment = {"OMP_NUM_THREADS": "1"} | os.environ
        with self._log.open("w") as log:
            self.process = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT, env=environment)

    def records(self) -> Iterator[dict]:
        """What has been recorded since the last time."""
        while line := self._read.readline():
            self._last += line
            if line.endswith("\n"):
                record, self._last = json.loads(self._last), ""
                self._has_ended |= record["outcome"] == "ended"
                yield record

    @property
    def code(self) -> int:
        """The exit code: 0 is of a process that has come to the end of its tests."""
        return self.process.returncode or (0 if self._has_ended else 3)

    def end(self) -> None:
        """Ends the process, if it has not ended."""
        self.process.kill()
        self.process.wait()
        self._read.close()

    def ending(self) -> str:
        """The end of what pytest said."""
        return self._log.read_text(errors="replace")[-6000:]


def run(parts: list[list[str]], options: list[str], python: str = sys.executable) -> tuple[int, Outcomes]:
    """Runs each part in a process of its own. The exit code is pytest's: 0 if all succeed and one at least passes."""
    outcomes, code, start = Outcomes(), 0, time.monotonic()
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        processes = [_Share(i, names, options, Path(folder), python) for i, names in enumerate(parts, 1)]
        for share in processes:
            stack.callback(share.end)
        left, told = list(processes), start
        while left:
            time.sleep(0.2)
            ended = [share for share in left if share.process.poll() is not None]
            for share in left:
                for record in share.records():
                    outcomes.add(record)
            for share in ended:
                left.remove(share)
                code = code or _code(share, outcomes)
            if time.monotonic() - told > _EVERY:
                told = time.monotonic()
                print(f"{told - start:5.0f} s: {outcomes}", flush=True)
    if code == 0 and not outcomes.counts["passed"]:
        code = 5
    return code, outcomes


def _code(share: _Share, outcomes: Outcomes) -> int:
    """The exit code of a share that has ended; what it said is shown where that was more than failures."""
    code = share.code
    if code in (0, 1, 5):  # 5: none of its tests was chosen
        return code % 5
    print(f"\nprocess {share.number} ended with {code}:\n{share.ending()}", flush=True)
    outcomes.counts["failed"] += 1
    return code if code > 0 else 3


def keep(outcomes: Outcomes) -> None:
    """Writes the seconds of the files that ran; those of others stay."""
    found = durations() | outcomes.by_file()
    kept = {name: seconds for name, seconds in sorted(found.items()) if (ROOT / name).exists()}
    DURATIONS.write_text(json.dumps(kept, indent=0) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--processes", type=int, default=2, help="how many processes; two by default")
    parser.add_argument("--record", action="store_true", help="write tests/durations.json, of what runs")
    options, others = parser.parse_known_args()
    paths = [x for x in others if not x.startswith("-") and (Path.cwd() / x.partition("::")[0]).exists()]
    others = [x for x in others if x not in paths]
    start = time.monotonic()
    code, outcomes = run(shares(files(paths or [str(ROOT / "tests")]), options.processes, durations()), others)
    if options.record:
        keep(outcomes)
    SLOWEST.parent.mkdir(exist_ok=True)
    SLOWEST.write_text(written(outcomes.seconds))
    if outcomes.unmarked:
        print(f"more than {LIMIT:g} s, without a mark `slow` that says why:\n{written(outcomes.unmarked)}")
    spent = sum(outcomes.seconds.values()), sum(outcomes.collecting.values())
    print(f"{time.monotonic() - start:.0f} s; of the processors {spent[0]:.0f} s in tests, {spent[1]:.0f} s to collect")
    print(outcomes, flush=True)
    return code


if __name__ == "__main__":
    sys.exit(main())
