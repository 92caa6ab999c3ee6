"""The examples in docstrings of public functions give what they say."""

import doctest

import pytest

import torch2jax
from torch2jax import tools

WITH_EXAMPLES = ["export", "j2t", "load_state", "t2j", "torch2jax"]


TOOLS = ["bench", "bisect", "check", "doctor"]


@pytest.mark.parametrize("name", [*WITH_EXAMPLES, *(f"tools.{name}" for name in TOOLS)])
def test_examples(name: str):
    function = getattr(tools if name.startswith("tools.") else torch2jax, name.removeprefix("tools."))
    (example,) = doctest.DocTestFinder(recurse=False).find(function, name, globs={})
    assert example.examples
    assert doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE).run(example).failed == 0
