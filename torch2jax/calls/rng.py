"""The keys of random operators, and the meaning of PyTorch's own random state in a call."""

import contextlib
import secrets
import sys
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from ..internals.dispatch import DisableTorchDispatch, DisableTorchFunction
from ..runtime.errors.locations import user_level, user_location
from ..runtime.patches import exchange, replaces
from ..runtime.translation import current, lift, this_call
from ..tensors.journal import expect_no_repetition
from ..tensors.known import evaluate
from ..tensors.tensor import wrap
from ..tensors.traced import evaluating, is_traced
from ..tracing.execution import Drawing, StreamState

_OWN_REFERENCES = 3  # to a generator that a call has made, when it is over: of the stream, a loop and getrefcount


class Stream:
    """Gives each random operator of a call its own key, derived from the caller's.

    Args:
        rng: a JAX key, old-style (``jax.random.PRNGKey``) or new-style (``jax.random.key``), or None.

    Raises:
        TypeError: `rng` is something else.
    """

    def __init__(self, rng: jax.Array | None):
        self._key = None if rng is None else _checked(rng)
        self._taken, self._before = 0, 0
        self.seed: int | None = None
        self._generators: dict[int, tuple[torch.Generator, torch.Tensor]] = {}
        self.reports = True
        """False where something else than the code may hold generators: then nobody knows whose they are."""
        self.drawing: list[Drawing] = []
        """What acts on the keys that are drawn, the innermost last."""

    @contextlib.contextmanager
    def within(self, drawing: Drawing):
        """A context in which `drawing` acts on keys, too."""
        self.drawing.append(drawing)
        try:
            yield
        finally:
            self.drawing.pop()

    @property
    def generators(self) -> list[torch.Generator]:
        """The generators that numbers were drawn from."""
        return [generator for generator, _ in self._generators.values()]

    @property
    def state(self) -> StreamState:
        """The state from which the stream continues, to be set again; code in the call sees the one of `get_state`."""
        return StreamState(self._key, self._taken, self.seed, self._before)

    @state.setter
    def state(self, state: StreamState) -> None:
        self._key, self._taken, self.seed, self._before = state

    def next_key(self, generator: torch.Generator | None = None):
        """The next key; of one example, where examples draw something different.

        Raises:
            RuntimeError: there is no key to derive one from, or nothing random is allowed.
        """
        key = self.next_common_key(generator)
        for drawing in self.drawing:
            key = drawing.key(key)
        return key

    def next_common_key(self, generator: torch.Generator | None = None):
        """As `next_key`, with one key for all examples."""
        for drawing in self.drawing:
            drawing.expect_allowed()
        return self._next_key(generator)

    def _next_key(self, generator: torch.Generator | None):
        if generator is not None and generator is not torch.default_generator:
            return self._next_of(generator)
        if self._key is None:
            raise RuntimeError(
                f"a random operator needs a key, at {user_location()}. Pass one: fn(..., rng=jax.random.key(0)); "
                "or call module.eval() if the randomness is dropout"
            )
        self._taken += 1
        return _fold_in(self._key, self._before + self._taken - 1)

    def reseed(self, seed: int) -> None:
        """Restarts the stream from a seed of 64 bits."""
        self.seed = seed
        self._key, self._taken, self._before = _key_of(seed), 0, 0

    def get_state(self) -> torch.Tensor:
        """The state as bytes, for `set_state`; without a key there are none."""
        if self._key is None:
            return lift(np.zeros(0, np.uint8))
        if is_traced(self._before):
            expect_no_repetition("torch.get_rng_state")
        if self._taken:
            self._key, self._taken = _fold_in(self._key, self._taken), 0
        return wrap(_bytes_of(self._key), torch.uint8)

    def set_state(self, state: torch.Tensor) -> None:
        """Sets the state to one from `get_state`."""
        state = lift(state)
        array = state.read() if state.known is None else evaluate(state.known)
        self._key, self._taken, self._before = _key_from(array, self._key) if array.size else None, 0, 0

    def close(self) -> None:
        """Puts the generators back into the states in which the call found them."""
        for generator, state in self._generators.values():
            generator.set_state(state)

    def report(self) -> None:
        """Warns if the code has drawn from a generator that outlives it: one that it was given, and has not made."""
        if not self.reports:
            return
        if any(sys.getrefcount(generator) > _OWN_REFERENCES for generator, _ in self._generators.values()):
            warnings.warn(
                "translated code draws from a torch.Generator from outside the call: each call draws the same numbers "
                "from it, and it is not advanced. Leave generator= out and give a key, fn(..., rng=jax.random.key(0)), "
                "or make the generator within the code",
                stacklevel=user_level(),
            )

    def _next_of(self, generator: torch.Generator):
        expect_no_repetition("a torch.Generator")
        # The generator is really drawn from, so that its own seeding and states mean what they do in PyTorch.
        with DisableTorchFunction(), DisableTorchDispatch():
            self._generators.setdefault(id(generator), (generator, generator.get_state()))
            drawn = torch.empty((), dtype=torch.int64, device=generator.device).random_(generator=generator)
            return _key_of(int(drawn))


def _checked(rng: Any):
    dtype, shape = getattr(rng, "dtype", None), getattr(rng, "shape", None)
    new_style = dtype is not None and jnp.issubdtype(dtype, jax.dtypes.prng_key)
    if (new_style and shape == ()) or (dtype == np.uint32 and shape in ((2,), (4,))):
        return rng
    got = f"an array of {dtype}{list(shape)}" if shape is not None else repr(rng)
    raise TypeError(f"rng got {got}; wanted one JAX key, as jax.random.key(0) gives it")


def _fold_in(key: jax.Array, data: Any):
    if is_traced(key) or is_traced(data):
        return jax.random.fold_in(key, data)
    with evaluating():
        return _folded_at_once(key, data)


_folded_at_once = jax.jit(jax.random.fold_in)  # an eager one takes ten times as long


def _where_known(array: object):
    """A context that evaluates operations on a known array at trace time: numbers drawn with a known key are known."""
    return contextlib.nullcontext() if is_traced(array) else evaluating()


def _key_of(seed: int):
    low, high = seed % 2**32, seed // 2**32 % 2**32
    with evaluating():
        key = jax.random.key(low)
        return jax.random.fold_in(key, high) if high else key


def _bytes_of(key: jax.Array):
    with _where_known(key):
        data = jax.random.key_data(key)
        return lax.reshape(lax.bitcast_convert_type(data, jnp.uint8), (data.size * 4,))


def _key_from(array: jax.Array, like: jax.Array | None):
    with _where_known(array):
        data = lax.bitcast_convert_type(lax.reshape(array, (array.size // 4, 4)), jnp.uint32)
        if like is not None and like.dtype == np.uint32:
            return data
        return jax.random.wrap_key_data(data, impl=None if like is None else jax.random.key_impl(like))


class _DefaultGenerator(torch.Generator):
    """PyTorch's default generator; code in a translated call gets the call's own stream instead.

    PyTorch does not offer `torch.manual_seed` and its kin to overrides; this is what they find in a translated call.
    """

    def manual_seed(self, seed: int):
        call = current()
        if call is None:
            return torch.default_generator.manual_seed(seed)
        call.stream.reseed(int(seed))
        return torch.default_generator

    def seed(self):
        if current() is None:
            return torch.default_generator.seed()
        seed = secrets.randbits(63)
        self.manual_seed(seed)
        return seed

    def initial_seed(self):
        call = current()
        if call is None:
            return torch.default_generator.initial_seed()
        if call.stream.seed is None:
            raise RuntimeError("the random stream of a translated call starts from the key `rng`, not from a seed")
        return call.stream.seed

    def get_state(self):
        call = current()
        return torch.default_generator.get_state() if call is None else call.stream.get_state()

    def set_state(self, new_state: torch.Tensor):
        call = current()
        if call is None:
            return torch.default_generator.set_state(new_state)
        call.stream.set_state(new_state)
        return torch.default_generator


exchange(torch.random, "default_generator", _DefaultGenerator())


@replaces(torch.random, "_manual_seed_impl")
def _manual_seed(seed: int):
    this_call().stream.reseed(int(seed))
    return torch.default_generator
