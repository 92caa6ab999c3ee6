"""Where a sequence of numbers repeats itself."""

from typing import NamedTuple

import numpy as np

__all__ = ["Run", "longest_run"]

_CANDIDATES = 12
_WIDEST = 6  # powers of two: what is looked at together, to tell apart places of an iteration that begin alike


class Run(NamedTuple):
    """Consecutive iterations of equal length."""

    start: int
    period: int
    iterations: int

    @property
    def stop(self) -> int:
        return self.start + self.period * self.iterations


def longest_run(numbers: np.ndarray, iterations: int, least: int, sizes: np.ndarray | None = None) -> Run | None:
    """The iterations that cover most of a sequence.

    Args:
        iterations: how many there have to be.
        least: how much they have to cover.
        sizes: how much each number covers; one, if not given.
    """
    ends = np.concatenate(([0], np.cumsum(np.ones(len(numbers), np.int64) if sizes is None else sizes)))
    best, covered = None, 0
    for period in _candidates(numbers, len(numbers) // iterations, iterations, ends):
        start, length = _longest(numbers[period:] == numbers[:-period], ends)
        found = Run(start, period, length // period + 1)
        size = ends[found.stop] - ends[start]
        repeated = size - (ends[start + period] - ends[start])
        # What has a period has its multiples too, and what is left over at its ends is no reason to take one of these.
        if found.iterations >= iterations and size >= least and repeated > covered:
            best, covered = found, repeated
    return best


def _candidates(numbers: np.ndarray, largest: int, iterations: int, ends: np.ndarray) -> list[int]:
    """Periods that there may be: distances at which the same comes again, those that cover most."""
    if largest < 1:
        return []
    weights = np.zeros(largest + 1)
    words = numbers.astype(np.uint64)
    for power in range(_WIDEST + 1):
        order = np.argsort(words, kind="stable")
        gaps = np.diff(order)
        is_again = (words[order[1:]] == words[order[:-1]]) & (gaps <= largest)
        gaps, sizes = gaps[is_again], np.diff(ends[order])[is_again]
        counts = np.bincount(gaps, minlength=largest + 1)
        covered = np.bincount(gaps, sizes, minlength=largest + 1)
        np.maximum(weights, np.where(counts < iterations - 1, 0, covered), out=weights)
        width = 1 << power
        if len(words) <= width:
            break
        words = words[:-width] * np.uint64(0x9E3779B97F4A7C15) + words[width:] * np.uint64(0xC2B2AE3D27D4EB4F)
        words ^= words >> np.uint64(29)
    best = np.argsort(-weights, kind="stable")[:_CANDIDATES]
    return sorted(int(period) for period in best if weights[period] > 0)


def _longest(flags: np.ndarray, ends: np.ndarray) -> tuple[int, int]:
    """Where the stretch of truths begins that covers most, and how long it is."""
    bounds = np.flatnonzero(np.concatenate(([True], ~flags, [True])))
    starts, lengths = bounds[:-1], np.diff(bounds) - 1
    at = int(np.argmax(ends[starts + lengths] - ends[starts]))
    return int(starts[at]), int(lengths[at])
