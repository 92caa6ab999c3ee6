"""Random programs with loops that end when data say so, against PyTorch: ``python -m tests.branches.random_loops``.

A program has a few tensors and numbers, some of which are aliases, and loops in loops whose iterations compute, write
in place, count, ask and leave early. Every loop ends: a counter of its own has a bound.
"""

import argparse
import collections
import linecache
import random
import re
import warnings
from collections.abc import Callable

import jax
import numpy as np
import torch

from torch2jax import t2j
from torch2jax.errors import TracedValueError

__all__ = ["outcome", "program"]

_DIFFER = re.compile(r"(?P<dtype>\w+)\[(?P<one>[\d, ]*)\] where it is True, (?P=dtype)\[(?P<other>[\d, ]*)\] where it")
_QUICK = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}


class _Writer:
    def __init__(self, seed: int):
        self._random = random.Random(seed)
        self._lines: list[str] = []
        self._loops = 0

    def line(self, depth: int, text: str) -> None:
        self._lines.append("    " * depth + text)

    def pick(self, *choices):
        return self._random.choice(choices)

    def program(self) -> str:
        self.line(0, "def program(x, y):")
        self.line(1, self.pick("a, b = x, y", "a, b = x.clone(), y", "a, b = x, x", "a, b = x.clone(), y[0]"))
        self.line(1, self.pick("v = a", "v = a[0]", "v = a.clone()", "v = b.T if b.dim() == 2 else b"))
        self.line(1, f"n, f = {self.pick(0, 1, 3)}, {self.pick('0.5', '1.0')}")
        self.line(1, "box = {'t': a * 1.0, 'n': 0, 'l': [b, 0.25]}")
        for _ in range(self.pick(1, 1, 2)):
            self.loop(1)
            self.statement(1)
        self.line(1, "return a, b, v, n, f, box")
        return "\n".join(self._lines) + "\n"

    def loop(self, depth: int) -> None:
        self._loops += 1
        count, most = f"k{self._loops}", self.pick(9, 14)
        if self.pick(True, False):
            self.line(depth, f"for {count} in range({most}):")
            self.line(depth + 1, f"if {self.condition()}:")
            self.statement(depth + 2)
            self.line(depth + 2, self.pick("break", "break", "pass"))
        else:
            self.line(depth, f"{count} = 0")
            self.line(depth, f"while {self.condition()}:")
            self.line(depth + 1, f"{count} += 1")
            self.line(depth + 1, f"if {count} >= {most}:")
            self.line(depth + 2, "break")
        for _ in range(self.pick(1, 2, 3)):
            self.statement(depth + 1, loop=True)
        if depth == 1 and self.pick(True, False, False):
            self.loop(depth + 1)
        if self.pick(True, False, False):
            self.line(depth + 1, f"if {self.condition()}:")
            self.line(depth + 2, self.pick("continue", "break", "return a, b, v, n, f, box"))
        self.statement(depth + 1, loop=True)

    def condition(self) -> str:
        bound = self.pick("0.3", "1.5", "4.0")
        return self.pick(
            f"a.abs().sum() > {bound}",
            f"b.abs().max() > {bound}",
            "v.sum() + 0.0123 < a.sum()",  # not equal: rounding would decide where they are one tensor
            f"a.mean().item() + n > {bound}",
            f"box['t'].norm() > {bound}",
            f"f > {bound} and a.sum() > 0",
        )

    def statement(self, depth: int, *, loop: bool = False) -> None:
        del loop
        text = self.pick(
            "a = a * 0.6",
            "a = (a + b) * 0.4",
            "a, b = b, a * 0.7",
            "a.mul_(0.75)",
            "v.add_(0.125)",
            "v = a",
            "v = a[0]",
            "b = v + 1 if v.dim() == 2 else b * 0.5",
            "b[0] = b[0] * 0.5",
            "n += 1",
            "n = n + 2 if a.sum() > b.sum() + 0.0123 else n - 1",
            "f = f * 0.5 + 0.125 * n",
            "f = a.abs().mean().item()",
            "box['t'] = box['t'] * 0.5 + a.sum()",
            "box['n'] += n",
            "box['l'][0] = a * 0.5",
            "box = {'t': a * f, 'n': n, 'l': [b, f]}",
            "a = a - f * 0.1",
            "a = a.sin() + 0.01 * n",
        )
        self.line(depth, text)


def program(seed: int) -> tuple[str, Callable]:
    """The text of a program, and its function."""
    text, name = _Writer(seed).program(), f"/random_loop_{seed}.py"
    names: dict = {"torch": torch, "__name__": "random_loops"}
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    exec(compile(text, name, "exec"), names)
    return text, names["program"]


def _leaves(tree) -> list[np.ndarray]:
    leaves = jax.tree.leaves(tree, is_leaf=lambda x: isinstance(x, torch.Tensor))
    return [np.asarray(leaf.numpy() if isinstance(leaf, torch.Tensor) else leaf) for leaf in leaves]


def outcome(seed: int) -> str:
    """What comes of a program: ``"equal"``; or why there is no graph, and what PyTorch itself raises.

    Raises:
        AssertionError: the values are not PyTorch's.
    """
    text, function = program(seed)
    numbers = np.random.default_rng(seed)
    x, y = (numbers.uniform(-1, 2, (2, 2)).astype(np.float32) for _ in range(2))
    try:
        wanted = _leaves(function(torch.from_numpy(x.copy()), torch.from_numpy(y.copy())))
    except Exception as error:
        return f"PyTorch: {type(error).__name__}"
    try:
        compiled = jax.jit(t2j(function, max_paths=16), compiler_options=_QUICK)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = _leaves(compiled(x, y))
    except TracedValueError as error:
        shapes = _DIFFER.search(str(error))
        if shapes is not None and shapes["one"].count(",") != shapes["other"].count(","):
            return "shapes: those of a result depend on the data"
        return f"refused: {type(error).__name__}"
    except (RuntimeError, IndexError, ValueError) as error:  # on a path that these inputs do not take
        return f"other way: {type(error).__name__}"
    assert len(found) == len(wanted), text
    for got, want in zip(found, wanted, strict=True):
        np.testing.assert_allclose(got, want, 2e-4, 2e-5, err_msg=f"seed {seed}\n{text}")
    return "equal"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=2000)
    parser.add_argument("--first", type=int, default=0)
    options = parser.parse_args()
    outcomes: collections.Counter = collections.Counter()
    for seed in range(options.first, options.first + options.seeds):
        try:
            outcomes[outcome(seed)] += 1
        except AssertionError as error:
            outcomes["WRONG"] += 1
            print(error)
    print(dict(outcomes))


if __name__ == "__main__":
    main()
