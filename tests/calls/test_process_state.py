"""PyTorch's switches and caches of the whole process are after a call what they were before it."""

import contextlib
import importlib
import inspect
import sys
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch.nn.utils import parametrizations, parametrize

from torch2jax import patches, t2j
from torch2jax.calls.process_state import SWITCHES


def switches() -> dict:
    """What all of them are; PyTorch's print options and distributions' checks besides."""
    return {
        **{name: read() for name, read in SWITCHES.items()},
        "deterministic": torch._C._get_deterministic_algorithms(),
        "warn_only": torch._C._get_deterministic_algorithms_warn_only(),
        "print": dict(vars(torch._tensor_str.PRINT_OPTS)),
        "validate": torch.distributions.Distribution._validate_args,
        "grad": torch.is_grad_enabled(),
    }


CHANGES = {
    "deterministic": lambda: torch.use_deterministic_algorithms(True, warn_only=True),
    "debug mode": lambda: torch.set_deterministic_debug_mode("warn"),
    "fill": lambda: setattr(torch.utils.deterministic, "fill_uninitialized_memory", False),
    "warn always": lambda: torch.set_warn_always(True),
    "precision": lambda: torch.set_float32_matmul_precision("medium"),
    "cudnn": lambda: setattr(torch.backends.cudnn, "benchmark", True),
    "mkldnn": lambda: setattr(torch.backends.mkldnn, "deterministic", True),
    "tf32": lambda: setattr(torch.backends.cuda.matmul, "allow_tf32", True),
    "attention": lambda: torch.backends.cuda.enable_flash_sdp(False),
    "math": lambda: torch.backends.cuda.enable_math_sdp(False),
    "anomaly": lambda: torch.autograd.set_detect_anomaly(True, check_nan=False),
    "threads": lambda: torch.set_num_threads(torch.get_num_threads() + 1),
    "print": lambda: torch.set_printoptions(precision=1),
    "validate": lambda: torch.distributions.Distribution.set_default_validate_args(False),
    "grad": lambda: torch.set_grad_enabled(False),
}


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.filterwarnings("ignore:Anomaly Detection")
def test_a_switch_is_put_back(name, fails):
    before, seen = switches(), []
    may_change = getattr(torch.backends, "__allow_nonbracketed_mutation")  # PyTorch's own test modules forbid it

    def change(x):
        with may_change():
            CHANGES[name]()
            CHANGES[name]()
        seen.append(switches())
        if fails:
            raise KeyError
        return x

    for run in (t2j(change), jax.jit(t2j(change))):
        with pytest.raises(KeyError) if fails else contextlib.nullcontext():
            run(jnp.ones(3))
        assert switches() == before
    assert seen[0] != before


def test_what_other_threads_change_stays():
    outside, inside = threading.Event(), threading.Event()

    def change(x):
        inside.set()
        assert outside.wait(60)
        return x

    thread = threading.Thread(target=lambda: t2j(change)(jnp.ones(3)))
    thread.start()
    assert inside.wait(60)
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("high")
        outside.set()
        thread.join()
        assert torch.get_float32_matmul_precision() == "high"
    finally:
        torch.set_float32_matmul_precision(before)


def _parametrized() -> torch.nn.Module:
    return parametrizations.orthogonal(torch.nn.Linear(3, 3))


def test_what_notes_pytorchs_functions_when_it_is_imported_in_a_call_sees_the_originals(tmp_path, monkeypatch):
    original, within = torch.compiler.is_compiling, []
    (tmp_path / "noting_functions.py").write_text("import torch\nnoted = torch.compiler.is_compiling\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(patches, "_NOTING", frozenset(("noting_functions",)))
    finders = list(sys.meta_path)

    def function(x):
        within.append(torch.compiler.is_compiling)
        module = importlib.import_module("noting_functions")
        within.append(torch.compiler.is_compiling)
        assert inspect.getsource(module).startswith("import torch")
        return x * 2

    t2j(function)(np.ones(2))
    assert importlib.import_module("noting_functions").noted is original
    assert within[0] is within[1] is not original
    assert torch.compiler.is_compiling is original
    assert sys.meta_path == finders


@pytest.mark.parametrize("transform", [lambda f: f, jax.jit])
def test_a_region_of_cached_parametrizations_around_a_call(transform):
    module = _parametrized()
    x = torch.randn(2, 3)
    states = [t2j(_parametrized().state_dict()) for _ in range(2)]
    run = transform(lambda x, state: t2j(module)(x, state_dict=state))
    expected = [run(t2j(x), state) for state in states]
    with parametrize.cached():
        kept = module.weight
        for state, wanted in zip(states, expected, strict=True):
            np.testing.assert_array_equal(transform(lambda x, s: t2j(module)(x, state_dict=s))(t2j(x), state), wanted)
        assert module.weight is kept
        assert torch.equal(module(x), torch.nn.functional.linear(x, kept, module.bias))
    assert parametrize._cache == {}
    assert parametrize._cache_enabled == 0


@pytest.mark.parametrize("transform", [lambda f: f, jax.jit])
def test_a_region_of_cached_parametrizations_within_a_call(transform):
    class Twice(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = _parametrized()

        def forward(self, x):
            with parametrize.cached():
                assert self.layer.weight is self.layer.weight
                return self.layer(self.layer(x))

    module, x = Twice(), torch.randn(2, 3)
    run = transform(t2j(module))
    for _ in range(2):
        np.testing.assert_allclose(run(t2j(x)), module(x).detach(), rtol=1e-5, atol=1e-6)
    assert parametrize._cache == {}
    assert parametrize._cache_enabled == 0
