"""Replacements in PyTorch during calls, and what a call that is interrupted leaves of them."""

import linecache
import sys
import threading

import jax.numpy as jnp
import pytest
import torch

from torch2jax import t2j
from torch2jax.runtime import patches
from torch2jax.runtime.translation import calls_of_thread


def snapshot():
    """What is at each place that is replaced, by its owner and name."""
    return {(id(owner), name): vars(owner).get(name, "absent") for owner, name in places()}


def places():
    for owner, name, _ in patches._patches:
        if hasattr(owner, "__dict__") and name != "__code__":
            yield owner, name


class Interrupt:
    """A tracer that raises a KeyboardInterrupt at one of the lines that run in `patches.py`."""

    def __init__(self, at: int):
        self.left = at

    def __call__(self, frame, event, arg):
        if frame.f_code.co_filename != patches.__file__ or frame.f_code.co_name in ("hand_on", "replacement"):
            return None
        # Python looks for interrupts where it calls something or begins an iteration: not where a `with` ends.
        if event == "line" and not linecache.getline(patches.__file__, frame.f_lineno).strip().startswith("with "):
            self.left -= 1
            if self.left == 0:
                raise KeyboardInterrupt
        return self


@pytest.mark.parametrize("code", [lambda x: x + 1, lambda x: torch.nn.functional.softmax(x, 0)])
def test_an_interrupt_at_any_line_leaves_pytorch_as_it_was(code):
    translated, x = t2j(code), jnp.ones(2)
    translated(x)
    before = snapshot()
    for at in range(1, 10000):
        tracer = Interrupt(at)
        sys.settrace(tracer)
        try:
            translated(x)
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(None)
        assert snapshot() == before, f"at line {at}"
        assert not calls_of_thread.stack
        assert not patches._calls
        if tracer.left > 0:
            break
    assert at > 20
    others = threading.Thread(target=translated, args=(x,), daemon=True)  # which waits for a lock that is held
    others.start()
    others.join(60)
    assert not others.is_alive()
    translated(x)
    assert snapshot() == before
