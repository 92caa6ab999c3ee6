"""Runs every option of the constructors of PyTorch's modules, in training under ``jit``, and writes a page of them.

Each option is a module with one keyword of its constructor set. Its outputs, the buffers after the step, and the
gradients of all parameters and inputs are compared with PyTorch's. It takes some minutes.

    python -m scripts.module_options                 # all, and docs/tested/module-options.md
    python -m scripts.module_options BatchNorm       # those whose name contains a text, without the page
"""

import argparse
import collections
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import jax
import torch

from tests.compiling import keep_context, set_flags
from tests.ops.database import Refused
from tests.ops.database.exceptions import excluded
from tests.ops.database.modules import check_module
from tests.ops.database.options import options

PAGE = Path(__file__).parents[1] / "docs" / "tested" / "module-options.md"


class Outcome(NamedTuple):
    """What became of an option: ``agrees``, ``refused`` by PyTorch itself, ``excluded`` or ``differs``."""

    module: str
    option: str
    kind: str
    reason: str = ""


def outcomes(text: str) -> Iterator[Outcome]:
    """Those of the options whose name contains a text."""
    for option in options():
        if text.lower() not in option.name.lower():
            continue
        reason = excluded(option.name, "gradients")
        if reason:
            yield Outcome(option.module, option.name, "excluded", reason)
            continue
        try:
            check_module(option.build(), eager=False)
        except Refused as error:
            yield Outcome(option.module, option.name, "refused", str(error))
        except Exception as error:
            yield Outcome(option.module, option.name, "differs", f"{type(error).__name__}: {error}"[:300])
        else:
            yield Outcome(option.module, option.name, "agrees")


def page(found: list[Outcome]) -> Iterator[str]:
    """The lines of the page."""
    tried = [x for x in found if x.kind != "refused"]
    agree = sum(x.kind == "agrees" for x in tried)
    yield "# Options of modules"
    yield ""
    yield "This page compares every keyword of the constructors of PyTorch's modules with PyTorch, one at a time, in"
    yield "training mode under `jax.jit`, with traced parameters, buffers and inputs. It compares outputs, buffers"
    yield "after the step, and gradients of parameters and inputs, or only shapes for random modules. Options that"
    yield "PyTorch itself rejects are left out. The page is written by `python -m scripts.module_options`, with"
    yield f"PyTorch {torch.__version__.partition('+')[0]} and JAX {jax.__version__}."
    yield ""
    yield f"{len(tried)} options of {len({x.module for x in found})} modules: {agree} agree."
    yield ""
    others = [x for x in tried if x.kind != "agrees"]
    if others:
        yield "## What does not agree"
        yield ""
        yield "| option | why |"
        yield "|---|---|"
        for x in others:
            reason = " ".join(x.reason.split()).replace("|", r"\|")
            yield f"| `{x.option}` | {reason} |"
        yield ""
    yield "## By module"
    yield ""
    yield "| module | options | agree |"
    yield "|---|---|---|"
    counts: dict[str, collections.Counter] = collections.defaultdict(collections.Counter)
    for x in tried:
        counts[x.module][x.kind] += 1
    for module, kinds in sorted(counts.items()):
        yield f"| {module} | {sum(kinds.values())} | {kinds['agrees']} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", nargs="?", default="")
    parser.add_argument("--output", type=Path, default=PAGE)
    arguments = parser.parse_args()
    set_flags()
    keep_context()
    found = []
    for outcome in outcomes(arguments.text):
        found.append(outcome)
        if outcome.kind in ("differs", "excluded"):
            print(outcome.kind, outcome.option, outcome.reason, flush=True)
    print(dict(collections.Counter(x.kind for x in found)))
    if not arguments.text:
        arguments.output.write_text("\n".join(page(found)) + "\n")


if __name__ == "__main__":
    main()
