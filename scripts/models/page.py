"""`docs/tested/models.md` from outcomes, and outcomes from it."""

import re
from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

import jax
import torch

from scripts.models import exports, training
from scripts.models.answers import ANSWERS
from scripts.models.outcome import HEAD, Outcome, library_of

__all__ = ["SECTIONS", "Section", "page", "read", "read_rows", "summary"]


class Section(NamedTuple):
    """A table beside those of the libraries, whose rows are kept as they are."""

    title: str
    head: str
    text: tuple[str, ...]


SECTIONS = {
    "train": Section(
        "## Training",
        training.HEAD,
        (
            f"A small model of each family, trained for {training.STEPS} steps of SGD with momentum in PyTorch and as",
            "translated, in training mode without dropout, in double precision. Differences of losses are relative to",
            "the loss, those of parameters to the way that the farthest has gone, those of buffers to the buffer.",
            "Written by `python -m scripts.zoo --train`.",
        ),
    ),
    "load": Section(
        "## Programs without PyTorch",
        exports.HEAD,
        (
            "[`export`](../export.md) makes one program of the forward pass for CPU, CUDA and TPU, in a file; the",
            "weights are in another. A process in which PyTorch and torch2jax cannot be imported loads both and runs",
            "the program on the CPU. The difference is from the results of the translated model; zero is bit for bit.",
            "Written by `python -m scripts.zoo --load --only torchvision`.",
        ),
    ),
}
Rows = Mapping[str, Mapping[str, str]]
"""The rows of each section, by what they are about."""

# Why models fail: the values that they ask for do not exist under `jit`, or they draw.
_LENGTH = "how long the sound is that it gives is decided by values: how long it finds that each word takes"
_ROUTED = "how many tokens an expert gets is a number that Python sees, decided by values"
_POINTS = "how many points it finds is decided by values"
_DRAWN = "it draws which patches of the image it goes on with, and PyTorch draws others"
_TIES = "it goes on with the 300 best of 1,029 scores, of which most are equal here, and PyTorch takes others of these"
_PATCHES = "how many patches of the image are beside the words is decided by values"
_REASONS = {
    "transformers:fastspeech2_conformer": _LENGTH,
    "transformers:fastspeech2_conformer_with_hifigan": _LENGTH,
    "transformers:jetmoe": _ROUTED,
    "transformers:longcat_flash": _ROUTED,
    "transformers:openai_privacy_filter": _ROUTED,
    "transformers:pp_doclayout_v3": _TIES,
    "transformers:pp_doclayout_v4": _TIES,
    "transformers:superpoint": _POINTS,
    "transformers:udop": _PATCHES,
    "transformers:vilt": _DRAWN,
}
_LIBRARIES = ("torchvision", "timm", "transformers", "diffusers")


def _of(outcomes: Mapping[str, Outcome], library: str) -> list[Outcome]:
    found = (outcome for outcome in outcomes.values() if outcome.library == library)
    return sorted(found, key=lambda outcome: outcome.spec)


def summary(outcomes: Mapping[str, Outcome], specs: Collection[str], rows: Rows | None = None) -> Iterator[str]:
    """A line for each library: how many models there are, how many were tried, run in PyTorch, agree, and so on."""
    loaded = {spec: row.endswith(" |  |") for spec, row in (rows or {}).get("load", {}).items()}
    yield "| library | models | tried | run in PyTorch | agree | % | export for TPU | load without PyTorch |"
    yield "|---|---|---|---|---|---|---|---|"
    for library in (*_LIBRARIES, "all"):
        found = list(outcomes.values()) if library == "all" else _of(outcomes, library)
        there = {spec for spec in specs if library in (library_of(spec), "all")}
        run = [outcome for outcome in found if outcome.pytorch]
        agree, exports = sum(outcome.agrees for outcome in run), sum(outcome.exports for outcome in run)
        percent = f"{100 * agree / len(run):.1f}" if run else ""
        agreeing = [agrees for spec, agrees in loaded.items() if library in (library_of(spec), "all")]
        count = f"{sum(agreeing)} of {len(agreeing)}" if agreeing else ""
        cells = (library, len(there | {x.spec for x in found}), len(found), len(run), agree, percent, exports, count)
        yield f"| {' | '.join(map(str, cells))} |"


def page(outcomes: Mapping[str, Outcome], specs: Collection[str], rows: Rows | None = None) -> Iterator[str]:
    """The lines of the page, with the rows of its sections."""
    yield from (
        "# Models",
        "",
        "These models have random weights, and are small where the library allows it. They are compared with PyTorch",
        "as in `torch2jax check SPEC --grad`: outputs, and the gradients of all parameters and floating-point inputs.",
        "Constant initial parameters and running statistics are perturbed a little, so that they affect the result.",
        "Differences are relative to the largest element of a tensor. Seconds and operations are those of the jitted",
        "forward pass, on a CPU with other work. XLA does not optimize small models, which takes half the time or",
        "less.",
        "",
        "Models that differ are compared again in double precision, to exclude rounding, and then with the formula",
        "of batch norm instead of PyTorch's kernel: in evaluation mode, PyTorch's gradient of the bias is wrong if",
        "the gradient of the result is channels-last and the input is not (finite differences agree with the",
        "formula). Models that agree only in double precision are marked *but*; the errors shown are from that run.",
        "",
        "The list has one torchvision model of each family, one timm model of each file, and every transformers model",
        "type for which a small configuration can be made. Models that PyTorch does not run here are not counted; for",
        "most of them, the configuration or the inputs cannot be guessed. Torchvision's detectors are complete, from",
        "the image to the final boxes, but consider few boxes: torchvision's compiled library, which does not load",
        "with a CPU build of PyTorch, is replaced by code that loops over single boxes. *Load without PyTorch* counts",
        "the models whose exported program was tried.",
        f"The page is written by `python -m scripts.zoo`, with PyTorch {torch.__version__.split('+')[0]} and JAX"
        f" {jax.__version__}.",
        "",
        *summary(outcomes, specs, rows),
    )
    for name, section in SECTIONS.items():
        if found := (rows or {}).get(name):
            rule = "|---" * (section.head.count("|") - 1) + "|"
            yield from ("", section.title, "", *section.text, "", section.head, rule, *found.values())
    for library in _LIBRARIES:
        if found := _of(outcomes, library):
            yield from ("", f"## {library}", "", HEAD, "|---" * (HEAD.count("|") - 1) + "|")
            yield from (outcome.row() for outcome in found)
    if known := [spec for spec in _REASONS if spec in outcomes and not outcomes[spec].agrees]:
        yield from ("", "## Why these fail", "", "| model | reason |", "|---|---|")
        yield from (f"| {spec} | {_REASONS[spec]} |" for spec in known)
    if told := [spec for spec in ANSWERS if spec in outcomes]:
        yield from ("", "## Told what to answer", "", "| model | answer | condition |", "|---|---|---|")
        yield from (f"| {spec} | {ANSWERS[spec]} | {ANSWERS[spec].reason} |" for spec in told)


def read(text: str) -> dict[str, Outcome]:
    """The outcomes that a page holds."""
    rows = re.findall(r"^\| `[^`]*:[^`]*` \|.*\|$", text, re.MULTILINE)
    return {outcome.spec: outcome for outcome in map(Outcome.read, rows)}


def read_rows(text: str) -> dict[str, dict[str, str]]:
    """The rows of its sections that a page holds."""
    found = {}
    for name, section in SECTIONS.items():
        part = text.partition(f"{section.title}\n")[2].partition("\n## ")[0]
        rows = [line for line in part.splitlines() if line.startswith("| ") and line != section.head]
        found[name] = {row.split("|")[1].strip(): row for row in rows}
    return found
