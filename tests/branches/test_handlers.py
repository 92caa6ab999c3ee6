"""Which code would handle an exception of what it calls."""

import contextlib
import sys

import pytest
import torch

from torch2jax.branches.handlers import is_handled


class Swallowing(contextlib.AbstractContextManager):
    def __exit__(self, *_):
        return True


class Holder:
    context = Swallowing()


def of_pytorch(asked):
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        return asked()


def of_nothing(asked):
    with contextlib.nullcontext() as context:
        return asked() or context


def of_several_lines(asked):
    with torch.set_grad_enabled(max(1, 2) > 1):
        return asked()  # fmt: skip


def behind_its_block(asked):
    with Swallowing():
        pass
    return asked()


def by_except(asked):
    try:
        return asked()
    except ValueError:
        return None


def by_a_class(asked):
    with Swallowing():
        return asked()


def by_the_outer_one(asked):
    with Swallowing(), torch.no_grad():
        return asked()


def by_the_inner_one(asked):
    with torch.no_grad(), Swallowing():
        return asked()


def by_an_attribute(asked, holder=Holder):
    with holder.context:
        return asked()


def by_an_outer_block(asked):
    with contextlib.suppress(ValueError):  # noqa: SIM117
        with torch.no_grad():
            return asked()


def by_what_nobody_knows(asked):
    context = torch.no_grad()
    with context:
        return asked()


@pytest.mark.parametrize(
    ("function", "wanted"),
    [
        (of_pytorch, False),
        (of_nothing, False),
        (of_several_lines, False),
        (behind_its_block, False),
        (by_except, True),
        (by_a_class, True),
        (by_the_outer_one, True),
        (by_the_inner_one, True),
        (by_an_attribute, True),
        (by_an_outer_block, True),
        (by_what_nobody_knows, True),
    ],
)
def test_what_handles_exceptions(function, wanted):
    base = sys._getframe()
    assert bool(function(lambda: is_handled(sys._getframe(1), base))) is wanted
