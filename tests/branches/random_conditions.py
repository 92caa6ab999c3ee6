"""Random programs with many conditions, against PyTorch: ``python -m tests.branches.random_conditions``.

A program asks some ten times: one statement after another, one in another, in short loops. What it does on each side is
what people write: new values, exchanged variables, aliases, writes in place, counters, tuples, lists and attributes.
"""

import argparse
import collections
import linecache
import random
import warnings
from collections.abc import Callable

import jax
import numpy as np
import torch

from torch2jax import t2j
from torch2jax.branches import paths
from torch2jax.errors import TracedValueError

__all__ = ["outcome", "program"]

_QUICK = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}


class _Box:
    def __init__(self, t):
        self.t, self.n = t, 0


class _Writer:
    def __init__(self, seed: int):
        self._random = random.Random(seed)
        self._lines: list[str] = []
        self._compares, self._writes = self.pick(*[False] * 7, True), self.pick(False, False, True)

    def line(self, depth: int, text: str) -> None:
        self._lines.append("    " * depth + text)

    def pick(self, *choices):
        return self._random.choice(choices)

    def program(self) -> str:
        self.line(0, "def helper(u, w):")
        self.line(1, "if u.sum() > w.sum():")
        self.line(2, self.pick("return u", "return u * 0.5, w", "u = u - w"))
        self.line(1, self.pick("return w", "return u + w", "return w * 1.0"))
        self.line(0, "def program(x, y):")
        self.line(1, self.pick("a, b = x, y", "a, b = x.clone(), y", "a, b = x, x", "a, b = x * 1, y + x"))
        self.line(1, self.pick("c = a", "c = a[0:1] + b", "c = a.clone()", "c = b.T", "c = a + b"))
        self.line(1, "n, s, l, box = 0, (a, b), [a, c], Box(b)")
        for _ in range(self.pick(5, 6, 7, 8)):
            self.statement(1, self.pick("if", "if", "if", "if", "plain", "loop"))
        self.line(1, "return a, b, c, n, s, l, box.t, box.n")
        return "\n".join(self._lines) + "\n"

    def name(self) -> str:
        return self.pick("a", "b", "c")

    def condition(self) -> str:
        bound = self.pick(-2, -0.5, 0, 0.3, 1, 3)
        simple = self.pick(
            f"{self.name()}.sum() > {bound}",
            f"{self.name()}[0, 0] < {self.name()}[1, 1]",
            f"{self.name()}.max() > {bound}",
            f"({self.name()} > {bound}).any()",
        )
        join = self.pick("", "", "", "and", "or")
        return f"{simple} {join} {self.name()}.mean() > {bound}" if join else simple

    def statement(self, depth: int, kind: str) -> None:
        if kind == "loop" and depth < 3:
            self.line(depth, f"for i in range({self.pick(2, 3)}):")
            self.statement(depth + 1, "if")
            return self.statement(depth + 1, "plain")
        if kind == "if" and depth < 4:
            self.line(depth, f"if {self.condition()}:")
            for _ in range(self.pick(1, 1, 2)):
                self.statement(depth + 1, self.pick("plain", "plain", "plain", "if"))
            if self.pick(True, False):
                self.line(depth, self.pick("else:", f"elif {self.condition()}:"))
                self.statement(depth + 1, "plain")
            return None
        a, b, c = self.name(), self.name(), self.name()
        usual = (
            *(f"{a} = {b} * 0.5 + {c}", f"{a} = {b}.sin() - {c}", f"{a} = torch.where({b} > 0, {b}, {c})"),
            *(f"{a} = {b}", f"{a}, {b} = {b}, {a}" if a != b else f"{a} = {a} + 1", f"{a} = {b}.clone()"),
            f"{a} = ({b} - {c}).tanh()",
        )
        writes = (f"{a} += {b} * 0.1", f"{a}[0] = {b}.mean()", f"{a}[:, 1] *= 0.5", f"{a}.mul_(0.5)", f"s[0].add_({b})")
        rare = (
            *(writes if self._writes else ()),
            *(
                f"s = ({a}, {b})",
                f"{a} = s[0]",
                f"s = (s[1], {a})",
                f"l[0] = {a}",
                f"l = [{a}, {b} + 1]",
                f"{a} = l[1]",
            ),
            *(
                f"box.t = {a} * 2",
                f"{a} = box.t",
                "box.n += 1",
                "n += 1",
                f"l.append({a})",
                f"{a} = {b}.T",
                "l[1] += 1",
            ),
            *(
                f"r = helper({a}, {b})",
                f"{a} = {a} + n",
                f"{a} = {b}.view(-1).flip(0).view(2, 2)",
                f"{a} = {b}[[1, 0]]",
            ),
            *(f"{a} = {b} if {self.condition()} else {c}", f"{a} = max({b}.sum(), {c}.sum()) + {a}"),
            *(f"{a} = {a} + 1 if {b} is {c} else {a} - 1" if self._compares else f"{a} = {a} - 1", "d = a - b"),
        )
        self.line(depth, self.pick(*usual) if self.pick(True, True, False) else self.pick(*rare))
        return None


def program(seed: int) -> tuple[str, Callable]:
    """The text of a program, and its function."""
    text = _Writer(seed).program()
    name = f"/random_conditions_{seed}.py"
    names: dict = {"torch": torch, "__name__": "random_conditions", "Box": _Box}
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    exec(compile(text, name, "exec"), names)
    return text, names["program"]


def _leaves(tree) -> list[np.ndarray]:
    leaves = jax.tree.leaves(tree, is_leaf=lambda x: isinstance(x, torch.Tensor))
    return [np.asarray(leaf.numpy() if isinstance(leaf, torch.Tensor) else leaf) for leaf in leaves]


def _inputs(seed: int) -> list[list[np.ndarray]]:
    numbers = np.random.default_rng(seed)
    scales = (-1, 2), (-2, 1), (-0.4, 0.4), (0, 1)
    return [[numbers.uniform(*scale, (2, 2)).astype(np.float32) for _ in range(2)] for scale in scales]


def outcome(seed: int, *, many: int = 0) -> str:
    """What comes of a program: ``"equal"``, or why there is no graph.

    Args:
        many: with how many paths they begin to join.

    Raises:
        AssertionError: the values, or what arguments hold then, are not PyTorch's.
    """
    text, function = program(seed)
    translated, before = t2j(lambda x, y: (function(x, y), x, y)), paths._MANY
    inputs = _inputs(seed)
    paths._MANY = many
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compiled = jax.jit(translated, compiler_options=_QUICK)
            found = [_leaves(compiled(*given)) for given in inputs]
    except TracedValueError as error:
        return f"refused: {error}"
    finally:
        paths._MANY = before
    for number, (leaves, given) in enumerate(zip(found, inputs, strict=True)):
        x, y = (torch.from_numpy(array.copy()) for array in given)
        wanted = _leaves((function(x, y), x, y))
        message = f"seed {seed}, inputs {number}\n{text}"
        assert len(leaves) == len(wanted), message
        for got, want in zip(leaves, wanted, strict=True):
            assert got.shape == want.shape, message
            np.testing.assert_allclose(got, want, 2e-4, 2e-5, err_msg=message)
    return "equal"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--many", type=int, default=0)
    options = parser.parse_args()
    outcomes: collections.Counter = collections.Counter()
    for seed in range(options.first, options.first + options.seeds):
        try:
            found = outcome(seed, many=options.many)
            if found != "equal":
                print(seed, found)
            outcomes[found.partition(":")[0]] += 1
        except AssertionError as error:
            outcomes["WRONG"] += 1
            print(error)
    print(dict(outcomes))


if __name__ == "__main__":
    main()
