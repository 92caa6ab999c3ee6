"""Names of other packages: an error says what takes their place, and the documentation has the same table."""

from pathlib import Path

import pytest

import torch2jax
from torch2jax.runtime.errors.locations import INSTEAD


@pytest.mark.parametrize("name", INSTEAD)
def test_a_name_of_another_package_is_an_error_that_says_what_to_write(name):
    assert not hasattr(torch2jax, name)
    with pytest.raises(AttributeError) as asked:
        getattr(torch2jax, name)
    with pytest.raises(ImportError) as imported:
        exec(f"from torch2jax import {name}")
    for error in (asked, imported):
        assert all(part in str(error.value) for part in (name, *INSTEAD[name]))


def test_other_names_are_as_ever():
    with pytest.raises(AttributeError, match=r"^module 'torch2jax' has no attribute 'nothing'$"):
        torch2jax.nothing  # noqa: B018
    with pytest.raises(ImportError, match=r"cannot import name 'nothing'"):
        exec("from torch2jax import nothing")
    assert torch2jax.__version__


def test_the_documentation_has_the_same_table():
    page = (Path(__file__).parents[3] / "docs/coming-from.md").read_text()
    rows = page.partition("| name | of | here |\n|---|---|---|\n")[2].strip().splitlines()
    assert rows == [f"| `{name}` | {package} | {instead} |" for name, (package, instead) in INSTEAD.items()]
