"""The page of versions, and the order in which tests are sampled."""

from scripts import versions


def test_what_decides_has_a_digest(monkeypatch):
    before = versions.digest()
    assert versions.digest() == before
    monkeypatch.setattr(versions, "_DECIDES", ("scripts/versions.py",))
    assert versions.digest() != before


def test_a_page_is_read_again():
    steps, counts = {"contract": True, "first program": True, "check": False}, {"tests": 3, "passed": 2, "skipped": 0}
    rows, failures = {}, {}
    for release in ("2.9.1", "2.15.0+cpu", "2.13.0"):
        found = ("3.11.7", release, "0.10.2")
        rows[found] = versions.row(list(found), steps, counts | {"failed": 1})
        failures[f"Python 3.11.7, PyTorch {release}, JAX 0.10.2"] = {
            "tests/test_a.py::test_one[a b]": "",
            "tests/test_c.py::TestGraphs::test_d": "a reason: two parts",
        }
    text = "\n".join(versions.page(rows, failures))
    assert versions.known(text) == (rows, failures)
    assert text.index("2.9.1") < text.index("2.13.0") < text.index("2.15.0")
    assert "| yes | yes | **no** | 3 | 2 | 0 | 1 |" in text


def test_the_first_program_is_found():
    assert "jax.grad" in versions.first_program()
