"""PyTorch's operator database, entry by entry: a small fixed sample of each, or with ``--full`` all there is.

The sample is for the time of CI; what it takes is `FIRST`, `HALVES`, `BY_TURNS` and `EAGER`.

``python -m tests.ops.database NAME --columns all -v`` shows more of one entry, and ``scripts/coverage.py`` runs
everything and writes ``docs/tested/coverage.md``.
"""

import copy
import fnmatch
import zlib
from collections.abc import Iterator

import jax
import pytest
import torch

from tests.ops.database import (
    DTYPES,
    Trial,
    attempt,
    cases,
    columns_of,
    dtypes_of,
    entries,
    entry,
    full_name,
    joined,
    trials,
)
from tests.ops.database.exceptions import (
    DATA_DEPENDENT,
    DATA_DEPENDENT_SAMPLES,
    EXCLUDED,
    FREEDOMS,
    LOOSER,
    RANDOM,
    RANDOM_SAMPLES,
    UNINITIALISED,
)
from tests.ops.database.modules import module_db
from tests.ops.database.options import options
from tests.ops.database.samples import bad_cases
from torch2jax import TracedValueError, t2j

# How many samples each column has when not everything is run, in the first dtype that an entry has, which most often is
# float32: what compiles is what costs.
FIRST = dict.fromkeys(("values", "jit", "gradients", "forward"), 1) | {"errors": None}
# One of these besides, by its name.
HALVES = {"vmap": 1}, {"forms": 1}
# What the other dtypes have in the sample: an entry runs in one of those that it has, by its name.
BY_TURNS = {
    torch.float64: {"x64": 1},
    torch.int64: {"values": 1},
    torch.bool: {"values": 1},
    torch.complex64: {"values": 1, "gradients": 1},
    torch.bfloat16: {"values": 1},
    torch.int32: {"values": 1},
    torch.uint8: {"values": 1},
    torch.float16: {"values": 1},
}
# The samples of an entry are compiled as one program, in a fraction of the time. For one entry in so many, by its name,
# those that can run operation by operation do, as most tests of the families do.
EAGER = 20
# What is run for one entry in so many, by its name: derivatives with 64 bits on, and constants.
SELDOM = 16
_SELDOM = {torch.float32: {"constants": 1, "wide": 1}, torch.bfloat16: {"wide": 1}}


def _plans(op) -> Iterator[tuple[torch.dtype, dict[str, int | None]]]:
    """The dtypes in a sample of an entry, with the columns of each."""
    first, *others = dtypes_of(op) or [torch.float32]
    there = [dtype for dtype in others if dtype in BY_TURNS]
    chosen = [there[_turn(op) // 2 % len(there)]] if there else []
    is_seldom = _turn(op) % SELDOM == 0
    for dtype in (first, *chosen):
        plan = FIRST | HALVES[_turn(op) % 2] if dtype == first else BY_TURNS[dtype]
        yield dtype, plan | (_SELDOM.get(dtype, {}) if is_seldom else {})


def _turn(op) -> int:
    """A number that only the name decides, so that every run has the same sample."""
    return zlib.crc32(full_name(op).encode())


def _sample(op) -> list[list[Trial]]:
    """The batches of trials in a sample of an entry."""
    batches = []
    for dtype, plan in _plans(op):
        by_limit: dict[int | None, list[str]] = {}
        for column in columns_of(op, dtype):
            if column in plan:
                by_limit.setdefault(plan[column], []).append(column)
        for limit, columns in by_limit.items():
            batches += trials(op, dtype, columns, limit)
    return joined(batches, eager=_turn(op) % EAGER == 0)


def pytest_generate_tests(metafunc):
    if metafunc.function is test_entry:
        full = metafunc.config.getoption("full")
        if full:
            rows = [(full_name(op), dtype) for op in entries() for dtype in DTYPES if columns_of(op, dtype)]
        else:
            rows = [(full_name(op), None) for op in entries() if any(columns_of(op, dtype) for dtype in DTYPES)]
        ids = [name if dtype is None else f"{name}-{str(dtype).removeprefix('torch.')}" for name, dtype in rows]
        metafunc.parametrize(("name", "dtype"), rows, ids=ids)


def test_entry(name, dtype):
    """An entry in one dtype, or a sample of it in several."""
    op = entry(name)
    for batch in _sample(op) if dtype is None else trials(op, dtype, columns_of(op, dtype), full=True):
        for trial, error in attempt(batch):
            if error is not None:
                raise AssertionError(f"{trial}: {type(error).__name__}: {error}") from error


def _matching(pattern: str) -> list:
    return [op for op in entries() if fnmatch.fnmatchcase(full_name(op), pattern)]


@pytest.mark.parametrize("pattern", [*DATA_DEPENDENT, *DATA_DEPENDENT_SAMPLES])
def test_what_data_decides_is_refused_under_jit(pattern):
    for op in _matching(pattern):
        refusals = 0
        for case in cases(op, dtypes_of(op)[0], 20):
            try:
                jax.eval_shape(t2j(case.traced), *map(t2j, case.tensors))
            except TracedValueError:
                refusals += 1
            except TypeError:  # a result that is no array
                continue
        assert refusals, f"{full_name(op)} needs no values: take it off DATA_DEPENDENT"


EXCEPTIONS = [
    *(exception.pattern for exception in (*EXCLUDED, *LOOSER)),
    *FREEDOMS,
    *RANDOM,
    *RANDOM_SAMPLES,
    *UNINITIALISED,
    *DATA_DEPENDENT,
    *DATA_DEPENDENT_SAMPLES,
]
MODULES = [*(info.name for info in module_db), *(option.name for option in options())]


@pytest.mark.parametrize("pattern", sorted(set(EXCEPTIONS)))
def test_every_exception_is_of_an_entry_or_module(pattern):
    assert _matching(pattern) or fnmatch.filter(MODULES, pattern)


def test_a_wrong_result_is_found():
    (case,) = cases(entry("add"), torch.float32, 1)
    case.function = lambda *tensors: torch.sub(*tensors) if hasattr(tensors[0], "_node") else torch.add(*tensors)
    for column in ("values", "jit", "vmap"):
        with pytest.raises(AssertionError):
            Trial(column, case)()


def test_a_wrong_result_is_found_whose_length_data_decide():
    (case,) = cases(entry("masked_select"), torch.float32, 1)
    right = case.function
    case.function = lambda *tensors: right(*tensors) + hasattr(tensors[0], "_node")
    for column in ("jit", "vmap"):
        with pytest.raises(AssertionError, match="Mismatched"):
            Trial(column, case)()


def test_a_wrong_gradient_is_found():
    (case,) = cases(entry("sin"), torch.float32, 1, requires_grad=True)
    case.differentiable = lambda x: [(x * x.detach() if hasattr(x, "_node") else x * x)]
    with pytest.raises(AssertionError):
        Trial("gradients", case)()


def test_a_wrong_result_is_found_among_right_ones():
    right, wrong, other = cases(entry("add"), torch.float32, 3)
    wrong.function = lambda *tensors: torch.sub(*tensors) if hasattr(tensors[0], "_node") else torch.add(*tensors)
    for column in ("jit", "vmap"):
        found = [error for _, error in attempt([Trial(column, case) for case in (right, wrong, other)])]
        assert [isinstance(error, AssertionError) for error in found] == [False, True, False]


def test_an_answer_to_a_bad_input_is_found():
    op = entry("gather")
    patient = copy.copy(op)
    patient.op = lambda x, *args, **kwargs: x if hasattr(x, "_node") else op(x, *args, **kwargs)
    with pytest.raises(AssertionError, match="PyTorch raises"):
        Trial("errors", next(bad_cases(patient)))()
