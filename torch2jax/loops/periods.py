"""Where a sequence of numbers repeats itself."""

from typing import NamedTuple

import numpy as np

__all__ = ["Run", "longest_run"]

_CANDIDATES = 12
_WIDEST = 6  # powers of two: what is looked at together, to tell one place of a turn from another that begins alike


class Run(NamedTuple):
    """Turns of equal lengths, one behind the other."""

    start: int
    period: int
    turns: int

    @property
    def stop(self) -> int:
        return self.start + self.period * self.turns


def longest_run(numbers: np.ndarray, turns: int, least: int) -> Run | None:
    """The turns that cover most of a sequence.

    Args:
        turns: how many there have to be.
        least: how much they have to cover.
    """
    best, covered = None, 0
    for period in _candidates(numbers, len(numbers) // turns, turns):
        start, length = _longest(numbers[period:] == numbers[:-period])
        found = Run(start, period, length // period + 1)
        size = found.period * found.turns
        # What has a period has its multiples too, and what is left over at its ends is no reason to take one of these.
        if found.turns >= turns and size >= least and size - period > covered:
            best, covered = found, size - period
    return best


def _candidates(numbers: np.ndarray, largest: int, turns: int) -> list[int]:
    """Periods that there may be: distances at which the same comes again, the most frequent ones."""
    if largest < 1:
        return []
    weights = np.zeros(largest + 1)
    words = numbers.astype(np.uint64)
    for power in range(_WIDEST + 1):
        order = np.argsort(words, kind="stable")
        gaps = np.diff(order)[words[order[1:]] == words[order[:-1]]]
        counts = np.bincount(gaps[gaps <= largest], minlength=largest + 1)
        counts[counts < turns - 1] = 0
        np.maximum(weights, counts * np.arange(largest + 1), out=weights)
        width = 1 << power
        if len(words) <= width:
            break
        words = words[:-width] * np.uint64(0x9E3779B97F4A7C15) + words[width:] * np.uint64(0xC2B2AE3D27D4EB4F)
        words ^= words >> np.uint64(29)
    best = np.argsort(-weights, kind="stable")[:_CANDIDATES]
    return sorted(int(period) for period in best if weights[period] > 0)


def _longest(flags: np.ndarray) -> tuple[int, int]:
    """Where the longest stretch of truths begins, and how long it is."""
    ends = np.flatnonzero(np.concatenate(([True], ~flags, [True])))
    lengths = np.diff(ends) - 1
    at = int(np.argmax(lengths))
    return int(ends[at]), int(lengths[at])
