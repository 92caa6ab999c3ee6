"""What a part reaches: objects that last, and what may happen to them between two calls."""

import jax
import numpy as np
import torch

from torch2jax import t2j


class Kept:
    """What a caller keeps, as a cache."""

    def __init__(self, total):
        self.total, self.names, self.scale, self.last = total, {"a": 1.0}, 1, None


class Keeping(torch.nn.Module):
    """A part that takes an object, to which `change` does something between its calls.

    Args:
        change: takes the object and how often the part has been called; gives the object for the next call.
    """

    traced = 0

    def __init__(self, change):
        super().__init__()
        self.change = change

    def step(self, x, kept):
        Keeping.traced += 1
        kept.total.add_(x * kept.scale + kept.names.get("a", 0.0) + 2 * kept.names.get("b", 0.0))
        return kept.total * 2 + getattr(kept, "more", 0)

    def forward(self, x):
        kept, results = Kept(x * 0), []
        for i in range(5):
            results.append(self.step(x, kept))
            kept = self.change(kept, i)
        return results, kept.total


def programs(change) -> int:
    """How often the part is traced, where PyTorch and the translation agree."""
    x = torch.arange(3.0)
    expected = Keeping(change)(x)
    translated = t2j(Keeping(change), compile=["step"])
    Keeping.traced = 0
    for _ in range(2):
        got = translated(t2j(x))
        jax.tree.map(np.testing.assert_array_equal, got, t2j(expected))
    return Keeping.traced


def test_objects_that_stay_need_one_program():
    assert programs(lambda kept, i: kept) <= 2  # memory around the part is the call's from its second run on


def test_another_object_like_it_needs_no_other_program():
    def another(kept, i):
        return Kept(kept.total)

    assert programs(another) <= 2


def test_numbers_that_change_are_seen():
    def change(kept, i):
        kept.scale += 1
        return kept

    assert programs(change) >= 5


def test_attributes_that_come_and_go_are_seen():
    def change(kept, i):
        if i % 2:
            del kept.more
        else:
            kept.more = i
        return kept

    programs(change)


def test_keys_that_change_are_seen():
    def change(kept, i):
        kept.names = kept.names if i else {"a": 1.0}
        kept.names["b" if i % 2 == 0 else "a"] = kept.names.pop("a" if i % 2 == 0 else "b")
        return kept

    programs(change)


def test_tensors_that_are_put_in_another_place_are_seen():
    def change(kept, i):
        kept.total = kept.total + 1 if i % 2 else kept.total.clone()
        return kept

    programs(change)


def test_writes_around_the_part_are_seen():
    def change(kept, i):
        kept.total[i % 3] = -1
        kept.total.mul_(2)
        return kept

    programs(change)


def test_views_in_objects_are_seen():
    def change(kept, i):
        kept.total = torch.stack([kept.total, kept.total + 1])[i % 2]
        return kept

    programs(change)


def test_one_tensor_twice_is_seen():
    def change(kept, i):
        kept.last = kept.total if i % 2 else None
        return kept

    programs(change)
