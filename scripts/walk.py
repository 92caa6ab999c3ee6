"""Counts what of the package runs for common operators and whole calls: Python calls, functions, files and rooms.

    python -m scripts.walk                   # the table of docs/walk.md
    python -m scripts.walk 'x + y' --names   # and the functions that were called, in the order of their first calls

The numbers are exact, and of calls that recur: everything has run some times before. tests/scripts/test_walk.py lets
none of them be above those of the table. A hop is a call from one file of the package to another.
"""

import argparse
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import torch
import torch.nn.functional as F

import torch2jax
from torch2jax import t2j

__all__ = ["OPERATORS", "WALKS", "Walk", "row"]

_ROOT = str(Path(torch2jax.__file__).parent) + "/"
_WARM = 6  # calls: bodies are compiled once they recur


class Walk(NamedTuple):
    """What of the package ran."""

    calls: int
    functions: int
    files: int
    hops: int
    rooms: int
    names: tuple[str, ...] = ()
    """Each function's, in the order of the first calls."""


class _Counter:
    """Counts while it is entered."""

    def __enter__(self) -> "_Counter":
        self.calls = self.hops = 0
        self._files: dict = {}
        self.functions: dict = {}
        sys.setprofile(self._note)
        return self

    def __exit__(self, *exc_info) -> None:
        sys.setprofile(None)

    def _note(self, frame, event, arg) -> None:
        del arg
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(_ROOT):
            return
        self.calls += 1
        self.functions.setdefault(code)
        caller = frame.f_back
        while caller is not None and not caller.f_code.co_filename.startswith(_ROOT):
            caller = caller.f_back
        self.hops += caller is not None and caller.f_code.co_filename != code.co_filename

    @property
    def walk(self) -> Walk:
        files = {code.co_filename.removeprefix(_ROOT).partition(":")[0] for code in self.functions}
        rooms = {file.partition("/")[0] for file in files}
        names = [f"{code.co_filename.removeprefix(_ROOT)}:{code.co_name}" for code in self.functions]
        return Walk(self.calls, len(self.functions), len(files), self.hops, len(rooms), tuple(names))


def _within(operator: Callable, x, y, is_traced: bool) -> Walk:
    """What one operator runs within a call, eager or traced, where it has run before."""
    counter = _Counter()

    def function(x, y):
        for _ in range(_WARM):
            operator(x, y)
        with counter:
            operator(x, y)
        return x

    translated = t2j(function)
    (jax.make_jaxpr(lambda x, y: translated(x, y)) if is_traced else translated)(x, y)
    return counter.walk


def _write(x, y):
    y[0] = 0.0


def _write_through_view(x, y):
    y.t()[0].add_(1)


_MATRICES = jnp.eye(4) * 2, jnp.ones((4, 4))
_LARGE = jnp.eye(64), jnp.ones((64, 64))

OPERATORS: dict[str, Callable] = {
    "x + y": lambda x, y: x + y,
    "torch.sin(x)": lambda x, y: torch.sin(x),
    "F.linear(x, y)": lambda x, y: F.linear(x, y),
    "x.view(-1)": lambda x, y: x.view(-1),
    "torch.add(x, y, alpha=2)": lambda x, y: torch.add(x, y, alpha=2),
    "x.sum(dim=-1)": lambda x, y: x.sum(dim=-1),
    "F.relu(x)": lambda x, y: F.relu(x),
    "x.add_(y)": lambda x, y: x.add_(y),
    "torch.zeros(4)": lambda x, y: torch.zeros(4),
    "y[0] = 0.": _write,
    "y.t()[0].add_(1)": _write_through_view,
}


def _called(run: Callable[[], object], warm: int = _WARM) -> Walk:
    for _ in range(warm):
        run()
    counter = _Counter()
    with counter:
        run()
    return counter.walk


def _traced(function: Callable, *args) -> Walk:
    """A new trace each time, of what has been traced before."""
    translated = t2j(function)
    return _called(lambda: jax.make_jaxpr(lambda *args: translated(*args))(*args))


def _model() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 4)).eval()


def _chosen(x):
    y = x + 1
    y[y > 0] = 3.0
    return y


def _changed(x, mask):
    y = x + 1
    y[mask] = y[mask] * 2
    return y


def _gradient(x):
    x = x.detach().requires_grad_()
    (x.sin() * x).sum().backward()
    return x.grad


def _branch(x):
    if x.sum() > 0:
        return x * 2
    return x - 1


class _Language(torch.nn.Module):
    """A stand-in for a language model: it generates four tokens."""

    def __init__(self):
        super().__init__()
        self.embedding, self.head = torch.nn.Embedding(8, 4), torch.nn.Linear(4, 8)

    def step(self, token):
        return self.head(torch.tanh(self.embedding(token)))

    def forward(self, token):
        tokens = [token]
        for _ in range(4):
            tokens.append(self.step(tokens[-1]).argmax(-1))
        return torch.stack(tokens)


def _generated() -> Walk:
    generate, token = t2j(_Language().eval(), compile=["step"]), jnp.asarray(np.zeros(1, np.int32))
    return _called(lambda: generate(token))


def _eager_model() -> Walk:
    model, x = t2j(_model()), _MATRICES[0]
    return _called(lambda: model(x))


def _empty() -> Walk:
    translated, x = t2j(lambda x: x), _MATRICES[0]
    return _called(lambda: translated(x))


WALKS: dict[str, Callable[[], Walk]] = {
    "t2j(lambda x: x)(x)": _empty,
    "t2j(model)(x)": _eager_model,
    "t2j(model)(x), traced": lambda: _traced(_model(), _MATRICES[0]),
    "y[y > 0] = v, traced": lambda: _traced(_chosen, _MATRICES[0]),
    "y[m] = y[m] * 2, traced": lambda: _traced(_changed, _MATRICES[0], _MATRICES[0] > 0),
    ".backward(), traced": lambda: _traced(_gradient, _MATRICES[0]),
    "if x.sum() > 0, traced": lambda: _traced(_branch, _MATRICES[0]),
    "t2j(generate, compile=[...])(token)": _generated,
}


def _measured(name: str) -> Iterator[tuple[str, Walk]]:
    if name in WALKS:
        yield name, WALKS[name]()
        return
    operands = _LARGE if name.startswith("y[0]") else _MATRICES
    for kind in ("", ", traced"):
        yield name + kind, _within(OPERATORS[name], *operands, bool(kind))


def row(name: str, walk: Walk) -> str:
    """A row of the table."""
    return f"| `{name}` | {' | '.join(map(str, walk[:5]))} |"


def measured(names: list[str]) -> Iterator[tuple[str, Walk]]:
    """What runs for each of some operators, eager and traced, and of some walks; for all if none is named."""
    for name in names or [*OPERATORS, *WALKS]:
        yield from _measured(name)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="operators or walks of the table; by default all")
    parser.add_argument("--names", dest="shows", action="store_true", help="show the functions that were called")
    options = parser.parse_args()
    print("| what runs | Python calls | functions | files | hops | rooms |\n|---|---|---|---|---|---|")
    for name, walk in measured(options.names):
        print(row(name, walk))
        if options.shows:
            print(*walk.names, sep="\n")


if __name__ == "__main__":
    main()
