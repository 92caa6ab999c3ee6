"""Runs PyTorch's operator database and writes `docs/tested/coverage.md`: how much of it passes, by family and dtype.

The outcome of each entry is appended to a file, so that a run that was interrupted goes on where it stopped; an entry
that ended the process is a failure, and is not tried again. Failures are listed in a second file.

    python -m scripts.coverage --limit 3                        # three samples of each entry
    python -m scripts.coverage --full                           # all of them, and PyTorch's reference inputs
    python -m scripts.coverage 'linalg.*' --columns gradients --dtypes float64
    python -m scripts.coverage --again                          # what failed before
    python -m scripts.coverage --report                         # only write the page from what was run

It compiles as the tests do, without optimising. `XLA_FLAGS= python -m scripts.coverage --again` compiles as users do:
what fails is worth that.
"""

import argparse
import collections
import contextlib
import faulthandler
import io
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import jax
import torch

from scripts.records import append_record, records
from tests.compiling import keep_context, set_flags
from tests.memory import Bound
from tests.ops.database import DTYPES, Trial, cases, columns_of, dtypes_of, entries, full_name, run, trials
from tests.ops.database.exceptions import EXCLUDED, excluded
from torch2jax import t2j
from torch2jax.calls.modes import observing
from torch2jax.rules import registry

PAGE = Path(__file__).parents[1] / "docs" / "tested" / "coverage.md"
COLUMNS = {
    "values": "tree, shapes, values, and the dtypes that the code sees, with 64-bit types stored in 32 bits",
    "x64": "the same with `jax_enable_x64`",
    "jit": "the same under `jax.jit`, with all tensors traced, for PyTorch's reference inputs and its samples; "
    "data-dependent results raise `TracedValueError`",
    "gradients": "`jax.vjp` of a random cotangent, compared with PyTorch's autograd",
    "forward": "`jax.jvp`, compared with `jax.vjp`",
    "second": "the gradient of the gradient, compared with PyTorch's",
    "wide": "`gradients` with `jax_enable_x64`, in half precision too",
    "vmap": "`jax.vmap` over two samples, compared with PyTorch's results for each",
    "forms": "methods, operators, in-place forms, `out=`, aliases and keyword arguments; in one dtype",
    "constants": "under `jax.jit`, with all tensors, and with every second one, closed over instead of passed; in one "
    "dtype",
    "errors": "inputs and dtypes that PyTorch rejects raise the same exception type",
}
SECONDS = 300  # a sample that takes longer hangs


def name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def family_of(op) -> str:
    """The file of `torch2jax/ops` with the rule of an entry, or with the first that it reaches."""
    called = [op.op]
    for dtype in dtypes_of(op)[:1]:
        for case in cases(op, dtype, 1):
            with contextlib.suppress(Exception), observing(called.append):
                t2j(case.function)(*case.tensors, rng=jax.random.key(0))
    for function in called:
        find = registry.lookup_aten if isinstance(function, torch._ops.OpOverload) else registry.lookup
        rule = find(function)
        rule = getattr(rule, "rule", rule)
        module = getattr(getattr(rule, "body", None), "__module__", None) or ""
        if module.startswith("torch2jax.ops.") and module != "torch2jax.ops.values":
            return module.removeprefix("torch2jax.ops.").replace(".", "/")
    return "values"


class Results:
    """Outcomes by ``(entry, dtype)``, in a file of one JSON object a line."""

    def __init__(self, path: Path):
        self.path = path
        self.families: dict[str, str] = {}
        self.outcomes: dict[tuple[str, str], dict[str, tuple]] = collections.defaultdict(dict)
        started = None
        for found in records(path):
            if "started" in found:
                self._give_up(started)
                started = found
            else:
                self._take(found)
                started = None
        self._give_up(started)

    def _take(self, found: dict) -> None:
        name, dtype = found["entry"], found["dtype"]
        self.families[name] = found["family"]
        kept = {c: x for c, x in found["outcomes"].items() if not excluded(name, c, getattr(torch, dtype))}
        self.outcomes[name, dtype].update(kept)

    def _give_up(self, started: dict | None) -> None:
        if started is not None:
            outcome = (0, 1, "the process ended: aborted, killed, or out of time")
            self.families.setdefault(started["entry"], "none")
            self.outcomes[started["entry"], started["dtype"]].update(dict.fromkeys(started["started"], outcome))

    def append(self, **found) -> None:
        append_record(self.path, found)
        if "started" not in found:
            self._take(found)


def run_all(results: Results, options) -> None:
    memory = Bound(options.memory)
    for dtype in options.dtypes:
        for op in (op for pattern in options.patterns for op in entries(pattern)):
            name = full_name(op)
            done = results.outcomes.get((name, name_of(dtype)), {})
            if options.again:
                done = {column: found for column, found in done.items() if found[0] == found[1]}
            columns = [c for c in columns_of(op, dtype) if c in options.columns and c not in done]
            if not columns:
                continue
            results.append(entry=name, dtype=name_of(dtype), started=columns)
            begin = time.time()
            with contextlib.redirect_stdout(io.StringIO()):
                found = run(_in_time(trials(op, dtype, columns, options.limit, options.full)))
            outcomes = {column: found.get(column, (0, 0, None)) for column in columns}
            family = results.families.get(name) or family_of(op)
            seconds = round(time.time() - begin, 2)
            results.append(entry=name, dtype=name_of(dtype), family=family, outcomes=outcomes, seconds=seconds)
            faulthandler.cancel_dump_traceback_later()
            memory.keep()


def _in_time(batches: Iterator[list[Trial]]) -> Iterator[list[Trial]]:
    for batch in batches:
        faulthandler.dump_traceback_later(SECONDS, exit=True)
        yield batch


def failures(results: Results) -> Iterator[str]:
    """The entries that fail, by family."""
    by_family = collections.defaultdict(list)
    for (name, dtype), outcomes in results.outcomes.items():
        for column, (passed, total, error) in outcomes.items():
            if passed < total:
                line = f"- {name}, {column}, {dtype} ({total - passed} of {total}): {(error or '')[:300]}"
                by_family[results.families[name]].append(line)
    for family, lines in sorted(by_family.items()):
        yield from (f"\n## {family} ({len(lines)})", *lines)


def page(results: Results) -> Iterator[str]:
    """The page, line by line."""
    yield from (
        "# Coverage",
        "",
        "This page shows how much of PyTorch's operator database",
        "(`torch.testing._internal.common_methods_invocations.op_db`) passes. A row is one entry in one dtype. It",
        "passes in a column if every sample does. The number of samples is that of the column with the most. In a",
        "full run many samples are compiled as one program, including samples that otherwise run operation by",
        "operation. The page is written by `python -m scripts.coverage`,",
        f"with PyTorch {torch.__version__.split('+')[0]} and JAX {jax.__version__}.",
        "",
        *(f"- **{column}**: {meaning}" for column, meaning in COLUMNS.items()),
        "",
        "## By dtype",
        "",
        *_table("dtype", [name_of(dtype) for dtype in DTYPES], lambda name, dtype: dtype, results),
        "",
        "## By family",
        "",
        "Families are the files of `torch2jax/ops`.",
        "",
        *_table("family", sorted(set(results.families.values())), lambda name, dtype: results.families[name], results),
        "",
        "## What is left out",
        "",
        "| entries | dtypes | columns | reason |",
        "|---|---|---|---|",
        *(f"| `{x.pattern}` | {_dtypes(x)} | {_columns(x)} | {x.reason} |" for x in EXCLUDED),
    )


def _dtypes(exclusion) -> str:
    return "all" if exclusion.dtypes is None else ", ".join(map(name_of, exclusion.dtypes))


def _columns(exclusion) -> str:
    return "all" if set(exclusion.columns) == set(COLUMNS) else ", ".join(exclusion.columns)


def _table(first: str, keys: list[str], key_of, results: Results) -> Iterator[str]:
    counts = collections.defaultdict(lambda: [0, 0])
    samples = collections.Counter()
    for (name, dtype), outcomes in results.outcomes.items():
        for column, (passed, total, _) in outcomes.items():
            for key in (key_of(name, dtype), "all") if total else ():
                counts[key, column][0] += passed == total
                counts[key, column][1] += 1
                samples[key, column] += total
    yield f"| {first} | samples | {' | '.join(COLUMNS)} |"
    yield "|---" * (2 + len(COLUMNS)) + "|"
    for key in (*keys, "all"):
        most = max(samples[key, column] for column in COLUMNS)
        cells = (counts[key, column] for column in COLUMNS)
        yield f"| {key} | {most} | {' | '.join(f'{passed}/{total}' if total else '' for passed, total in cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("patterns", nargs="*", default=["*"])
    parser.add_argument("--limit", type=int, help="samples of each entry and dtype (default: all)")
    parser.add_argument("--full", action="store_true", help="reference inputs as well")
    parser.add_argument("--again", action="store_true", help="run again what failed")
    parser.add_argument("--columns", type=lambda text: text.split(","), default=list(COLUMNS))
    parser.add_argument(
        "--dtypes", type=lambda text: [getattr(torch, name) for name in text.split(",")], default=DTYPES
    )
    parser.add_argument("--results", type=Path, default=Path("coverage.jsonl"), help="default: coverage.jsonl")
    parser.add_argument("--failures", type=Path, default=Path("failures.md"), help="default: failures.md")
    parser.add_argument("--page", type=Path, default=PAGE, help="default: docs/tested/coverage.md")
    parser.add_argument("--memory", type=float, default=4, help="GB at which compiled code is let go (default: 4)")
    parser.add_argument("--report", action="store_true", help="run nothing")
    options = parser.parse_args()
    set_flags()
    keep_context()
    warnings.simplefilter("ignore")
    results = Results(options.results)
    if not options.report:
        run_all(results, options)
    options.failures.write_text("\n".join(failures(results)) + "\n")
    options.page.write_text("\n".join(page(results)) + "\n")


if __name__ == "__main__":
    main()
