"""What comes of a program: PyTorch runs it, and `t2j` runs it eagerly, under `jax.jit`, and differentiated."""

import collections
import contextlib
import dis
import importlib.util
import signal
import sys
import tempfile
import time
import types
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
import torch

import torch2jax

__all__ = ["OUTCOMES", "Graph", "Outcome", "Program", "graph", "load", "outcome"]

OUTCOMES = {
    "right": "values, gradients and what is left of objects from outside are PyTorch's",
    "refused": "torch2jax raises an error of its own, or says that it is not implemented",
    "wrong": "something differs",
    "late": "it does not end in time",
    "error": "another exception, such as an AttributeError",
    "torch": "PyTorch itself does not run it, so it says nothing",
}
WORST_FIRST = "wrong", "error", "late", "refused", "right", "torch"
_QUICK = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}


class Outcome(NamedTuple):
    """How a program ended.

    Args:
        kind: one of `OUTCOMES`.
        text: in which way it was run, and what differs there, or the exception's class and first line.
        seconds: of a processor, of everything but PyTorch.
    """

    kind: str
    text: str = ""
    seconds: float = 0.0


class Graph(NamedTuple):
    """What tracing a program takes, and gives: loops and conditions, those within others too."""

    seconds: float
    loops: int
    conditions: int


class Program(NamedTuple):
    """A program with objects of its own.

    Args:
        run: from tensors to a tree of tensors and numbers.
        state: what is left in an object from outside, if there is one.
        undo: puts back what the program changed in the process.
    """

    run: Callable[..., Any]
    state: Callable[[], Any] | None = None
    undo: Callable[[], object] = lambda: None


class Late(BaseException):
    """The time is over."""


class _LeftError(Exception):
    """What a call has left in an object is something that raises errors of JAX's."""


@contextlib.contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Raises `Late` in what takes a processor longer, again and again should someone catch it."""

    def late(_: int, frame: types.FrameType | None):
        if frame is None or frame.f_code.co_filename != weakref.__file__:  # a finalizer has nobody to raise to
            raise Late

    before = signal.signal(signal.SIGPROF, late)
    signal.setitimer(signal.ITIMER_PROF, seconds, 1.0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def load(text: str, name: str) -> Callable[[], types.ModuleType]:
    """Makes modules of a source text, each with globals of its own.

    The text is in a file, so that `inspect` and tracebacks find it.
    """
    folder = Path(tempfile.gettempdir()) / "torch2jax-control"
    folder.mkdir(exist_ok=True)
    path = folder / f"{name}.py"
    if not path.exists() or path.read_text() != text:
        path.write_text(text)
    code = compile(text, str(path), "exec")

    def make() -> types.ModuleType:
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        module = sys.modules[name] = importlib.util.module_from_spec(spec)
        exec(code, module.__dict__)
        return module

    return make


def _leaves(tree: Any) -> list[Any]:
    return jax.tree.leaves(tree, is_leaf=lambda x: isinstance(x, torch.Tensor))


def arrays(tree: Any) -> list[np.ndarray]:
    """The leaves of a tree as arrays that can be compared."""
    leaves = (leaf.detach().numpy() if isinstance(leaf, torch.Tensor) else leaf for leaf in _leaves(tree))
    return [np.asarray(leaf, np.float64) for leaf in leaves]


def difference(got: list[np.ndarray], want: list[np.ndarray], tolerance: float) -> str:
    """What differs, in a line, or nothing."""
    if len(got) != len(want):
        return f"{len(got)} results, not {len(want)}"
    for number, (one, other) in enumerate(zip(got, want, strict=True)):
        if one.shape != other.shape:
            return f"result {number} has shape {one.shape}, not {other.shape}"
        if not np.allclose(one, other, rtol=tolerance, atol=tolerance / 10, equal_nan=True):
            most = np.nanmax(np.abs(one - other), initial=0.0)
            return f"result {number} differs by {most:.3g}: {one.tolist()}, not {other.tolist()}"[:300]
    return ""


def _is_raised_by_torch2jax(error: Exception) -> bool:
    """Whether a `raise` of the package made an exception."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return False
    code = trace.tb_frame.f_code
    is_raise = dis.opname[code.co_code[trace.tb_lasti]] == "RAISE_VARARGS"
    return is_raise and Path(code.co_filename).is_relative_to(Path(torch2jax.__file__).parent)


def failure(error: Exception) -> tuple[str, str]:
    """Whether an exception is a refusal, and its first line."""
    is_own = type(error).__module__.partition(".")[0] == "torch2jax" or isinstance(error, NotImplementedError)
    is_said = isinstance(error, (RuntimeError, TypeError, ValueError)) and _is_raised_by_torch2jax(error)
    first = (str(error).strip().splitlines() or [""])[0]
    return "refused" if is_own or is_said else "error", f"{type(error).__name__}: {first}"[:300]


@contextlib.contextmanager
def whole_tracebacks() -> Iterator[None]:
    """Errors keep the package's own frames."""
    before: Any = jax.config.jax_traceback_filtering  # pyright: ignore[reportAttributeAccessIssue]
    jax.config.update("jax_traceback_filtering", "off")
    try:
        yield
    finally:
        jax.config.update("jax_traceback_filtering", before)


class _Gauge:
    """A program beside PyTorch's results."""

    def __init__(self, build: Callable[[], Program], inputs: Sequence[tuple[torch.Tensor, ...]], tolerance: float):
        self._build, self._inputs, self._tolerance = build, inputs, tolerance
        self._wanted, self._states = [], []
        fresh = build()
        self._first_state = None if fresh.state is None else self._state(fresh)
        for given in inputs:
            program = build()
            try:
                self._wanted.append(arrays(program.run(*(x.clone() for x in given))))
                self._states.append(None if program.state is None else self._state(program))
            finally:
                program.undo()

    @staticmethod
    def _state(program: Program) -> list[np.ndarray]:
        assert program.state is not None
        return arrays(program.state())

    def eager(self) -> str:
        """Each input by a program of its own."""
        for number, given in enumerate(self._inputs):
            program = self._build()
            try:
                got = arrays(torch2jax.t2j(program.run)(*_jax(given)))
                found = self._compared(number, got) or self._left(program, number)
            finally:
                program.undo()
            if found:
                return f"input {number}: {found}"
        return ""

    def jitted(self) -> str:
        """All inputs by one compiled program."""
        program = self._build()
        try:
            compiled = jax.jit(torch2jax.t2j(program.run), compiler_options=_QUICK)
            for number, given in enumerate(self._inputs):
                found = self._compared(number, arrays(compiled(*_jax(given))))
                found = found or (number == 0 and self._left(program, number)) or ""
                if found:
                    return f"input {number}: {found}"
        finally:
            program.undo()
        return ""

    def gradients(self, count: int) -> str:
        """The gradients of the sum of all results, by one compiled program."""
        program, all_inputs = self._build(), self._inputs[:count]
        leaves = [[x.clone().requires_grad_() for x in given] for given in all_inputs]
        try:
            results = [_leaves(self._build().run(*(x * 1.0 for x in each))) for each in leaves]
            # What is a number of Python's for one of the inputs has no gradient in PyTorch.
            is_float = [
                all(isinstance(r, torch.Tensor) and r.dtype.is_floating_point for r in column)
                for column in zip(*results, strict=True)
            ]
            wanted = [_in_pytorch(each, found, is_float) for each, found in zip(leaves, results, strict=True)]
        except (RuntimeError, ValueError):
            return ""  # PyTorch does not differentiate it, or its results are not as many for each of the inputs
        compiled = _gradient(program.run, is_float, len(leaves[0]))
        for number, (given, want) in enumerate(zip(all_inputs, wanted, strict=True)):
            found = difference(arrays(compiled(*_jax(given))), arrays(want), self._tolerance * 10)
            if found:
                return f"input {number}: {found}"
        return ""

    def _compared(self, number: int, got: list[np.ndarray]) -> str:
        return difference(got, self._wanted[number], self._tolerance)

    def _left(self, program: Program, number: int) -> str:
        """What an object from outside holds after the call: what it held before, PyTorch's, or an error."""
        if program.state is None:
            return ""
        try:
            left = self._state(program)
        except Exception as error:
            kind, text = failure(error)
            if kind == "refused":
                return ""
            raise _LeftError(f"the object from outside is not readable: {text}") from error
        allowed = [x for x in (self._first_state, self._states[number]) if x is not None and len(x) == len(left)]
        # Of each part by itself: what data decide is put back, and the rest is as PyTorch leaves it.
        parts = zip(left, *allowed, strict=True)
        if allowed and all(any(not difference([x], [y], self._tolerance) for y in known) for x, *known in parts):
            return ""
        return f"after the call the object holds {[x.tolist() for x in left]}"


def _jax(given: Sequence[torch.Tensor]) -> list[jax.Array]:
    return [jnp.asarray(x.numpy()) for x in given]


def _in_pytorch(leaves: list[torch.Tensor], results: list, is_float: list[bool]) -> list[torch.Tensor]:
    """The gradient that PyTorch gives of the sum of some results."""
    total = sum((r.sum() for r, float_ in zip(results, is_float, strict=True) if float_), 0.0 * leaves[0].sum())
    found = torch.autograd.grad(total, leaves, allow_unused=True)
    return [torch.zeros_like(x) if g is None else g for g, x in zip(found, leaves, strict=True)]


def _gradient(run: Callable, is_float: list[bool], count: int) -> Callable:
    """The compiled gradient of the sum of those results that are float tensors."""

    def total(*arrays):
        results = jax.tree.leaves(torch2jax.t2j(run)(*arrays))
        return sum((r.sum() for r, float_ in zip(results, is_float, strict=True) if float_), jnp.zeros(()))

    return jax.jit(jax.grad(total, argnums=tuple(range(count))), compiler_options=_QUICK)


def outcome(
    build: Callable[[], Program],
    inputs: Sequence[tuple[torch.Tensor, ...]],
    *,
    gradients: int = 0,
    limit: float = 8,
    tolerance: float = 2e-4,
) -> Outcome:
    """How a program ends, at the worst of its ways to be run.

    Args:
        build: makes the program with new objects.
        inputs: what it is called with, one after another.
        gradients: at how many of the inputs derivatives are compared too.
        limit: seconds of a processor for all that torch2jax does.
    """
    with warnings.catch_warnings(), whole_tracebacks():
        warnings.simplefilter("ignore")
        try:
            with limited(limit):
                gauge = _Gauge(build, inputs, tolerance)
        except (Exception, Late) as error:
            return Outcome("torch", f"{type(error).__name__}: {error}"[:300])
        start, found = time.process_time(), []
        ways: dict[str, Callable[[], str]] = {"eager": gauge.eager, "jit": gauge.jitted}
        if gradients:
            ways["gradient"] = lambda: gauge.gradients(gradients)
        try:
            with limited(limit):
                for name, way in ways.items():
                    try:
                        text = way()
                        kind = "wrong" if text else "right"
                    except Exception as error:
                        kind, text = failure(error)
                    found.append((kind, text and f"{name}: {text}"))
        except Late:
            found.append(("late", f"more than {limit:.0f} s"))
    kind, text = min(found, key=lambda each: WORST_FIRST.index(each[0]))
    return Outcome(kind, text, time.process_time() - start)


def graph(build: Callable[[], Program], inputs: Sequence[tuple[torch.Tensor, ...]], limit: float) -> Graph | None:
    """Traces a program for its first input; None if that raises an error or does not end in time."""
    program = build()
    try:
        with warnings.catch_warnings(), limited(limit):
            warnings.simplefilter("ignore")
            start = time.process_time()
            traced = jax.make_jaxpr(torch2jax.t2j(program.run))(*_jax(inputs[0]))
            seconds = time.process_time() - start
    except (Exception, Late):
        return None
    finally:
        program.undo()
    counts = collections.Counter(_primitives(traced.jaxpr))
    return Graph(seconds, counts["while"] + counts["scan"], counts["cond"])


def _primitives(jaxpr: Any) -> Iterator[str]:
    """The primitives of a program, and of those within it."""
    for step in jaxpr.eqns:
        yield step.primitive.name
        for inner in jax.extend.core.jaxprs_in_params(step.params):
            yield from _primitives(inner)
