"""Programs written by hand that change Python's objects, and whose first run does not know what the call needs."""

import collections
import contextlib
import contextvars
import functools
import heapq
import io
import itertools
import logging
import math
import os
import queue
import random
import tempfile
import threading
import types
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import nn

__all__ = ["PROGRAMS"]

Made = tuple[Callable[[torch.Tensor], Any], Callable[[], Any]]
PROGRAMS: dict[str, Callable[[], Made]] = {}
"""What makes a program, and what reads the objects that it changes."""


def once(make: Callable[[], Made]) -> Callable[[], Made]:
    PROGRAMS[make.__name__.replace("_", " ")] = make
    return make


def leaf(value: float = 2.0) -> torch.Tensor:
    return torch.full((3,), value, requires_grad=True)


def stepped(y: torch.Tensor) -> torch.Tensor:
    """The gradient of a loss."""
    w = leaf()
    (y * w * w).sum().backward()
    assert w.grad is not None
    return w.grad.detach()


def method(name: str) -> Callable:
    """What calls a method whose name is in no code."""
    return lambda x, *args: getattr(x, name)(*args)


HIDDEN = method("back" + "ward")


def hidden(y: torch.Tensor) -> torch.Tensor:
    """The same, by a name that nobody can foresee."""
    w = leaf()
    HIDDEN((y * w * w).sum())
    assert w.grad is not None
    return w.grad.detach()


# Modules.


class Counted(nn.Module):
    def __init__(self):
        super().__init__()
        self.calls, self.w, self.seen = 0, nn.Parameter(torch.ones(3)), []

    def forward(self, x):
        self.calls += 1
        self.seen.append(self.calls)
        return x * self.w


class Ready(nn.Module):
    def __init__(self):
        super().__init__()
        self.is_ready, self.inits = False, 0

    def forward(self, x):
        if not self.is_ready:
            self.is_ready, self.scale = True, 3.0
            self.inits += 1
        return x * self.scale


class LazyWeight(nn.Module):
    def __init__(self):
        super().__init__()
        self.made = 0

    def forward(self, x):
        if not hasattr(self, "w"):
            self.w, self.made = nn.Parameter(torch.full((3,), 1.5)), self.made + 1
        return x * self.w.detach()


class LossInside(nn.Module):
    def __init__(self):
        super().__init__()
        self.w, self.steps, self.history = nn.Parameter(torch.ones(3)), 0, []

    def forward(self, x):
        self.steps += 1
        (g,) = torch.autograd.grad((x.detach() * self.w.square()).sum(), self.w)
        self.history.append(self.steps)
        return x + g


@once
def a_module_counts_and_steps():
    m = Counted()

    def program(x):
        y = m(x)
        return y + stepped(y)

    return program, lambda: (m.calls, m.seen)


@once
def a_module_counts_and_steps_unforeseen():
    m = Counted()

    def program(x):
        y = m(x)
        return y + hidden(y)

    return program, lambda: (m.calls, m.seen)


@once
def a_module_initializes_itself_and_steps():
    m = Ready()

    def program(x):
        y = m(x)
        return y + stepped(y) + m.inits

    return program, lambda: (m.inits, m.is_ready)


@once
def a_module_initializes_itself_unforeseen():
    m = Ready()

    def program(x):
        y = m(x)
        return y + hidden(y) + m.inits

    return program, lambda: (m.inits, m.is_ready)


@once
def a_module_initializes_itself_before_a_condition():
    m = Ready()

    def program(x):
        y = m(x)
        return y + 1 if y.sum() > 0 else y - m.inits

    return program, lambda: (m.inits, m.is_ready)


@once
def a_module_initializes_itself_before_it_is_asked():
    m = Ready()

    def program(x):
        y = m(x)
        return y * 2 if y.requires_grad else y * 3

    return program, lambda: (m.inits, m.is_ready)


@once
def a_module_makes_its_weight():
    m = LazyWeight()

    def program(x):
        y = m(x)
        return y + hidden(y)

    return program, lambda: ()


@once
def a_module_differentiates_inside():
    m = LossInside()

    def program(x):
        return m(x)

    return program, lambda: (m.steps, m.history)


@once
def a_module_in_a_list_is_counted():
    parts = [Counted(), Counted()]

    def program(x):
        for part in parts:
            x = part(x)
        return x + hidden(x)

    return program, lambda: [part.calls for part in parts]


@once
def a_forward_hook_counts():
    m, counts = Counted(), collections.Counter()
    m.register_forward_hook(lambda *_: counts.update(["forward"]))

    def program(x):
        y = m(x)
        return y + hidden(y)

    return program, lambda: (m.calls, counts["forward"])


@once
def an_object_in_a_module():
    m = Counted()
    m.config = types.SimpleNamespace(n=0)

    def program(x):
        m.config.n += 1
        return m(x) * m.config.n + hidden(x)

    return program, lambda: (m.calls, m.config.n)


# Counters.


@once
def a_variable_counts():
    n = 0

    def program(x):
        nonlocal n
        n += 1
        return x * n + hidden(x)

    return program, lambda: n


TOTAL = 0


@once
def a_global_counts():
    global TOTAL
    TOTAL = 0

    def program(x):
        global TOTAL
        TOTAL += 1
        return x * TOTAL + hidden(x)

    return program, lambda: TOTAL


class Totals:
    n = 0


@once
def a_class_counts():
    Totals.n = 0

    def program(x):
        Totals.n += 1
        return x * Totals.n + hidden(x)

    return program, lambda: Totals.n


@once
def a_function_counts_its_calls():
    def helper(x):
        helper.calls += 1
        return x * 2

    helper.calls = 0

    def program(x):
        return helper(x) + hidden(x)

    return program, lambda: helper.calls


@dataclass
class Stats:
    n: int = 0
    losses: list = field(default_factory=list)


@once
def a_dataclass_logs_losses():
    stats = Stats()

    def program(x):
        stats.n += 1
        g = stepped(x)
        stats.losses.append(stats.n)
        return x + g

    return program, lambda: (stats.n, stats.losses)


@once
def a_dataclass_logs_losses_unforeseen():
    stats = Stats()

    def program(x):
        stats.n += 1
        g = hidden(x)
        stats.losses.append(stats.n)
        return x + g

    return program, lambda: (stats.n, stats.losses)


@once
def a_counter_within_a_namespace():
    s = types.SimpleNamespace(counts=collections.Counter())

    def program(x):
        s.counts["steps"] += 1
        return x * s.counts["steps"] + hidden(x)

    return program, lambda: s.counts["steps"]


@once
def a_number_of_this_thread():
    local = threading.local()
    local.n = 0

    def program(x):
        local.n += 1
        return x * local.n + hidden(x)

    return program, lambda: local.n


@once
def a_context_variable():
    level = contextvars.ContextVar("level", default=0)
    level.set(0)

    def program(x):
        level.set(level.get() + 1)
        return x * level.get() + hidden(x)

    return program, lambda: level.get()


@once
def a_counter_of_itertools():
    ticks = itertools.count()

    def program(x):
        next(ticks)
        return x + hidden(x)

    return program, lambda: next(ticks)


@once
def a_counter_of_itertools_foreseen():
    ticks = itertools.count()

    def program(x):
        next(ticks)
        return x + stepped(x)

    return program, lambda: next(ticks)


@once
def a_counter_read_after_the_gradient():
    ticks = itertools.count()

    def program(x):
        y = x + stepped(x)
        return y + next(ticks)

    return program, lambda: next(ticks)


# Containers and caches.


@once
def a_cache_by_shapes():
    cache: dict[Any, float] = {}

    def program(x):
        key = tuple(x.shape)
        if key not in cache:
            cache[key] = float(len(cache) + 1)
        return x * cache[key] + hidden(x)

    return program, lambda: [*cache.values()]


@once
def a_cache_of_constants():
    cache: dict[str, torch.Tensor] = {}

    def program(x):
        if "mask" not in cache:
            cache["mask"] = torch.arange(3.0)
        return x * cache["mask"] + hidden(x)

    return program, lambda: len(cache)


@once
def a_cached_function():
    calls = []

    @functools.cache
    def table(n):
        calls.append(n)
        return float(n)

    def program(x):
        return x * table(3) + hidden(x)

    return program, lambda: calls


@once
def a_cached_function_that_is_full():
    calls = []

    @functools.cache
    def table(n):
        calls.append(n)
        return float(n)

    table(1)

    def program(x):
        return x * table(3) + hidden(x)

    return program, lambda: calls


@once
def a_cached_property():
    class Grid:
        made = 0

        @functools.cached_property
        def points(self):
            self.made += 1
            return 3.0

    grid = Grid()

    def program(x):
        return x * grid.points + hidden(x)

    return program, lambda: grid.made


@once
def a_history_that_grows():
    history = []

    def program(x):
        history.append(len(history))
        return x * len(history) + hidden(x)

    return program, lambda: history


@once
def a_list_of_lists():
    rows = [[0], [0]]

    def program(x):
        rows[1].append(1)
        return x * len(rows[1]) + hidden(x)

    return program, lambda: [x for row in rows for x in row]


@once
def a_heap():
    heap = [3, 5]

    def program(x):
        heapq.heappush(heap, 1)
        return x * heap[0] + hidden(x)

    return program, lambda: sorted(heap)


@once
def a_queue():
    waiting = queue.Queue()

    def program(x):
        waiting.put(1)
        return x + hidden(x)

    return program, lambda: waiting.qsize()


@once
def a_last_in_order():
    order = collections.OrderedDict(a=1, b=2)

    def program(x):
        order.move_to_end("a")
        order["c"] = len(order)
        return x * order["c"] + hidden(x)

    return program, lambda: [*order.values()]


@once
def a_chain_of_maps():
    maps = collections.ChainMap({}, {"a": 1})

    def program(x):
        maps["a"] = maps["a"] + 1
        return x * maps["a"] + hidden(x)

    return program, lambda: maps["a"]


@once
def a_dictionary_of_weak_values():
    class Thing:
        pass

    kept, things = weakref.WeakValueDictionary(), []

    def program(x):
        thing = Thing()
        things.append(thing)
        kept[len(kept)] = thing
        return x * len(kept) + hidden(x)

    return program, lambda: (len(kept), len(things))


@once
def an_array_of_numpy():
    steps = np.zeros(2)

    def program(x):
        steps[0] += 1
        return x * float(steps[0]) + hidden(x)

    return program, lambda: steps.tolist()


@once
def a_view_of_an_array_of_numpy():
    steps = np.zeros((2, 2))

    def program(x):
        row = steps[1]
        row += 1
        return x * float(steps.sum()) + hidden(x)

    return program, lambda: steps.ravel().tolist()


@once
def a_long_list():
    items = [*range(100_000)]

    def program(x):
        items.append(1)
        return x + hidden(x)

    return program, lambda: len(items)


# Iterators, files, random numbers.


@once
def batches_of_an_iterator():
    batches = iter([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])

    def program(x):
        return x * next(batches) + hidden(x)

    return program, lambda: next(batches, -1.0)


@once
def batches_of_an_iterator_that_ends():
    batches = iter([1.0, 2.0])

    def program(x):
        for batch in batches:
            x = x * batch
        return x + hidden(x)

    return program, lambda: len([*batches])


@once
def batches_of_a_generator():
    def all_batches():
        n = 0.0
        while True:
            n += 1
            yield n

    batches = all_batches()

    def program(x):
        return x * next(batches) + stepped(x)

    return program, lambda: next(batches, -1.0)


@once
def batches_of_a_generator_unforeseen():
    batches = (float(i) for i in range(9))

    def program(x):
        return x * next(batches) + hidden(x)

    return program, lambda: next(batches, -1.0)


@once
def batches_that_are_zipped():
    batches = zip([1.0, 2.0, 3.0, 4.0] * 2, [4.0, 5.0, 6.0, 7.0] * 2, strict=True)

    def program(x):
        one, two = next(batches)
        return x * one + two + hidden(x)

    return program, lambda: next(batches, (-1.0,))[0]


@once
def batches_of_a_class():
    class Batches:
        at = 0

        def __iter__(self):
            return self

        def __next__(self):
            self.at += 1
            return float(self.at)

    batches = Batches()

    def program(x):
        return x * next(batches) + hidden(x)

    return program, lambda: batches.at


@once
def a_text_in_memory():
    text = io.StringIO()

    def program(x):
        text.write("step\n")
        return x + hidden(x)

    return program, lambda: len(text.getvalue())


@once
def a_file():
    file = tempfile.TemporaryFile("w+")  # noqa: SIM115 - the program writes to it

    def program(x):
        file.write("step\n")
        return x + hidden(x)

    return program, lambda: file.tell()


@once
def a_file_and_a_foreseen_gradient():
    file = tempfile.TemporaryFile("w+")  # noqa: SIM115 - the program writes to it

    def program(x):
        file.write("step\n")
        return x + stepped(x)

    return program, lambda: file.tell()


@once
def what_is_logged():
    seen = []

    class Kept(logging.Handler):
        def emit(self, record):
            seen.append(record.levelno)

    logger = logging.Logger("once")
    logger.addHandler(Kept())

    def program(x):
        logger.warning("a step")
        return x + hidden(x)

    return program, lambda: sorted(set(seen))  # each run of the code logs, as each prints


@once
def random_numbers_of_python():
    def program(x):
        return x * random.random() + hidden(x)

    return program, lambda: random.random()


@once
def random_numbers_of_numpy():
    def program(x):
        return x * float(np.random.uniform()) + hidden(x)  # noqa: NPY002 - which programs draw from

    return program, lambda: np.random.uniform()  # noqa: NPY002


@once
def random_numbers_of_ones_own():
    draws = random.Random(3)

    def program(x):
        order = [1.0, 2.0, 3.0]
        draws.shuffle(order)
        return x * order[0] + hidden(x)

    return program, draws.random


@once
def augmentation_before_a_condition():
    draws = np.random.default_rng(3)

    def program(x):
        y = x * float(draws.uniform(1, 2))
        return y + 1 if y.sum() > 0 else y - 1

    return program, draws.random


# Conditions, loops, hooks, inputs that are asked.


@once
def a_count_before_a_loop():
    s = types.SimpleNamespace(n=0)

    def program(x):
        s.n += 1
        while x.abs().sum() < 10:
            x = x * 2 + 1
        return x * s.n

    return program, lambda: s.n


@once
def a_count_before_a_split_condition():
    s = types.SimpleNamespace(n=0)

    def program(x):
        s.n += 1
        extra = [x] if x.sum() > 0 else [x, x]
        return x * len(extra) * s.n

    return program, lambda: s.n


@once
def a_gradient_then_a_condition():
    s = types.SimpleNamespace(n=0)

    def program(x):
        s.n += 1
        y = x + hidden(x)
        return y + s.n if y.sum() > 0 else y

    return program, lambda: s.n


@once
def a_condition_then_a_gradient():
    s = types.SimpleNamespace(n=0)

    def program(x):
        s.n += 1
        y = x * 2 if x.sum() > 0 else x
        return y + hidden(y) * s.n

    return program, lambda: s.n


@once
def a_hook_that_counts():
    hits = []

    def program(x):
        w = leaf()
        w.register_hook(lambda g: hits.append(1))
        (x * w).sum().backward()
        return x + w.grad.detach()

    return program, lambda: len(hits)


@once
def a_hook_on_the_input():
    s = types.SimpleNamespace(n=0)

    def program(x):
        s.n += 1
        y = x * 3
        if y.requires_grad:
            y.register_hook(lambda g: g * 2)
        return y * s.n

    return program, lambda: s.n


@once
def a_count_before_the_input_is_asked():
    m = Counted()

    def program(x):
        y = m(x)
        return y * 2 if x.requires_grad else y * 3

    return program, lambda: (m.calls, m.seen)


@once
def an_exception_that_is_handled():
    errors = []

    def program(x):
        with contextlib.suppress(KeyError):
            errors.append(1)
            _ = {}["k"]
        return x * len(errors) + hidden(x)

    return program, lambda: errors


@once
def a_length_and_a_number():
    s = types.SimpleNamespace(n=0)

    def program(x):
        s.n += 1
        return x * len(x[x > 0]) + math.sqrt(x.square().sum().item()) * s.n

    return program, lambda: s.n


@once
def a_step_of_an_optimizer():
    class Trainer:
        def __init__(self):
            self.steps = 0

        def step(self, y):
            w = nn.Parameter(torch.ones(3))
            optimizer = torch.optim.SGD([w], lr=0.1)
            self.steps += 1
            (y * w).sum().backward()
            optimizer.step()
            return w.detach()

    trainer = Trainer()

    def program(x):
        return x + trainer.step(x)

    return program, lambda: trainer.steps


@once
def a_step_every_second_call():
    s = types.SimpleNamespace(n=0)

    def program(x):
        s.n += 1
        return x + hidden(x) if s.n % 2 == 0 else x * s.n

    return program, lambda: s.n


@once
def an_order_that_moves():
    items = collections.OrderedDict(a=1, b=2, c=3)

    def program(x):
        items.move_to_end(next(iter(items)))
        k = next(iter(items.values()))
        return x * k if x.sum() > 0 else x - k

    return program, lambda: [*items.values()]


@once
def an_attribute_of_a_tensor():
    t = torch.zeros(1)
    t.n = 0

    def program(x):
        t.n += 1
        return x * t.n if x.sum() > 0 else x - t.n

    return program, lambda: t.n


@once
def an_attribute_that_a_tensor_lacks():
    t = torch.zeros(1)

    def program(x):
        t.n = getattr(t, "n", 0) + 1
        return x * t.n if x.sum() > 0 else x - t.n

    return program, lambda: t.n


@once
def a_level_of_a_logger():
    log = logging.getLogger("of a test")
    log.setLevel(1)

    def program(x):
        log.setLevel(log.level + 1)
        return x * log.level if x.sum() > 0 else x - log.level

    return program, lambda: log.level


@once
def a_view_of_bytes():
    view = memoryview(bytearray(2))

    def program(x):
        view[0] = view[0] + 1
        return x * view[0] if x.sum() > 0 else x - view[0]

    return program, lambda: view[0]


@once
def an_arbitrary_item():
    items = set(range(1, 40))

    def program(x):
        k = items.pop()
        return x * k if x.sum() > 0 else x - k

    return program, lambda: len(items)


@once
def the_environment():
    os.environ["OF_A_TEST"] = "0"

    def program(x):
        os.environ["OF_A_TEST"] = str(int(os.environ["OF_A_TEST"]) + 1)
        k = int(os.environ["OF_A_TEST"])
        return x * k if x.sum() > 0 else x - k

    return program, lambda: int(os.environ["OF_A_TEST"])
