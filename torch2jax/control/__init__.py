"""Conditions and loops on traced values, read from the source: each side runs once, and what it writes is journaled.

To read: `driver.py` has the runs of a call, and what the rooms below ask of converted code. `source.py`,
`exits.py` and `convert.py` turn the source into operators: those of statements (`operators.py`), of expressions
(`expressions.py`), calls (`calls.py`, `asking.py`), and attributes, items and globals (`access.py`). `sides.py`,
`writes.py`, `ends.py` and `merge.py` run the sides of a condition and make one outcome of two; `loops.py` makes
loops. `rest.py` puts the rest of the code into both sides.
"""
