"""Objects from outside are left as one run leaves them, however often the code runs, or the call is refused by name.

`python -m scripts.control_flow once` runs all of these programs.
"""

import collections
import contextvars
import dataclasses
import functools
import types

import jax
import jax.numpy as jnp
import pytest
import torch

from tests.control.programs import once
from torch2jax import BranchError, t2j
from torch2jax.transforms.runs import Execution

WRITTEN = [name for name in once.names() if not name.startswith("random")]
REFUSED = {
    "a counter of itertools": "a count from outside",
    "a queue": "a lock from outside",
    "a long list": "items is written to",
    "a file": "a TextIOWrapper from outside",
    "batches of a generator unforeseen": "a generator from outside",
    "a view of bytes": "view (memoryview) from outside",
    "an arbitrary item": "set.pop() removes an arbitrary item",
    "the environment": "a _Environ from outside",
    "a step every second call": r"SimpleNamespace.n is written to",
}
WHEN_TRACED = ("the environment", "a view of bytes", "an arbitrary item")
X = jnp.ones(3)


@pytest.mark.parametrize("name", [f"random {i}" for i in (0, 2, 4, 12, 20, 58, 145)])
def test_random_programs(name):
    found = once.run(name)
    assert found.kind in ("right", "refused"), found.text


WRITTEN_ANEW = [
    *("an order that moves", "an attribute of a tensor", "an attribute that a tensor lacks"),
    *("a level of a logger", "a view of bytes", "an arbitrary item"),
]


@pytest.mark.parametrize("name", [*WRITTEN[::7], *WRITTEN_ANEW])
def test_programs_of_people(name):
    found = once.run(name, ways=("eager", "jit", "vmap"))
    assert found.kind in ("right", "refused"), found.text


@pytest.mark.parametrize("name", REFUSED)
def test_what_nobody_can_put_back_is_named(name):
    found = once.run(name, ways=("jit" if name in WHEN_TRACED else "eager",))
    assert found.kind == "refused"
    assert REFUSED[name] in found.text


@pytest.mark.parametrize(
    ("name", "eager", "jit"), [("a dataclass logs losses", 1, 2), ("a dataclass logs losses unforeseen", 2, 2)]
)
def test_how_often_the_code_runs(name, eager, jit):
    for way, runs in (("eager", eager), ("jit", jit)):
        found = once.ended(once.made(name), way)
        assert (found.kind, found.first, found.later) == ("right", runs, 0 if way == "jit" else 1)


def test_later_calls_of_code_that_asks_run_once(monkeypatch):
    """The first one has found out that it asks; objects from outside are left as one run leaves them each time."""
    runs, begin = [], Execution.begin
    monkeypatch.setattr(Execution, "begin", lambda self: (runs.append(self), begin(self))[1])
    kept = types.SimpleNamespace(n=0)

    def function(x):
        kept.n += 1
        y = x * kept.n
        if y.sum() > 0:
            y = y * 2
        kept.n += 1
        return y

    translated = t2j(function)
    for call in range(4):
        found = (jax.jit(lambda x: translated(x)) if call % 2 else jax.vmap(translated))(jnp.ones((2, 3)))
        assert (found == 2 * (2 * call + 1)).all()
        assert kept.n == 2 * (call + 1)
        assert len(runs) == (1 if call else 2)
        runs.clear()
    assert (translated(X) == 18).all()
    assert len(runs) == 1


def test_a_derivative_after_the_call_leaves_objects_as_they_are():
    """It runs the code again, from what the call began with."""
    kept = types.SimpleNamespace(n=0)

    def function(x):
        kept.n += 1
        y = x * kept.n
        if y.requires_grad:
            y.register_hook(lambda gradient: gradient * 2)
        return y.sum()

    _, pull = jax.vjp(jax.jit(t2j(function)), X)
    assert kept.n == 1
    kept.n = 5
    assert (pull(jnp.ones(()))[0] == 2).all()
    assert kept.n == 5


def test_methods_of_containers_are_hooks_of_runs_that_are_converted():
    seen = []

    def function(x):
        w = torch.full((3,), 2.0, requires_grad=True)
        w.register_hook(seen.append)
        getattr((x * w).sum(), "back" + "ward")()
        seen.clear()
        return w.grad

    assert (t2j(function)(X) == 1).all()


def test_a_cache_that_an_abandoned_run_has_filled():
    calls = []

    @functools.cache
    def table(n):
        calls.append(n)
        return float(n)

    table(1)

    def function(x):
        w = (x * table(2)).requires_grad_()
        getattr(w.square().sum(), "back" + "ward")()
        return w.grad

    assert (t2j(function)(X) == 4).all()
    assert calls == [1, 2]


@dataclasses.dataclass
class Notes:
    """Has containers that code makes which is not converted."""

    losses: list = dataclasses.field(default_factory=list)
    by_name: dict = dataclasses.field(default_factory=lambda: collections.defaultdict(list))


def test_what_unseen_code_makes_in_the_call_is_not_from_outside():
    def function(x):
        notes = Notes()
        x = x.clone().requires_grad_()
        notes.losses.append((x * x).sum())
        notes.by_name["loss"].append(notes.losses[0] * 2)
        notes.by_name["loss"][0].backward()
        if notes.losses[0] > 1:
            notes.losses.append(x.grad.sum())
        else:
            notes.losses.append(-x.grad.sum())
        return notes.losses

    for found in (t2j(function)(X), jax.jit(t2j(function))(X)):
        assert [float(x) for x in found] == [3, 12]


def test_what_unseen_code_has_made_before_the_call_is():
    notes = [Notes()]
    hidden = types.MappingProxyType({"notes": notes})

    def function(x):
        hidden["notes"][0].losses.append(0)
        x = x.clone().requires_grad_()
        (x * x).sum().sqrt().backward()
        return torch.autograd.grad(x.sum(), x)[0] if x.grad is None else x.grad

    with pytest.raises(BranchError, match=r"losses|a list is written to in the call"):
        jax.jit(t2j(function))(X)


def test_a_context_variable_that_had_no_value():
    level = contextvars.ContextVar("level")

    def function(x):
        token = level.set(3)
        try:
            x = x.clone().requires_grad_()
            (x * x).sum().backward()
            return x.grad * level.get() if x.sum() > 0 else x.grad
        finally:
            level.reset(token)

    for call in (t2j(function), jax.jit(t2j(function))):
        assert call(X).tolist() == [6, 6, 6]
        assert level.get(None) is None
