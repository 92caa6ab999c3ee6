"""Loops in a graph: identical iterations become one `lax.scan`.

To read: `rolled.py` finds iterations and makes loops of them, by the numbers of `likeness.py` and the operands of
`iterations.py`. `program.py` evaluates programs with loops; `windows.py` and `sums.py` are of slices. This folder knows
JAX's programs alone, no tensors: `tracing/` and `control/` import it.
"""
