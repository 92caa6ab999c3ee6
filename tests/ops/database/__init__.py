"""PyTorch's operator database as a test: what each entry gives in PyTorch, and what it gives translated.

- `samples`: the entries, and their samples as functions of the tensors in them
- `compare`: what it means that two results agree
- `exceptions`: the one list of looser tolerances and of what is left out, with reasons
- `checks`: one check for each column of ``docs/coverage.md``
- `modules`: the same for PyTorch's database of modules

As a script it reports on single operators: ``python -m tests.ops.database add 'linalg.*' --grad --jit``.
"""

from .checks import CHECKS, check_gradients, check_values
from .compare import compare, compare_trees
from .samples import DTYPES, Case, cases, dtypes_of, entries, entry, full_name, samples

__all__ = [
    "CHECKS",
    "DTYPES",
    "Case",
    "cases",
    "check_gradients",
    "check_values",
    "compare",
    "compare_trees",
    "dtypes_of",
    "entries",
    "entry",
    "full_name",
    "samples",
]
