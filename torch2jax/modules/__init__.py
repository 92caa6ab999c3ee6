"""`t2j`, and what it makes: translated functions and modules, pure functions of arguments and of a state by name.

To read: `convert.py` is `t2j`, `framework_checks.py` the errors for what it does not take. `translated.py` has the
functions and modules that it makes. `states.py` is the state of a module by name, `layers.py` a state whose layers are
stacked, `checkpoints.py` one from files. `skeleton.py` copies the structure of a module for one call, `deep_copy.py`
that of other objects. `scripted.py` (TorchScript), `padded.py` and `fully_sharded.py` are of layers, which code loads
when it needs them; so are `training/`, functions that change modules and optimizers, and `exporting/`, programs as
files.

The room lies above the call in progress; rules (`ops/`), the bridge, shardings and commands import it.
"""
