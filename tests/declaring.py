"""Rules that are declared for good, for as long as a test takes."""

import contextlib
from collections.abc import Iterator

from torch2jax.rules.tables import PROVIDED

__all__ = ["declaring_for_a_while"]


@contextlib.contextmanager
def declaring_for_a_while() -> Iterator[None]:
    """Takes back all that is declared within: a function's rule is its methods' and its forms' too."""
    before = PROVIDED.functions, PROVIDED._by_name
    PROVIDED.functions, PROVIDED._by_name = map(dict, before)
    try:
        yield
    finally:
        PROVIDED.functions, PROVIDED._by_name = before
        PROVIDED._forget()
