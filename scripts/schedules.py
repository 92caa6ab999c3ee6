"""Compares learning rates of schedules, and steps of optimizers in double precision, with PyTorch's; writes a page.

Each takes 50 steps, in PyTorch and under `jax.jit`.

    python -m scripts.schedules            # all, and docs/tested/optimizers.md
    python -m scripts.schedules cosine     # those whose names have a word in them, without the page
"""

import bisect
import copy
import functools
import importlib.util
import math
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import torch
from torch import optim
from torch.optim import lr_scheduler, swa_utils

from torch2jax import t2j

PAGE = Path(__file__).parents[1] / "docs" / "tested" / "optimizers.md"
STEPS, TOTAL, WARMUP = 50, 60, 5
QUICK = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}


# Schedules.


def warmed_up(step):
    return max(float(step) / WARMUP, 0.1) if step < WARMUP else annealed(step)


def annealed(step):
    return 0.5 * (1 + math.cos(math.pi * (step - WARMUP) / (TOTAL - WARMUP)))


class Annealed(lr_scheduler.LRScheduler):
    """A schedule of a person's own."""

    def __init__(self, optimizer, steps):
        self.steps = steps
        super().__init__(optimizer)

    def get_lr(self):  # pyright: ignore[reportIncompatibleMethodOverride]
        return [rate * self.factor(self.last_epoch) for rate in self.base_lrs]

    def factor(self, epoch):
        return 0.5 * (1 + math.cos(math.pi * min(epoch, self.steps) / self.steps))


class Flattened(Annealed):
    def factor(self, epoch):
        return super().factor(epoch) ** 0.9


class Noam(lr_scheduler.LRScheduler):
    """A schedule whose steps are its own."""

    def __init__(self, optimizer):
        self.count = 0
        super().__init__(optimizer)

    def step(self, epoch=None):
        self.count += 1
        for group in self.optimizer.param_groups:
            group["lr"] = 0.1 * min(self.count**-0.5, self.count * 4**-1.5)


class Decay:
    def __init__(self, steps):
        self.steps = steps

    def __call__(self, step):
        return float(min(1.0, (step + 1) / self.steps)) * math.exp(-step / 30)


LAMBDAS: dict[str, Callable[[Any], Any]] = {
    "0.5 * (1 + math.cos(math.pi * step / total))": lambda step: 0.5 * (1 + math.cos(math.pi * step / TOTAL)),
    "linear warmup and decay, with `float`, `max` and `if`": lambda step: (
        float(step) / float(max(1, WARMUP)) if step < WARMUP else max(0.0, float(TOTAL - step) / float(TOTAL - WARMUP))
    ),
    "0.5 ** int(step / 10)": lambda step: 0.5 ** int(step / 10),
    "0.9 ** round(step / 7)": lambda step: 0.9 ** round(step / 7),
    "0.5 ** (step // 10)": lambda step: 0.5 ** (step // 10),
    "0.5 ** divmod(step, 10)[0]": lambda step: 0.5 ** divmod(step, 10)[0],
    "0.5 ** math.floor((1 + step) / 10)": lambda step: 0.5 ** math.floor((1 + step) / 10),
    "min((step + 1) ** -0.5, (step + 1) * warmup**-1.5)": lambda step: min((step + 1) ** -0.5, (step + 1) * 5**-1.5),
    "1 / math.sqrt(max(1, step))": lambda step: 1 / math.sqrt(max(1, step)),
    "1 / (1 + math.log(1 + step, 2))": lambda step: 1 / (1 + math.log(1 + step, 2)),
    "0.1 ** bisect.bisect_right([10, 20, 30], step)": lambda step: 0.1 ** bisect.bisect_right([10, 20, 30], step),
    "conditions with `and`, `or`": lambda step: (
        1.0 if step < 5 or step > 30 else 0.5 if step % 2 == 0 and step > 7 else 0.25
    ),
    "0.5 * (1 + np.cos(np.pi * step / total))": lambda step: 0.5 * (1 + np.cos(np.pi * step / TOTAL)),
    "np.clip(1 - step / total, 0.2, 0.9)": lambda step: np.clip(1 - step / TOTAL, 0.2, 0.9),
    "functions that call others": warmed_up,
    "an object with `__call__`": Decay(5),
}

SCHEDULES: dict[str, Callable[[optim.Optimizer], Any]] = {
    **{
        f"LambdaLR: `{name}`" if "(" in name else f"LambdaLR: {name}": functools.partial(
            lr_scheduler.LambdaLR, lr_lambda=x
        )
        for name, x in LAMBDAS.items()
    },
    "MultiplicativeLR": lambda o: lr_scheduler.MultiplicativeLR(o, lambda e: 0.95 if e < 20 else math.cos(e / 100)),
    "ConstantLR": lambda o: lr_scheduler.ConstantLR(o, 0.3, 7),
    "LinearLR": lambda o: lr_scheduler.LinearLR(o, 0.1, total_iters=9),
    "PolynomialLR": lambda o: lr_scheduler.PolynomialLR(o, 40, 2.0),
    "StepLR": lambda o: lr_scheduler.StepLR(o, 7, 0.5),
    "MultiStepLR": lambda o: lr_scheduler.MultiStepLR(o, [5, 9, 9, 30], 0.5),
    "ExponentialLR": lambda o: lr_scheduler.ExponentialLR(o, 0.95),
    "CosineAnnealingLR": lambda o: lr_scheduler.CosineAnnealingLR(o, 20, 1e-3),
    "CosineAnnealingWarmRestarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 7, 1, 1e-4),
    "CosineAnnealingWarmRestarts, T_mult=2": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 7, 2, 1e-4),
    "OneCycleLR": lambda o: lr_scheduler.OneCycleLR(o, 0.2, total_steps=TOTAL),
    "OneCycleLR, three_phase, linear": lambda o: lr_scheduler.OneCycleLR(
        o, 0.2, total_steps=TOTAL, three_phase=True, anneal_strategy="linear"
    ),
    **{
        f"CyclicLR, {mode}": functools.partial(
            lr_scheduler.CyclicLR, base_lr=0.01, max_lr=0.2, step_size_up=6, step_size_down=9, mode=mode, gamma=0.99
        )
        for mode in ("triangular", "triangular2", "exp_range")
    },
    "CyclicLR, scale_fn": lambda o: lr_scheduler.CyclicLR(
        o, 0.01, 0.2, step_size_up=6, scale_fn=lambda x: 1 / (5 ** (x * 1e-4)), scale_mode="iterations"
    ),
    "SequentialLR": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.LinearLR(o, 0.1, total_iters=5), lr_scheduler.CosineAnnealingLR(o, 40)], [5]
    ),
    "SequentialLR, of three": lambda o: lr_scheduler.SequentialLR(
        o,
        [
            lr_scheduler.ConstantLR(o, 0.1, 3),
            lr_scheduler.LambdaLR(o, lambda e: math.cos(e / 50)),
            lr_scheduler.ExponentialLR(o, 0.9),
        ],
        [4, 30],
    ),
    "ChainedScheduler": lambda o: lr_scheduler.ChainedScheduler(
        [lr_scheduler.ConstantLR(o, 0.5, 4), lr_scheduler.ExponentialLR(o, 0.95)]
    ),
    "ReduceLROnPlateau": lambda o: lr_scheduler.ReduceLROnPlateau(o, "min", 0.5, patience=3, cooldown=2),
    "SWALR": lambda o: swa_utils.SWALR(o, 0.05, anneal_epochs=12),
    "SWALR, linear": lambda o: swa_utils.SWALR(o, 0.05, anneal_epochs=12, anneal_strategy="linear"),
    "an own subclass with `get_lr`": lambda o: Annealed(o, 40),
    "an own subclass of that": lambda o: Flattened(o, 40),
    "an own subclass with `step`": Noam,
}
_OF_TRANSFORMERS: dict[str, dict[str, Any]] = {
    "constant": {},
    "constant_with_warmup": {"num_warmup_steps": WARMUP},
    "linear": {"num_warmup_steps": WARMUP, "num_training_steps": TOTAL},
    "cosine": {"num_warmup_steps": WARMUP, "num_training_steps": TOTAL},
    "cosine_with_restarts": {
        "num_warmup_steps": WARMUP,
        "num_training_steps": TOTAL,
        "scheduler_specific_kwargs": {"num_cycles": 3},
    },
    "polynomial": {"num_warmup_steps": WARMUP, "num_training_steps": TOTAL},
    "inverse_sqrt": {"num_warmup_steps": WARMUP},
    "cosine_with_min_lr": {
        "num_warmup_steps": WARMUP,
        "num_training_steps": TOTAL,
        "scheduler_specific_kwargs": {"min_lr": 0.001},
    },
    "cosine_warmup_with_min_lr": {
        "num_warmup_steps": WARMUP,
        "num_training_steps": TOTAL,
        "scheduler_specific_kwargs": {"min_lr": 0.001},
    },
    "warmup_stable_decay": {
        "num_warmup_steps": WARMUP,
        "num_training_steps": TOTAL,
        "scheduler_specific_kwargs": {"num_decay_steps": 20},
    },
}


def _of_transformers(name: str, options: dict[str, Any], optimizer: optim.Optimizer):
    from transformers import get_scheduler

    return get_scheduler(name, optimizer, **options)


if importlib.util.find_spec("transformers") is not None:
    SCHEDULES |= {
        f"transformers: {name}": functools.partial(_of_transformers, name, options)
        for name, options in _OF_TRANSFORMERS.items()
    }


def stepped(model, optimizer, scheduler, loss):
    optimizer.step()
    scheduler.step(loss) if isinstance(scheduler, lr_scheduler.ReduceLROnPlateau) else scheduler.step()
    return [group["lr"] for group in optimizer.param_groups]


def difference_of_rates(make: Callable[[optim.Optimizer], Any], steps: int = STEPS) -> float:
    """The largest difference between learning rates, as a part of the largest of them."""
    everything: list[Any] = []
    for _ in range(2):
        model = torch.nn.Linear(2, 1)
        optimizer = optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        with warnings.catch_warnings(action="ignore"):
            everything.append((model, optimizer, make(optimizer)))
    losses = [1 / (1 + min(step, 20)) for step in range(steps)]
    with warnings.catch_warnings(action="ignore"):
        wanted = [float(stepped(*everything[0], loss)[0]) for loss in losses]
    step, found = t2j(stepped, state=everything[1]), []
    state = step.init(losses[0])
    jitted = jax.jit(step, compiler_options=QUICK)
    for loss in losses:
        (rate,), state = jitted(state, loss)
        found.append(float(rate))
    return float(np.abs(np.subtract(found, wanted)).max() / np.abs(wanted).max())


# Optimizers in double precision.


class Case(NamedTuple):
    kind: type[optim.Optimizer]
    options: dict[str, Any]
    is_scheduled: bool = False

    @property
    def name(self) -> str:
        options = [name if value is True else f"{name}={value}" for name, value in self.options.items()]
        return f"{self.kind.__name__}({', '.join([*options, *(['scheduled'] if self.is_scheduled else [])])})"


def _cases() -> list[Case]:
    def exact_rate(rate):
        return torch.tensor(rate, dtype=torch.float64)

    plain: list[dict[str, Any]] = [{}, {"foreach": True}, {"maximize": True}, {"lr": exact_rate(0.01)}]
    decayed: list[dict[str, Any]] = [*plain, {"weight_decay": 0.1}, {"weight_decay": 0.1, "foreach": True}]
    captured: list[dict[str, Any]] = [{"capturable": True}, {"capturable": True, "foreach": True}]
    decoupled: list[dict[str, Any]] = [{"decoupled_weight_decay": True, "weight_decay": 0.1}]
    adam: list[dict[str, Any]] = [
        {"amsgrad": True},
        {"amsgrad": True, "foreach": True},
        {"fused": True},
        {"fused": True, "amsgrad": True},
        {"fused": True, "weight_decay": 0.1, "maximize": True},
        {"lr": torch.tensor(0.01)},
        {"betas": (0.5, 0.9), "eps": 1e-3},
        {"betas": (exact_rate(0.9), exact_rate(0.99))},
    ]
    options: dict[type[optim.Optimizer], list[dict[str, Any]]] = {
        optim.Adam: [*decayed, *captured, *adam, *decoupled],
        optim.AdamW: [*decayed, *captured, *adam],
        optim.NAdam: [
            *decayed,
            *captured,
            *decoupled,
            {"momentum_decay": 0.1},
            {"momentum_decay": 0.1, "foreach": True},
        ],
        optim.RAdam: [*decayed, *captured, *decoupled, {**decoupled[0], "foreach": True}],
        optim.Adamax: [*decayed, *captured],
        optim.ASGD: [*decayed, *captured, {"t0": 10}, {"t0": 10, "foreach": True}, {"lambd": 0.01, "alpha": 0.5}],
        optim.Adadelta: [*decayed, *captured, {"rho": 0.5}],
        optim.RMSprop: [*decayed, *captured, {"momentum": 0.9}, {"momentum": 0.9, "centered": True, "foreach": True}],
        optim.Rprop: [*plain, *captured, {"etas": (0.3, 1.5)}],
        optim.Adagrad: [
            *decayed,
            {"lr_decay": 0.1},
            {"fused": True},
            {"fused": True, "lr_decay": 0.1, "maximize": True},
        ],
        optim.SGD: [
            *({"lr": 0.01, **each} for each in decayed),
            {"lr": 0.01, "momentum": 0.9},
            {"lr": 0.01, "momentum": 0.9, "dampening": 0.5},
            {"lr": 0.01, "momentum": 0.9, "nesterov": True, "foreach": True},
            {"lr": 0.01, "momentum": 0.9, "nesterov": True, "fused": True, "weight_decay": 0.1},
        ],
        optim.Adafactor: [{}, {"lr": 0.1}, {"weight_decay": 0.1}, {"maximize": True}, {"foreach": True}, {"d": 2.0}],
    }
    cases = [Case(kind, each) for kind, all_of_one in options.items() for each in all_of_one]
    refused = (optim.Adafactor,)  # whose rate PyTorch compares with a number of its own
    scheduled = [Case(kind, each, True) for kind, each, _ in cases if "lr" not in each and kind not in refused]
    return [*cases, *scheduled]


CASES = _cases()


def _objects(case: Case) -> tuple[Any, ...]:
    model = torch.nn.Linear(3, 2).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.linspace(-1, 1, parameter.numel(), dtype=torch.float64).view_as(parameter))
    optimizer = case.kind(model.parameters(), **copy.deepcopy(case.options))  # pyright: ignore[reportCallIssue]
    schedule = [lr_scheduler.ExponentialLR(optimizer, 0.97)] if case.is_scheduled else []
    return model, optimizer, *schedule


def trained(model, optimizer, *rest):
    *schedule, x, y = rest
    loss = torch.nn.functional.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    for each in schedule:
        each.step()
    return loss


def trained_once(model, optimizer, x, y):
    return trained(model, optimizer, x, y)


def trained_scheduled(model, optimizer, schedule, x, y):
    return trained(model, optimizer, schedule, x, y)


def difference_of_steps(case: Case, steps: int = STEPS) -> float:
    """The largest difference between parameters after any step; 64-bit types must be on."""
    generator = torch.Generator().manual_seed(0)
    x, y = (torch.randn(8, size, generator=generator, dtype=torch.float64) for size in (3, 2))
    options = {name: value for name, value in case.options.items() if name != "capturable"}  # refused on the CPU
    objects, function = (
        _objects(case._replace(options=options)),
        trained_scheduled if case.is_scheduled else trained_once,
    )
    step = t2j(function, state=_objects(case))
    state = step.init(x.numpy(), y.numpy())
    jitted, largest = jax.jit(step, compiler_options=QUICK), 0.0
    for _ in range(steps):
        trained(*objects, x, y)
        _, state = jitted(state, x.numpy(), y.numpy())
        for name, parameter in objects[0].named_parameters():
            largest = max(largest, np.abs(np.asarray(state["model"][name]) - parameter.detach().numpy()).max())
    return float(largest)


# The page.

_PYTORCH = torch.__version__.split("+")[0]
_HEAD = f"""# Optimizers and schedules

`t2j(step, state=(model, optimizer, scheduler))` takes the count of a schedule as a part of the state, so that one
program serves all steps. The code of the schedule computes with a traced number: Python's operators and comparisons,
`math`, `float`, `int`, `round`, `divmod`, `min`, `max` and NumPy's elementwise functions take it. A list or a
dictionary that is asked for the element of the count is an error.

A call in which `math` or `float` meets such a number begins again, and functions stand in for Python's to its end: in
the module `math`, in `min` and `max`, and, as to `float`, `int` and what `from math import cos` binds, in the modules
that asked.

The tables are made by `python -m scripts.schedules`, with PyTorch {_PYTORCH} and JAX {jax.__version__}: {STEPS} steps
in PyTorch and under `jax.jit`.

## Schedules

The largest difference between learning rates, as a part of the largest rate. With 64-bit types off, rates are computed
in single precision.

| schedule | 64-bit types off | on |
|---|---|---|
"""
_MIDDLE = """
## Optimizers in double precision

The largest difference between parameters, of a model in float64 with `jax_enable_x64` on. "Scheduled" are steps with an
`ExponentialLR`, whose rate is traced. PyTorch refuses `capturable` on the CPU; its steps are compared with those
without it. Not in the table: `betas` that are float32 tensors, and a rate of `Adafactor` that is one. PyTorch computes
with these in single precision, and the difference is of the order of 1e-9. `Muon` computes in bfloat16.

| optimizer | difference |
|---|---|
"""


def _shown(difference: float) -> str:
    return "0" if difference == 0 else f"{difference:.0e}"


def main(words: list[str]) -> None:
    def is_wanted(name: str) -> bool:
        return not words or any(word in name for word in words)

    def use(has_doubles: bool) -> None:
        jax.config.update("jax_enable_x64", has_doubles)

    lines = [_HEAD]
    for name, make in SCHEDULES.items():
        if is_wanted(name):
            found = [(use(has_doubles), difference_of_rates(make))[1] for has_doubles in (False, True)]
            shown = f"| {name.replace('|', '/')} | {_shown(found[0])} | {_shown(found[1])} |\n"
            print(shown, end="", flush=True)
            lines.append(shown)
    lines.append(_MIDDLE)
    use(True)
    for case in CASES:
        if is_wanted(case.name):
            shown = f"| `{case.name}` | {_shown(difference_of_steps(case))} |\n"
            print(shown, end="", flush=True)
            lines.append(shown)
    if not words:  # what another script writes stays
        published = PAGE.read_text().partition("\n## Published packages\n")
        PAGE.write_text("".join((*lines, *published[1:])))


if __name__ == "__main__":
    main(sys.argv[1:])
