"""Translated functions and modules: pure functions of arguments and of a state by name."""
