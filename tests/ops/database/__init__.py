"""PyTorch's operator database as a test: what each entry gives in PyTorch, and what it gives translated.

- `samples`: the entries, and their samples as functions of the tensors in them
- `compare`: what it means that two results agree
- `exceptions`: the one list of looser tolerances and of what is left out, with reasons
- `outcome`: what PyTorch gives for a case, and the comparison with it
- `programs`: runs checks that compile, alone or many together
- `checks`, `derivatives`: one check for each column of ``docs/tested/coverage.md``
- `trials`: which checks of which samples an entry has, and what comes of them
- `modules`: the same for PyTorch's database of modules

As a script it reports on single operators: ``python -m tests.ops.database add 'linalg.*' --grad --jit``.
"""

from .compare import compare, compare_trees
from .outcome import Refused
from .samples import DTYPES, Case, cases, dtypes_of, entries, entry, full_name, has_entry, samples
from .trials import Trial, attempt, columns_of, joined, run, trials

__all__ = [
    "DTYPES",
    "Case",
    "Refused",
    "Trial",
    "attempt",
    "cases",
    "columns_of",
    "compare",
    "compare_trees",
    "dtypes_of",
    "entries",
    "entry",
    "full_name",
    "has_entry",
    "joined",
    "run",
    "samples",
    "trials",
]
