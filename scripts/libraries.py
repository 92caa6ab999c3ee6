"""Runs typical uses of libraries that build on PyTorch and writes `docs/tested/libraries.md`: which agree with PyTorch.

The uses are in `scripts/uses/`; a use whose library is not installed is left out. Libraries that the tests of this
package do not need belong in an environment of their own, with the versions of `constraints.txt`:

    pip install --no-deps -r scripts/libraries.txt -c constraints.txt

Uses run in processes of their own, which are started anew after one that hangs or ends one. Each outcome is appended to
a file, so that a run that was interrupted goes on where it stopped.

    python -m scripts.libraries                     # what has not been run
    python -m scripts.libraries --only gpytorch     # what has it in its name
    python -m scripts.libraries --again failed      # once more what failed
    python -m scripts.libraries --page              # only write the page from what was run
    python -m scripts.libraries --show gpytorch     # failures with their tracebacks
"""

import argparse
import os
from pathlib import Path

from scripts.uses.outcome import Results
from scripts.uses.use import Use, all_uses
from scripts.uses.worker import outcomes

PAGE = Path(__file__).parents[1] / "docs" / "tested" / "libraries.md"


def wanted(results: Results, uses: dict[str, Use], only: str, again: str | None) -> list[Use]:
    """Of uses whose name contains a text, those to run."""
    outcomes = results.outcomes
    return [
        use
        for use in uses.values()
        if only.lower() in use.name.lower()
        if use.name not in outcomes or again == "all" or (again == "failed" and not outcomes[use.name].agrees)
    ]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", metavar="TEXT", help="uses whose name, `library: use`, contains it")
    parser.add_argument("--timeout", type=float, default=300, metavar="S", help="seconds for a use (default: 300)")
    parser.add_argument("--again", choices=["failed", "all"], help="run again, although there are results")
    parser.add_argument("--results", type=Path, default=Path("build/libraries.jsonl"))
    parser.add_argument("--output", type=Path, default=PAGE, help="the page (default: docs/tested/libraries.md)")
    parser.add_argument("--page", action="store_true", help="run nothing, write the page")
    parser.add_argument("--show", metavar="TEXT", help="run nothing, print failures of uses with it in their name")
    return parser


def main() -> None:
    options, uses = _parser().parse_args(), all_uses()
    results = Results(options.results)
    if options.show is not None:
        for outcome in results.outcomes.values():
            if not outcome.agrees and options.show.lower() in outcome.use.lower():
                print(f"== {outcome.use}: {outcome.error}\n{outcome.traceback}")
        return
    if not options.page:
        os.environ.setdefault("OMP_NUM_THREADS", "1")  # of the processes
        os.environ.setdefault("JAX_PLATFORMS", "cpu")
        found = wanted(results, uses, options.only, options.again)
        print("not installed:", ", ".join(sorted({use.library for use in found if not use.installed})) or "nothing")
        for outcome in outcomes([use for use in found if use.installed], options.timeout):
            results.append(outcome)
            print(f"{'agrees' if outcome.agrees else 'FAILS'} {outcome.use} {outcome.error[:200]}", flush=True)
    from scripts.uses.page import page, summary

    print(summary(uses, results.outcomes))
    options.output.write_text("\n".join(page(uses, results.outcomes)) + "\n")


if __name__ == "__main__":
    main()
