"""JAX's traces: the current one, what it records, and code in its own trace.

To read: `traces.py` has the current trace, `execution.py` one run of a function in it, `scope.py` code in a trace of
its own. `conditions.py` and `user_code.py` are what a run knows of conditions and of the user's code. `loops/` makes
one loop of identical iterations, and `rolling.py` does so in what a call leaves. `value_ranges.py` reads bounds of
numbers from a program. Rooms from `values/` up import this one; it knows tensors, but neither rules nor the call.
"""
