"""What a step changes in the attributes of modules, and what the next step finds there."""

import contextlib
import copy
import types

import jax
import numpy as np
import pytest
import torch
from torch import nn

from tests.modules.training.test_training_steps import QUICK, arrays
from torch2jax import t2j

X = torch.tensor([[1.0, -2.0, 4.0], [-1.0, -3.0, 0.5], [2.0, 2.0, 2.0], [-6.0, 1.0, 1.0]])


class Kept(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([1.0, 2.0, 3.0]))
        self.calls, self.rate, self.is_ready, self.best, self.phase = 0, 0.5, False, None, "warm"


class Counts(Kept):
    def forward(self, x):
        self.calls += 1
        return x * self.weight / self.calls


class CountsSome(Kept):
    def forward(self, x):
        if x.sum() > 0:
            self.calls += 1
            self.rate = self.rate * 0.5
        return x * self.weight * self.rate + self.calls


class CountsParts(Kept):
    """Parts whose number data decide, so that the rest of the code goes into both sides."""

    def forward(self, x):
        parts = [x] if x.sum() > 0 else [x, x * 2]
        self.calls += len(parts)
        self.rate = 0.5 if len(parts) == 2 else 0.25
        return sum(parts) * self.calls * self.weight * self.rate


class WarmsUp(Kept):
    def forward(self, x):
        self.calls += 1
        rate = min(0.9, (1 + self.calls) / (10 + self.calls)) if self.calls > 2 else 0.0
        with torch.no_grad():
            self.weight.mul_(rate).add_(x, alpha=1 - rate)
        return self.weight * 1


class StartsFromData(Kept):
    def forward(self, x):
        if not self.is_ready:
            with torch.no_grad():
                self.weight.copy_(x)
            self.is_ready = True
        return x - self.weight


class KeepsTheBest(Kept):
    def forward(self, x):
        total = x.sum().item()
        if self.best is None or total < self.best:
            self.best = total
        return x * self.best


class MakesItsOwn(Kept):
    def forward(self, x):
        if not hasattr(self, "seen"):
            self.seen = 10
        self.seen += 1
        return x * self.seen


class HasPhases(Kept):
    def forward(self, x):
        now, self.phase = self.phase, "cold"
        return x * (2 if now == "warm" else 3)


class LeavesItsMode(Kept):
    def forward(self, x):
        result = x * (2 if self.training else 3)
        self.eval()
        return result


class Doubled(Kept):
    def __init__(self):
        super().__init__()
        self.first, self.second = Counts(), nn.Sequential(CountsSome())

    def forward(self, x):
        return self.second(self.first(x)) + self.second(x)


class LeavesModes(Doubled):
    def forward(self, x):
        result = x * (2 if self.first.training else 3) * (5 if self.second.training else 7)
        (self.first if x.sum() is not None and self.second.training else self.second).eval()
        return result


def attributes(module: nn.Module) -> dict[str, object]:
    """The numbers, flags and names of a module, by their paths."""
    return {
        f"{path}.{name}": value
        for path, part in module.named_modules()
        for name, value in vars(part).items()
        if isinstance(value, (bool, int, float, str, type(None)))
    }


def call(model, x):
    return model(x)


def of_holder(holder, x):
    return holder.model(x)


@pytest.mark.parametrize("is_jitted", [False, True], ids=["eager", "jit"])
@pytest.mark.parametrize("is_held", [False, True], ids=["module", "held"])
@pytest.mark.parametrize(
    "kind",
    [
        *(Counts, CountsSome, CountsParts, WarmsUp, StartsFromData, KeepsTheBest, MakesItsOwn, HasPhases),
        *(LeavesItsMode, Doubled, LeavesModes),
    ],
)
def test_the_next_step_finds_what_a_step_has_left(kind, is_held, is_jitted):
    model = kind()
    given, function = (types.SimpleNamespace(model=model), of_holder) if is_held else (model, call)
    twin = copy.deepcopy(given)
    step = t2j(function, state=(given,))
    state = step.init(*arrays(X[0]))
    run = jax.jit(step, compiler_options=QUICK) if is_jitted else step
    for x in X:
        found, state = run(state, *arrays(x))
        np.testing.assert_allclose(found, function(twin, x).detach().numpy(), rtol=1e-5)
    twin = twin.model if is_held else twin
    assert attributes(model) == attributes(kind())
    step.load(state)
    assert attributes(model) == pytest.approx(attributes(twin))
    torch.testing.assert_close(model.state_dict(), twin.state_dict())


def test_a_mode_that_is_set_after_init_counts():
    model = LeavesItsMode()
    model.eval = lambda: model
    step = t2j(call, state=(model,))
    state = step.init(*arrays(X[0]))
    model.train(False)
    found, state = jax.jit(step)(state, *arrays(X[0]))
    np.testing.assert_allclose(found, 3 * X[0])
    assert list(state["model"]) == ["weight"]


class Stops:
    """A flag that data set, and that the next steps ask for."""

    def __init__(self):
        self.is_done, self.kept = False, torch.zeros(3)

    def __call__(self, x):
        if self.is_done:
            return torch.zeros(3)
        if x.sum() < -4:
            self.is_done = True
        self.kept.add_(x)
        return self.kept * 1


class Alarms(Kept):
    def forward(self, x):
        if x.sum() < -4:
            self.is_ready = True
        elif x.sum() > 5:
            self.is_ready = False
        return x * self.weight * (2 if self.is_ready else 3), not self.is_ready


@pytest.mark.parametrize("kind", [Stops, Alarms])
def test_data_decide_a_flag(kind):
    thing = kind()
    twin = copy.deepcopy(thing)
    step = t2j(call, state=(thing,))
    state = step.init(*arrays(X[0]))
    run = jax.jit(step, compiler_options=QUICK)
    for x in [*X, -X[0], *X]:
        found, state = run(state, *arrays(x))
        for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(call(twin, x)), strict=True):
            np.testing.assert_allclose(one, other.detach().numpy() if isinstance(other, torch.Tensor) else other)
    step.load(state)
    flags = {name: x for name, x in vars(twin).items() if isinstance(x, bool)}
    assert {name: vars(thing)[name] for name in flags} == flags


class Remembers(Kept):
    def __init__(self, how):
        super().__init__()
        self.how, self.last, self.table, self.rows, self.constant = how, torch.zeros(3), {"n": 0}, [1], torch.ones(3)
        self.settings, self.names = Stops(), types.SimpleNamespace(n=0)

    def forward(self, x):
        if self.how == "tensor":
            self.last = x * self.weight
        elif self.how == "number in a dictionary":
            self.table["n"] += 1
        elif self.how == "number in an object":
            self.settings.is_done = True
        elif self.how == "number in a namespace":
            self.names.n += 1
        elif self.how == "list":
            self.rows = [*self.rows, x]
        return x * self.weight * self.constant * self.rows[0]


@pytest.mark.parametrize(
    ("how", "name"),
    [
        ("tensor", "last"),
        ("number in a dictionary", "table"),
        ("number in an object", "settings"),
        ("number in a namespace", "names"),
        ("list", "rows"),
        ("nothing", None),
    ],
)
def test_what_no_state_keeps_is_said(how, name):
    model = Remembers(how)
    warned = contextlib.nullcontext() if name is None else pytest.warns(UserWarning, match=rf"Remembers\.{name}, and")
    with warned:  # and any other warning is an error
        t2j(call, state=(model,)).init(*arrays(X[0]))
