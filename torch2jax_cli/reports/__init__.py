"""What the commands print of their results: ``show`` for people, ``record`` for ``--json``.

In records what is not finite is null, times are in seconds, and sizes in bytes.
"""
