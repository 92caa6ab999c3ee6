import contextlib
import gc

import jax
import jax.numpy as jnp
import pytest

from torch2jax import t2j

x = jnp.ones(3)


@contextlib.contextmanager
def threshold(*wanted: int):
    before = gc.get_threshold()
    gc.set_threshold(*wanted)
    try:
        yield
    finally:
        gc.set_threshold(*before)


def counted(function, *args) -> int:
    """How often the collector begins."""
    begun = 0

    def note(phase: str, _: dict) -> None:
        nonlocal begun
        begun += phase == "start"

    gc.collect()
    gc.callbacks.append(note)
    try:
        function(*args)
    finally:
        gc.callbacks.remove(note)
    return begun


def deep(x):
    for _ in range(400):
        x = x.sin() * 1.5
    return x


@pytest.mark.parametrize("loops", ["auto", "unrolled"])
def test_a_trace_of_many_operators_does_not_start_the_collector(loops):
    f = t2j(deep, loops=loops)
    with threshold(700, 10, 10):
        trace = lambda x: [None, f(x)][0]  # without what JAX makes of the equations
        jax.make_jaxpr(trace)(x)
        assert counted(jax.make_jaxpr(trace), x) <= 2
        assert gc.get_threshold() == (700, 10, 10)


@pytest.mark.parametrize("wanted", [(0, 10, 10), (200_000, 5, 5)])
def test_a_rarer_collection_or_none_at_all_stays_as_it_is(wanted):
    seen = []
    with threshold(*wanted):
        jax.make_jaxpr(t2j(lambda x: [seen.append(gc.get_threshold()), x.sin()][1]))(x)
        assert seen == [wanted]
        assert gc.get_threshold() == wanted


def test_the_threshold_is_back_after_errors_and_calls_in_calls():
    def fails(x):
        assert gc.get_threshold()[0] > 700
        raise KeyError(t2j(lambda x: x)(x).shape)

    with threshold(700, 10, 10):
        with pytest.raises(KeyError):
            jax.make_jaxpr(t2j(fails))(x)
        assert gc.get_threshold() == (700, 10, 10)


def test_what_the_code_sets_itself_stays():
    with threshold(700, 10, 10):
        jax.make_jaxpr(t2j(lambda x: [gc.set_threshold(300, 2, 2), x.sin()][1]))(x)
        assert gc.get_threshold() == (300, 2, 2)


def test_eager_calls_leave_the_collector_alone():
    with threshold(700, 10, 10):
        t2j(lambda x: [x, pytest.fail("changed") if gc.get_threshold() != (700, 10, 10) else None][0])(x)
