"""Compares models of torchvision, timm, transformers and diffusers with PyTorch, and writes `docs/tested/models.md`.

The page is what is kept: models that it has are not run again, unless asked for, so that an interrupted run goes on
where it stopped. Models run in processes of their own, which are started anew after one that hangs or ends one.

    python -m scripts.zoo                          # what the page does not have; takes hours
    python -m scripts.zoo --only torchvision       # models whose spec contains a text
    python -m scripts.zoo --again failed           # once more what failed
    python -m scripts.zoo --most 50                # so many of them
    python -m scripts.zoo --train                  # a small model of each family, and nothing else
    python -m scripts.zoo --load --only torchvision    # programs of models, loaded without PyTorch
    python -m scripts.zoo --every 2 --offset 1 --output other.md    # every second, beside a run of the others
    python -m scripts.zoo --most 0 --merge other.md                 # takes in what another page has
"""

import argparse
import os
from pathlib import Path

from scripts.models.choice import specs
from scripts.models.families import FAMILIES
from scripts.models.page import SECTIONS, page, read, read_rows, summary
from scripts.models.worker import outcomes, rows

PAGE = Path(__file__).parents[1] / "docs" / "tested" / "models.md"


def wanted(specs: list[str], found: dict, only: str, again: str | None) -> list[str]:
    """Of specs that contain a text, those to run."""
    return [
        spec
        for spec in specs
        if only in spec
        if spec not in found or again == "all" or (again == "failed" and not found[spec].agrees)
    ]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", metavar="TEXT", help="models whose spec contains it")
    parser.add_argument(
        "--timeout", type=float, default=120, metavar="S", help="CPU seconds for a model (default: 120)"
    )
    section = parser.add_mutually_exclusive_group()
    for name, what in (
        ("train", "train a model of each family"),
        ("load", "load the programs of models without PyTorch"),
    ):
        section.add_argument(f"--{name}", dest="section", action="store_const", const=name, help=f"{what} instead")
    parser.add_argument("--every", type=int, default=1, metavar="K", help="every K-th of them")
    parser.add_argument("--offset", type=int, default=0, help="the first of these (default: 0)")
    parser.add_argument("--most", type=int, metavar="N", help="how many to run (default: all)")
    parser.add_argument("--again", choices=["failed", "all"], help="run again what the page has")
    parser.add_argument("--merge", type=Path, nargs="+", default=[], metavar="PAGE", help="pages to take in first")
    parser.add_argument("--output", type=Path, default=PAGE, help="the page (default: docs/tested/models.md)")
    return parser


def main() -> None:
    options = _parser().parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # of the processes
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    there = list(specs())
    found, kept_rows = {}, {name: {} for name in SECTIONS}
    for kept in (options.output, *options.merge):
        text = kept.read_text() if kept.exists() else ""
        found |= read(text)
        for name, each in read_rows(text).items():
            kept_rows[name] |= each

    def write() -> None:
        options.output.write_text("\n".join(page(found, there, kept_rows)) + "\n")

    if options.section:
        agreeing = [spec for spec, outcome in found.items() if outcome.agrees]
        names = {"train": list(FAMILIES), "load": agreeing}[options.section]
        table = kept_rows[options.section]
        left = [name for name in names if options.only in name and (options.again or name not in table)]
        for name, row in rows(options.section, left[: options.most], options.timeout):
            table[name] = row
            write()
            print(row, flush=True)
        return
    chosen = wanted(there[options.offset :: options.every], found, options.only, options.again)[: options.most]
    for outcome in outcomes(chosen, options.timeout):
        found[outcome.spec] = outcome
        write()
        result = "agrees" if outcome.agrees else "FAILS" if outcome.pytorch else "fails in PyTorch"
        print(f"{result} {outcome.spec} {outcome.failure[:200]}", flush=True)
    write()
    print("\n".join(summary(found, there, kept_rows)))


if __name__ == "__main__":
    main()
