"""Runs the tests of what has changed, in about a minute: those that run a changed function, and a sample of the rest.

    python -m scripts.affected                 # of the working tree and the commits that main has not
    python -m scripts.affected --since HEAD~3  # or since some revision
    python -m scripts.affected --list          # what would run, and what would be left out
    python -m scripts.affected --record        # run all tests, and write which functions each runs, and how long

`tests/functions.json` has, for each function of the package, the tests that run little else. What it does not know, a
new function, is tested as its file is; and a file that it does not know by the test file of its name and by those that
import it. Where that is more than a minute's worth, the most specific tests run, and the output counts the others: the
whole is `python -m scripts.tests`.
"""

import argparse
import ast
import collections
import functools
import itertools
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from scripts.records import records
from scripts.tests import durations, files, keep, run, shares
from scripts.touched import PACKAGES, functions_of

__all__ = ["ALWAYS", "Map", "changed_functions", "chosen", "compact"]

ROOT = Path(__file__).parents[1]
FUNCTIONS = ROOT / "tests" / "functions.json"
ALWAYS = (
    "tests/test_contract.py",
    "tests/test_rooms.py",
    "tests/ops/test_graphs.py",
    "tests/tensors/test_aliasing.py",
    *(
        f"tests/ops/test_database.py::test_entry[{name}]"
        for name in ("add", "sum", "matmul", "cumsum", "index_select", "softmax", "sort", "where", "masked_fill")
    ),
)
_MOST = 8  # tests of a function that the map keeps
_BUDGET = 60  # seconds of processors, besides what always runs: two processes, and what they take to begin
_CASE, _FUNCTION = 0.3, 3.0  # seconds of a test of a database, and of all cases of a function, at a guess
_HUNK = re.compile(r"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")


class Map:
    """Which tests run a function: the number of all, and the most specific of them first."""

    def __init__(self, content: dict):
        self._units: list[str] = content["tests"]
        self._functions: dict[str, dict[str, list[int]]] = {
            file: {name: row for row, names in rows for name in names.split()}
            for file, rows in content["functions"].items()
        }

    def tests_of(self, file: str, function: str) -> tuple[int, list[str]]:
        """How many tests run a function, and some of them. Of a function that is not known, those of its file."""
        known = self._functions.get(file, {})
        if function in known:
            count, *chosen = known[function]
            return count, [self._units[i] for i in chosen]
        # one of each function, then a second one
        each = itertools.zip_longest(*(chosen for _, *chosen in sorted(known.values(), key=lambda x: x[0])))
        found = dict.fromkeys(self._units[i] for row in each for i in row if i is not None)
        return len(found), list(found)


def compact(ran: Iterable[tuple[str, list[str]]], seconds: dict[str, float]) -> dict:
    """What `Map` reads, of the functions that each test ran."""
    units = {unit: set(names) for unit, names in ran if names}
    order = sorted(units, key=lambda unit: (len(units[unit]) * (1 + _cost(unit, seconds) / 20), unit))
    by_function: dict[str, list[str]] = collections.defaultdict(list)
    for unit in order:
        for name in units[unit]:
            by_function[name].append(unit)
    kept = sorted({unit for found in by_function.values() for unit in found[:_MOST]})
    place = {unit: i for i, unit in enumerate(kept)}
    rows: dict[str, dict[tuple[int, ...], list[str]]] = collections.defaultdict(dict)
    for name in sorted(by_function):
        file, _, function = name.partition(":")
        found = by_function[name]
        row = len(found), *(place[unit] for unit in found[:_MOST])
        rows[file].setdefault(row, []).append(function)
    # functions that the same tests run are together: the map is half as large
    functions = {file: [(row, " ".join(names)) for row, names in found.items()] for file, found in rows.items()}
    return {"tests": kept, "functions": functions}


def _cost(unit: str, seconds: dict[str, float]) -> float:
    """The seconds of a test file, or of a part of one."""
    file, _, part = unit.partition("::")
    whole = seconds.get(file, 2.0)
    return min(whole, _CASE if "[" in part else _FUNCTION) if part else whole


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout


def _source(revision: str, file: str) -> str:
    """A file's text in a revision, or in the working tree if that is empty; empty where it is not there."""
    if not revision:
        return (ROOT / file).read_text() if (ROOT / file).is_file() else ""
    done = subprocess.run(["git", "show", f"{revision}:{file}"], cwd=ROOT, capture_output=True, text=True)
    return "" if done.returncode else done.stdout


def changed_functions(source: str, lines: Iterable[int]) -> set[str]:
    """The names of the functions that some lines of a file are in; "" for what is in none."""
    try:
        places = [(node.lineno - len(node.decorator_list), node.end_lineno or 0, name) for name, node in _all(source)]
    except SyntaxError:
        return {""}
    told = source.splitlines()
    code = [line for line in lines if line <= len(told) and told[line - 1].strip()]
    return {next((name for start, end, name in places if start <= line <= end), "") for line in code}


def _all(source: str) -> list:
    return list(functions_of(ast.parse(source)))


def changes(since: str) -> dict[str, set[str]]:
    """The files that have changed since a revision, with the functions of Python files that have."""
    found: dict[str, set[str]] = collections.defaultdict(set)
    file = ""
    before: dict[str, list[int]] = collections.defaultdict(list)
    after: dict[str, list[int]] = collections.defaultdict(list)
    for line in _git("diff", "--unified=0", "--no-renames", since).splitlines():
        if line.startswith("diff --git "):
            file = line.rpartition(" b/")[2]
            found[file] |= set()
        elif hunk := _HUNK.match(line):
            start, count, new, more = (int(x) if x else 1 for x in hunk.groups())
            before[file] += range(start, start + count)
            after[file] += range(new, new + more)
    for file in found:
        if file.endswith(".py"):
            found[file] |= changed_functions(_source(since, file), before[file])
            found[file] |= changed_functions(_source("", file), after[file])
    for file in _git("ls-files", "--others", "--exclude-standard").splitlines():
        found[file] |= {""}
    return found


@functools.cache
def _imports() -> dict[str, set[str]]:
    """The modules that each Python file of the tests imports, or imports a name of."""
    found = {}
    for path in (ROOT / "tests").rglob("*.py"):
        parts = path.relative_to(ROOT).with_suffix("").parts
        names = found[path.relative_to(ROOT).as_posix()] = set()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                names.update(alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                above = parts[: len(parts) - node.level] if node.level else ()
                module = ".".join([*above, *([node.module] if node.module else [])])
                names.add(module)
                names.update(f"{module}.{alias.name}" for alias in node.names)
    return found


def _importing(file: str) -> Iterator[str]:
    """The test files that import a module, directly or by helpers of the tests."""
    seen, waiting = set(), [file]
    while waiting:
        module = waiting.pop().removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        for path, names in sorted(_imports().items()):
            if module in names and path not in seen:
                seen.add(path)
                if Path(path).name.startswith("test_"):
                    yield path
                else:
                    waiting.append(path)


def _by_name(file: str) -> Iterator[str]:
    """The test file that mirrors a file, those of its name in other folders, and those that import it."""
    path = Path(file)
    within = path.parts[1:-1] if path.parts[0] in PACKAGES else path.parts[:-1]
    mirror = Path("tests", *within, f"test_{path.stem.strip('_')}.py")
    if path.parts[0] == "torch2jax_cli":
        mirror = Path("tests", "cli", *within, f"test_{path.stem}.py")
    found = [mirror.as_posix(), *(x.relative_to(ROOT).as_posix() for x in (ROOT / "tests").rglob(mirror.name))]
    found += _importing(file)
    yield from (name for name in dict.fromkeys(found) if (ROOT / name).exists())


def _is_test(name: str) -> bool:
    return name.rpartition(".")[2].startswith("test_")


def _candidates(
    file: str, names: set[str], known: Map | None, seconds: dict[str, float]
) -> Iterator[tuple[int, list[str]]]:
    """For each change in a file, how many tests there are of it, and tests in the order of their worth."""
    if file.startswith("tests/"):
        if file.endswith(".py") and (ROOT / file).exists():
            if not Path(file).name.startswith("test_"):
                found = sorted(_importing(file), key=lambda name: _cost(name, seconds))
            elif all(_is_test(name) for name in names):
                there = {name for name, _ in _all(_source("", file))}
                found = [f"{file}::{name.replace('.', '::')}" for name in sorted(names & there)]
            else:
                found = [file]
            yield len(found), found
    elif file.startswith(("docs/", "examples/", "README", "CONTRIBUTING", "CHANGELOG")):
        name = Path(file).name
        page = [f"tests/test_readme.py::test_python_blocks_run[{name}]"] if _is_page(file) else []
        found = [*page, f"tests/test_readme.py::test_links_lead_to_files_and_headings[{file}]"] if page else []
        found += [f"tests/test_examples.py::test_example[{Path(file).stem}]"] if file.startswith("examples/") else []
        yield len(found), found
    elif file.endswith(".py"):
        mirrored = list(_by_name(file))
        for name in sorted(names):
            count, found = known.tests_of(file, name) if known and file.startswith("torch2jax") else (0, [])
            found = [x for x in found if (ROOT / x.partition("::")[0]).exists()]
            mirror = [x for x in mirrored[:1] if Path(x).name == f"test_{Path(file).name}"]
            both = list(dict.fromkeys([*mirror, *found] if found else mirrored))
            yield max(count, len(both)), both


def _is_page(file: str) -> bool:
    return (file == "README.md" or Path(file).parent == Path("docs")) and (ROOT / file).exists()


def chosen(
    changed: dict[str, set[str]], known: Map | None, seconds: dict[str, float], budget: float = _BUDGET
) -> tuple[list[str], dict[str, int]]:
    """The tests to run, and for each file that has changed how many of its tests are left out.

    Each changed function has its first test before another has its second; those that few tests run are first.
    """
    rows = [
        (count, found, file)
        for file, names in changed.items()
        for count, found in _candidates(file, names, known, seconds)
    ]
    rows.sort(key=lambda row: row[0])
    taken: dict[str, None] = dict.fromkeys(ALWAYS)
    spent = 0.0
    for at in range(max((len(found) for _, found, _ in rows), default=0)):
        for _, found, _ in rows:
            if at < len(found) and not _is_taken(found[at], taken):
                cost = _cost(found[at], seconds)
                if spent + cost <= budget:
                    spent += cost
                    taken[found[at]] = None
    left: dict[str, int] = {}
    for count, found, file in rows:
        missed = count - sum(_is_taken(x, taken) for x in found)
        if missed > 0:
            left[file] = max(left.get(file, 0), missed)
    return list(taken), left


def _is_taken(test: str, taken: dict[str, None]) -> bool:
    return test in taken or test.partition("::")[0] in taken


def record() -> int:
    """Runs all tests, and writes which functions each of them ran, and how long it took."""
    path = ROOT / ".cache" / "functions.jsonl"
    path.parent.mkdir(exist_ok=True)
    path.unlink(missing_ok=True)
    options = ["-p", "scripts.touched", "--touched", str(path)]
    code, outcomes = run(shares(files([str(ROOT / "tests")]), 2, durations()), options)
    keep(outcomes)
    write(compact(records(path), durations()))
    print(outcomes)
    return code


def write(content: dict) -> None:
    """Writes the map, one file of the package a line."""
    lines = [f"{json.dumps(file)}: {json.dumps(rows)}" for file, rows in content["functions"].items()]
    text = ",\n".join(lines)
    tests = json.dumps(content["tests"], indent=0)
    FUNCTIONS.write_text(f'{{"tests": {tests},\n"functions": {{\n{text}\n}}}}\n')


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--since", help="a revision; where main and this branch parted by default")
    parser.add_argument("--seconds", type=float, default=_BUDGET, help="processors' seconds of the tests it chooses")
    parser.add_argument("--list", action="store_true", help="only say what would run")
    parser.add_argument("--record", action="store_true", help="run all tests, and write which functions they run")
    options = parser.parse_args()
    if options.record:
        return record()
    since = options.since or _git("merge-base", "main", "HEAD").strip()
    changed = changes(since)
    known = Map(json.loads(FUNCTIONS.read_text())) if FUNCTIONS.exists() else None
    tests, left = chosen(changed, known, durations(), options.seconds)
    functions = sum(len(names) for names in changed.values())
    print(f"{len(changed)} files have changed, {functions} functions; {len(tests)} tests or test files run")
    for file, count in sorted(left.items()):
        print(f"{file}: {count} more tests or files of tests are left to python -m scripts.tests")
    if options.list:
        print(*tests, sep="\n")
        return 0
    os.environ.setdefault("TORCH2JAX_PROGRAMS", "20")  # random ones of each kind, for the minute
    code, outcomes = run(shares(tests, 2, durations()), [])
    print(outcomes)
    return code


if __name__ == "__main__":
    sys.exit(main())
