"""Conditions and loops on traced values, read from the source: each side runs once, and what it writes is journaled.

To read: `driver.py` has the runs of a call, `entry.py` what the rooms below ask of converted code. `source.py`,
`exits.py` and `convert.py` turn the source into operators; `operators.py`, `calls.py` and `access.py` are these.
`sides.py`, `writes.py` and `merge.py` run the sides of a condition and make one outcome of two; `loops.py` makes loops.
`rest.py` puts the rest of the code into both sides.
"""

from ..tracing.user_code import ConvertingRuns, provide


def _runs() -> ConvertingRuns:
    from . import driver  # when the first call asks a traced value

    return driver


provide(_runs)
