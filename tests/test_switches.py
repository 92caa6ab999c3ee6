"""Some of `tests.switches`: each sample in one of its ways, under one of JAX's switches, by turns."""

import zlib

import pytest

from tests.ops.database import entry, full_name
from tests.switches import SAMPLES, SWITCHES, is_excluded
from tests.switches.agreement import tried
from tests.switches.database import failures, turns

# What failed before, besides.
_ALWAYS = {
    "disable_jit": ("bridge: jit of grad",),
    "checking_leaks": (
        *("branch: jit", "vmap: eager", "func.jacrev: jit", "checkpoint: grad", "custom: grad of jit"),
        *("backward: jit", "vmap, in place: jit", "backward on one side: jit of grad", "checkpoint, branch: jit"),
        *("cond, branch: jit", "a number within a checkpoint"),
    ),
    "debug_nans": ("loss: eager",),
    "rank_promotion": ("pos_weight: eager",),
    "dtype_promotion": ("polynomials: eager",),
}


def _pairs() -> list[tuple[str, str]]:
    names: dict[str, list[str]] = {}
    for sample in SAMPLES:
        names.setdefault(sample.partition(":")[0], []).append(sample)
    switches = list(SWITCHES)
    pairs = [(switch, sample) for switch, samples in _ALWAYS.items() for sample in samples]
    for number, (name, samples) in enumerate(names.items()):
        pair = switches[number % len(switches)], samples[zlib.crc32(name.encode()) % len(samples)]
        if pair not in pairs and not is_excluded(*pair):
            pairs.append(pair)
    return pairs


@pytest.mark.parametrize(("switch", "sample"), _pairs())
@pytest.mark.filterwarnings("ignore")
def test_under_a_switch(switch, sample):
    wrong = tried(switch, sample)
    assert wrong is None, wrong


@pytest.mark.parametrize(("switch", "name"), [(switch, full_name(op)) for switch, op in turns(600)])
@pytest.mark.filterwarnings("ignore")
def test_an_entry_of_the_database_under_a_switch(switch, name):
    for column, error in failures(switch, entry(name)):
        raise AssertionError(f"{name} under {switch}, {column}: {error}") from error
