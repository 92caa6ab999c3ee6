"""`docs/tested/libraries.md` from outcomes."""

from collections.abc import Iterator, Mapping

from scripts.suite.outcomes import reason
from scripts.uses.outcome import Outcome
from scripts.uses.use import TOLERANCE, Use

__all__ = ["page", "summary"]

_HEAD = "| library | version | field | use | forward | gradients | trace s | compile s |"


def summary(uses: Mapping[str, Use], outcomes: Mapping[str, Outcome]) -> str:
    """One line: how many libraries and uses there are, and how many of these agree."""
    run = [use for use in uses.values() if use.name in outcomes]
    agree = sum(outcomes[use.name].agrees for use in run)
    share = f" ({100 * agree / len(run):.1f} %)" if run else ""
    return f"{len({use.library for use in run})} libraries, {len(run)} uses: {agree} agree{share}."


def page(uses: Mapping[str, Use], outcomes: Mapping[str, Outcome]) -> Iterator[str]:
    """The lines of the page."""
    versions = {(outcome.torch.partition("+")[0], outcome.jax) for outcome in outcomes.values()}
    loose = [use for use in uses.values() if use.because and use.name in outcomes]
    yield "# Other people's libraries"
    yield ""
    other = ", except for those [listed](#tolerances) with another bound" if loose else ""
    yield "These are typical uses of libraries that are built on PyTorch, with random weights. Each use runs in"
    yield "PyTorch, and as `jax.jit(t2j(f))`: first the forward pass, then the gradients of all floating-point inputs"
    yield "and all parameters. A number is the largest difference, relative to the largest element of its tensor, or"
    yield "to a thousandth of the largest element of all tensors if that is more."
    yield f"A use agrees if it differs by at most {TOLERANCE:g}{other}."
    yield "Seconds are those of the gradients' program, on a CPU with other work. They are left out if the compiler"
    yield "was set to save time. The page is written by `python -m scripts.libraries`,"
    yield f"with {' and '.join(f'PyTorch {torch} and JAX {jax}' for torch, jax in sorted(versions))}."
    yield ""
    yield summary(uses, outcomes)
    yield ""
    yield _HEAD
    yield "|---" * _HEAD.count(" | ") + "|---|"
    for use in uses.values():
        if outcome := outcomes.get(use.name):
            yield _row(use, outcome)
    failed = [(use, outcomes[use.name]) for use in uses.values() if use.name in outcomes]
    failed = [(use, outcome) for use, outcome in failed if not outcome.agrees]
    if failed:
        yield from ("", "## What fails", "", "| library | use | reason |", "|---|---|---|")
        yield from (f"| {use.library} | {use.what} | {_reason(use, outcome)} |" for use, outcome in failed)
    if loose:
        yield from ("", "## Tolerances", "", "| library | use | bound | reason |", "|---|---|---|---|")
        yield from (f"| {use.library} | {use.what} | {use.tolerance:g} | {use.because} |" for use in loose)


def _row(use: Use, outcome: Outcome) -> str:
    forward = "fails" if outcome.forward is None else f"{outcome.forward:.0e}"
    gradient = f"{outcome.gradient:.0e}" if outcome.gradient is not None else "fails" if use.gradients else "none"
    seconds = ["" if x is None else f"{x:.1f}" for x in (outcome.trace, outcome.compile)]
    return f"| {' | '.join([use.library, outcome.version, use.field, use.what, forward, gradient, *seconds])} |"


def _reason(use: Use, outcome: Outcome) -> str:
    text = reason(outcome.error).replace("`", "'").replace("|", r"\|")
    return f"{use.fails}: `{text}`" if use.fails else f"`{text}`"
