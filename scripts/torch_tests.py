"""Runs PyTorch's own tests within translated calls and writes `docs/tested/torch-tests.md`: how many pass, and why not.

Each test is run in PyTorch first and, if it passes there and does not stand apart (`scripts/suite/apart.py`), as
`t2j(lambda: test())(rng=key)`. The tests are the folder `test/` of a PyTorch source tree
(https://github.com/pytorch/pytorch, any release near the installed one; also in the source packages of Linux
distributions); helpers that the installed version lacks are made up for (`scripts/suite/loading.py`).

Each outcome is appended to a file, so that an interrupted run goes on where it stopped. What the page tells of a file
stays where it had more tests run than this one. Tests run in processes of their own, which are started anew after
a test that hangs or ends one, and when they have grown too large.

    python -m scripts.torch_tests pytorch/test                               # all of them; takes hours
    python -m scripts.torch_tests pytorch/test --every 20                    # a sample of each file
    python -m scripts.torch_tests pytorch/test --files 'nn/*.py' --only Hook
    python -m scripts.torch_tests pytorch/test --again failed                # what failed before, translated
    python -m scripts.torch_tests pytorch/test --page                        # only write the page from what was run
    python -m scripts.torch_tests pytorch/test --show 'test_autograd.*hook'  # failures with their tracebacks
"""

import argparse
import os
import re
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock

from scripts.suite import worker
from scripts.suite.outcomes import MODES, Mode, Outcome, Results
from tests.compiling import set_flags

PAGE = Path(__file__).parents[1] / "docs" / "tested" / "torch-tests.md"
FILES = (
    "test_autograd.py",
    "functorch/test_eager_transforms.py",
    "functorch/test_vmap.py",
    "functorch/test_control_flow.py",
    "optim/*.py",
    "test_stateless.py",
    "nn/*.py",
    "test_nn.py",
    "test_reductions.py",
    "test_autocast.py",
    "test_custom_ops.py",
    "test_fx.py",
    "test_jit.py",  # test_jit_simple.py is the same with another executor of graphs, and within a call there is none
    "functorch/test_rearrange.py",
    "export/test_export.py",
    "export/test_unflatten.py",
)
BATCH = 400  # tests that one process is given


def selected(tests: list[str], only: str, every: int, offset: int) -> list[str]:
    """Every so many of the tests whose name contains a text."""
    return [test for test in tests if only in test][offset::every]


def files_of(folder: Path, patterns: list[str]) -> list[str]:
    """The files that patterns name, each once, in their order; what begins with an underscore holds no tests."""
    found = [str(path.relative_to(folder)) for pattern in patterns for path in sorted(folder.glob(pattern))]
    return [file for file in dict.fromkeys(found) if not Path(file).name.startswith("_")]


class Run:
    """Runs what is not in the results yet, a few processes at a time."""

    def __init__(self, results: Results, options: argparse.Namespace):
        self.results, self.options, self.lock = results, options, Lock()
        self.worker = worker.Options(options.folder, options.timeout, options.cache, options.memory)

    def __call__(self, files: list[str]) -> None:
        names = dict(zip(files, self._all(self._collect, files), strict=True))
        for mode in MODES:
            batches = [batch for file in files for batch in self._batches(file, names[file], mode)]
            # the rest of a file's tests would come last otherwise, and alone
            self._all(lambda batch, mode=mode: self._run(*batch, mode), sorted(batches, key=lambda x: -len(x[1])))

    def _all(self, function: Callable, items: list) -> list:
        with ThreadPoolExecutor(self.options.jobs) as pool:
            try:
                return list(pool.map(function, items))
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise

    def _collect(self, file: str) -> list[str]:
        found, names = worker.collect(file, self.worker)
        with self.lock:
            self.results.append(found)
            self._say(f"{file}: {len(names)} tests{'; gone: ' + ', '.join(found.lost) if found.lost else ''}")
        return selected(names, self.options.only, self.options.every, self.options.offset)

    def _batches(self, file: str, names: list[str], mode: Mode) -> Iterator[tuple[str, list[str]]]:
        wanted = self.results.wanted([f"{file}::{name}" for name in names], mode, self.options.again)
        for start in range(0, len(wanted), BATCH):
            yield file, [test.partition("::")[2] for test in wanted[start : start + BATCH]]

    def _run(self, file: str, names: list[str], mode: Mode) -> None:
        passed = 0
        for outcome in worker.outcomes(file, names, mode, self.worker):
            with self.lock:
                self.results.append(outcome)
                passed += outcome.result == "ok"
                if self.options.verbose and outcome.result not in ("ok", "skip"):
                    self._say(f"  {outcome.result} {outcome.test} {outcome.error.partition(chr(10))[0][:200]}")
        self._say(f"{file}, {mode}: {passed} of {len(names)}")

    def _say(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)


def shown(results: Results, pattern: str) -> Iterator[str]:
    """The failures of tests that a pattern is found in, with their tracebacks."""
    for outcome in results.outcomes.values():
        if outcome.result not in ("ok", "skip") and re.search(pattern, f"{outcome.test} {outcome.error}"):
            yield _headline(outcome)
            yield outcome.traceback


def _headline(outcome: Outcome) -> str:
    return f"== {outcome.test}, {outcome.mode}: {outcome.result} in {outcome.seconds} s: {outcome.error}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=lambda text: Path(text).resolve(), help="the folder test/ of PyTorch's source")
    parser.add_argument("--files", nargs="+", default=list(FILES), help="files, or patterns of them, in the folder")
    parser.add_argument("--only", default="", metavar="TEXT", help="tests whose Class.method contains it")
    parser.add_argument("--every", type=int, default=1, metavar="K", help="every K-th test of each file")
    parser.add_argument("--offset", type=int, default=0, help="the first of these (default: 0)")
    parser.add_argument("--timeout", type=float, default=60, metavar="S", help="CPU seconds for a test (default: 60)")
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="processes at a time (default: 2)")
    parser.add_argument("--memory", type=float, default=6, help="GB at which a process is started anew (default: 6)")
    parser.add_argument("--again", choices=["failed", "all", "pytorch"], help="run again, although there are results")
    parser.add_argument("--results", type=Path, default=Path("build/torch_tests.jsonl"))
    parser.add_argument("--cache", type=lambda text: Path(text).resolve(), default=Path("build/xla").resolve())
    parser.add_argument("--output", type=Path, default=PAGE, help="the page (default: docs/tested/torch-tests.md)")
    parser.add_argument("--page", action="store_true", help="run nothing, write the page")
    parser.add_argument("--show", metavar="PATTERN", help="run nothing, print the failures that it is found in")
    parser.add_argument("-v", "--verbose", action="store_true", help="print failures as they come")
    return parser


def main() -> None:
    options = _parser().parse_args()
    results = Results(options.results)
    if options.show is not None:
        print("\n".join(shown(results, options.show)))
        return
    if not options.page:
        set_flags()  # of the processes
        os.environ.setdefault("OMP_NUM_THREADS", "1")
        Run(results, options)(files_of(options.folder, options.files))
    from scripts.suite.page import page, rows, summary  # imports PyTorch and JAX, as the processes do by themselves

    found = rows(results, options.output.read_text() if options.output.exists() else "")
    print("\n".join(summary(found)))
    options.output.write_text("\n".join(page(found)) + "\n")


if __name__ == "__main__":
    main()
