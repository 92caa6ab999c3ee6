"""Private names of PyTorch and JAX, with what each must do: look here first for a new release of either.

No other file of the package uses one. `tests/test_internals.py` says what counts as private, and what does not: an
operator that a rule is of, and what a patch exchanges. What has a public form is used by that.

Each file has one subject; names are taken from it by ``from ..internals.dispatch import OpOverload``, so that to use
one costs no more than to look up a global. Where a name is only needed within a function, since what defines it is slow
to import, the import stands in that function.
"""
