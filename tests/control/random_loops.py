"""Random programs with loops that end when data say so, against PyTorch: ``python -m tests.control.random_loops``.

A program has a few tensors and numbers, some of which are aliases, and loops in loops whose iterations compute, write
in place, count, ask and leave early. Every loop ends: a counter of its own has a bound.

There are two kinds. Most programs are as people write them: a loop asks for its end, and perhaps once more. Entangled
ones ask anywhere, and give aliases and shapes away, so that many ways lead through them.
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
from torch2jax.runtime.errors import TracedValueError

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


class _PlainWriter(_Writer):
    """Programs whose shapes stay, and whose loops ask once or twice."""

    def program(self) -> str:
        self.line(0, "def program(x, y):")
        self.line(1, self.pick("a, b = x, y", "a, b = x.clone(), y", "a, b = x.clone(), y.T", "a, b = x, x.clone()"))
        self._view = self.pick("a", "a[0]", "b[1]", "a[:, 0]", "b.clone()", "a.flatten()")
        self.line(1, f"v = {self._view}")
        self.line(1, f"n, f, w = {self.pick(0, 1, 3)}, {self.pick('0.5', '1.0')}, torch.zeros(16)")
        self.line(1, "box = {'t': a.sum(), 'n': 0}")
        loops = self.pick("one", "one", "two", "nested", "nested")
        self.loop(1, has_question=loops == "one", is_around=loops == "nested")
        if loops == "two":
            self.loop(1)
        for _ in range(self.pick(0, 1, 2)):
            self.statement(1)
        self.line(1, "return a, b, v, n, f, w, box")
        return "\n".join(self._lines) + "\n"

    def loop(self, depth: int, *, has_question: bool = False, is_around: bool = False) -> None:
        self._loops += 1
        count, most = f"k{self._loops}", self.pick(9, 12, 14)
        kind = self.pick("for", "for", "while", "and", "true")
        ends = self.pick("break", "break", "break", "return a, b, v, n, f, w, box")
        if kind == "for":
            self.line(depth, f"for {count} in range({most}):")
            if first := self.pick(True, False):
                self.line(depth + 1, f"if {self.condition()}:")
                self.line(depth + 2, ends)
        else:
            self.line(depth, f"{count} = 0")
            loops = {"while": self.condition(), "and": f"{count} < {most} and {self.condition()}", "true": "True"}
            self.line(depth, f"while {loops[kind]}:")
        for _ in range(self.pick(1, 2, 3)):
            self.statement(depth + 1, loop=True)
        if is_around:
            self.loop(depth + 1)
        if has_question and self.pick(True, False):
            self.line(depth + 1, f"if {self.condition()}:")
            self.statement(depth + 2, loop=True)
        if kind == "for":
            if not first:
                self.line(depth + 1, f"if {self.condition()}:")
                self.line(depth + 2, ends)
            self.statement(depth + 1, loop=True)
            if self.pick(True, False, False, False) and ends == "break":
                self.line(depth, "else:")
                self.statement(depth + 1)
            return
        self.line(depth + 1, f"{count} += 1")
        if kind != "and":
            also = f" or {self.condition()}" if kind == "true" else ""
            self.line(depth + 1, f"if {count} >= {most}{also}:")
            self.line(depth + 2, ends)
        self.statement(depth + 1, loop=True)

    def condition(self) -> str:
        bound = self.pick("0.3", "1.5", "4.0")
        return self.pick(
            f"a.abs().sum() > {bound}",
            f"b.abs().max() > {bound}",
            f"(a - b).norm() < {bound}",
            f"a.mean().item() + n > {bound}",
            f"box['t'] > {bound}",
            f"f + a.amax() > {bound}",
            f"not (a.abs() < {bound}).all()",
        )

    def statement(self, depth: int, *, loop: bool = False) -> None:
        count = f"k{self._loops}"
        text = self.pick(
            *("a = a * 0.6", "a = (a + b) * 0.4", "a = a.sin() + 0.01 * n", "a = a - f * 0.1"),
            *("b = torch.where(a > b, a, b * 0.5)", "a = torch.tanh(a @ b) * 0.7", "b = b / a.norm().clamp(min=1.0)"),
            *("a.mul_(0.75)", "v.add_(0.125)", "b[0] = b[0] * 0.5", "a[:, 1] -= b[:, 0] * 0.1", "a.clamp_(-1.5, 1.5)"),
            *("v.mul_(0.5)", "w[:2].add_(a.sum() * 0.1)", "a[a > 1.25] = 0.75", "w[n % 16] += 0.5"),
            *(f"v = {self._view}", f"v = {self._view}", "a, b = b, a * 0.7", "b = a", "b = a.clone()", "a = a.T"),
            *("n += 1", "n = n + 2", "box['n'] += n", "f = f * 0.5 + 0.125 * n", "f = a.abs().mean().item()"),
            *("box['t'] = box['t'] * 0.5 + a.sum()", "box = {'t': a.sum() * f, 'n': n}", "box['t'] = b[0, 0]"),
            *([f"n += {count}", f"w[{count}] = a.mean()", f"a = a + 0.01 * {count}"] if loop else []),
        )
        self.line(depth, text)


def program(seed: int, *, is_entangled: bool = False) -> tuple[str, Callable]:
    """The text of a program, and its function."""
    text = (_Writer if is_entangled else _PlainWriter)(seed).program()
    name = f"/{'entangled' if is_entangled else 'random'}_loop_{seed}.py"
    names: dict = {"torch": torch, "__name__": "random_loops"}
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    exec(compile(text, name, "exec"), names)
    return text, names["program"]


def _leaves(tree) -> list[np.ndarray]:
    leaves = jax.tree.leaves(tree, is_leaf=lambda x: isinstance(x, torch.Tensor))
    return [np.asarray(leaf.numpy() if isinstance(leaf, torch.Tensor) else leaf) for leaf in leaves]


def _inputs(seed: int) -> list[list[np.ndarray]]:
    """Some inputs, which take different ways: those of the first are mostly positive."""
    numbers = np.random.default_rng(seed)
    scales = (-1, 2), (-2, 1), (-0.4, 0.4)
    return [[numbers.uniform(*scale, (2, 2)).astype(np.float32) for _ in range(2)] for scale in scales]


def outcome(seed: int, *, is_entangled: bool = False) -> str:
    """What comes of a program: ``"equal"``; or why there is no graph, and what PyTorch itself raises.

    Entangled programs may have as few paths as are quickly followed; others have what users have.

    Raises:
        AssertionError: the values are not PyTorch's.
    """
    text, function = program(seed, is_entangled=is_entangled)
    inputs = _inputs(seed)
    wanted = [_wanted(function, given) for given in inputs]
    if isinstance(wanted[0], str):
        return f"PyTorch: {wanted[0]}"
    translated = t2j(function, max_paths=16) if is_entangled else t2j(function)
    compiled = jax.jit(translated, compiler_options=_QUICK)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = [_leaves(compiled(*given)) for given in inputs]
    except TracedValueError as error:
        shapes = _DIFFER.search(str(error))
        if shapes is not None and shapes["one"].count(",") != shapes["other"].count(","):
            return "shapes: those of a result depend on the data"
        return f"refused: {error}"
    except (RuntimeError, IndexError, ValueError) as error:  # on a path that these inputs do not take
        if not is_entangled:
            raise
        return f"other way: {error}"
    for number, (leaves, want) in enumerate(zip(found, wanted, strict=True)):
        if isinstance(want, str):  # what PyTorch raises for some of the inputs is assumed never to happen
            continue
        assert len(leaves) == len(want), text
        for got, expected in zip(leaves, want, strict=True):
            message = f"seed {seed}, inputs {number}\n{text}"
            assert got.shape == expected.shape, message
            np.testing.assert_allclose(got, expected, 2e-4, 2e-5, err_msg=message)
    return "equal"


def _wanted(function: Callable, given: list[np.ndarray]) -> list[np.ndarray] | str:
    """What PyTorch gives, or the name of what it raises."""
    try:
        return _leaves(function(*(torch.from_numpy(x.copy()) for x in given)))
    except Exception as error:
        return type(error).__name__


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=2000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--entangled", action="store_true")
    options = parser.parse_args()
    outcomes: collections.Counter = collections.Counter()
    for seed in range(options.first, options.first + options.seeds):
        try:
            outcomes[outcome(seed, is_entangled=options.entangled).partition(":")[0]] += 1
        except AssertionError as error:
            outcomes["WRONG"] += 1
            print(error)
    print(dict(outcomes))


if __name__ == "__main__":
    main()
