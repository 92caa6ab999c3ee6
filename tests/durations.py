"""The processor time of each test: which of them are slow without a mark that says why, and which are for the night.

It is the time of the process and of those that it started and waited for, so that a loaded machine changes little.
"""

import collections
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

__all__ = ["LIMIT", "NIGHTLY", "SLOWEST", "Durations", "Nightly", "names_of", "nightly", "written"]

LIMIT = 5.0  # seconds; what takes more says why: @pytest.mark.slow("compiles Mask R-CNN")
NIGHTLY = Path(__file__).parent / "nightly.txt"
SLOWEST = Path(__file__).parents[1] / ".cache" / "durations.txt"


def _processor_time() -> float:
    return sum(os.times()[:4])


def written(seconds: dict[str, float], most: int = 50) -> str:
    """The slowest of some tests, one a line."""
    slowest = sorted(seconds.items(), key=lambda pair: -pair[1])[:most]
    return "".join(f"{time:8.2f}  {name}\n" for name, time in slowest)


class Durations:
    """A plugin of pytest that measures tests, and records outcomes for `scripts.tests`."""

    def __init__(self, is_strict: bool, record: str | None):
        self._is_strict = is_strict
        self._record = open(record, "a") if record else None  # noqa: SIM115  # for the whole run
        self._seconds: dict[str, float] = collections.defaultdict(float)
        self._outcomes: dict[str, tuple[str, str]] = {}
        self._unmarked: dict[str, float] = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report(self, collector) -> Iterator[None]:
        """Importing a test file is of its time, and with it what no file before it has imported."""
        start = _processor_time()
        report = yield
        if isinstance(collector, pytest.Module):
            took = _processor_time() - start
            self._write({"name": f"{collector.nodeid}::", "outcome": "collected", "seconds": took})
        if report.failed:
            self._write({"name": report.nodeid, "outcome": "failed", "seconds": 0.0, "text": report.longreprtext})
        return report

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item, nextitem) -> Iterator[None]:
        start = _processor_time()
        result = yield
        seconds = self._seconds[item.nodeid] = _processor_time() - start
        if seconds > LIMIT and item.get_closest_marker("slow") is None:
            self._unmarked[item.nodeid] = seconds
        outcome, text = self._outcomes.pop(item.nodeid, ("passed", ""))
        slow = item.nodeid in self._unmarked
        self._write({"name": item.nodeid, "outcome": outcome, "seconds": seconds, "text": text, "slow": slow})
        return result

    def pytest_runtest_logreport(self, report) -> None:
        if report.failed:
            before = self._outcomes.get(report.nodeid, ("", ""))[1]
            parts = [report.longreprtext, *(f"-- {name} --\n{text}" for name, text in report.sections)]
            self._outcomes[report.nodeid] = "failed", before + "\n".join(parts)
        elif report.skipped and report.nodeid not in self._outcomes:
            self._outcomes[report.nodeid] = "skipped", ""

    def _write(self, record: dict) -> None:
        if self._record is not None:
            print(json.dumps(record), file=self._record, flush=True)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session) -> None:
        if self._unmarked and self._is_strict and session.exitstatus == 0:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        self._write({"name": "", "outcome": "ended"})
        if self._record is None and self._seconds:
            SLOWEST.parent.mkdir(exist_ok=True)
            SLOWEST.write_text(written(self._seconds))

    def pytest_terminal_summary(self, terminalreporter) -> None:
        if self._unmarked:
            terminalreporter.section(f"take more than {LIMIT:g} s, and have no mark `slow` that says why")
            terminalreporter.write(written(self._unmarked))


_LINE = re.compile(r"(?P<name>tests/\S+\.py(?:::.*?)?)  +(?P<seconds>\d+)  +(?P<reason>\S.*)")


def nightly() -> dict[str, str]:
    """Tests and files that run at night only, with the reason of each."""
    found = {}
    for line in NIGHTLY.read_text().splitlines():
        if line and not line.startswith("#"):
            parts = _LINE.fullmatch(line)
            assert parts is not None, f"{NIGHTLY.name} has a line that is no name, seconds and reason: {line!r}"
            found[parts["name"]] = parts["reason"]
    return found


class Nightly:
    """A plugin of pytest that leaves out what `nightly.txt` lists, unless it is asked for by its name or `--full`."""

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config, items) -> None:
        asked = [os.path.relpath(config.invocation_params.dir / arg, config.rootpath) for arg in config.args]
        late = {name for name in nightly() if not any(x == name or x.startswith(f"{name}[") for x in asked)}
        chosen = [item for item in items if late.isdisjoint(names_of(item.nodeid))]
        if len(chosen) < len(items):
            kept = set(chosen)
            config.hook.pytest_deselected(items=[item for item in items if item not in kept])
            items[:] = chosen


def names_of(name: str) -> set[str]:
    """The names by which a list can name a test: its own, without its parameters, its class's, its file's."""
    plain, *_ = name.partition("[")
    parts = plain.split("::")
    return {name, *("::".join(parts[:count]) for count in range(1, len(parts) + 1))}
