"""Python's objects from outside of a call: what one path through code does to them is not there on another."""

import logging
from collections import OrderedDict, defaultdict, deque

import jax
import numpy as np
import pytest
import torch

from torch2jax import t2j
from torch2jax.runtime.errors import BranchError
from torch2jax.transforms.outer_state import OuterState

INPUTS = [np.full(2, value, np.float32) for value in (1, -1, 3)]


class Attribute:
    count = 0

    def __call__(self, x):
        if x.sum() > 4:
            self.other = 2
        if x.sum() > 0:
            self.count = 5
            x = x + 1
        return x + self.count + hasattr(self, "other")


class Slot:
    __slots__ = ("count",)

    def __init__(self):
        self.count = 0

    def step(self, x):
        if x.sum() > 0:
            self.count += 5
        return x + self.count


def of_a_slot():
    return Slot().step


def of_a_variable():
    count = 0

    def function(x):
        nonlocal count
        count += 1
        if x.sum() > 0:
            count += 5
        return x * 2 + count

    return function


def of_containers():
    listed, named, ordered, some = [1], {"a": 0}, OrderedDict(b=1), {1}
    last, counts = deque([1, 2]), defaultdict(int)

    def function(x):
        if x.sum() > 0:
            listed.append(2)
            named["c"] = 5
            ordered.move_to_end("b")
            ordered["d"] = 1
            some.clear()
            last.popleft()
            counts["e"] += 1
        return x + len(listed) + sum(named.values()) + len(ordered) + len(some) * 100 + len(last) + len(counts)

    return function


def of_a_helper():
    told = []

    def helper(x):
        told.append(x.shape)
        return x * len(told)

    def function(x):
        return helper(x) if x.sum() > 0 else x + len(told)

    return function


def of_the_first_run():
    """A derivative within needs another run; so does what is asked of inputs."""
    count = [0]

    def function(x):
        count[0] += 1
        y = x.detach().clone().requires_grad_()
        (y.sin() * count[0]).sum().backward()
        return y.grad if x.sum() < 0 else y.grad + x

    return function


class Told:
    count = 0


TOLD, TOTAL = Told(), 0


def of_global_names(x):
    global TOTAL
    if x.sum() > 0:
        TOLD.count, TOTAL = 3, 4
    return x + TOLD.count + TOTAL


def anew():
    global TOTAL
    TOTAL = 0
    vars(TOLD).clear()
    return of_global_names


MAKERS = [of_a_slot, of_a_variable, of_a_helper, of_the_first_run]


@pytest.mark.parametrize("make", MAKERS)
def test_each_path_finds_them_as_they_were(make):
    for x in INPUTS:
        wanted = make()(torch.from_numpy(x)).numpy()
        for transformed in (jax.jit(t2j(make())), lambda x, make=make: jax.jit(jax.vmap(t2j(make())))(x[None])[0]):
            np.testing.assert_allclose(transformed(x), wanted, 1e-6)


@pytest.mark.parametrize(
    ("make", "name"), [(Attribute, r"Attribute\.count"), (of_containers, "listed"), (anew, r"Told\.count")]
)
def test_what_no_object_can_hold_after_the_call_is_refused(make, name):
    """It is there on one side only, or is longer: nobody knows which of the two the user's object has to keep."""
    with pytest.raises(BranchError, match=name):
        jax.jit(t2j(make()))(INPUTS[0])


class Argument:
    def __init__(self):
        self.count, self.listed = 0, []


class Model(torch.nn.Module):
    def forward(self, given, x):
        return of_an_argument(given, x)


def of_an_argument(given, x):
    if x.sum() > 0:
        given.count = 5
        given.listed.append(1)
        x = x + 1
    return x + given.count + len(given.listed)


@pytest.mark.parametrize("function", [of_an_argument, Model()])
def test_arguments(function):
    """What data decide of an argument is put back."""
    for x in INPUTS:
        given, wanted = Argument(), function(Argument(), torch.from_numpy(x))
        found = jax.jit(lambda x, given=given: t2j(function)(given, x))(x)
        np.testing.assert_allclose(found, wanted, 1e-6)
        assert (given.count, given.listed) == (0, [])


def test_derivatives_find_them_as_they_were():
    """A function that runs again for each derivative."""
    x = INPUTS[0]
    leaf = torch.from_numpy(x.copy()).requires_grad_()
    for make in (of_a_variable, of_the_first_run):
        result = make()(leaf)
        wanted = torch.autograd.grad(result.sum(), leaf)[0].numpy() if result.requires_grad else np.ones_like(x)
        found = jax.jit(jax.grad(lambda x, make=make: t2j(make())(x).sum()))(x)
        np.testing.assert_allclose(found, wanted, 1e-6)


def test_a_training_step():
    def steps(count):
        def step(model, x):
            if x.sum() > 0:
                count.append(1)
            return model(x) * len(count)

        return step

    torch.manual_seed(0)
    model = torch.nn.Linear(2, 2)
    for x in INPUTS:
        step = t2j(steps([1]), state=(model,))
        found, _ = jax.jit(step)(step.init(x), x)
        wanted = steps([1])(model, torch.from_numpy(x))
        np.testing.assert_allclose(found, wanted.detach(), 1e-6)


def test_the_last_path_leaves_what_it_did():
    seen = []

    def function(x):
        seen.append(x.shape)
        return x + 1 if x.sum() > 0 else x

    jax.jit(t2j(function))(INPUTS[0])
    assert len(seen) == 1


class _Noting(logging.Handler):
    def __init__(self):
        super().__init__()
        self.notes = []


class _OwnLogger(logging.Logger):
    pass


@pytest.mark.parametrize("log", [logging.getLogger(), logging.getLogger("of a test"), _OwnLogger("own")])
def test_loggers_of_any_class_have_their_level_and_handlers_back(log):
    handler, level = _Noting(), log.level
    log.addHandler(handler)
    try:
        state = OuterState([log])
        state.begin()
        log.setLevel(level + 1)
        handler.notes.append(1)
        state.begin()
        assert log.level == level
        assert handler.notes == []
    finally:
        log.removeHandler(handler)
        log.setLevel(level)
