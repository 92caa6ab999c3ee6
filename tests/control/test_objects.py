"""Objects of many kinds that one side of a condition changes: a sample; `scripts.control_flow objects` runs all."""

import pytest

from tests.control.programs import objects

EVERY = 61
"""One kind of so many runs at each place and in each form."""


def _sample(place: str, form: str) -> list[str]:
    """Other kinds for each place and form."""
    first = objects.PLACES.index(place) * len(objects.FORMS) + objects.FORMS.index(form)
    return [f"{kind} / {place} / {form}" for kind in list(objects.KINDS)[first::EVERY]]


@pytest.mark.parametrize("form", objects.FORMS)
@pytest.mark.parametrize("place", objects.PLACES)
def test_what_one_side_changes(place, form):
    found = {name: objects.run(name) for name in _sample(place, form)}
    bad = {name: each for name, each in found.items() if each.kind in ("wrong", "error", "torch")}
    assert not bad


def test_programs_do_what_they_say():
    text = objects.source("list append / looped / global")
    assert "global o" in text
    assert "while z > 1:\n        o.append(z)" in text
    assert "class Slots" not in text
    assert "class Slots" in objects.source("slot / closed / function")
    assert len(objects.KINDS) >= 80
