"""Decoding loops in Python around one jitted step, as an expert writes them by hand.

A `step` takes weights, caches, the next token ids (count,) and their place, and gives the logits of the last one and
the caches. A loop is a function of weights, the caches before the first token, ids (prompt,) and a number of tokens,
which gives the ids (prompt + tokens,). Caches are donated, and each token is read, to know whether it is the last.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

__all__ = ["beams", "greedy", "sampled"]


def greedy(step: Callable, end: int) -> Callable:
    """The best token each time."""
    return _one_by_one(step, end, lambda logits, position: jnp.argmax(logits))


def sampled(step: Callable, end: int, key: jax.Array, top: int = 50) -> Callable:
    """A token drawn from the best `top`."""

    def draw(logits, position):
        values, ids = lax.top_k(logits, top)
        return ids[jax.random.categorical(jax.random.fold_in(key, position), values)]

    return _one_by_one(step, end, draw)


def _one_by_one(step: Callable, end: int, choose: Callable) -> Callable:
    def following(params, caches, ids, position):
        logits, caches = step(params, caches, ids, position)
        return choose(logits, position), caches

    compiled = jax.jit(following, donate_argnums=1)

    def decode(params, caches, ids, tokens: int):
        position, found = 0, list(np.asarray(ids))
        for _ in range(tokens):
            token, caches = compiled(params, caches, ids, np.int32(position))
            position += ids.shape[0]
            ids = token[None]
            found.append(int(token))
            if found[-1] == end:
                break
        return np.asarray(found)

    return decode


def beams(step: Callable, count: int) -> Callable:
    """The best of `count` sequences, each of which goes on from the best of the step before. None ends early."""
    steps = jax.vmap(step, (None, 0, 0, None))

    def following(params, caches, ids, position, scores):
        logits, caches = steps(params, caches, ids, position)
        totals = scores[:, None] + jax.nn.log_softmax(logits)
        scores, chosen = lax.top_k(totals.reshape(-1), count)
        parents, tokens = jnp.divmod(chosen, logits.shape[-1])
        return tokens, parents, scores, jax.tree.map(lambda x: x[parents], caches)

    compiled = jax.jit(following, donate_argnums=1)

    def decode(params, caches, ids, tokens: int):
        caches = jax.tree.map(lambda x: jnp.broadcast_to(x, (count, *x.shape)), caches)
        scores = jnp.where(jnp.arange(count) == 0, 0.0, -1e9)
        position, found = 0, [list(np.asarray(ids))] * count
        ids = jnp.broadcast_to(ids, (count, *ids.shape))
        for _ in range(tokens):
            chosen, parents, scores, caches = compiled(params, caches, ids, np.int32(position), scores)
            position += ids.shape[1]
            ids = chosen[:, None]
            found = [[*found[i], token] for i, token in zip(np.asarray(parents), np.asarray(chosen), strict=True)]
        return np.asarray(found[0])

    return decode
