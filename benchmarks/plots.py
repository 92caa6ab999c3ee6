"""Draws what `README.md` has measured of translated models beside hand-written ones.

    python -m benchmarks.plots ratios.svg

One dot for each model and pass, in a panel for each figure: the ratio of the translated to the hand-written program. It
needs matplotlib (`pip install -e '.[docs]'`). The site draws it while it is made.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path

import matplotlib.pyplot as plt
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator, StrMethodFormatter

MEASURED = Path(__file__).parent / "README.md"
FIGURES = {"run (s)": "running time", "StableHLO operations": "operations", "trace + lower (s)": "time to trace"}
HEADS = ["model", "pass", "figure", "translated", "hand-written", "ratio"]


def measured() -> Iterator[tuple[str, str, float]]:
    """Each figure, what it is of, and its ratio, of all tables of models and passes."""
    reading = False
    for line in MEASURED.read_text().splitlines():
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        reading = cells[: len(HEADS)] == HEADS or (reading and bool(cells))
        if reading and len(cells) > 5 and cells[2] in FIGURES:
            yield cells[2], f"{cells[0]}, {cells[1]}", float(cells[5])


def ratios() -> Figure:
    """The ratios of the translated to the hand-written models; below 1 the translation is better."""
    rows = list(measured())
    names = list(dict.fromkeys(name for _, name, _ in rows))
    figure = plt.figure(figsize=(9, 0.32 * len(names) + 1), layout="constrained")
    for axes, (key, title) in zip(figure.subplots(1, len(FIGURES), sharey=True), FIGURES.items(), strict=True):
        found = {name: ratio for figure, name, ratio in rows if figure == key}
        axes.axvline(1, color="0.6", linewidth=1)
        axes.scatter(list(found.values()), [names.index(name) for name in found], color="#c43f15", zorder=3)
        axes.set(title=f"{title}, ratio", xscale="log", xlim=(0.45, 2.2), yticks=range(len(names)), yticklabels=names)
        axes.xaxis.set_major_locator(FixedLocator([0.5, 0.7, 1, 1.4, 2]))
        axes.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.grid(axis="x", color="0.9")
        axes.spines[["top", "right"]].set_visible(False)
    figure.axes[0].invert_yaxis()
    return figure


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, help="a picture: .svg, .png or .pdf")
    ratios().savefig(parser.parse_args().file)
