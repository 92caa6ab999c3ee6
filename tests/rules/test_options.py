"""What a rule can be told."""

import dataclasses
import re
from pathlib import Path
from typing import get_type_hints

import jax.numpy as jnp
import pytest
import torch

from torch2jax import Promotion, Rules
from torch2jax.rules import registry
from torch2jax.rules.options import RuleKeywords, RuleOptions, Tag


def test_the_keywords_are_the_options():
    assert get_type_hints(RuleKeywords) == get_type_hints(RuleOptions)
    assert list(get_type_hints(RuleKeywords)) == [field.name for field in dataclasses.fields(RuleOptions)]


def test_the_documentation_names_options():
    table = Path(__file__).parents[2].joinpath("docs/rules.md").read_text().partition("## Modules")[0]
    named = re.findall(r"^\| `(\w+)=", table, re.MULTILINE)
    assert len(named) > 8
    assert {*named} - {"replace"} <= {field.name for field in dataclasses.fields(RuleOptions)}


def test_what_is_no_option_is_refused():
    with pytest.raises(TypeError, match="promotes"):
        Rules().implements(torch.sin, promotes=Promotion.DEFAULT)


def test_rules_keep_what_they_were_told():
    rules = Rules()

    @rules.implements(torch.hypot, promote=Promotion.DEFAULT, tags=[Tag.READS])
    def _(input, other):
        return jnp.hypot(input, other)

    rule = rules.functions[torch.hypot]
    assert rule.options.promote is Promotion.DEFAULT
    assert rule.options.has_own_values
    assert {Tag.READS, Tag.FRESH} <= rule.tags
    assert not registry.lookup(torch.hypot).options.has_own_values
