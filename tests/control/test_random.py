"""Random programs with conditions on data: a few; `scripts.control_flow random` runs more."""

import pytest

from tests.control.programs import generator
from tests.control.programs.outcomes import Outcome

SEEDS = {"conditions": 2, "loops": 2, "aliases": 2, "objects": 3, "gradients": 2, "mixed": 1}
"""How many of each family run."""


@pytest.mark.parametrize("family", generator.FAMILIES)
def test_random_programs(family):
    found = {name: generator.run(name, limit=4) for name in (f"{family} {seed}" for seed in range(SEEDS[family]))}
    bad = {name: each for name, each in found.items() if each.kind in ("wrong", "error")}
    assert not bad


@pytest.mark.parametrize("family", generator.FAMILIES)
def test_a_seed_gives_the_same_program(family):
    texts = {generator.source(f"{family} {seed}") for seed in range(20)}
    assert len(texts) == 20
    assert texts == {generator.source(f"{family} {seed}") for seed in range(20)}
    for text in texts:
        compile(text, family, "exec")


def test_minimal_keeps_what_matters(monkeypatch):
    """Of a program that is wrong where it holds a list with a second name, that is left."""

    def outcome(text: str, name: str, limit: float) -> Outcome:
        compile(text, name, "exec")
        return Outcome("wrong" if "m = l\n" in text and "if " in text else "right")

    monkeypatch.setattr(generator, "_outcome", outcome)
    name = next(n for n in (f"aliases {seed}" for seed in range(99)) if "m = l\n" in generator.source(n))
    text = generator.minimal(name)
    assert "m = l\n" in text
    assert "if " in text
    assert len(text.splitlines()) < 20
