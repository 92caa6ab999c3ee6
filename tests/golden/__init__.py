"""Golden files: the graphs of small programs of every room, and of models, as text.

A *room* is a function of one of these modules that gives programs by name. Each room has one file, ``ROOM.txt``.
`tests/test_golden.py` compares them; ``python -m tests.golden`` writes them.
"""
