"""Parts of a program that are compiled once, while the Python code around them runs as usual.

To read: `part.py` runs a part, by the program of `program.py` for what `captured.py` finds in its arguments, and
`effects.py` repeats what the part did to objects. Around parts, `host_functions.py` decides whether PyTorch computes,
on the tensors of `host_memory.py`; `reordered.py` leaves reordered rows to the next part. This is a layer: no file
imports it before a call has parts.
"""
