"""Connectionist temporal classification."""

import jax
import jax.numpy as jnp
import pytest
import torch
import torch.nn.functional as F

from tests.ops.database import compare, compare_trees
from torch2jax import t2j


@pytest.mark.parametrize("concatenated", [False, True])
def test_ctc_loss(concatenated):
    torch.manual_seed(0)
    logits = torch.randn(12, 3, 5, requires_grad=True)
    targets, lengths = torch.randint(1, 5, (3, 4)), torch.tensor([4, 0, 2])
    if concatenated:
        targets = torch.cat([row[:length] for row, length in zip(targets, lengths, strict=True)])

    def loss(logits):
        return F.ctc_loss(logits.log_softmax(-1), targets, torch.tensor([12, 9, 1]), lengths, zero_infinity=True)

    expected = loss(logits)
    expected.backward()
    compare(jax.jit(t2j(loss))(t2j(logits.detach())), expected)
    compare(jax.grad(t2j(loss))(t2j(logits.detach())), logits.grad)


@pytest.mark.parametrize("traced", [False, True])
def test_sequences_without_a_step(traced):
    logits = torch.randn(3, 2, 5, generator=torch.Generator().manual_seed(0))

    def losses(logits, lengths, target_lengths):
        logits = logits.clone().requires_grad_()
        loss = F.ctc_loss(logits.log_softmax(-1), torch.full((2, 2), 3), lengths, target_lengths, reduction="none")
        return loss.detach(), torch.autograd.grad(loss.sum(), logits)[0]

    for lengths in ((0, 0), (1, 0), (2, 3)):
        for target_lengths in ((0, 0), (1, 0), (0, 1)):
            given = torch.tensor(lengths), torch.tensor(target_lengths)
            if traced:
                got = jax.jit(t2j(losses))(t2j(logits), *t2j(given))
            else:
                got = t2j(lambda x, given=given: losses(x, *given))(t2j(logits))
            compare_trees(got, losses(logits, *given))


LOGITS, TARGETS = torch.zeros(6, 3, 5), torch.ones(3, 4, dtype=torch.int64)


@pytest.mark.parametrize(
    ("targets", "lengths", "target_lengths", "blank"),
    [
        (TARGETS, [6, 6, 6], [5, 4, 3], 0),
        (TARGETS, [6, 6, 6], [-1, 4, 3], 0),
        (TARGETS, [-1, 6, 6], [4, 4, 4], 0),
        (TARGETS, [7, 6, 6], [4, 4, 4], 0),
        (TARGETS, [6, 6], [4, 4, 4], 0),
        (TARGETS, [6, 6, 6], [4, 4], 0),
        (TARGETS, torch.tensor([6.0, 6, 6]), torch.tensor([4, 4, 4]), 0),
        (TARGETS, torch.tensor([6, 6, 6]), torch.tensor([4.0, 4, 4]), 0),
        (TARGETS.flatten(), [6, 6, 6], [2, 2, 2], 0),
        (TARGETS[:2], [6, 6, 6], [4, 4, 4], 0),
        (TARGETS, [6, 6, 6], [4, 4, 4], 5),
    ],
)
def test_bad_arguments(targets, lengths, target_lengths, blank):
    def loss(logits):
        return F.ctc_loss(logits.log_softmax(-1), targets, lengths, target_lengths, blank)

    with pytest.raises(RuntimeError):
        loss(LOGITS)
    for translated in (t2j(loss), jax.jit(t2j(loss))):
        with pytest.raises(RuntimeError, match=r"lengths|targets|label range"):
            translated(jnp.zeros(LOGITS.shape))
