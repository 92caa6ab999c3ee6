"""Functions that change modules and optimizers, as pure functions of a state."""
