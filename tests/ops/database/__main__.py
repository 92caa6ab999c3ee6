"""Reports on single operators, and shows what the first failure of each looks like."""

import argparse
import traceback

import jax
import torch

from .samples import entries, full_name
from .trials import attempt, columns_of, trials


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.ops.database", description=__doc__)
    parser.add_argument("patterns", nargs="+")
    parser.add_argument("--dtype", default="float32", help="one or several, with commas")
    parser.add_argument("--columns", default="values", help="one or several of docs/tested/coverage.md, or 'all'")
    parser.add_argument("--limit", type=int, default=None)
    parser.add_argument("--grad", action="store_true", help="the column gradients as well")
    parser.add_argument("--jit", action="store_true", help="the column jit as well")
    parser.add_argument("--x64", action="store_true")
    parser.add_argument("--reference", action="store_true", help="PyTorch's reference inputs as well, under jit")
    parser.add_argument("-v", "--verbose", action="store_true", help="print each operator's first traceback")
    options = parser.parse_args()
    jax.config.update("jax_enable_x64", options.x64)
    wanted = options.columns.split(",") + ["gradients"] * options.grad + ["jit"] * options.jit
    passed = failed = 0
    for op in (op for pattern in options.patterns for op in entries(pattern)):
        for dtype in (getattr(torch, name) for name in options.dtype.split(",")):
            columns = [c for c in columns_of(op, dtype) if c in wanted or options.columns == "all"]
            total, errors = 0, []
            for batch in trials(op, dtype, columns, options.limit, options.reference):
                for trial, error in attempt(batch):
                    total += 1
                    errors += [(trial, error)] if error is not None else []
            if not errors:
                passed += bool(columns)
                continue
            failed += 1
            trial, error = errors[0]
            print(f"FAIL {full_name(op)} {dtype}: {len(errors)} of {total}; first in {trial.column}:")
            print(f"    {type(error).__name__}: {' '.join(str(error).split())[:400]}", flush=True)
            if options.verbose:
                print(trial)
                traceback.print_exception(error)
    print(f"{passed} passed, {failed} failed")


if __name__ == "__main__":
    main()
