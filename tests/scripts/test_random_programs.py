"""Random programs: a few of each kind that is quick, how outcomes are told apart, and what the page says."""

import pytest

from scripts import random_programs
from scripts.random_programs import KINDS, OUTCOMES, PAGE, Kind, Results, counted, page
from torch2jax.runtime.errors import TracedValueError

LEAST = 3000
QUICK = ("aliases", "branches", "checkpoints", "compiled parts")


@pytest.mark.parametrize("kind", QUICK)
def test_a_few_agree(kind, monkeypatch):
    monkeypatch.setattr(random_programs, "PER_SEED", 2)
    said = []
    outcomes = counted(kind, 1, said.append)
    assert outcomes.total() == 2
    assert not said
    assert not outcomes["wrong"]
    assert not outcomes["crashed"]


def test_outcomes_are_told_apart(monkeypatch):
    def differs():
        raise AssertionError("live tensor 0")

    def breaks():
        raise IndexError("list index out of range")

    def refuses():
        raise TracedValueError("an answer is needed")

    def run(seed, note):
        for check in (differs, breaks, refuses, lambda: "equal", lambda: "equal", lambda: "left out"):
            note(check, (seed, check.__name__))

    monkeypatch.setitem(KINDS, "told", Kind("", run, 1))
    said = []
    assert counted("told", 3, said.append) == {"wrong": 1, "crashed": 1, "refused": 1, "equal": 2, "left out": 1}
    assert len(said) == 2
    assert "wrong: live tensor 0\n(3, 'differs')" in said[0]
    assert "in breaks" in said[1]


def test_a_seed_stands_for_the_same_programs(monkeypatch):
    monkeypatch.setattr(random_programs, "PER_SEED", 3)

    def drawn(seed: int) -> list[str]:
        found = []
        KINDS["aliases"].run(seed, lambda check, program: found.append(repr(program)))
        return found

    assert drawn(5) == drawn(5) != drawn(6)
    assert len(set(drawn(5))) == 3


def test_counts_are_kept_and_added_up(tmp_path):
    results = Results(tmp_path / "counts.jsonl")
    results.append("aliases", 0, {"equal": 2, "wrong": 1})
    results.append("aliases", 1, {"equal": 3})
    results.append("branches", 0, {"left out": 4})
    lines = list(page(Results(tmp_path / "counts.jsonl")))
    assert "| aliases | 6 | 5 | 0 | 1 | 0 | 0 |" in lines
    assert "| all | 10 | 5 | 0 | 1 | 0 | 4 |" in lines


def test_the_page_is_of_enough_programs():
    rows = [line.strip("| ").split(" | ") for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    counts = {name: dict(zip(["number", *OUTCOMES], map(int, row), strict=True)) for name, *row in rows[1:]}
    assert counts.keys() == {*KINDS, "all"}
    assert counts["all"]["number"] >= LEAST
    assert not any(row["wrong"] or row["crashed"] for row in counts.values())
