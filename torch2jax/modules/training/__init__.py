"""Functions that change modules and optimizers, as pure functions of a state.

To read: `stateful.py` is what `t2j(step, state=...)` makes. `slots.py` has the places in objects that a step may
change, and states with stacked layers; `copies.py` the objects with the arrays of a state in these places. This is a
layer: no file imports it before code makes a step or an optimizer.
"""
