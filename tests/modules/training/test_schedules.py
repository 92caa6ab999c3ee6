"""Schedules within jitted steps have PyTorch's rates, and optimizers in double precision PyTorch's steps.

``python -m scripts.schedules`` has all optimizers with all options, and writes `docs/tested/optimizers.md`.
"""

import math
import sys
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch.optim import lr_scheduler

from scripts.schedules import CASES, LAMBDAS, SCHEDULES, difference_of_rates, difference_of_steps
from torch2jax import TracedValueError, t2j

COARSE = {"CosineAnnealingLR": 5e-6}  # whose rate near zero divides the next one
SAMPLE = CASES[::13]


@pytest.fixture
def doubles():
    with jax.enable_x64(True):
        yield


@pytest.mark.parametrize("name", [*list(SCHEDULES)[::2], "CosineAnnealingLR"])
def test_rates(name):
    assert difference_of_rates(SCHEDULES[name]) < COARSE.get(name, 1e-6)


@pytest.mark.parametrize("name", list(SCHEDULES)[1::6])
def test_rates_in_double_precision(name, doubles):
    assert difference_of_rates(SCHEDULES[name]) < 1e-12


@pytest.mark.parametrize("case", SAMPLE, ids=lambda case: case.name)
def test_steps_in_double_precision(case, doubles):
    assert difference_of_steps(case, steps=20) < 1e-12


def stepped(model, optimizer, scheduler):
    optimizer.step()
    scheduler.step()
    return optimizer.param_groups[0]["lr"]


def objects(make):
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return model, optimizer, make(optimizer)


def test_python_is_as_it_was_afterwards():
    """Also after an error; what stands in for functions of Python's is gone."""
    module = types.ModuleType("schedule_of_a_person")
    sys.modules[module.__name__] = module
    code = (
        "from math import cos\ndef rate(step): return float(cos(step / 10))\ndef fails(step): return table[int(step)]"
    )
    exec(code + "\ntable = [1.0, 0.5]", vars(module))
    before, python = dict(vars(module)), (dict(vars(math)), min, max)
    given = objects(lambda o: lr_scheduler.LambdaLR(o, module.rate))
    step = t2j(stepped, state=given)
    state = step.init()
    rate, _ = jax.jit(step)(state)
    np.testing.assert_allclose(rate, 0.1 * math.cos(0.1), rtol=1e-6)
    failing = t2j(stepped, state=objects(lambda o: lr_scheduler.LambdaLR(o, module.fails)))
    with pytest.raises(TracedValueError):
        failing.init()
    assert vars(module) == before
    assert (dict(vars(math)), min, max) == python
    del sys.modules[module.__name__]


def test_a_module_with_its_own_float():
    """Names that a module has itself are left to it."""
    namespace = {"__name__": "own", "float": lambda step: step * 2}
    exec("import math\ndef rate(step): return 1 / (1 + float(step)) + 0 * math.cos(step)", namespace)
    assert difference_of_rates(lambda o: lr_scheduler.LambdaLR(o, namespace["rate"]), steps=5) < 1e-6


@pytest.mark.parametrize("name", ["math.sqrt", "math.exp", "math.cos"])
def test_math_of_items(name):
    """In other code, too: ``math`` takes what ``.item()`` gives."""
    function = {"math.sqrt": math.sqrt, "math.exp": math.exp, "math.cos": math.cos}[name]

    def scaled(x):
        return x * getattr(math, name.removeprefix("math."))(x.sum().item())

    x = jnp.arange(3.0)
    np.testing.assert_allclose(jax.jit(t2j(scaled))(x), x * function(3.0), rtol=1e-6)
    np.testing.assert_allclose(jax.grad(lambda x: t2j(scaled)(x).sum())(x), np.full(3, function(3.0)), rtol=1e-6)


def test_own_optimizers_compute_with_math():
    class Corrected(torch.optim.Optimizer):
        def __init__(self, params):
            super().__init__(params, {"lr": 0.1, "count": 0})

        @torch.no_grad()
        def step(self, closure=None):
            for group in self.param_groups:
                group["count"] += 1
                rate = group["lr"] / math.sqrt(1 - 0.9 ** group["count"])
                for parameter in group["params"]:
                    parameter.add_(parameter.grad, alpha=-rate)

    def train(model, optimizer, x):
        optimizer.zero_grad()
        model(x).square().sum().backward()
        optimizer.step()
        return optimizer.param_groups[0]["count"]

    models = torch.nn.Linear(2, 1), torch.nn.Linear(2, 1)
    models[1].load_state_dict(models[0].state_dict())
    optimizers = [Corrected(model.parameters()) for model in models]
    step, x = t2j(train, state=(models[0], optimizers[0])), torch.ones(1, 2)
    state = step.init(x.numpy())
    for _ in range(3):
        _, state = jax.jit(step)(state, x.numpy())
        train(models[1], optimizers[1], x)
    np.testing.assert_allclose(state["model"]["weight"], models[1].weight.detach().numpy(), rtol=1e-5)


def test_all_lambdas_are_eager_too():
    for rate in list(LAMBDAS.values())[:4]:
        step = t2j(stepped, state=objects(lambda o, rate=rate: lr_scheduler.LambdaLR(o, rate)))
        found, _ = step(step.init())
        np.testing.assert_allclose(found, 0.1 * rate(1), rtol=1e-6)
