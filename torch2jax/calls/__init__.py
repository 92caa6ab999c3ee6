"""The translated call in progress: the dispatch of functions to rules, and the state of the call.

To read: `dispatch.py` has the call, which finds the rule of a function; `plans.py` and `memory_plans.py` what repeated
operators have in common; `modes.py` what happens below PyTorch's dispatcher. `nesting.py` is a call within a call.
`constants.py`, `rng.py`, `settings.py` and `outer_modules.py` hold its state: tensors and modules from outside, random
keys, PyTorch's switches. The other files each have one thing that acts in calls: optimizers, kernels of libraries,
PyTorch's error messages. `compiled/` has the parts of a call that are compiled once.

Rooms from `control/` and `modules/` up import this one. Those below ask the call in progress for a few attributes
(`runtime/translation.py`), and never import its class.
"""
