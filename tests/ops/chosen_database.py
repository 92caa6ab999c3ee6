"""PyTorch's operator database of mask selections, against PyTorch: ``python -m tests.ops.chosen_database``.

Each sample's tensors are what a traced mask chooses of longer ones, along the first dimension or along the last. What
is not chosen is nan, or an integer far from all others: it may be in no value and in no derivative. An operator that is
refused is counted by its message. `squeeze` of a dimension that data decide keeps it, as docs/lengths.md says.

    python -m tests.ops.chosen_database                # all entries, their first two samples
    python -m tests.ops.chosen_database softmax amax --samples 20 --show
    python -m tests.ops.chosen_database --rows all --x64    # each kind of rows of `hidden_rows`, in double precision
"""

import argparse
import collections
import sys
from collections.abc import Sequence
from typing import NamedTuple

import jax
import torch

from tests.compiling import keep_context, set_flags
from tests.ops.database.samples import Case, cases, entries
from tests.ops.hidden_rows import KINDS, Given, compare, given, masks, spread

Tensor = torch.Tensor
_RANDOM = ("bernoulli", "dropout", "multinomial", "normal", "rand", "uniform", "rrelu", "cauchy", "exponential")
_RANDOM += ("geometric", "log_normal", "empty", "new_empty", "scaled_dot_product_attention")
_CRASHES = ("nn.functional.pdist", "_segment_reduce")
"""PyTorch's derivatives of no row end the process."""
_ILL_POSED = {
    "equal": ("svd_lowrank", "pca_lowrank"),  # derivatives for singular values that are all but zero
    "none": ("nn.functional.layer_norm",),  # a sample has eps=-0.5: nan times zero in derivatives for weights
}


class Trial(NamedTuple):
    """A case, which of its tensors are chosen, and along which dimension."""

    case: Case
    chosen: tuple[bool, ...]
    dim: int

    @property
    def is_other(self) -> bool:
        """Whether it is documented to differ: a dimension of one is chosen, and squeezed."""
        is_squeezed = any(word in self.case.name for word in ("squeeze", "corrcoef", "cov"))
        return is_squeezed and self.case.tensors[0].shape[self.dim] == 1

    def run(self, kinds: Sequence[str] = ("nan",)) -> dict[str, str]:
        """What is wrong for each kind of rows: nothing, where the text is empty; or that it is refused."""
        return compare(self.function, {kind: self._given(kind) for kind in kinds})

    def function(self, mask, wholes: list) -> list:
        """The case's function of what a mask chooses."""
        by_mask = (slice(None),) * (self.dim % self.case.tensors[0].ndim)
        operands = [x[(*by_mask, mask)] if is_it else x for x, is_it in zip(wholes, self.chosen, strict=True)]
        found = self.case.comparable(self.case.function(*operands), *operands)
        return [found] if isinstance(found, Tensor) else list(found)

    def _given(self, kind: str) -> Given | None:
        if (kind == "none" and self.case.op.name in _CRASHES) or self.case.op.name in _ILL_POSED.get(kind, ()):
            return None
        tensors = [x.detach() for x in self.case.tensors]
        places, mask = masks(tensors[0].shape[self.dim], kind)
        wholes = [
            spread(x, places, self.dim, kind) if is_it else x for x, is_it in zip(tensors, self.chosen, strict=True)
        ]
        dims = [self.dim if is_it else None for is_it in self.chosen]
        return given(self.function, mask, wholes, dims, 2 if self.case.op.supports_gradgrad else 1)


def trials(name: str, samples: int, precision: torch.dtype = torch.float32) -> list[Trial]:
    """Of each sample: its first tensor chosen, and all tensors that are as long."""
    found = []
    for op in entries(name):
        if any(word in op.name for word in _RANDOM) or torch.float32 not in op.supported_dtypes("cpu"):
            continue
        few = [x.in_precision(precision) for x in cases(op, torch.float32, 60) if _may_be_chosen(x)]
        for case in few[:samples]:
            first = case.tensors[0]
            for dim in (0, -1)[: first.ndim]:
                alone = (True, *[False] * (len(case.tensors) - 1))
                alike = tuple(x.ndim == first.ndim and x.shape[dim] == first.shape[dim] for x in case.tensors)
                found += [Trial(case, chosen, dim) for chosen in dict.fromkeys((alone, alike))]
    return found


def _may_be_chosen(case: Case) -> bool:
    tensors = case.tensors
    is_dense = all(x.layout == torch.strided for x in tensors)  # no other has a selection by a mask
    return (
        is_dense and bool(tensors) and tensors[0] is case._leaves[0] and tensors[0].ndim > 0 and tensors[0].numel() > 1
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=["*"])
    parser.add_argument("--samples", type=int, default=2, help="how many samples of each entry")
    parser.add_argument("--part", default="0/1", help="which part of the entries, as 2/8")
    parser.add_argument("--rows", nargs="*", default=["nan"], help=f"kinds of rows: {', '.join(KINDS)}, or all")
    parser.add_argument("--x64", action="store_true", help="in double precision")
    parser.add_argument("--show", action="store_true", help="what is refused, too")
    options = parser.parse_args()
    set_flags()
    keep_context()
    jax.config.update("jax_enable_x64", options.x64)
    kinds = list(KINDS) if options.rows == ["all"] else options.rows
    part, parts = map(int, options.part.split("/"))
    outcomes = {kind: collections.Counter[str]() for kind in kinds}
    names = list(dict.fromkeys(op.name for name in options.names for op in entries(name)))[part::parts]
    for name in names:
        for trial in trials(name, options.samples, torch.float64 if options.x64 else torch.float32):
            if trial.is_other:
                continue
            for kind, wrong in trial.run(kinds).items():
                outcome = wrong.partition(":")[0] if wrong.startswith(("refused", "left out")) else "differ"
                outcomes[kind][outcome if wrong else "agree"] += 1
                if wrong and (outcome == "differ" or options.show):
                    which = f"{list(trial.chosen)} along {trial.dim}"
                    shapes = [tuple(x.shape) for x in trial.case.tensors]
                    print(f"{outcome} ({kind}): {trial.case.name} {shapes} {which}: {wrong}")
                    if outcome == "differ":
                        print(f"    {str(trial.case.sample)[:300]}", flush=True)
    for kind, found in outcomes.items():
        print(f"{kind} ({KINDS[kind]}): {dict(found)}")
    return int(any(found["differ"] for found in outcomes.values()))


if __name__ == "__main__":
    sys.exit(main())
