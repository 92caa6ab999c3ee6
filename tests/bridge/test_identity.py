"""The numbers of calls in programs: another process has them too, and no two functions of one have the same."""

import functools
import re
from collections import Counter

import jax
import jax.numpy as jnp
import pytest
import torch
from torch import nn

from torch2jax import torch2jax
from torch2jax.bridge import ffi
from torch2jax.bridge.specialise import identity_of

X = jnp.ones(3)


def named(x):
    return torch.sin(x) * 2


def made(factor):
    return lambda x: torch.sin(x) * factor


def numbers() -> list[str]:
    """Of some programs that nobody else has, in which there are gradients and batches too."""
    call = torch2jax(made(2.5), X)
    programs = (
        jax.jit(torch2jax(named, X)).lower(X),
        jax.jit(torch2jax(named, X)).lower(X),  # another function with the same code
        jax.jit(torch2jax(made(3.5), X)).lower(X),
        jax.jit(torch2jax(nn.Linear(3, 3), X)).lower(X),
        jax.jit(jax.grad(lambda x: call(x).sum())).lower(X),
    )
    return [number for program in programs for number in re.findall(r"site = (-?\d+)", program.as_text())]


@pytest.fixture
def another_process(monkeypatch):
    """What is as in a process that has registered nothing; a real one takes long to begin."""
    monkeypatch.setattr(ffi, "_counts", Counter())
    monkeypatch.setattr(ffi, "_given", set())
    monkeypatch.setattr(ffi, "_sites", {})


@pytest.fixture
def found(another_process):
    return numbers()


def test_another_process_has_the_same(found, monkeypatch):
    assert len(set(found)) == len(found) == 5
    assert set(numbers()).isdisjoint(found)
    for name, empty in (("_counts", Counter()), ("_given", set()), ("_sites", {})):
        monkeypatch.setattr(ffi, name, empty)
    assert numbers() == found


class _Callable:
    def __call__(self, x):
        return x


def test_what_tells_functions_apart():
    functions = [named, made(1), made(2), made(named), nn.Linear(3, 3), nn.Linear(3, 4), torch.sin, nn.ReLU().forward]
    functions += [
        functools.partial(named),
        functools.partial(torch.add, alpha=2),
        functools.partial(torch.add, alpha=3),
    ]
    found = [identity_of(function) for function in functions]
    assert None not in found
    assert len(set(found)) == len(found)
    assert found == [identity_of(function) for function in functions]
    for function in (_Callable(), made(_Callable()), made(torch.ones(3)), functools.partial(torch.add, other=X)):
        assert identity_of(function) is None
