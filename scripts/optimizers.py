"""Compares fifty jitted steps of published optimizers with PyTorch's; writes the last part of docs/optimizers.md.

    pip install --target FOLDER --no-deps pytorch_optimizer torch_optimizer heavyball schedulefree prodigyopt ...
    python -m scripts.optimizers FOLDER [--only NAME]

`scripts/schedules.py` compares PyTorch's own, and schedules.
"""

import argparse
import importlib
import importlib.metadata
import inspect
import re
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import torch

from torch2jax import t2j

STEPS = 50
PAGE = Path(__file__).parent.parent / "docs" / "optimizers.md"
QUICK = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
PACKAGES = (
    "schedulefree",
    "prodigyopt",
    "lion_pytorch",
    "adabelief_pytorch",
    "torch_optimizer",
    "pytorch_optimizer",
    "muon",
    "heavyball",
)
DISTRIBUTIONS = {"muon": "muon-optimizer"}  # where these have another name than the package

Make = Callable[[torch.nn.Module], Any]


def network(dtype: torch.dtype) -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3)).to(dtype)


def train(model, optimizer, x, y):
    optimizer.zero_grad()
    loss = torch.nn.functional.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
    return loss.detach()


def train_schedule_free(model, optimizer, x, y):
    optimizer.train()
    return train(model, optimizer, x, y)


def train_by_closure(model, optimizer, x, y):
    def closure():
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        return loss

    return optimizer.step(closure).detach()


def difference(make: Make, function: Callable, dtype: torch.dtype) -> float:
    """The largest difference of a parameter after fifty steps."""
    with jax.enable_x64(dtype == torch.float64):
        generator = torch.Generator().manual_seed(1)
        batches = [torch.randn(16, 7, generator=generator).to(dtype).split([4, 3], 1) for _ in range(STEPS)]
        model, twin = network(dtype), network(dtype)
        torch.manual_seed(2)
        optimizer = make(model)
        torch.manual_seed(2)
        other = make(twin)
        step = t2j(function, state=(model, optimizer))
        state = step.init(*map(t2j, batches[0]))
        jitted = jax.jit(step, compiler_options=QUICK)
        for batch in batches:
            _, state = jitted(state, *map(t2j, batch))
            function(twin, other, *batch)
        step.load(state)
        pairs = zip(model.parameters(), twin.parameters(), strict=True)
        return max(float((p - q).detach().abs().max()) for p, q in pairs)


def measured(make: Make, function: Callable = train) -> list[str]:
    """The cells of a row: the differences in float32 and float64, or why there are none."""
    cells = []
    for dtype in (torch.float32, torch.float64):
        before = torch.get_default_dtype()
        torch.set_default_dtype(dtype)
        try:
            found = difference(make, function, dtype)
            cells.append("0" if found == 0 else f"{found:.0e}" if np.isfinite(found) else "not finite, as in PyTorch")
        except Exception as error:
            text = re.sub(r"\s+", " ", str(error).split("-----")[0]).strip().replace("|", "\\|")
            text = re.sub(r"\S+/([\w-]+/[\w-]+\.py)", r"\1", text)  # without the folder
            return [*cells, f"{type(error).__name__}: {text[:160]}", ""][:2]
        finally:
            torch.set_default_dtype(before)
    return cells


def _maker(kind: Any, options: dict, has_groups: bool) -> Make:
    def make(model: torch.nn.Module) -> Any:
        if not has_groups:
            return kind(model.parameters(), **options)
        matrices = [x for x in model.parameters() if x.ndim == 2]
        others = [x for x in model.parameters() if x.ndim != 2]
        return kind([{"params": matrices, "use_muon": True}, {"params": others, "use_muon": False}], **options)

    return make


def of_package(name: str) -> Iterator[tuple[str, Make, Callable]]:
    """The optimizers of a published package, as far as a rate is all that they need."""
    module = importlib.import_module(name)
    found = {each: kind for each, kind in sorted(vars(module).items()) if inspect.isclass(kind)}
    for each, kind in found.items():
        if not issubclass(kind, torch.optim.Optimizer) or not kind.__module__.startswith(name) or each.startswith("_"):
            continue
        parameters = inspect.signature(kind).parameters
        # Those whose rate is 1 find a rate themselves.
        rate = {"lr": 1e-3} if "lr" in parameters and parameters["lr"].default != 1 else {}
        function = train_schedule_free if "schedulefree" in each.lower() else train
        if "closure" in inspect.signature(kind.step).parameters and "Closure" in each:
            function = train_by_closure
        yield each, _maker(kind, rate, "use_muon" in inspect.getsource(kind)), function


def table(rows: Iterator[tuple[str, Make, Callable]], only: str | None) -> list[str]:
    lines = ["| optimizer | float32 | float64 |", "|---|---|---|"]
    for name, make, function in rows:
        if only is None or only in name:
            lines.append(f"| `{name}` | {' | '.join(measured(make, function))} |")
            print(lines[-1], flush=True)
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", help="the folder with packages of optimizers")
    parser.add_argument("--only", help="print the rows whose names have this in them, and write nothing")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    sys.path.append(options.folder)
    parts = [_PUBLISHED]
    for name in PACKAGES:
        lines = "\n".join(table(of_package(name), options.only))
        parts.append(f"### {name} {importlib.metadata.version(DISTRIBUTIONS.get(name, name))}\n\n{lines}\n")
    if options.only is None:
        before = PAGE.read_text().partition("\n## Published packages\n")[0]
        PAGE.write_text(f"{before}\n" + "\n".join(parts))


_PUBLISHED = f"""## Published packages

{STEPS} steps of a small network, once in PyTorch and once as `t2j(train_step, state=(model, optimizer))` under
`jax.jit`: the largest difference of a parameter. Two programs that compute the same in another order differ by
rounding, which an optimizer that divides by small numbers makes larger.

Each optimizer that can be made of parameters alone, with `lr=1e-3` unless its own is 1; those of Muon's kind have
matrices and vectors apart. `SaRA` moves nothing in so few steps. A row with an error has the reason that a step is
refused, or the error that PyTorch itself raises.

Optimizers of Muon's kind and `SCION` make matrices orthogonal in bfloat16, whose rounding is what differs: with float64
in its place, they differ by less than 1e-15. `SOAP` and, in float64, `FOCUS` and, in float32, `SPlus` and `LoRARite`
make rounding as large in PyTorch itself, where parameters begin a rounding apart. `Conda` decomposes matrices in
float32.
"""

if __name__ == "__main__":
    main()
