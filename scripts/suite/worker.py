"""A process that runs tests of one file, and that another process watches: a test may hang it or end it."""

import contextlib
import faulthandler
import functools
import os
import signal
import sys
import tempfile
import time
import traceback
import unittest
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from unittest import mock

from scripts.suite.outcomes import Collected, Mode, Outcome, describe
from scripts.watched import silence, watched

__all__ = ["Options", "collect", "outcomes"]

LOAD = 900  # seconds for the imports
HANG = 8  # times its time, by the clock, that a test may take: it is in compiled code, waits, or the machine is busy


@dataclass(frozen=True)
class Options:
    folder: Path
    timeout: float = 60  # seconds of CPU time, which other processes do not lengthen
    cache: Path | None = None
    memory: float = 6  # GB


class Late(BaseException):
    """A test's time is over; no `Exception`, which a test may catch."""


def collect(file: str, options: Options) -> tuple[Collected, list[str]]:
    """A file's tests, ``Class.method``; none where it cannot be loaded."""
    with watched(_collect, file, options) as (receive, _):
        if receive.poll(LOAD):
            with contextlib.suppress(EOFError):
                return receive.recv()
    return Collected(file, 0, ["it does not load"]), []


def outcomes(file: str, names: list[str], mode: Mode, options: Options) -> Iterator[Outcome]:
    """The outcome of each of a file's tests, in as many processes, one after the other, as that takes."""
    left = list(names)
    while left:
        before = len(left)
        with (
            tempfile.NamedTemporaryFile("r", errors="replace") as last_words,
            watched(_run, file, options, left, mode, last_words.name) as (receive, process),
        ):
            started = False
            while left:
                outcome = _next(receive, LOAD if not started else options.timeout * HANG)
                if outcome == "loaded":
                    started = True
                elif isinstance(outcome, Outcome):
                    left.remove(outcome.test.partition("::")[2])
                    yield outcome
                elif outcome == "restart":
                    break
                else:
                    process.join(1)
                    why = f"the process ended ({process.exitcode})" if outcome == "ended" else "it hangs"
                    result = "crash" if outcome == "ended" else "late"
                    why = why if started else f"loading: {why}"
                    yield Outcome(f"{file}::{left.pop(0)}", mode, result, why, last_words.read()[-4000:])
                    break
        assert len(left) < before, "a worker ended without having run anything"


def _next(receive: Connection, seconds: float) -> "Outcome | str":
    try:
        return receive.recv() if receive.poll(seconds) else "silent"
    except EOFError:
        return "ended"


# What follows runs in the worker.


def _set_up(options: Options) -> None:
    os.setpgrp()
    silence()
    sys.argv = sys.argv[:1]  # PyTorch's helpers read it
    os.environ["PYTORCH_TESTING_DEVICE_ONLY_FOR"] = "cpu"
    warnings.simplefilter("ignore")
    import torch

    from scripts.suite import loading

    torch.set_num_threads(1)
    loading.install(options.folder)
    os.chdir(options.folder)


def _set_up_jax(options: Options) -> None:
    import jax

    from scripts.suite import comparison, samples
    from tests.compiling import keep_context

    comparison.install()
    samples.install()
    keep_context()
    jax.config.update("jax_enable_x64", True)
    if options.cache:
        jax.config.update("jax_compilation_cache_dir", str(options.cache))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


def _collect(send: Connection, file: str, options: Options) -> None:
    _set_up(options)
    from scripts.suite import loading

    module = loading.load(options.folder, file)
    names = list(loading.tests_of(module))
    send.send((Collected(file, len(names), vars(module)["__lost__"].names), names))


def _run(send: Connection, file: str, options: Options, names: list[str], mode: Mode, last_words: str) -> None:
    if mode == "translated":
        _set_up_jax(options)
    _set_up(options)
    faulthandler.enable(open(last_words, "w"))  # noqa: SIM115  (until the process ends)
    from scripts.suite import loading
    from tests.memory import Bound, memory

    tests = loading.tests_of(loading.load(options.folder, file))
    send.send("loaded")
    bound = Bound(options.memory / 2)
    signal.signal(signal.SIGPROF, _late)
    for name in names:
        outcome = _outcome(f"{file}::{name}", *tests[name], mode, options.timeout)
        send.send(outcome)
        if mode == "translated":
            bound.keep()
        if outcome.result == "late" or memory() > options.memory:  # what was interrupted may be broken
            send.send("restart")
            return


def _late(*_) -> None:
    raise Late


def _outcome(test: str, case: type[unittest.TestCase], method: str, mode: Mode, timeout: float) -> Outcome:
    from scripts.suite import state
    from scripts.suite.apart import SEEDS, Calls, apart, source_of

    begin, calls = time.process_time(), Calls()
    result, error, trace = "ok", "", ""
    function = getattr(case, method)
    with state.kept():
        signal.setitimer(signal.ITIMER_PROF, timeout)
        try:
            _refuse(case, function)
            case.setUpClass()
            try:
                _call(case(method), method, mode, calls)
            finally:
                case.tearDownClass()
        except unittest.SkipTest as e:
            result, error = "skip", str(e)
        except Late as e:
            result, trace = "late", _trace(e)
        except BaseException as e:
            result, error, trace = "fail", describe(e), _trace(e)
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
    kind = apart(test, source_of(function), calls.names()) if mode == "pytorch" and result == "ok" else None
    if mode == "pytorch" and result == "ok" and kind is None and _passes_by_its_seed(case, method, timeout):
        kind = SEEDS.name
    return Outcome(test, mode, result, error[:2000], trace, kind, round(time.process_time() - begin, 2))


def _passes_by_its_seed(case: type[unittest.TestCase], method: str, timeout: float) -> bool:
    from scripts.suite import state
    from scripts.suite.seeds import passes_by_its_seed

    def run() -> None:
        again = case(method)
        try:
            _between(again, getattr(again, method))
        finally:
            again.doCleanups()

    with state.kept(), contextlib.suppress(Late):
        signal.setitimer(signal.ITIMER_PROF, timeout)
        try:
            return passes_by_its_seed(getattr(case, method), run)
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
    return False


def _refuse(*marked) -> None:
    """Skips what a decorator has marked, on a class or a method."""
    for x in marked:
        if getattr(x, "__unittest_skip__", False):
            raise unittest.SkipTest(getattr(x, "__unittest_skip_why__", ""))
        if getattr(x, "__unittest_expecting_failure__", False):
            raise unittest.SkipTest("PyTorch expects a failure")


def _call(case: unittest.TestCase, method: str, mode: Mode, calls) -> None:
    """A test as ``unittest`` runs it, in PyTorch or translated, with what its ``setUp`` makes."""
    try:
        if mode == "pytorch":
            _between(case, functools.partial(_seen, calls, getattr(case, method)))
        else:
            _translated(functools.partial(_between, case, getattr(case, method)))
    finally:
        case.doCleanups()


def _between(case: unittest.TestCase, test: Callable[[], None]) -> None:
    from scripts.suite import state

    state.seed()
    case.setUp()
    try:
        test()
    finally:
        case.tearDown()


def _seen(calls, test: Callable[[], None]) -> None:
    with calls:
        test()


def _translated(test: Callable[[], None]) -> None:
    import jax

    from torch2jax import t2j

    def run():
        test()

    with _without_files():
        t2j(run)(rng=jax.random.key(0))


@contextlib.contextmanager
def _without_files():
    """Lets the helpers of TorchScript's tests leave out that they save and load what they compile.

    They do so at every compilation, and a translated call has no files of tensors ("files of TorchScript" of the tests
    that stand apart).
    """
    case = getattr(sys.modules.get("torch.testing._internal.jit_utils"), "JitTestCase", None)
    if case is None:
        yield
        return
    with (
        mock.patch.object(case, "_compared_saved_loaded", return_value=None),
        mock.patch.object(case, "getExportImportCopy", lambda self, m, *args, **kwargs: m),
    ):
        yield


def _trace(error: BaseException, limit: int = 12_000) -> str:
    lines = "".join(traceback.format_exception(error))
    return lines if len(lines) <= limit else f"{lines[: limit // 3]}\n...\n{lines[-2 * limit // 3 :]}"
