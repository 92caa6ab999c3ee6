"""Programs that people write, with conditions and loops on data: some; `scripts.control_flow flow` runs all."""

import pytest

from tests.control.programs import flow

SAMPLE = [
    "adaptive_computation",
    "bisection",
    "break_continue_else",
    "comprehension_that_filters",
    "continue_in_finally_loop",
    "custom_function",
    "exception_from_a_call",
    "generator_with_state",
    "global_variable",
    "greedy_nms",
    "gradient_only_where_taken",
    "k_means",
    "list_with_two_names",
    "loss_scaling",
    "mixture_of_experts",
    "nested_breaks",
    "newton",
    "return_in_try",
    "sequential_with_hooks",
    "special_methods",
    "view_of_either",
    "with_contextmanager",
]


@pytest.mark.parametrize("name", SAMPLE)
def test_flow(name):
    found = flow.run(name, limit=4)
    assert found.kind not in ("wrong", "error", "torch"), found.text


def test_all_kinds_of_programs_are_there():
    assert len(flow.names()) >= 100
