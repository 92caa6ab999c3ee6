"""The keys that random operators take."""

import jax
import torch

from .errors import user_location

__all__ = ["Stream"]


class Stream:
    """Gives each random operator of a call its own key, derived from the caller's.

    Args:
        rng: a JAX key, old-style (``jax.random.PRNGKey``) or new-style (``jax.random.key``), or None.
    """

    def __init__(self, rng):
        self._key = rng
        self._taken = 0
        self._generators: dict[int, tuple[torch.Generator, Stream]] = {}

    def next_key(self, generator: torch.Generator | None = None):
        """The next key.

        Raises:
            RuntimeError: there is no key to derive one from.
        """
        if generator is not None:
            return self._of(generator).next_key()
        if self._key is None:
            raise RuntimeError(
                f"a random operator needs a key, at {user_location()}. Pass one: fn(..., rng=jax.random.key(0)); "
                "or call module.eval() if the randomness is dropout"
            )
        key = jax.random.fold_in(self._key, self._taken)
        self._taken += 1
        return key

    def reseed(self, seed: int) -> None:
        """Starts anew from a seed."""
        self._key, self._taken = jax.random.key(seed % 2**32), 0

    def _of(self, generator: torch.Generator) -> "Stream":
        entry = self._generators.get(id(generator))
        if entry is None:
            stream = Stream(None)
            stream.reseed(generator.initial_seed())
            entry = self._generators[id(generator)] = (generator, stream)
        return entry[1]
