"""The examples in docstrings of public functions give what they say."""

import doctest

import pytest

import torch2jax

WITH_EXAMPLES = ["export", "j2t", "load_state", "t2j", "torch2jax"]


@pytest.mark.parametrize("name", WITH_EXAMPLES)
def test_examples(name: str):
    (example,) = doctest.DocTestFinder(recurse=False).find(getattr(torch2jax, name), name, globs={})
    assert example.examples
    assert doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE).run(example).failed == 0
