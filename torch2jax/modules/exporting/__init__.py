"""Programs for processes that have no PyTorch.

To read: `export.py` is `torch2jax.export`, which makes a program for all sizes of one that was traced for some,
and `sizes.py` are the expressions of sizes in it. This is a layer, apart from the commands of `tools/`, so that
`export` loads none of these.
"""
