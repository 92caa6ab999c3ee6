"""Programs whose first run tells what the call needs, and that change Python's objects before it does.

A call of one of these leaves each object as one run of PyTorch's does, however often the code runs: counters, caches,
iterators, random numbers, modules that initialize themselves. `names` gives those made at random and those of
`once_written.py`; each is run eagerly, by `jit`, `vmap` and `grad`, twice, and its runs are counted.
"""

import collections
import io
import random
import re
import sys
import time
import types
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
import torch

from tests.control.programs import outcomes
from tests.control.programs.outcomes import Outcome, load
from torch2jax import t2j

__all__ = ["NEEDS", "OBJECTS", "WAYS", "Object", "names", "run", "source"]

WAYS = "eager", "jit", "vmap", "grad", "grad of jit"
X = np.array([0.5, 1.5, -0.25], np.float32)
_FIRST = 400
"""How many of those made at random `names` gives."""

PRELUDE = """\
import collections, contextvars, functools, io, itertools, math, random, tempfile, types

import numpy as np
import torch
from torch import nn


class Plain:
    pass


class Slots:
    __slots__ = ("n",)


class Config:
    n = 0


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.n, self.w = 0, nn.Parameter(torch.ones(3))

    def forward(self, x):
        self.n += 1
        return x * self.w


class Lazy(nn.Module):
    def __init__(self):
        super().__init__()
        self.ready, self.inits, self.table = False, 0, {}

    def forward(self, x):
        if not self.ready:
            self.ready, self.scale = True, 1.5
            self.inits += 1
            self.table["first"] = len(self.table)
        return x * self.scale + self.inits


class WithSetter:
    def __init__(self):
        self.kept = [0]

    @property
    def n(self):
        return self.kept[0]

    @n.setter
    def n(self, new):
        self.kept[0] = new


class Child(torch.Tensor):
    pass


COUNT = 0


def numbers():
    n = 1
    while True:
        yield n
        n += 1


"""


class Object(NamedTuple):
    """A kind of object from outside, as source text.

    Args:
        make: statements that bind `o{i}`.
        write: statements of the program that change it.
        read: an expression of numbers: what it holds.
    """

    make: str
    write: str
    read: str


def _kinds(**kinds: tuple[str, str, str]) -> dict[str, Object]:
    return {name: Object(*texts) for name, texts in kinds.items()}


OBJECTS = _kinds(
    module=("o = Counting()", "o.n += 1", "o.n"),
    called_module=("o = Counting()", "y = o(y)", "o.n"),
    lazy_module=("o = Lazy()", "y = o(y)", "(o.inits, len(o.table), o.ready)"),
    list_of_module=("o = Counting(); o.seen = []", "o.seen.append(len(o.seen))", "o.seen"),
    namespace=("o = types.SimpleNamespace(n=0)", "o.n += 1", "o.n"),
    plain=("o = Plain(); o.n = 0", "o.n += 1", "o.n"),
    slots=("o = Slots(); o.n = 0", "o.n += 1", "o.n"),
    setter=("o = WithSetter()", "o.n += 1", "o.n"),
    nested=("o = Plain(); o.a = types.SimpleNamespace(l=[0])", "o.a.l[0] += 1", "o.a.l"),
    class_attribute=("o = type('C', (Config,), {'n': 0})", "o.n += 1", "o.n"),
    function_attribute=("o = lambda: 0\no.n = 0", "o.n += 1", "o.n"),
    global_name=("global COUNT; COUNT = 0; o = 0", "COUNT += 1", "COUNT"),
    cell=("c = 0", "c += 1", "c"),
    list=("o = []", "o.append(len(o))", "o"),
    list_item=("o = [0]", "o[0] += 1", "o"),
    long_list=("o = list(range(5000))", "o.append(len(o))", "len(o)"),
    dict_counter=("o = {}", "o['n'] = o.get('n', 0) + 1", "sorted(o.values())"),
    cache=("o = {}", "y = y * (o['k'] if 'k' in o else o.setdefault('k', 2.0) + 1)", "len(o)"),
    cache_of_constants=("o = {}", "o['t'] = o['t'] + 1 if 't' in o else torch.zeros(3)\ny = y + o['t']", "len(o)"),
    counter=("o = collections.Counter()", "o['n'] += 1", "o['n']"),
    defaultdict=("o = collections.defaultdict(list)", "o['n'].append(1)", "len(o['n'])"),
    ordered=("o = collections.OrderedDict(a=1, b=2)", "o.move_to_end('a'); o['c'] = len(o)", "[*o.values()]"),
    set=("o = set()", "o.add(len(o))", "sorted(o)"),
    deque=("o = collections.deque([1, 2, 3])", "o.rotate(1); o.append(7)", "[*o]"),
    bytearray=("o = bytearray(2)", "o[0] += 1", "[*o]"),
    array=("o = np.zeros(2)", "o[0] += 1", "o.tolist()"),
    count=("o = itertools.count(1)", "y = y + next(o)", "next(o)"),
    iterator=("o = iter([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0])", "y = y + next(o)", "next(o)"),
    generator=("o = numbers()", "y = y + next(o)", "next(o)"),
    text=("o = io.StringIO()", "o.write('ab')", "len(o.getvalue())"),
    file=("o = tempfile.TemporaryFile('w+')", "o.write('ab')", "o.tell()"),
    print_to=("o = io.StringIO()", "print('ab', file=o)", "len(o.getvalue())"),
    python_random=("o = 0", "y = y + random.random()", "random.random()"),
    numpy_random=("o = 0", "y = y + np.random.rand()", "np.random.rand()"),
    own_random=("o = random.Random(0)", "y = y + o.random()", "o.random()"),
    own_numpy_random=("o = np.random.default_rng(0)", "y = y + o.random()", "o.random()"),
    cached_function=(
        "l = [0]\n@functools.lru_cache\ndef o(k):\n    l[0] += 1\n    return l[0]",
        "y = y + o(1)",
        "l[0]",
    ),
    context=("o = contextvars.ContextVar('o', default=0); o.set(0)", "o.set(o.get() + 1)", "o.get()"),
)

NEEDS = {
    "nothing": "y = y * 2",
    "backward": "w = torch.full((3,), 2.0, requires_grad=True)\n(y * w * w).sum().backward()\ny = y + w.grad.detach()",
    "backward of a module": "m = Counting()\nm(y).square().sum().backward()\ny = y + m.w.grad.detach() * m.n",
    "autograd.grad": "w = torch.full((3,), 2.0, requires_grad=True)\n"
    "y = y + torch.autograd.grad((y * w.sin()).sum(), w)[0].detach()",
    "second derivative": "w = torch.full((3,), 2.0, requires_grad=True)\n"
    "g = torch.autograd.grad((y * w**3).sum(), w, create_graph=True)[0]\n"
    "y = y + torch.autograd.grad((g * g).sum(), w)[0].detach()",
    "grad_fn": "w = torch.full((3,), 2.0, requires_grad=True)\ny = y + len((y * w).grad_fn.next_functions)",
    "requires_grad": "if x.requires_grad:\n    y = y * 3\nelse:\n    y = y * 2",
    "leaf": "y = y + float(y.is_leaf)",
    "hook": "if y.requires_grad:\n    y.register_hook(lambda g: g * 2)\ny = y * 1.5",
    "hook that writes": "w = torch.full((3,), 2.0, requires_grad=True)\nh = []\n"
    "w.register_hook(lambda g: h.append(1))\n"
    "(y * w).sum().backward()\ny = y + w.grad.detach() * len(h)",
    "condition": "if y.sum() > 0:\n    y = y + 1\nelse:\n    y = y - 1",
    "condition of two lengths": "l = [1.0] if y.sum() > 0 else [1.0, 2.0]\ny = y + len(l)",
    "loop": "k = 0\nwhile y.abs().sum() < 20 and k < 5:\n    y, k = y * 1.5 + 0.5, k + 1",
    "length": "y = y + y[y > 0].sum() + len(y[y > 0])",
    "number": "y = y + math.sqrt(y.square().sum().item())",
    "class": "y = torch.Tensor._make_subclass(Child, y.detach()).as_subclass(torch.Tensor) + y",
}
"""What a plain run does not know at its beginning, as statements."""


def source(name: str) -> str:
    """The text of a module with `make`, which gives a program and what reads the objects that it changes."""
    draw = random.Random(name)
    kinds, needs = draw.sample([*OBJECTS], draw.choice((1, 2, 2, 3))), draw.sample([*NEEDS], draw.choice((1, 1, 2, 3)))
    makes, writes, reads = [], [], []
    for i, kind in enumerate(kinds):
        make, write, read = (re.sub(r"\b[olc]\b", rf"\g<0>{i}", text) for text in OBJECTS[kind])
        makes.append(make), writes.append(write), reads.append(read)
    steps = [*writes, *(NEEDS[need] for need in needs)]
    draw.shuffle(steps)
    if draw.random() < 0.5:  # the first write comes before all needs
        steps.insert(0, writes[0])
    body = ["y = x * 0.5", *steps, *draw.sample(writes, 1), "return y * 2"]
    if "global_name" in kinds:
        body.insert(0, "global COUNT")
    cells = [f"c{i}" for i, kind in enumerate(kinds) if kind == "cell"]
    if cells:
        body.insert(0, f"nonlocal {', '.join(cells)}")
    if draw.random() < 0.3:  # the code is that of a function that the program calls
        inner = ["def step(x):", *_indented("\n".join(body)), ""]
        made = ["def program(x):", "    return step(x) + 1"]
        body = [*inner, *made]
    else:
        body = ["def program(x):", *_indented("\n".join(body))]
    lines = ["\n".join(makes), "", "\n".join(body), "", "def left():", f"    return {', '.join(reads)},", ""]
    return PRELUDE + "def make():\n" + "\n".join([*_indented("\n".join(lines)), "    return program, left"]) + "\n"


def _indented(text: str) -> list[str]:
    return ["    " + line if line else "" for line in text.splitlines()]


class _Runs:
    """A context that counts how often a function is entered, by its code or what it is converted to."""

    def __init__(self, function: Callable):
        self._code, self.count = function.__code__, 0

    def _profile(self, frame: types.FrameType, event: str, _: Any) -> None:
        if event == "call":
            code = frame.f_code  # converted code has the places of the file, and its sides others
            self.count += (code.co_firstlineno, code.co_filename) == (self._code.co_firstlineno, self._code.co_filename)

    def __enter__(self) -> "_Runs":
        sys.setprofile(self._profile)
        return self

    def __exit__(self, *exc_info: object) -> None:
        sys.setprofile(None)


class Ended(NamedTuple):
    """How one way to run a program ended.

    Args:
        kind, text: as in `Outcome`.
        first, later: how often the code ran in the first call and in the second.
    """

    kind: str
    text: str
    first: int
    later: int


class _Program:
    """A program with new objects."""

    def __init__(self, make: Callable):
        random.seed(0), np.random.seed(0), torch.manual_seed(0)  # noqa: NPY002 - which programs draw from
        self.function, self._left = make()

    def left(self) -> list[np.ndarray]:
        return outcomes.arrays(self._left())

    def __enter__(self) -> "_Program":
        return self

    def __exit__(self, *exc_info: object) -> None:
        for cell in getattr(self._left, "__closure__", None) or ():
            if isinstance(cell.cell_contents, io.IOBase):
                cell.cell_contents.close()


def _in_pytorch(program: _Program, way: str) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """What a call gives in PyTorch, and what it leaves."""
    given = torch.from_numpy(X.copy())
    if "grad" in way:
        given.requires_grad_()
        result = program.function(given)
        wanted = torch.autograd.grad(result.sum(), given, allow_unused=True)[0]
        wanted = torch.zeros(3) if wanted is None else wanted
    else:
        wanted = program.function(given)
    return outcomes.arrays(wanted), program.left()


def _translated(function: Callable, way: str) -> Callable[[], list[np.ndarray]]:
    found = t2j(function)
    if way == "jit":
        found = jax.jit(found)
    elif way == "vmap":
        found = jax.vmap(found)
    elif "grad" in way:
        inner = jax.jit(found) if "jit" in way else found
        found = jax.grad(lambda x: inner(x).sum())
    given = X[None] if way == "vmap" else X
    return lambda: outcomes.arrays(jax.tree.map(lambda x: x[0], found(given)) if way == "vmap" else found(given))


def ended(make: Callable[[], tuple[Callable, Callable]], way: str) -> Ended:
    """How a program ends that is run in one way."""
    with _Program(make) as program:
        try:
            one = _in_pytorch(program, way)
            random.seed(1), np.random.seed(1)  # noqa: NPY002
            two = _in_pytorch(program, way)
        except RuntimeError as error:
            return Ended("torch", str(error), 0, 0)
    with _Program(make) as program:
        return _compared(program, way, one, two)


def _compared(program: _Program, way: str, one: tuple, two: tuple) -> Ended:
    call, is_traced = _translated(program.function, way), "jit" in way
    first, later = _Runs(program.function), _Runs(program.function)
    try:
        with first:
            got = call()
        found = outcomes.difference(got, one[0], 1e-3)
        left = outcomes.difference(program.left(), one[1], 1e-3)
        text = f"result {found}" if found else f"left {left}" if left else ""
        if not text:
            random.seed(1), np.random.seed(1)  # noqa: NPY002
            with later:
                got = call()
            if not is_traced or later.count:
                found = outcomes.difference(got, two[0], 1e-3)
                left = outcomes.difference(program.left(), two[1], 1e-3)
                text = f"second result {found}" if found else f"second left {left}" if left else ""
            else:
                found = outcomes.difference(got, one[0], 1e-3)
                text = f"second result {found}" if found else ""
        return Ended("wrong" if text else "right", text, first.count, later.count)
    except Exception as error:
        sys.setprofile(None)
        return Ended(*outcomes.failure(error), first.count, later.count)


def names() -> list[str]:
    """Those made at random, and those written by hand."""
    from tests.control.programs import once_written

    return [*(f"random {i}" for i in range(_FIRST)), *once_written.PROGRAMS]


def made(name: str) -> Callable[[], tuple[Callable, Callable]]:
    """What makes the program of a name, and what reads what it leaves."""
    from tests.control.programs import once_written

    if name in once_written.PROGRAMS:
        return once_written.PROGRAMS[name]
    make = load(source(name), f"once_{name.replace(' ', '_')}")
    return lambda: make().make()


def run(name: str, limit: float = 20, ways: Sequence[str] = WAYS) -> Outcome:
    """How the program of a name ends, at the worst of the ways to run it; its text tells how often the code ran."""
    make, found, start = made(name), {}, time.process_time()
    with warnings.catch_warnings(), outcomes.whole_tracebacks():
        warnings.simplefilter("ignore")
        try:
            with outcomes.limited(limit):
                for way in ways:
                    found[way] = ended(make, way)
        except outcomes.Late:
            found["late"] = Ended("late", "", 0, 0)
    runs = max((x.first for x in found.values() if x.kind == "right"), default=0)
    later = max((x.later for x in found.values() if x.kind == "right"), default=0)
    way = min(found, key=lambda way: outcomes.WORST_FIRST.index(found[way].kind))
    kinds = collections.Counter(x.kind for x in found.values())
    text = f"{way}: {found[way].text} [runs {runs}, later {later}; {dict(kinds)}]"
    return Outcome(found[way].kind, text, time.process_time() - start)
