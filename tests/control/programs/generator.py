"""Programs made at random, with two to six questions to data each.

A program is a tree of statements, so that what does not matter can be taken away (`minimal`). Its families are what
people write: conditions; loops; aliases of tensors and of containers; objects; and all of these mixed.
"""

import copy
import dataclasses
import itertools
import random
import zlib
from collections.abc import Callable, Iterator

import torch

from tests.control.programs.outcomes import Outcome, Program, load, outcome

__all__ = ["FAMILIES", "Block", "Tree", "inputs", "minimal", "run", "source", "tree"]

GRADIENTS = 2
"""At how many inputs gradients are compared."""


@dataclasses.dataclass
class Block:
    """A compound statement: each of its heads (`if ...:`, `else:`) with the statements under it."""

    clauses: list[tuple[str, list["str | Block"]]]


Node = str | Block
"""A statement."""


@dataclasses.dataclass
class Tree:
    """A program of three tensors `x`, `y`, `s`.

    Args:
        top: definitions of its module.
        body: its statements; `return @` returns the results.
        results: expressions.
        outside: an expression of what is left in an object from outside, if there is one.
    """

    top: list[Node]
    body: list[Node]
    results: list[str]
    outside: str | None = None

    def text(self) -> str:
        """The program as source text."""
        results = f"return {', '.join(self.results)}{',' * (len(self.results) == 1)}" if self.results else "return 0"
        program = Block([("def program(x, y, s):", [*self.body, "return @"])])
        lines = ["import contextlib", "", "import torch", ""]
        lines += [line for node in [*self.top, program] for line in _lines(node, 0)]
        left = f"lambda: {self.outside}" if self.outside else "None"
        lines += ["", "def build():", f"    return program, {left}", ""]
        return "\n".join(lines).replace("return @", results)


def _lines(node: Node, depth: int) -> Iterator[str]:
    """The lines of a statement."""
    if isinstance(node, str):
        yield from ("    " * depth + line for line in node.split("\n"))
        return
    for head, body in node.clauses:
        yield "    " * depth + head
        for each in body or ["pass"]:
            yield from _lines(each, depth + 1)


class _Writer:
    """Makes the statements that the families have in common: arithmetic and conditions.

    Names: `a`, `b`, `c` are tensors of three elements, `p` is a tensor of one, `n` is a number.
    """

    between: tuple[int, ...] = 0, 1, 1
    """How many statements stand between those with conditions."""

    def __init__(self, seed: str):
        self._random = random.Random(seed)
        self._questions = self.pick(2, 3, 4, 5, 6)
        self._loops = 0

    def pick(self, *choices):
        return self._random.choice(choices)

    def chance(self, share: float) -> bool:
        return self._random.random() < share

    def tree(self) -> Tree:
        top, start = self.top(), self.start()
        return Tree(top, [*start, *self.statements(0, 0)], self.results(), self.outside())

    # What a family is made of.

    def top(self) -> list[Node]:
        return []

    def start(self) -> list[Node]:
        a = self.pick("a, b, c = x, y, x + y", "a, b, c = x.clone(), y.clone(), x - y", "a, b, c = x * 1, y, y * s")
        return [a, "p, n = s * 1, 0"]

    def results(self) -> list[str]:
        return ["a", "b", "c", "p", "n"]

    def outside(self) -> str | None:
        return None

    def simple(self) -> str:
        """A statement without a condition."""
        return self.arithmetic()

    def compound(self, depth: int, loop: int) -> list[Node]:
        """Statements with a condition; `loop` is how many loops are around them."""
        return [self.condition_block(depth, loop)]

    # Statements.

    def statements(self, depth: int, loop: int) -> list[Node]:
        """The statements of a block; at the top, as long as there are questions left."""
        found: list[str | Block] = []
        if depth == 0:
            while self._questions > 0:
                found += [self.simple() for _ in range(self.pick(*self.between))]
                found += self.compound(0, loop)
            return [*found, self.simple()]
        for _ in range(self.pick(1, 1, 2, 2, 3)):
            nested = self._questions > 0 and depth < 3 and self.chance(0.3)
            found += self.compound(depth, loop) if nested else [self.simple()]
        return found

    def condition_block(self, depth: int, loop: int) -> Node:
        if self.chance(0.15):
            return self.choice()
        clauses = [(f"if {self.condition()}:", self.side(depth, loop))]
        if self._questions > 0 and self.chance(0.15):
            clauses.append((f"elif {self.condition()}:", self.side(depth, loop)))
        if self.chance(0.5):
            clauses.append(("else:", self.side(depth, loop)))
        return Block(clauses)

    def side(self, depth: int, loop: int) -> list[Node]:
        found = self.statements(depth + 1, loop)
        if loop and self.chance(0.3):
            found.append(self.pick("break", "continue", "break"))
        elif self.chance(0.08):
            found.append("return @")
        return found

    def choice(self) -> str:
        """A conditional expression."""
        name = self.name()
        return f"{name} = {self.value()} if {self.condition()} else {self.value()}"

    def arithmetic(self) -> str:
        if self.chance(0.2):
            return self.pick("n += 1", "n = n + 2", "n = 3", "n -= 1")
        if self.chance(0.2):
            return f"p = {self.pick(f'{self.name()}.sum() * 0.5', f'(p + {self.name()}.mean()).tanh()', 'p * 0.5')}"
        if self.chance(0.1):
            return self.pick("a, b = b, a", "b, c = c, b + a * 0.5")
        return f"{self.name()} = {self.value()}"

    # Expressions.

    def name(self) -> str:
        return self.pick("a", "b", "c")

    def value(self) -> str:
        """An expression of three bounded elements."""
        a, b = self.name(), self.name()
        return self.pick(
            f"({a} + {b}).tanh()",
            f"{a} * 0.5 + {b} * 0.25",
            f"({a} * {b}).sin()",
            f"({a} - p).tanh()",
            f"{a} * 0.75 + n * 0.125",
            f"torch.where({a} > 0.1, {a}, {b})",
            f"{a}.flip(0) * 0.5",
            f"{b}.clamp(-1, 1) - 0.2",
        )

    def bound(self) -> str:
        """A number that no sum of others is by chance."""
        return self.pick("-0.713", "-0.237", "0.137", "0.391", "0.877")

    def comparison(self) -> str:
        """A question, once."""
        a, b = self.name(), self.name()
        return self.pick(
            f"{a}.sum() > {self.bound()}",
            f"{a}.sum() < {self.bound()}",
            f"{a}[0] < {b}[1] + 0.137",
            f"{a}.max() >= {self.bound()}",
            f"({a} > {self.bound()}).any()",
            f"p > {self.bound()}",
            f"{a}.norm() > {b}.norm() + 0.137",
        )

    def condition(self) -> str:
        """A condition, and as many questions less to ask."""
        self._questions -= 1
        kind = self._random.random()
        if kind < 0.6:
            return self.comparison()
        if kind < 0.75:
            self._questions -= 1
            join = self.pick("{} and {}", "{} or {}", "not ({}) and {}", "{} or not {}")
            return join.format(self.comparison(), self.comparison())
        if kind < 0.85:
            return f"-0.613 < {self.name()}.mean() < {self.pick('0.137', '0.391', '0.877')}"
        if kind < 0.9:
            return f"n {self.pick('>', '<=')} {self.pick(0, 1, 2)}"
        if kind < 0.94:
            return f"not {self.name()}.min() > {self.bound()}"
        self._questions -= 2
        which = self.pick("any", "all")
        return f"{which}(t > {self.bound()} for t in {self.name()})"


class _Conditions(_Writer):
    """Conditions in a row and in each other, in functions, in expressions."""

    def top(self) -> list[Node]:
        self._questions -= 1
        first = self.pick("return u", "u = u * 0.5", "return u * 0.5 - w", "w = w + 0.3")
        last = self.pick("return w", "return (u + w).tanh()", "return u * 1.0")
        found = Block([(f"if u.sum() > w.sum() + {self.bound()}:", [first])])
        return [Block([("def helper(u, w):", [found, last])])]

    def simple(self) -> str:
        if self.chance(0.2):
            return f"{self.name()} = helper({self.name()}, {self.name()})"
        if self.chance(0.1):
            self._questions -= 1
            return f"p = {self.pick('max', 'min')}(p, {self.name()}.sum() * 0.5)"
        return self.arithmetic()

    def compound(self, depth: int, loop: int) -> list[Node]:
        if self.chance(0.1):
            self._questions -= 1
            return [Block([(f"if (q := {self.name()}.sum()) > {self.bound()}:", ["p = q * 0.5", self.simple()])])]
        if self.chance(0.1):
            self._questions -= 1
            return [f"n += 1 if {self.comparison()} else {self.pick(0, 2)}"]
        return [self.condition_block(depth, loop)]


class _Loops(_Writer):
    """Loops that end when data say so."""

    def compound(self, depth: int, loop: int) -> list[Node]:
        if loop < 2 and self.chance(0.6 if loop == 0 else 0.3):
            return self.loop_block(depth, loop)
        return [self.condition_block(depth, loop)]

    def loop_block(self, depth: int, loop: int) -> list[Node]:
        self._loops += 1
        k, limit = f"k{self._loops}", self.pick(3, 4, 6)
        kind = self.pick("while", "while", "count", "for", "for", "for", "tensors", "true")
        head, body, counts = f"for {k} in range({self.pick(2, 3)}):", self.loop_body(depth, loop), []
        ends = Block([(f"if {k} >= {limit}:", ["break"])])
        if kind == "tensors":
            head = f"for {k} in {self.pick('(a, b)', '[a * 0.5, c]', 'b', 'list(c)')}:"
            body.insert(0, f"{self.name()} = {self.name()} * 0.5 + {k} * 0.1")
        elif kind == "while":
            name = self.name()
            head, counts = f"while {name}.abs().sum() > {self.pick('0.337', '0.613')} and {k} < {limit}:", [f"{k} += 1"]
            body.insert(0, f"{name} = {name} * 0.6")
        elif kind == "count":
            head, counts = f"while {self.comparison()}:", [f"{k} += 1", ends]
        elif kind == "true":
            ends = Block([(f"if {k} >= {limit} or {self.comparison()}:", [self.pick("break", "break", "return @")])])
            head, counts = "while True:", [f"{k} += 1", ends]
        self._questions -= bool(counts)
        clauses: list[tuple[str, list[Node]]] = [(head, [*counts, *body])]
        if self.chance(0.2) and kind != "true":
            clauses.append(("else:", [self.simple()]))
        return [*([f"{k} = 0"] if counts else []), Block(clauses)]

    def loop_body(self, depth: int, loop: int) -> list[Node]:
        found = self.statements(depth + 1, loop + 1)
        if self._questions > 0 and self.chance(0.5):
            found.insert(self.pick(0, len(found)), self.condition_block(depth + 1, loop + 1))
        return found


class _Aliases(_Writer):
    """Second names of tensors and of containers, one side of which writes.

    `v` is a tensor of two elements and `w` one of one; `l`, `m`, `q` are lists, `d` and `e` dictionaries, `u` is a set.
    """

    between = 1, 2, 2, 3

    def __init__(self, seed: str):
        super().__init__(seed)
        self._of = self.pick("tensors", "tensors", "containers", "containers", "both")

    def start(self) -> list[Node]:
        found = super().start()
        if self._of != "containers":
            found += [self.pick("v = a[1:]", "v = b[:2]", "v = a[::2]"), self.pick("w = v[:1]", "w = c[2:]")]
        if self._of != "tensors":
            found += [
                self.pick("l = [a, b]", "l = [a, c * 0.5]"),
                self.pick("m = l", "m = [b, b]", "m = l[:]"),
                self.pick("d = {'k': a, 'j': b}", "d = dict(k=c, j=p)"),
                self.pick("e = d", "e = dict(d)"),
                self.pick("q = [l, m]", "q = [l, l]", "q = [m, [c, a]]"),
                "u = {1}",
            ]
        return found

    def results(self) -> list[str]:
        found = super().results()
        found += ["v", "w"] if self._of != "containers" else []
        return [*found, "l", "m", "d", "e", "q", "len(u)"] if self._of != "tensors" else found

    def simple(self) -> str:
        if self.chance(0.25):
            return self.arithmetic()
        if self._of == "tensors" or (self._of == "both" and self.chance(0.5)):
            return self.tensors()
        return self.containers()

    def compound(self, depth: int, loop: int) -> list[Node]:
        if self._of != "containers" and self.chance(0.25):
            a, b = self.name(), self.name()
            older = self.pick(a, f"{a}.view(3)", f"{a}[:]", f"{a}.detach()")
            newer = self.pick(f"{a} + 0", f"{b}", f"{b}.clone()", f"{a} * 0.5")
            pair = (older, newer) if self.chance(0.5) else (newer, older)
            return [f"{self.name()} = {pair[0]} if {self.condition()} else {pair[1]}"]
        if self._of != "tensors" and self.chance(0.25):
            return [self.container_choice()]
        if self.chance(0.15):
            self._questions -= 1
            return [Block([(f"for k in range({self.pick(2, 3)}):", [self.condition_block(depth + 1, 1)])])]
        return [self.condition_block(depth, loop)]

    def tensors(self) -> str:
        """Makes an alias of a tensor, or writes to one."""
        a, b = self.name(), self.name()
        if self.chance(0.45):
            return self.pick(
                f"{a} = {b}",
                f"{a} = {b}.view(-1)",
                f"{a} = {b}.reshape(3)",
                f"{a} = {b}[:]",
                f"{a} = {b}.detach()",
                f"{a} = {b}.clone()",
                f"{a} = {b}.expand(3)",
                f"v = {a}[1:]",
                f"v = {a}[:2]",
                f"v = {a}[[0, 2]]",
                "v = v.flip(0)",
                "w = v[1:]",
                f"w = {a}[1:2]",
                f"{a} = torch.stack([{a}, {b}])[0]",
                f"{a} = torch.stack([{a}, {b}]).t().contiguous().t()[1]",
                "a, b = b, a",
                f"p = {a}[0]",
            )
        return self.pick(
            f"{a}.add_({b}.tanh() * 0.5)",
            f"{a}.mul_(0.5)",
            f"{a} *= 0.75",
            f"{a} += 0.25",
            f"{a}[0] = p",
            f"{a}[1] = {b}[2] * 0.5",
            f"{a}[:] = {b}",
            f"{a}.copy_({b} * 0.5)",
            f"{a}[{b} > 0.137] = 0.25",
            "v.mul_(0.5)",
            "v += 0.3",
            "v[0] = p",
            "w.sub_(0.2)",
            "w[0] = 0.4",
            f"{a}[1:] += v",
            "p = p.add_(0.1)",
            f"with torch.no_grad():\n    {a} = {b} * 0.5",
        )

    def containers(self) -> str:
        """Makes an alias of a container, or writes to one."""
        value, a, name, table = self.value(), self.name(), self.pick("l", "m"), self.pick("d", "e")
        if self.chance(0.45):
            return self.pick(
                "m = l",
                "l = m",
                "l, m = m, l",
                "m = l[:]",
                "m = list(l)",
                f"{name} = [{a}, {value}]",
                "e = d",
                "d, e = e, d",
                "e = dict(d)",
                "d = e.copy()",
                f"{table} = {{'k': {a}, 'j': {value}}}",
                "q[0] = l",
                "q = [m, l]",
                "q[1] = q[0]",
                "l = q[0]",
                "m = q[1]",
            )
        return self.pick(
            f"{name}[0] = {value}",
            f"{name}[-1] = {a}",
            f"{name}[0], {name}[1] = {name}[1], {name}[0]",
            f"{a} = {name}[0]",
            f"{name}.reverse()",
            f"{name}.pop()\n{name}.append({a})",
            f"{name}[:] = [{a}, {self.name()}]",
            f"{table}['k'] = {value}",
            f"{table}.update(k={a})",
            f"{table}['j'], {a} = {a}, {table}['k']",
            f"{table}.setdefault('k', {a})",
            f"{table} |= {{'j': {a}}}",
            f"q[{self.pick(0, 1)}][0] = {value}",
            f"{a} = q[1][0]",
            f"{name}[0] = {name}[0] + {a} * 0.5",
            f"{name}[1].add_(0.25)" if self._of == "both" else f"{name}[1] = p + {a}",
            f"n += len({name})",
            "u.add(1)",
        )

    def container_choice(self) -> Node:
        """Both sides change a container, mostly to the same length."""
        a, b, name = self.name(), self.name(), self.pick("l", "m")
        condition = self.condition()
        sides = self.pick(
            (f"{name}.append({a})", f"{name}.append({b} * 0.5)"),
            (f"{name} += [{a}]", f"{name}.append({b})"),
            ("l.append(a)", "m.append(b)"),
            (f"{name} = [{a}, {b}]", f"{name}[0] = {a}"),
            ("m = l", "m = list(l)"),
            ("d = {'k': a, 'j': b}", "d['k'] = b"),
            ("e = d", "e = dict(d)"),
            ("q[0] = l", "q[0] = m"),
            (f"{name}.insert(0, {a})", f"{name}.insert(0, {b})"),
            ("u.add(2)", "u.add(3)"),
            ("u = {5}", "u.discard(1)"),
        )
        return Block([(f"if {condition}:", [sides[0]]), ("else:", [sides[1]])])


_BOX = """\
class Box:
    made = 0

    def __init__(self, v):
        self._v, self.n, self.kept, self.other = v, 0, [v, v * 0.5], None

    @property
    def v(self):
        return self._v * 0.9

    @v.setter
    def v(self, new):
        self._v = new
        self.n += 1

    def __enter__(self):
        self.n += 1
        return self

    def __exit__(self, *error):
        self.n += 10
        self.kept[1] = self._v

    def each(self):
        for kept in self.kept:
            yield kept * 0.5
            self.n += 1

    def __add__(self, t):
        self.n += 100
        return self._v + t
"""


class _Objects(_Writer):
    """Attributes of objects with two names, methods, closures, globals, generators, `finally` and `with`.

    `o` and `i` are objects, `OUTER` is one from outside; `bump` changes the global `LEVEL`, `put` a closure's variable.
    """

    between = 0, 1, 2, 2

    def top(self) -> list[Node]:
        self._questions -= 2
        method = Block(
            [
                (f"if t.sum() > {self.bound()}:", [self.pick("self.v = t", "self._v = t * 0.5", "self.kept[0] = t")]),
                ("else:", [self.pick("self.n += 5", "self.kept = [t, t]", "type(self).made += 1", "return t * 0.5")]),
            ]
        )
        change = Block([("def change(self, t):", [method, self.pick("return self._v", "return self.kept[0]")])])
        bump = Block([(f"if t.max() > {self.bound()}:", [self.pick("LEVEL = t.sum() * 0.5", "LEVEL = LEVEL * 0.5")])])
        return [
            _BOX + "\n" + "\n".join(_lines(change, 1)) + "\n\n",
            "OUTER, LEVEL = Box(torch.ones(3) * 0.5), torch.ones(()) * 0.3\n",
            Block([("def bump(t):", ["global LEVEL", bump])]),
            "",
        ]

    def start(self) -> list[Node]:
        first = self.pick("o = Box(a)", "o = OUTER", "o = Box(b * 0.5)")
        second = self.pick("i = o", "i = Box(c)", "i = OUTER", "i = Box(a)\no.other = i")
        kept = f"kept = {self.pick('p', '0.0', 'a.sum()')}"
        put = Block([("def put(t):", ["nonlocal kept", self.pick("kept = t.sum()", "kept = kept * 0.5 + t.mean()")])])
        return [
            *super().start(),
            first,
            second,
            Block([("def closure():", [kept, put, *self.get()])]),
            "put, get = closure()",
        ]

    @staticmethod
    def get() -> list[Node]:
        return ["return put, lambda: kept"]

    def results(self) -> list[str]:
        return [
            *super().results(),
            "o._v",
            "o.n",
            "o.kept",
            "i._v",
            "i.n",
            "i.kept",
            "OUTER._v",
            "LEVEL",
            "get()",
            "Box.made",
        ]

    def outside(self) -> str | None:
        return "(OUTER._v, OUTER.n, LEVEL, Box.made)"

    def simple(self) -> str:
        if self.chance(0.25):
            return self.arithmetic()
        o, a, value = self.pick("o", "i"), self.name(), self.value()
        return self.pick(
            f"{o}.v = {value}",
            f"{o}._v = {value}",
            f"{o}.n += 1",
            f"{a} = {o}.v",
            f"{o}.kept[0] = {value}",
            f"{o}.kept = [{a}, {o}.v]",
            f"{o}.kept = o.kept",
            "i = o",
            "o, i = i, o",
            f"{o} = Box({a})",
            "i.other = o\ni.other.v = a",
            f"setattr({o}, '_v', {value})",
            f"{o}.__dict__['_v'] = {value}",
            "Box.made += 1",
            f"OUTER.v = {value}",
            "OUTER.n += 2",
            f"put({a})",
            "p = get() * 0.5 + p",
            f"{a} = {a} * 0.5 + LEVEL * 0.5",
            f"{a} = ({o} + {self.name()}) * 0.5",
            f"{a} = sum({o}.each()).tanh()",
            f"with {o}:\n    {o}._v = {value}",
        )

    def compound(self, depth: int, loop: int) -> list[Node]:
        kind, a, o = self._random.random(), self.name(), self.pick("o", "i")
        if kind < 0.15:
            self._questions -= 1
            return [self.pick(f"{a} = {o}.change({self.name()})", f"bump({a})")]
        if kind < 0.25:
            self._questions -= 2
            return [f"{o}.kept = [t * 0.5 if t.sum() > {self.bound()} else -t for t in {o}.kept]"]
        if kind < 0.35:
            self._questions -= 2
            block = Block([(f"if t.sum() > {self.bound()}:", [self.simple()])])
            return [Block([(f"for t in {o}.each():", [block, self.simple()])])]
        if kind < 0.45:
            return [Block([("try:", [self.condition_block(depth + 1, loop)]), ("finally:", [self.simple()])])]
        if kind < 0.55:
            return [Block([(f"with {o}:", [self.condition_block(depth + 1, loop)])])]
        if kind < 0.65:
            older, newer = self.pick(("o", "i"), ("o", "OUTER"), ("i", "Box(a)"))
            return [f"{o} = {older} if {self.condition()} else {newer}"]
        return [self.condition_block(depth, loop)]


class _Gradients(_Loops):
    """Code that takes gradients with respect to the leaves `w` and `v`, on sides and in loops too."""

    def start(self) -> list[Node]:
        found = [*super().start(), "w, v = x.detach().clone().requires_grad_(), (y * 1.5).detach().requires_grad_()"]
        for leaf in ("w", "v"):
            found.append(f"{leaf}.grad = {self.pick('torch.zeros(3)', 'torch.zeros(3)', f'{leaf}.detach() * 0.1')}")
        return [*found, f"g, h = w.grad, {self.pick('v.grad', 'w.grad', 'w.detach()', 'v.detach()')}"]

    def results(self) -> list[str]:
        left = [f"{leaf}.{what}" for leaf in ("w", "v") for what in ("detach()", "grad")]
        taken = "*torch.autograd.grad((a + b * 0.5 + p).sum() + (w * 0 + v * 0).sum(), [w, v])"
        return [*(f"{x}.detach()" for x in ("a", "b", "c", "p", "g", "h")), "n", *left, taken]

    def loss(self) -> str:
        """An expression of one element that depends on a leaf."""
        leaf, other = self.pick("w", "v"), self.pick("w", "v", "w", "v", "g", "h.detach()")
        a = f"{self.name()}{self.pick('.detach()', '.detach()', '.detach()', '.data', '')}"
        return self.pick(
            f"(({leaf} - {a}) ** 2).sum()",
            f"({leaf} * {other} * {a}).sum()",
            f"(({leaf} + {other}).tanh() * {a}).sum()",
            f"({leaf} * {leaf} * {other}).sum() * 0.5",
        )

    def simple(self) -> str:
        if self.chance(0.35):
            return self.arithmetic()
        leaf, grad, name = self.pick("w", "v"), self.pick("g", "h"), self.name()
        loss = self.loss()
        wanted = leaf if leaf in loss else "v" if "v" in loss.replace("view", "") else "w"
        graph = self.pick("", "", ", create_graph=True")
        return self.pick(
            f"({loss}).backward()",
            f"({loss}).backward()",
            f"({grad},) = torch.autograd.grad({loss}, {wanted}{graph})",
            f"({grad},) = torch.autograd.grad({loss}, {wanted}{graph})",
            f"with torch.no_grad():\n    {leaf} -= 0.1 * {leaf}.grad",
            f"with torch.no_grad():\n    {leaf}.sub_({grad} * 0.1)",
            f"{leaf}.grad.zero_()",
            f"{leaf}.grad = torch.zeros(3)",
            f"{leaf}.grad = {grad}.detach().clone()",
            f"{grad} = {leaf}.grad",
            f"{grad} = {leaf}.detach()",
            f"{name} = ({name} + {leaf} * {grad}).tanh()",
            f"{name} = {name} * 0.5 + {grad} * 0.25",
            f"with torch.no_grad():\n    {leaf}.mul_(0.75)",
            f"{leaf} = ({leaf} * 0.75).detach().requires_grad_()\n{leaf}.grad = torch.zeros(3)",
            f"{leaf} = ({leaf} - 0.1 * {grad}).detach().requires_grad_()",
            f"with torch.no_grad():\n    {name} = {leaf} * 0.5",
        )


class _Mixed(_Loops):
    """Statements of all families in one program."""

    def __init__(self, seed: str):
        super().__init__(seed)
        parts = [_Aliases(seed + " aliases"), _Objects(seed + " objects"), _Conditions(seed + " conditions")]
        self._parts = [part for part in parts if self.chance(0.75)] or parts[:1]

    def top(self) -> list[Node]:
        return [node for part in self._parts for node in part.top()]

    def start(self) -> list[Node]:
        return [*super().start(), *(node for part in self._parts for node in part.start()[2:])]

    def results(self) -> list[str]:
        return list(dict.fromkeys(each for part in self._parts for each in part.results()))

    def outside(self) -> str | None:
        return next((left for part in self._parts if (left := part.outside())), None)

    def simple(self) -> str:
        return self.pick(super(), *self._parts).simple()

    def compound(self, depth: int, loop: int) -> list[Node]:
        if self.chance(0.7):
            return super().compound(depth, loop)
        part = self.pick(*self._parts)
        part._questions = self._questions
        found = part.compound(depth, loop)
        self._questions = part._questions
        return found


_WRITERS = {
    "conditions": _Conditions,
    "loops": _Loops,
    "aliases": _Aliases,
    "objects": _Objects,
    "gradients": _Gradients,
    "mixed": _Mixed,
}
FAMILIES = tuple(_WRITERS)


def tree(name: str) -> Tree:
    """The program of a family and a seed, such as `loops 7`."""
    return _WRITERS[name.split()[0]](name).tree()


def source(name: str) -> str:
    """The text of a program."""
    return tree(name).text()


def inputs(name: str) -> list[tuple[torch.Tensor, ...]]:
    """What a program is called with."""
    numbers = random.Random(f"{name} inputs")

    def drawn(low: float, high: float, shape: tuple[int, ...]) -> torch.Tensor:
        count = 3 if shape else 1
        return torch.tensor([numbers.uniform(low, high) for _ in range(count)]).reshape(shape)

    scales = (-1, 2), (-2, 1), (-0.4, 0.4), (0, 1)
    return [(drawn(*scale, (3,)), drawn(*scale, (3,)), drawn(*scale, ())) for scale in scales]


def _outcome(text: str, name: str, limit: float) -> Outcome:
    """How a text ends with the inputs of a name."""
    make = load(text, f"random_{name.replace(' ', '_')}_{zlib.crc32(text.encode()):08x}")

    def build() -> Program:
        return Program(*make().build())

    # JAX differentiates what `torch.autograd.grad` gives without `create_graph`; PyTorch does not.
    gradients = 0 if "while" in text or "autograd" in text else GRADIENTS
    return outcome(build, inputs(name), gradients=gradients, limit=limit)


def run(name: str, limit: float = 8) -> Outcome:
    """How the program of a name ends."""
    return _outcome(source(name), name, limit)


def _bodies(root: Tree) -> Iterator[list[Node]]:
    """All lists of statements of a program, the outer ones first."""
    waiting = [root.top, root.body]
    while waiting:
        body = waiting.pop(0)
        yield body
        waiting += [inner for node in body if isinstance(node, Block) for _, inner in node.clauses]


def _smaller(root: Tree) -> Iterator[Tree]:
    """Programs with a little less, the smallest first: without a statement, a side, a head, or a result."""

    def changed(number: int, change: Callable[[list], object]) -> Tree:
        fresh = copy.deepcopy(root)
        change(list(_bodies(fresh))[number])
        return fresh

    for number, body in enumerate(_bodies(root)):
        for index, node in enumerate(body):
            yield changed(number, lambda fresh, index=index: fresh.pop(index))
            for part, (_, inner) in enumerate(node.clauses if isinstance(node, Block) else ()):
                yield changed(number, lambda fresh, i=index, inner=inner: fresh.__setitem__(slice(i, i + 1), inner))
                if part:
                    yield changed(number, lambda fresh, i=index, part=part: fresh[i].clauses.pop(part))
    for index in range(len(root.results)):
        yield dataclasses.replace(root, results=root.results[:index] + root.results[index + 1 :])
    if root.outside:
        yield dataclasses.replace(root, outside=None)


def _alike(one: Outcome, other: Outcome) -> bool:
    """Whether two outcomes have the same reason, as far as can be said."""
    length = 2 if one.kind in ("refused", "error") else 1
    return one.kind == other.kind and one.text.split(":")[:length] == other.text.split(":")[:length]


def minimal(name: str, *, limit: float = 8) -> str:
    """The text of a program that ends like that of a name, and from which nothing can be taken."""
    root, wanted, tried = tree(name), run(name, limit), 0
    while True:
        for number, fresh in enumerate(itertools.islice(_smaller(root), tried, None)):
            try:
                found = _outcome(fresh.text(), name, limit)
            except SyntaxError:
                continue
            if _alike(found, wanted):
                root, tried = fresh, tried + number
                break
        else:
            if tried == 0:
                return f"# {wanted.kind}: {wanted.text}\n{root.text()}"
            tried = 0
