"""Lists the leaves of PyTorch: the operators that its own decompositions end at, over its whole operator database.

These are what torch2jax needs rules for, so that everything above them works. No rule of torch2jax takes part in
finding them; afterwards each leaf is shown with whether it has one.

    python -m scripts.leaves                       # all entries; takes minutes
    python -m scripts.leaves 'linalg.*' --missing  # some entries, only the leaves that have no rule
"""

import argparse
import collections
import contextlib
import io
import warnings

import torch
from torch.utils._python_dispatch import TorchDispatchMode

import torch2jax  # noqa: F401  (registers the rules)
from tests.ops.database import entries, samples
from torch2jax.calls.library_kernels import decomposition_of, functional_of
from torch2jax.rules import registry

DTYPES = (torch.float32, torch.int64, torch.complex64)


class Leaves(TorchDispatchMode):
    """Decomposes every operator as far as PyTorch can, and gathers the names of those it cannot."""

    def __init__(self):
        super().__init__()
        self.found: set[torch._ops.OpOverload] = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        del types
        kwargs = kwargs or {}
        if func.namespace == "aten":
            decomposition = decomposition_of(func) or (func.decompose if func._can_decompose() else None)
            if decomposition is not None:
                with self:
                    result = decomposition(*args, **kwargs)
                if result is not NotImplemented:
                    return result
        self.found.add(func)
        return func(*args, **kwargs)


def leaves_of(op, limit: int | None) -> set[torch._ops.OpOverload]:
    """The leaves that the samples of one database entry reach."""
    leaves = Leaves()
    for dtype in DTYPES:
        if dtype not in op.supported_dtypes("cpu"):
            continue
        for sample in samples(op, dtype, limit):
            # A sample that PyTorch's own decompositions fail on tells as much as was reached until then.
            with contextlib.suppress(Exception), leaves:
                op(sample.input, *sample.args, **sample.kwargs)
    return leaves.found


def has_rule(leaf: torch._ops.OpOverload) -> bool:
    """Whether torch2jax has a rule for a leaf, or for what it writes if it is an in-place operator."""
    functional = functional_of(leaf)
    return any(registry.lookup_aten(each) is not None for each in (leaf, functional) if each is not None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("patterns", nargs="*", default=["*"])
    parser.add_argument("--limit", type=int, default=6, help="samples of each entry and dtype (default: 6)")
    parser.add_argument("--missing", action="store_true", help="show only the leaves that have no rule")
    options = parser.parse_args()
    reached_by: dict[torch._ops.OpOverload, list[str]] = collections.defaultdict(list)
    for op in (op for pattern in options.patterns for op in entries(pattern)):
        with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            for leaf in leaves_of(op, options.limit):
                reached_by[leaf].append(op.name)
    served = {leaf for leaf in reached_by if has_rule(leaf)}
    for leaf in sorted(reached_by, key=str):
        if options.missing and leaf in served:
            continue
        names = sorted(set(reached_by[leaf]))
        more = f" and {len(names) - 4} more" if len(names) > 4 else ""
        print(f"{'  rule' if leaf in served else 'NO RULE':8} {leaf!s:48} {', '.join(names[:4])}{more}")
    print(f"{len(reached_by)} leaves, {len(served)} with a rule")


if __name__ == "__main__":
    main()
