"""What Python has for flow and for state, one program each."""

import contextlib
import dataclasses
import functools
import operator

import torch

from tests.control.programs.table import drawn, program

XS = [torch.tensor(x) for x in ([1.0, 2.0, 0.5], [-1.0, -2.0, 0.3], [0.1, 0.2, 0.3], [3.0, -1.0, 0.5])]


@program(torch.linspace(-1, 1, 10), drawn(10), gradients=2)
def ten_ifs(x):
    steps = 0
    for i in range(10):
        if x[i] > 0.05:
            x = x.roll(i) * 0.5
            steps += 1
        else:
            x = x + 0.1
    return x, steps


@program(*XS, gradients=2)
def return_in_for(x):
    for i in range(5):
        if x.norm() > 2 + i:
            return x * i
        x = x * 1.5
    return x - 1


@program(*XS, gradients=2)
def break_continue_else(x):
    total, i = x.sum() * 0, 0
    for i in range(6):
        if x[i % 3] < 0:
            continue
        total = total + x[i % 3] * i
        if total > 4:
            break
    else:
        total = total + 100
    return total, i


@program(*XS)
def nested_breaks(x):
    n, y = 0, x
    for i in range(4):
        for j in range(5):
            y = y * 0.9 + 0.1
            n += 1
            if y.sum() > 2 + j:
                continue
            if y.norm() < 0.5:
                break
            if y[0] < -0.5 and i > 1:
                return y, n
        if y.max() > 1.5:
            break
    return y, n


@program(*XS)
def while_else(x):
    n = 0
    while x.norm() > 0.5:
        x = x * 0.6
        n += 1
        if x[1] < -1:
            break
    else:
        x = x + 10
    return x, n


@program(*XS, gradients=2)
def return_in_try(x):
    log = []
    try:
        if x.sum() > 1:
            return x * 2, log
        x = x + 1
    finally:
        log.append(x * 3)
    return x * 3, log


@program(*XS)
def continue_in_finally_loop(x):
    count = 0
    for i in range(3):
        try:
            if x[i] > 0.4:
                continue
            x = x * 0.5
        finally:
            count += 1
    return x, count


@program(*XS, gradients=2)
def raise_and_catch(x):
    """An exception as flow."""
    try:
        if x.sum() > 1:
            raise KeyError("large")
        y = x + 1
    except KeyError:
        y = x * 2
    return y


@program(*XS)
def exception_from_a_call(x):
    class StopHere(Exception):
        pass

    def check(y):
        if y.norm() > 2:
            raise StopHere

    n = 0
    try:
        for _ in range(3):
            check(x)
            x = x * 1.7
            n += 1
    except StopHere:
        n += 10
    return x, n


@program(*XS, gradients=2)
def with_contextmanager(x):
    @contextlib.contextmanager
    def scaled(by):
        stack.append(by)
        try:
            yield by
        finally:
            stack.pop()

    stack = [1.0]
    if x.sum() > 0:
        with scaled(3.0) as by:
            y = x * by * stack[-1]
    else:
        with scaled(2.0) as by, torch.no_grad():
            y = x * by
    return y * stack[-1]


@program(*XS)
def suppressed(x):
    with contextlib.suppress(ValueError):
        x = x + 1
        if x.max() > 2:
            raise ValueError
        x = x * 2
    return x


@program(*XS, gradients=2)
def generator(x):
    def parts(x):
        for i in range(3):
            y = x * i
            if y.sum() > 1:
                y = -y
            yield y

    return sum(parts(x))


@program(*XS)
def generator_with_state(x):
    def running():
        total = torch.zeros(())
        while True:
            new = yield total
            total = total + new if new > 0 else total * 0.5

    sums = running()
    next(sums)
    for v in x:
        last = sums.send(v)
    return last


@program(*XS)
def generator_that_ends(x):
    def until_negative(values):
        for v in values:
            if v < 0:
                return
            yield v * 2

    total = torch.zeros(())
    for v in until_negative(x):
        total = total + v
    return total


@program(*XS, gradients=2)
def comprehension(x):
    return torch.stack([a * 2 if a > 0.4 else a - 1 for a in x])


@program(*XS)
def comprehension_that_filters(x):
    return sum(a for a in x if a > 0.25)


@program(*XS)
def counted_by_sum(x):
    return sum(1 for a in x if a > 0.25), sum(a > 0.25 for a in x)


@program(*XS, gradients=2)
def recursion(x):
    def down(x, n):
        if n == 0:
            return x
        if x.sum() > 1:
            x = x * 0.5
        return down(x + 0.1, n - 1)

    return down(x, 5)


@program(*XS)
def recursion_on_data(x):
    """Ends by a depth, or earlier."""

    def halve(x, depth):
        if depth == 4 or x.norm() < 0.5:
            return x, depth
        return halve(x * 0.5, depth + 1)

    return halve(x, 0)


class _Base:
    def __init__(self):
        self.k = 1.0

    def step(self, x):
        if x.sum() > 1:
            self.k += 1
        return x * self.k


class _Derived(_Base):
    def step(self, x):
        y = super().step(x)
        if y.min() < 0:
            return -y
        return y


@program(*XS)
def by_super(x):
    both = _Derived()
    return both.step(both.step(x))


@program(*XS)
def nonlocal_variables(x):
    n, last = 0, None

    def note(y):
        nonlocal n, last
        n += 1
        last = y
        if y.sum() > 1:
            n += 10

    note(x)
    if x[0] > 0:
        note(x * 2)
    return last, n


_LEVEL = 1.0


@program(*XS, makes=True)
def global_variable():
    global _LEVEL
    _LEVEL = 1.0

    def run(x):
        global _LEVEL
        if x.sum() > 1:
            _LEVEL = 4.0
        return x * _LEVEL

    return run


@program(*XS)
def sorted_by_key(x):
    asked = [0]

    def key(i):
        if x.sum() > 100:
            asked[0] += 1
        return -i

    return x[sorted([2, 0, 1], key=key)], asked[0]


@program(*XS)
def sorted_by_data(x):
    return torch.stack(sorted(x, key=lambda a: a.abs()))


@program(*XS, gradients=2)
def map_and_reduce(x):
    def part(a):
        if a > 0.4:
            return a * 2
        return a - 1

    return functools.reduce(lambda a, b: a + b if b > 0 else a - b, map(part, x))


@program(*XS)
def filtered(x):
    return functools.reduce(operator.add, filter(lambda a: a > 0.25, x), torch.zeros(()))


@program(*XS)
def any_all_max(x):
    if any(a > 2 for a in x):
        x = x + 1
    return max(x[0], x[1]) + (1 if all(a < 5 for a in x) else 0) - min(*x)


@program(*XS)
def and_or_not_chain(x):
    y = x
    if x.sum() > 1 and not x.min() < 0:
        y = y + 1
    if x[0] > 0 or x[1] > 0:
        y = y * 2
    if 0 < x[2] < 0.4:
        y = y - 1
    return y if (x > -5).all() and y.sum() < 5 else -y


@program(*XS)
def or_gives_a_value(x):
    """`and` and `or` give one of their operands."""
    a = (x.sum() > 1) and x.max()
    b = x[0].clamp(min=0) or x[1]
    return a * 1.0, b


@program(*XS)
def walrus(x):
    n = 0
    while (norm := x.norm()) > 0.7 and n < 9:
        x = x * 0.7
        n += 1
    return norm, n


@program(*XS)
def match_statement(x):
    match (x.sum() > 1, x.min() < 0):
        case (a, b) if a and b:
            return x * 2
        case (a, _) if a:
            return x * 3
    return x


@dataclasses.dataclass
class _Scaled:
    v: torch.Tensor
    scale: float = 2.0

    def __post_init__(self):
        if self.v.sum() > 1:
            self.scale = 5.0


@program(*XS)
def dataclass_post_init(x):
    first = _Scaled(x)
    second = dataclasses.replace(first, v=x * 0.5)
    return x * first.scale, second.scale


class _Special:
    def __init__(self, v):
        self._v = v

    @property
    def v(self):
        return self._v * 2 if self._v.sum() > 1 else self._v

    @v.setter
    def v(self, new):
        if new.min() < 0:
            new = -new
        self._v = new

    def __setattr__(self, name, value):
        object.__setattr__(self, name, value)

    def __getattr__(self, name):
        if name == "other":
            return 7.0
        raise AttributeError(name)

    def __add__(self, other):
        return self.v + other if self._v[0] > 0 else self.v - other

    def __bool__(self):
        return bool(self._v.sum() > 1)

    def __lt__(self, other):
        return self._v.sum() < other._v.sum()


@program(*XS)
def special_methods(x):
    p, q = _Special(x), _Special(x.flip(0) * 0.5)
    p.v = x + 1
    if p.v[0] > 1:
        p.v = p.v * p.other
    if p:
        p.v = p.v * 0.5
    return p + 1, (q if q < p else p).v


@program(*XS)
def checks(x):
    if x.abs().max() > 100:
        raise ValueError(f"large: {x}")
    assert not torch.isnan(x).any(), "nan"
    return x.exp()


@program(*XS)
def best_of(x):
    best, which = x[0], 0
    for i in range(1, 3):
        if x[i] > best:
            best, which = x[i], i
    return best, which


@program(*XS)
def results_in_a_dict(x):
    out = {"a": x, "n": 0}
    if x.sum() > 1:
        out["a"] = x * 2
        out["n"] += 3
    out.update(b=x)
    return out


@program(*XS)
def list_with_two_names(x):
    one = [x, x + 1]
    other = one
    if x.sum() > 1:
        one = [x * 2, x * 3]
    one[0] = x * 5
    return one, other


@program(*XS)
def tensor_with_two_names(x):
    a = x.clone()
    b = a if x.sum() > 1 else a + 0.0
    a.add_(1)
    b.mul_(2)
    return a, b


@program(*XS)
def view_of_either(x):
    a, b = x.clone(), x * 2
    row = (a if x[0] > 0 else b)[1:]
    row += 10
    return a, b


@program(*XS)
def list_that_grows(x):
    """As many elements as data say, of which only the sum is used."""
    found = []
    for _ in range(4):
        if x.norm() < 1:
            break
        found.append(x)
        x = x * 0.6
    return sum(found, torch.zeros(3)), len(found)


@program(*XS)
def partial_and_method(x):
    class Total:
        def __init__(self):
            self.v = torch.zeros(())

        def add(self, by, a):
            if a > 0:
                self.v = self.v + by * a

    total = Total()
    for each in map(functools.partial(total.add, 2.0), x):
        assert each is None
    return total.v


@program(*XS)
def stack_of_modes(x):
    """`no_grad` on one side only."""
    y = x * 2
    if y.sum() > 1:
        with torch.no_grad():
            y = y * 3
    return y


@program(*XS)
def number_from_item(x):
    total = x.sum().item()
    if total > 1:
        total = total * 2
    elif total < -1:
        total = abs(total)
    return x * total


@program(*XS)
def integer_as_bound(x):
    """How often a loop runs depends on data, through an integer."""
    count = int((x > 0.25).sum())
    y = x
    for _ in range(count):
        y = y * 0.5 + 1
    return y, count


@program(*XS)
def decorated(x):
    def doubled(f):
        @functools.wraps(f)
        def inner(*args):
            out = f(*args)
            return out * 2 if out.sum() > 1 else out

        return inner

    @doubled
    def part(y):
        return y + 0.1

    return part(part(x))


@program(*XS)
def iterator_class(x):
    class Halves:
        def __init__(self, v):
            self.v = v

        def __iter__(self):
            return self

        def __next__(self):
            if self.v.norm() < 0.5:
                raise StopIteration
            self.v = self.v * 0.5
            return self.v

    total = torch.zeros(3)
    for v in Halves(x):
        total = total + v
    return total


@program(*XS, gradients=2)
def gradient_only_where_taken(x):
    """The square root is taken where it is used."""
    r = x.sqrt()
    y = x if x.min() < 0 else r
    return y.sum()


@program(*XS)
def deleted_and_unbound(x):
    if x.sum() > 1:
        extra = x * 2
        y = extra + 1
        del extra
    else:
        y = x
    return y


@program(*XS)
def functions_chosen(x):
    def double(v):
        return v * 2

    f = double if x.sum() > 1 else torch.tanh
    return f(x)


@program(*XS)
def string_built(x):
    word = ""
    for v in x:
        word += "p" if v > 0.25 else "n"
    return x * len(word)
