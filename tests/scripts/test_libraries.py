"""The script that runs other libraries' typical uses: those whose libraries are here, and its page."""

import dataclasses
import re

import pytest
import torch

from scripts import watched
from scripts.libraries import PAGE, wanted
from scripts.uses import worker
from scripts.uses.outcome import Outcome, Results
from scripts.uses.page import page
from scripts.uses.running import difference, run
from scripts.uses.use import FILES, On, Use, all_uses

USES = all_uses()
HERE = (
    "e3nn: a tensor product with spherical harmonics, gated",
    "opt_einsum: a contraction in the order that costs least",
)


def _use(make, **options) -> Use:
    return Use("e3nn", "a field", "a use", make, **options)


def _scaled(scale: float):
    """A module whose result and gradients are `scale` times those of PyTorch where it is translated."""

    def make():
        def f(layer, x):
            return layer(x) * (1 if type(x) is torch.Tensor else scale), torch.ones(2, dtype=torch.int64)

        return On(f, torch.nn.Linear(3, 2)), (torch.randn(4, 3), torch.arange(2))[:1]

    return make


@pytest.mark.parametrize("name", HERE)
def test_a_use_agrees(name):
    outcome = run(USES[name])
    assert outcome.agrees, outcome.traceback
    assert outcome.gradient is not None


@pytest.mark.parametrize(("scale", "agrees"), [(1, True), (1 + 3e-4, False)])
def test_a_difference_is_found(scale, agrees):
    outcome = run(_use(_scaled(scale)))
    assert outcome.pytorch
    assert outcome.agrees == agrees, outcome.traceback
    assert outcome.forward == pytest.approx(abs(scale - 1), abs=1e-6)
    assert outcome.gradient == pytest.approx(abs(scale - 1), abs=1e-6)
    assert run(_use(_scaled(scale), tolerance=1e-3, because="a test")).agrees


def test_what_a_use_raises_is_its_outcome():
    def fails(x):
        raise ZeroDivisionError("in both")

    outcome = run(_use(lambda: (fails, (torch.ones(2),))))
    assert (outcome.pytorch, outcome.agrees, outcome.error) == (False, False, "ZeroDivisionError: in both")
    outcome = run(_use(lambda: (lambda x: x * float(str(x.sum().item())), (torch.ones(2),))))
    assert (outcome.pytorch, outcome.forward, outcome.gradient) == (True, None, None)
    assert outcome.error.startswith("TracedValueError")
    outcome = run(_use(lambda: (lambda x: x.round(), (torch.ones(2),))))
    assert outcome.error == "ValueError: a use without gradients"


def test_gradients_of_complex_numbers_are_compared():
    assert run(_use(lambda: (lambda x: x * x, (torch.randn(3, dtype=torch.complex64),)))).agrees


def test_differences_are_relative():
    a, b = torch.tensor([1.0, 100.0]).numpy(), torch.tensor([2.0, 100.0]).numpy()
    assert difference([a], [b]) == pytest.approx(0.01)
    assert difference([a * 1e-9, a], [b * 1e-9, a]) == pytest.approx(1e-8)  # nothing beside the other
    with pytest.raises(AssertionError, match="dtypes"):
        difference([a], [b.astype("int32")])
    with pytest.raises(AssertionError, match="not finite"):
        difference([a], [b * float("inf")])


def test_only_what_is_missing_is_run(tmp_path):
    results = Results(tmp_path / "build" / "results.jsonl")
    first, second, *_ = USES
    results.append(Outcome(first, "1", error="ValueError: no"))
    results.append(Outcome(second, "1", agrees=True))
    results = Results(results.path)
    assert {use.name for use in wanted(results, USES, "", None)} == {*USES} - {first, second}
    assert [use.name for use in wanted(results, USES, first, None)] == []
    assert [use.name for use in wanted(results, USES, first.upper(), "failed")] == [first]
    assert [use.name for use in wanted(results, USES, second, "all")] == [second]


def test_the_page_tells_what_fails_and_why():
    good, bad = _use(_scaled(1)), dataclasses.replace(_use(_scaled(1), fails="since"), what="another use")
    uses = {use.name: use for use in (good, bad)}
    outcomes = {
        good.name: Outcome(good.name, "1.2", "2.0+cpu", "0.1", True, 1e-7, 2.4e-7, 0.5, 1.25, True),
        bad.name: Outcome(bad.name, "1.2", "2.0+cpu", "0.1", True, error="ValueError: 1|`x`"),
    }
    lines = list(page(uses, outcomes))
    assert "1 libraries, 2 uses: 1 agree (50.0 %)." in lines
    assert "| e3nn | 1.2 | a field | a use | 1e-07 | 2e-07 | 0.5 | 1.2 |" in lines
    assert "| e3nn | 1.2 | a field | another use | fails | fails |  |  |" in lines
    assert r"| e3nn | another use | since: `ValueError: N\|'x'` |" in lines


def test_the_page_is_that_of_the_uses():
    rows = re.findall(r"^\| (\S+) \| \S+ \| ([^|]+) \| ([^|]+) \| [^|]+ \| [^|]+ \| [\d.]* \|", PAGE.read_text(), re.M)
    assert rows == [(use.library, use.field, use.what) for use in USES.values()]
    assert len({use.library for use in USES.values()}) >= 60
    assert all(use.make.__module__.removeprefix("scripts.uses.") in FILES for use in USES.values())


def test_a_use_that_hangs_costs_only_itself(monkeypatch):
    monkeypatch.setattr(watched, "_LOAD", 0)
    first, second = worker.outcomes([USES[name] for name in HERE], timeout=0)
    assert (first.use, second.use) == HERE
    assert first.error == second.error == "TimeoutError: more than 0 s"
