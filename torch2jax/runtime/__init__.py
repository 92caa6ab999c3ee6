"""What all rooms stand on: the state of a process that translates, and the errors that users meet.

To read: `translation.py` finds the call in progress, `layers.py` names the layers and loads them, `patches.py` replaces
functions of PyTorch while a call runs, and `caches.py` keeps what calls find out for later ones. `errors/` has the
errors and their messages. Every room may import this one; it knows `internals/` alone, and the class of a call for the
type checker.
"""
