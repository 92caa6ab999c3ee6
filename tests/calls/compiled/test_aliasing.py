"""Random programs of views, copies and writes, some of their steps in a compiled part and the others around it:
PyTorch and the translation must agree on every live tensor, and on the module's.

More programs than the few by default: ``TORCH2JAX_PROGRAMS=1000 pytest tests/calls/compiled/test_aliasing.py``.
"""

import os
import warnings

import hypothesis
import torch
from hypothesis import strategies as st

from torch2jax import t2j

from ...tensors.test_aliasing import State, assert_close, inputs, metadata, random_programs, steps

PROGRAMS = int(os.environ.get("TORCH2JAX_PROGRAMS", "40"))
CALLS = 2  # the second one finds the programs of the first

segments = st.lists(st.tuples(st.booleans(), st.lists(steps, min_size=1, max_size=5)), min_size=1, max_size=4)


def outside() -> list[torch.Tensor]:
    """What the module closes over."""
    _, b, _, d = inputs()
    return [b * 3, d + 1]


class Running(torch.nn.Module):
    """Runs the steps of a program on its arguments, its buffers, and tensors from outside.

    Args:
        segments: the steps, and whether a part runs them.
        others: the tensors from outside.
    """

    def __init__(self, segments, others: list[torch.Tensor]):
        super().__init__()
        a, _, c, _ = inputs()
        self.segments, self.others = segments, lambda: others
        self.register_buffer("whole", a + 1)
        self.register_buffer("rows", self.whole[1:])
        self.register_buffer("complex", c * 2)

    def part(self, live: list[torch.Tensor], number: int) -> list[str | None]:
        return self.run(live, number)

    def run(self, live: list[torch.Tensor], number: int) -> list[str | None]:
        """Adds to the live tensors; gives what the steps raised."""
        state, raised = State(live), []
        for step in self.segments[number][1]:
            try:
                step.run(state)
                raised.append(None)
            except Exception as error:
                raised.append(type(error).__name__)
        return raised

    def forward(self, *given):
        live = [*given, self.whole, self.rows, self.complex, *self.others()]
        raised = [
            (self.part if is_part else self.run)(live, number) for number, (is_part, _) in enumerate(self.segments)
        ]
        _notes[:] = [raised, metadata(State(live))]
        return live, [self.whole, self.rows, self.complex]


_notes: list = []


def check(segments) -> bool:
    """Asserts that PyTorch and the translation with a compiled part agree about a program; False if it is refused."""
    live, buffers = Running(segments, outside())(*inputs())
    raised, expected = _notes
    others = outside()
    translated = t2j(Running(segments, others), compile=["part"])
    for _ in range(CALLS):
        got, got_buffers = translated(*map(t2j, inputs()))
        if any("NotImplementedError" in each for each in _notes[0]):
            return False  # memory that is to be shared has views already
        assert _notes[0] == raised
        for i, (a, b) in enumerate(zip(_notes[1], expected, strict=True)):
            assert a == b, f"live tensor {i}: {a}, in PyTorch {b}"
        for i, (a, b) in enumerate(zip(got, live, strict=True)):
            assert_close(a, b, f"live tensor {i}")
        for i, (a, b) in enumerate(zip(got_buffers, buffers, strict=True)):
            assert_close(a, b, f"buffer {i}")
    for a, b in zip(others, outside(), strict=True):
        assert torch.equal(a, b), "a tensor from outside was changed"
    return True


PROGRAMS_IN_PARTS = segments.filter(lambda segments: any(is_part for is_part, _ in segments))


@random_programs(PROGRAMS, is_quick=PROGRAMS <= 200)
@hypothesis.given(PROGRAMS_IN_PARTS)
def test_random_programs_in_parts_agree(segments):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check(segments)
