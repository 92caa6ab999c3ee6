"""Random programs of views and writes, a part of which runs in a JAX trace of its own: as if there were none."""

import functools
import os
import warnings

import hypothesis
import jax.numpy as jnp
from hypothesis import strategies as st
from torch.utils.checkpoint import checkpoint

from tests.tensors.test_aliasing import (
    State,
    assert_close,
    execute,
    gradients_in_pytorch,
    inputs,
    metadata,
    random_programs,
    steps,
    translated,
)

PROGRAMS = int(os.environ.get("TORCH2JAX_PROGRAMS", "60"))


def run_steps(program, state: State) -> None:
    for step in program:
        try:
            state.raised.append(step.run(state))
        except Exception as error:
            state.raised.append(type(error).__name__)


def checkpointed(program, state: State) -> None:
    """Runs steps in a checkpoint, that may begin anew."""
    live, raised = list(state.live), list(state.raised)

    def body():
        state.live[:], state.raised[:] = live, raised
        run_steps(program, state)

    checkpoint(body, use_reentrant=False)


def execute_in_parts(program, tensors, begin: int, end: int, nested: bool) -> State:
    state = State([tensor.clone() for tensor in tensors])
    run_steps(program[:begin], state)
    if nested:
        live, raised = list(state.live), list(state.raised)

        def body():
            state.live[:], state.raised[:] = live, raised
            checkpointed(program[begin:end], state)

        checkpoint(body, use_reentrant=False)
    else:
        checkpointed(program[begin:end], state)
    run_steps(program[end:], state)
    return state


# A program, where its part begins, how many steps that has, and whether it is a checkpoint in another.
PARTS = (st.lists(steps, min_size=2, max_size=14), st.integers(0, 6), st.integers(1, 8), st.booleans())


@random_programs(PROGRAMS, is_quick=PROGRAMS <= 300)
@hypothesis.given(*PARTS)
def test_random_programs_agree(program, begin, length, nested):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check_in_parts(program, begin, length, nested)


def check_in_parts(program, begin: int, length: int, nested: bool) -> None:
    """Asserts that a program agrees, some steps of which run in a checkpoint."""
    check(program, functools.partial(execute_in_parts, begin=begin, end=begin + length, nested=nested))


def check(program, execute_in_jax) -> None:
    expected = execute(program, inputs())
    notes: list = []
    wanted = gradients_in_pytorch(program, expected)
    results, gradients = translated(program, notes, jit=True, differentiated=wanted is not None, execute=execute_in_jax)
    assert notes[0] == metadata(expected)
    assert all(raised == expected.raised for raised in notes[1:])
    for i, (got, want) in enumerate(zip(results, expected.live, strict=True)):
        assert_close(got, want, f"live tensor {i}")
    for i, (got, want) in enumerate(zip(gradients or (), wanted or (), strict=False)):
        assert_close(jnp.conj(got), want, f"gradient of input {i}")
