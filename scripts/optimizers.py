"""Compares fifty jitted steps of published optimizers with PyTorch's: the end of docs/tested/optimizers.md.

    pip install --target FOLDER --no-deps pytorch_optimizer torch_optimizer heavyball schedulefree prodigyopt ...
    python -m scripts.optimizers FOLDER [--package NAME] [--only NAME]

Rows of packages and optimizers that are not named stay, and those of packages that are not in the folder. Heavyball
wants `einops` and `opt_einsum` there. `scripts/schedules.py` compares PyTorch's own, and schedules.
"""

import argparse
import contextlib
import importlib
import importlib.metadata
import inspect
import math
import re
import sys
import unittest.mock
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import torch

from torch2jax import t2j

STEPS = 50
PAGE = Path(__file__).parent.parent / "docs" / "tested" / "optimizers.md"
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
    "dadaptation",
    "optimi",
    "came_pytorch",
    "adan_pytorch",
    "madgrad",
    "adamp",
    "sophia_opt",
    "grokadamw",
)
# where these have another name than the package
DISTRIBUTIONS = {"muon": "muon-optimizer", "optimi": "torch-optimi"}

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


def trained(make: Make, function: Callable, dtype: torch.dtype, data: list) -> list[torch.Tensor]:
    """The parameters after fifty steps in PyTorch."""
    model = network(dtype)
    torch.manual_seed(2)
    optimizer = make(model)
    for batch in data:
        function(model, optimizer, *batch)
    return [*model.parameters()]


def trained_in_jax(
    make: Make, function: Callable, dtype: torch.dtype, data: list, key: Any = None
) -> list[torch.Tensor]:
    """The parameters after fifty jitted steps."""
    with jax.enable_x64(dtype == torch.float64):
        model = network(dtype)
        torch.manual_seed(2)
        optimizer = make(model)
        step = t2j(function, state=(model, optimizer))
        state = step.init(*map(t2j, data[0]), rng=key)
        jitted = jax.jit(step, compiler_options=QUICK)
        for i, batch in enumerate(data):
            _, state = jitted(state, *map(t2j, batch), rng=None if key is None else jax.random.fold_in(key, i))
        step.load(state)
        return [*model.parameters()]


def batches(dtype: torch.dtype) -> list[Any]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(16, 7, generator=generator).to(dtype).split([4, 3], 1) for _ in range(STEPS)]


def largest(parameters: list[torch.Tensor], others: list[torch.Tensor]) -> float:
    """The largest difference of a parameter."""
    return max(float((p - q).detach().abs().max()) for p, q in zip(parameters, others, strict=True))


def difference(make: Make, function: Callable, dtype: torch.dtype) -> str:
    """How far JAX's parameters are from PyTorch's: with the same draws, where there are any."""
    case = make, function, dtype, batches(dtype)
    with fixed_draws() as drawn:
        expected = trained(*case)
    if not drawn:
        return _text(largest(trained_in_jax(*case), expected))
    trained_in_jax(*case, key=jax.random.key(0))
    with fixed_draws():
        return f"{_text(largest(trained_in_jax(*case), expected))}, fixed draws"


@contextlib.contextmanager
def fixed_draws() -> Iterator[set[str]]:
    """Within it, what draws random numbers gives the same each time, by their number alone; gives who has drawn."""
    drawn: set[str] = set()

    def noting(name: str, function: Callable) -> Callable:
        def draw(*args: Any, **options: Any) -> Any:
            drawn.add(name)
            return function(*args, **options)

        return draw

    def uniform(shape: Any, dtype: torch.dtype | None = None) -> torch.Tensor:
        numbers = (torch.arange(math.prod(shape), dtype=torch.float64) + 0.5) * 0.6180339887498949 % 1
        return numbers.reshape(tuple(shape)).to(dtype or torch.get_default_dtype())

    def normal(shape: Any, dtype: torch.dtype | None = None) -> torch.Tensor:
        return (torch.erfinv(uniform(shape, torch.float64) * 2 - 1) * 2**0.5).to(dtype or torch.get_default_dtype())

    def integers(like: torch.Tensor, low: int, high: int | None = None, **options: Any) -> torch.Tensor:
        low, high = (0, low) if high is None else (low, high)
        numbers = low + uniform(like.shape, torch.float64) * (high - low)
        return numbers.floor().to(options.get("dtype") or like.dtype)

    def randn(*shape: Any, dtype: torch.dtype | None = None, **_: Any) -> torch.Tensor:
        return normal(shape if shape and isinstance(shape[0], int) else shape[0], dtype)

    with contextlib.ExitStack() as stack:
        for owner, name, function in (
            (torch, "randn", randn),
            (torch, "rand_like", lambda x, **options: uniform(x.shape, options.get("dtype") or x.dtype)),
            (torch, "randn_like", lambda x, **options: normal(x.shape, options.get("dtype") or x.dtype)),
            (torch, "randint_like", integers),
            (torch, "bernoulli", lambda x, **_: (uniform(x.shape, x.dtype) < x).to(x.dtype)),
            (torch.Tensor, "normal_", lambda x, mean=0, std=1, **_: x.copy_(mean + std * normal(x.shape, x.dtype))),
        ):
            stack.enter_context(unittest.mock.patch.object(owner, name, noting(name, function)))
        yield drawn


def _text(found: float) -> str:
    return "0" if found == 0 else f"{found:.0e}" if np.isfinite(found) else "not finite, as in PyTorch"


def measured(make: Make, function: Callable = train) -> list[str]:
    """The cells of a row: the differences in float32 and float64, or why there are none."""
    cells = []
    for dtype in (torch.float32, torch.float64):
        before = torch.get_default_dtype()
        torch.set_default_dtype(dtype)
        try:
            cells.append(difference(make, function, dtype))
        except Exception as error:
            text = re.sub(r"\s+", " ", str(error).split("-----")[0]).strip().replace("|", "\\|")
            text = re.sub(r"\S+/([\w-]+/[\w-]+\.py)", r"\1", text)  # without the folder
            return [*cells, f"{type(error).__name__}: {text[:160]}", ""][:2]
        finally:
            torch.set_default_dtype(before)
    return cells


def _maker(kind: Any, options: dict, has_groups: bool) -> Make:
    kept = [x for x in ("storage_dtype", "q_dtype") if x in inspect.signature(kind).parameters]

    def make(model: torch.nn.Module) -> Any:
        dtypes = dict.fromkeys(kept, str(torch.get_default_dtype()).removeprefix("torch."))
        if not has_groups:
            return kind(model.parameters(), **options, **dtypes)
        matrices = [x for x in model.parameters() if x.ndim == 2]
        others = [x for x in model.parameters() if x.ndim != 2]
        groups = [{"params": matrices, "use_muon": True}, {"params": others, "use_muon": False}]
        return kind(groups, **options, **dtypes)

    return make


def of_package(name: str) -> Iterator[tuple[str, Make, Callable]]:
    """The optimizers of a published package, as far as a rate is all that they need; heavyball's are not compiled."""
    module = importlib.import_module(name)
    if name == "heavyball":
        module.utils.compile_mode = module.utils.compile_mode_recommended_to_none = None
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


def rows_of_page() -> dict[str, dict[str, str]]:
    """The rows that the page has, by package and optimizer."""
    found: dict[str, dict[str, str]] = {}
    for part in PAGE.read_text().split("\n### ")[1:]:
        title, *lines = part.splitlines()
        found[title.split()[0]] = {line.split("`")[1]: line for line in lines if line.startswith("| `")}
    return found


def version(name: str) -> str | None:
    """Of a package that is there."""
    try:
        return importlib.metadata.version(DISTRIBUTIONS.get(name, name))
    except importlib.metadata.PackageNotFoundError:
        return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="+", help="the folders with packages of optimizers")
    parser.add_argument("--package", help="measure this package alone")
    parser.add_argument("--only", help="measure the optimizers whose names have this in them")
    parser.add_argument("--print", action="store_true", help="write nothing")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    sys.path.extend(options.folder)
    before, _, published = PAGE.read_text().partition("\n## Published packages\n")
    titles = {line.split()[1]: line for line in published.splitlines() if line.startswith("### ")}
    rows, parts = rows_of_page(), [_PUBLISHED]
    for name in PACKAGES:
        if (number := version(name)) is not None and options.package in (None, name):
            titles[name], known = f"### {name} {number}", rows.get(name, {})
            rows[name] = {}
            for each, make, function in of_package(name):
                if each not in known or options.only is None or options.only in each:
                    known[each] = f"| `{each}` | {' | '.join(measured(make, function))} |"
                    print(known[each], flush=True)
                rows[name][each] = known[each]
        if name in rows:
            lines = "\n".join(["| optimizer | float32 | float64 |", "|---|---|---|", *rows[name].values()])
            parts.append(f"{titles[name]}\n\n{lines}\n")
    if not options.print:
        PAGE.write_text(f"{before}\n" + "\n".join(parts))


_PUBLISHED = f"""## Published packages

{STEPS} steps of a small network, once in PyTorch and once as `t2j(train_step, state=(model, optimizer))` under
`jax.jit`: the largest difference of a parameter. Two programs that compute the same in another order differ by
rounding, which an optimizer that divides by small numbers makes larger.

Each optimizer that can be made of parameters alone, with `lr=1e-3` unless its own is 1; those of Muon's kind have
matrices and vectors apart. `SaRA` moves nothing in so few steps. A row with an error has the reason that a step is
refused, or the error that PyTorch itself raises.

JAX draws other random numbers than PyTorch. An optimizer that draws runs with a key, `rng=`; for the numbers of a row
with "fixed draws", both take the same ones in their place. Rows in which a random operator needs a key are older than
this, and those of `SOAP`, `SOAPNAdam` and `SOLP` of heavyball are from before `torch.compile` was left out.

Optimizers of Muon's kind, `Scion` and `SCION` make matrices orthogonal in bfloat16, whose rounding is what differs:
with float32 or float64 in its place, they differ by less than 1e-7 or 1e-15. All that have `SOAP` or `SOLP` in their
names and, in float64, `FOCUS` and, in float32, `SPlus`, `LoRARite` and `DAdaptAdam` make rounding as large in PyTorch
itself, where parameters begin a rounding apart. `Conda` decomposes matrices in float32.

Heavyball's run without `torch.compile`, and keep their states in the dtype of the parameters (`storage_dtype`,
`q_dtype`). By default these are float32, also of parameters in float64: then their rounding differs, by 1e-10 to 4e-8.
"""

if __name__ == "__main__":
    main()
