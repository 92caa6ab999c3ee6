"""Tensors whose length data decide, under jit: what is asked of the length, what is cut out, joined, written, given."""

import re
import warnings

import jax
import numpy as np
import pytest
import torch
import torch.nn.functional as F
import torch.utils.checkpoint
from jax.experimental import checkify

from torch2jax import Padded, TracedValueError, t2j

X = torch.randn(8, 3, generator=torch.Generator().manual_seed(0))
MASKS = {
    "some": X[:, 0] > 0,
    "few": torch.arange(8) == 5,
    "none": torch.zeros(8, dtype=torch.bool),
    "all": torch.ones(8, dtype=torch.bool),
}


def changed(x, change):
    change(x)
    return x


def write(index, value):
    return lambda x: x.__setitem__(index, value)


def repeated_again(x):
    found, counts = x.unique(return_counts=True)
    return found.repeat_interleave(counts.clamp(0, 8))


def groups(x, m):
    """What is the same number makes a group: there are as many as data decide."""
    found, group = torch.unique(x[:, 0].round(), return_inverse=True)
    sums = torch.zeros(len(found), 3).index_add(0, group, x)
    sums[0] += 1
    each = group[:, None].expand(-1, 3)
    most = x.new_full((found.shape[0], 3), -5).scatter_reduce_(0, each, x, "amax")
    chosen = torch.zeros(len(found)).index_add_(0, group[m], x[:, 1][m])
    members = F.one_hot(group, len(found)).float()
    return sums, most[group], chosen, sums.scatter_add(0, each, x), (members.T @ x) / members.sum(0)[:, None]


def into_chosen(x, m):
    y, place = x[m], torch.zeros(2, dtype=torch.long)
    if_any = x[:2] * m.any()
    return torch.cat([y, x]).index_add(0, place, if_any), torch.cat([y, x]).index_copy(0, place[:1], x[3:4])


LENGTHS = {
    "shape": lambda x, m: x.new_tensor(x[m].shape[0] * 2 + x[m].size(1)),
    "len": lambda x, m: torch.tensor(len(x[m])) + m,
    "numel": lambda x, m: x.sum() / (x[m].numel() + 1),
    "mean": lambda x, m: x[m].sum() / max(1, len(x[m])),
    "smallest": lambda x, m: torch.tensor([1.0]) * min(3, len(x[m]), x[~m].shape[0]),
    "largest": lambda x, m: torch.tensor([1.0]) * max([4, len(x[m])]),
    "sum": lambda x, m: torch.tensor([1]) * sum([len(x[m]), len(x[~m])]),
}
PARTS = {
    "itself": lambda x, m: x[m],
    "places": lambda x, m: (m.nonzero(), torch.where(m), torch.argwhere(x * m[:, None])),
    "masked_select": lambda x, m: torch.masked_select(x, m[:, None]),
    "slices": lambda x, m: (x[m][:2], x[m][1:], x[m][-2:], x[m][:-1], x[m][::2], x[m][1:3, 1], x[m][2:30]),
    "cut by number": lambda x, m: (x[: m.sum()], x[m.sum() :], x[1 : m.sum().item(), 0]),
    "narrow": lambda x, m: (x[m].narrow(0, 0, m.sum().item()), x.narrow(0, 0, m.sum().item())),
    "split": lambda x, m: x.split([m.sum().item(), (~m).sum().item()]),
    "split what was joined": lambda x, m: torch.cat([x[m], x[~m]]).split([len(x[m]), len(x[~m])]),
    "joined": lambda x, m: (torch.cat([x[m], x]), torch.cat([x[m], x[~m], x[m]], dim=0)),
    "stacked": lambda x, m: torch.stack([x[m][:, 0], x[m][:, 1].exp()], 1),
    "in order": lambda x, m: (x[m].sort(0), x[m][:, 0].argsort(descending=True)),
    "topk": lambda x, m: x[m][:, 0].topk(min(2, x[m].shape[0])),
    "topk of all": lambda x, m: x[m][:, 0].topk(min(20, len(x[m])), largest=False),
    "topk by number": lambda x, m: x[:, 0].topk(m.sum().item()),
    "of that size": lambda x, m: torch.ones(len(x[m]), 2) * x[m][:, :2],
    "made": lambda x, m: (torch.zeros((len(x[m]), 2)), torch.arange(len(x[m])) * 2, x[m].new_full(x[m].shape, 2)),
    "chosen of it": lambda x, m: (torch.where(x[m][:, 0] > 0.2)[0], (x[m] > 0).nonzero()),
    "by such places": lambda x, m: x[m][torch.where(x[m][:, 0] > 0.2)[0]].exp(),
    "by order": lambda x, m: x[m][x[m][:, 0].argsort()],
    "by two": lambda x, m: x[m][torch.arange(len(x[m])), torch.zeros(len(x[m]), dtype=torch.long)],
    "columns": lambda x, m: x[m][:, torch.tensor([2, 0])],
    "shapes": lambda x, m: (x[m].reshape(-1), x[m].reshape(len(x[m]), 3), x[m][:, :2].reshape(-1, 1)),
    "unbound": lambda x, m: x[m].unbind(1),
    "spread": lambda x, m: (torch.arange(3).view(1, -1).expand_as(x[m]), x[:1].expand(len(x[m]), 3)),
    "two masks": lambda x, m: x[m] + x[m.flip(0)],
    "unique": lambda x, m: (x.round().unique(), x.round().unique(return_inverse=True, return_counts=True)),
    "unique of some": lambda x, m: (x[m].round().unique(), x[m][:, 0].round().unique(return_inverse=True)),
    "unique rows": lambda x, m: x[:, :2].round().clamp(-1, 0).unique(dim=0, return_counts=True, return_inverse=True),
    "unique long rows": lambda x, m: (
        x[:, :1].round().clamp(-1, 0).expand(8, 70).unique(dim=0, return_inverse=True, return_counts=True),
        (x[m][:, :1].round().clamp(-1, 0) * torch.arange(90).div(45, rounding_mode="floor")).unique(dim=0),
    ),
    "consecutive": lambda x, m: torch.unique_consecutive(x[:, 0] > 0, return_inverse=True, return_counts=True),
    "consecutive of some": lambda x, m: torch.unique_consecutive(x[m][:, 0] > 0.5, return_counts=True),
    "repeated": lambda x, m: (x.repeat_interleave(m.int(), 0), torch.repeat_interleave(m.long() * 3)),
    "repeated by such": lambda x, m: (
        *(torch.repeat_interleave((m * 3)[m]), x[m].repeat_interleave(2, 0), x[m].repeat_interleave((m * 2)[m], 0)),
        *(x[: m.sum()].repeat_interleave((m * 2)[m], 0), x[m].repeat_interleave(3)),
        repeated_again(x[:, 0].round().clamp(-1, 1)),
    ),
    "counted": lambda x, m: (torch.bincount(m.long() * 3), torch.bincount((x[:, 0] * 2).long().clamp(0, 5)[m])),
    "groups": groups,
    "into what was chosen": into_chosen,
    "written at places": lambda x, m: changed(x[m], write(torch.where(x[m][:, 0] > 0)[0], 2.0)),
    "ends written": lambda x, m: changed(
        torch.cat([x[m], x[:2]]), lambda y: (write(0, x[0])(y), write(-1, 2.0)(y), write(slice(1, None), y[:-1] + 1)(y))
    ),
    "written by number": lambda x, m: (
        changed(x[m], lambda y: write(m.sum() // 2, 2.0)(y) if m.any() else None),
        changed(torch.cat([x[m], x[:1]]), lambda y: (write(len(y) - 1, x[1])(y), write((len(x[m]), 1), 3.0)(y))),
    ),
    "a part written": lambda x, m: changed(x[m], write(slice(0, 2), 2.0)),
    "numbers written": lambda x, m: changed(
        x.clone(), lambda x: (write(0, m.sum().item())(x), write(slice(1, m.sum().item()), m.sum().item())(x))
    ),
    "filled with numbers": lambda x, m: (
        *(x.new_full((2,), m.sum().item()), x.new_full((m.sum().item(), 2), x.max().item())),
        *(torch.full((2,), fill_value=len(x[m])), torch.full((len(x[m]),), len(x[m]))),
    ),
    "written to the front": lambda x, m: changed(x.clone(), write(slice(None, m.sum().item()), x[m] * 2)),
    "the front in place": lambda x, m: changed(x.clone(), lambda x: x[: m.sum().item()].add_(1)),
    "a column in place": lambda x, m: changed(x[m], lambda x: x[:, 0].add_(1)),
}


def compact(tree):
    leaves = jax.tree.leaves(tree, is_leaf=lambda x: isinstance(x, Padded))
    return [np.asarray(x.compact() if isinstance(x, Padded) else x) for x in leaves]


def check(got, wanted, name: str) -> None:
    wanted = jax.tree.leaves(wanted)
    got = compact(got)
    assert [x.shape for x in got] == [tuple(x.shape) for x in wanted], name
    for one, other in zip(got, wanted, strict=True):
        np.testing.assert_allclose(one, other.numpy(), 1e-5, 1e-6, err_msg=name)


def check_each(results: dict, wanted: dict) -> None:
    """Compares the results of functions with PyTorch's, by their names."""
    for name, of_pytorch in wanted.items():
        check(results[name], of_pytorch, name)


def check_kinds(compiled, of_all, names, parts, without=("none",)) -> None:
    """Compares the results of functions for each kind of mask; those beside `parts` not for the kinds `without`."""
    for kind, mask in MASKS.items():
        served = [name for name in names if name in parts or kind not in without]
        check_each(compiled(t2j(X), t2j(mask), names), of_all(X, mask, served))


FUNCTIONS = LENGTHS | PARTS
SOME = (
    "mean",
    "slices",
    "split",
    "groups",
    "joined",
    "topk",
    "by such places",
    "two masks",
    "written to the front",
)  # for speed


def each_of(functions):
    """What runs all functions, or those of some names, on a tensor and a mask."""

    def of_all(x, m, names=tuple(functions)):
        return {name: functions[name](x, m) for name in names}

    return of_all


def in_groups(functions):
    """Parametrizes a test by names of some functions at a time: as one program they take XLA four times as long."""
    return pytest.mark.parametrize("names", [tuple(functions)[i::10] for i in range(10)], ids=lambda names: names[0])


of_all = each_of(FUNCTIONS)


def total(leaves):
    return sum((x * (1 + i / 8)).sum() for i, x in enumerate(leaves) if "float" in str(x.dtype))


compiled = jax.jit(t2j(of_all), static_argnums=2)


@in_groups(FUNCTIONS)
def test_values(names):
    for mask in MASKS.values():
        check_each(compiled(t2j(X), t2j(mask), names), of_all(X, mask, names))


def test_eager_calls_give_what_pytorch_gives():
    results = t2j(of_all)(t2j(X), t2j(MASKS["some"]))
    for name, wanted in of_all(X, MASKS["some"]).items():
        assert not any(isinstance(x, Padded) for x in jax.tree.leaves(results[name])), name
        check(results[name], wanted, name)


def check_gradients(of_all, names, masks=MASKS, x=X) -> None:
    """Compares the derivatives of ``of_all(x, mask, names)`` for all masks."""

    @jax.jit
    def gradient(x, m):
        def loss(x):
            leaves = jax.tree.leaves(t2j(of_all)(x, m, names), is_leaf=lambda x: isinstance(x, Padded))
            return total([x.values if isinstance(x, Padded) else x for x in leaves])

        return jax.grad(loss)(x)

    for mask in masks.values():
        got, leaf = gradient(t2j(x), t2j(mask)), x.clone().requires_grad_()
        (wanted,) = torch.autograd.grad(total(jax.tree.leaves(of_all(leaf, mask, names))), leaf)
        np.testing.assert_allclose(got, wanted.numpy(), 1e-4, 1e-4)


def test_gradients():
    check_gradients(of_all, SOME)


def test_mapped():
    masks = list(MASKS.values())
    mapped = jax.jit(jax.vmap(lambda m: t2j(of_all)(t2j(X), m, SOME)))(t2j(torch.stack(masks)))
    for i, mask in enumerate(masks):
        for name, wanted in of_all(X, mask, SOME).items():
            check(jax.tree.map(lambda x: x[i], mapped[name]), wanted, name)  # noqa: B023


def test_elements():
    def ends(x, m):
        return x[m][0], x[m][-1], x[m][m.sum() - 1, 1], x[m][torch.tensor([0, -1])]

    function = jax.jit(t2j(ends))
    for mask in (MASKS["some"], MASKS["few"]):
        check(function(t2j(X), t2j(mask)), ends(X, mask), "ends")


def test_questions_about_lengths():
    def some(x, m):
        if x[m].shape[0] > 8:  # never
            raise ValueError
        chosen = x[m]
        if len(chosen) == 0:
            return chosen * 2, x.sum()
        return chosen, chosen.sum() if chosen.numel() > 9 else chosen.mean()

    function = jax.jit(t2j(some))
    for mask in MASKS.values():
        check(function(t2j(X), t2j(mask)), some(X, mask), "questions")


def test_results_have_no_traces_of_the_rest():
    result = jax.jit(t2j(lambda x, m: {"found": [x[m] / x[m]]}))(t2j(X.clamp(min=0)), t2j(X[:, 0] > 1e9))["found"][0]
    assert result.length == 0
    np.testing.assert_array_equal(result.values, 0)
    np.testing.assert_array_equal(result.mask, False)


def test_padded_arrays_are_arguments():
    function = jax.jit(t2j(lambda x, m: x[m]))
    again = t2j(lambda y: (y.sort(0)[0], y.logsumexp(0), len(y) * 2))
    for mask in (MASKS["some"], MASKS["few"]):
        padded = function(t2j(X), t2j(mask))
        wanted = X[mask].sort(0)[0], X[mask].logsumexp(0), torch.tensor(2 * int(mask.sum()))
        check(jax.jit(again)(padded), wanted, "given")
        check(again(padded), wanted, "given")


def test_within_scan():
    def step(carry, m):
        return t2j(lambda x, m: (x + x[m].sum(0), x[m][:2]))(carry, m)

    last, found = jax.lax.scan(step, t2j(X), t2j(torch.stack(list(MASKS.values()))))
    x = X
    for i, mask in enumerate(MASKS.values()):
        check(jax.tree.map(lambda x: x[i], found), [x[mask][:2]], "found")  # noqa: B023
        x = x + x[mask].sum(0)
    np.testing.assert_allclose(last, x.numpy(), 1e-5, 1e-5)


def test_random_draws():
    def drawn(x, m):
        order = torch.randperm(len(x[m]))
        return order.sort()[0], x[m][order][:2]

    found, rows = jax.jit(lambda x, m, rng: t2j(drawn)(x, m, rng=rng))(t2j(X), t2j(MASKS["some"]), jax.random.key(0))
    np.testing.assert_array_equal(found.compact(), np.arange(int(MASKS["some"].sum())))
    assert all(any(np.array_equal(row, x) for x in X[MASKS["some"]]) for row in rows.compact())


def test_what_has_no_bound():
    with pytest.raises(TracedValueError, match=r"the size of torch.zeros, of which no bound is seen.*test_lengths.py"):
        jax.jit(t2j(lambda n: torch.zeros(n.item())))(np.int32(3))
    for function in (lambda x: x.repeat_interleave(x), torch.bincount):
        with pytest.raises(TracedValueError, match=r"said \(t2j\(bounds=\)\)"):
            jax.jit(t2j(function))(np.arange(3, dtype=np.int32))


def neighbours(x):
    distance = torch.cdist(x, x)
    i, j = torch.where((distance < 1.5) & (distance > 0))
    return i, j, (x[i] - x[j]).norm(dim=1), torch.zeros(len(x), 3).index_add(0, i, x[i] - x[j])


def test_a_bound_that_is_said():
    at = "test_lengths.py:neighbours"
    wanted = neighbours(X)
    found = jax.jit(t2j(neighbours, bounds={at: 20}))(t2j(X))
    assert found[0].values.shape == (20,)
    check(found, wanted, "neighbours")
    line = neighbours.__code__.co_firstlineno + 2
    function = jax.jit(checkify.checkify(t2j(neighbours, bounds={f"test_lengths.py:{line}": 3}, checks="checkify")))
    assert "more than the 3 rows that bounds= says" in function(t2j(X))[0].get()
    made = t2j(lambda n: torch.ones(n.item()).cumsum(0), bounds={"test_lengths.py:<lambda>": 4})
    np.testing.assert_array_equal(jax.jit(made)(np.int32(3)).compact(), [1, 2, 3])
    repeated = t2j(lambda x: x.repeat_interleave(x), bounds={"test_lengths.py:<lambda>": 7})
    np.testing.assert_array_equal(jax.jit(repeated)(np.array([1, 0, 2])).compact(), [1, 2, 2])


def counted(x, n):
    """Results of all kinds that go back to a length, or to a size, of which something is said."""
    places = torch.where(x > 0)[0]
    made = torch.arange(n.item())
    results = {"places": places, "rows": x[places], "sum": x[places].sum(), "count": torch.tensor(len(places)) + 0}
    results |= {"last": places.max(), "made": made, "total": made.sum(), "byte": made.sum().to(torch.uint8)}
    return results | {
        "later": torch.stack([x[places], x[places]], 1).T,
        "repeated": x.repeat_interleave(made.sum())[:1],
    }


@pytest.mark.parametrize("is_mapped", [False, True])
@pytest.mark.parametrize(("bound", "n"), [(8, 3), (2, 1), (4, 5)])
def test_every_result_tells_that_a_bound_was_too_small(bound, n, is_mapped):
    x = torch.tensor([1.0, -1.0, 2.0, 3.0])
    function = jax.jit(t2j(counted, bounds={"test_lengths.py:counted": bound}))
    if is_mapped:
        found = jax.tree.map(lambda x: x[1], jax.jit(jax.vmap(function, (None, 0)))(t2j(x), np.array([0, n])))
    else:
        found = function(t2j(x), np.int32(n))
    if bound == 8:
        check(found, counted(x, torch.tensor(n)), "within")
        return
    for name, value in found.items():
        if isinstance(value, Padded):
            assert value.length > bound or value.length > value.values.shape[value.axis], name
            with pytest.raises(ValueError, match=r"room for \d rows, .* more than bounds= says"):
                value.compact()
            value = value.values
        missing = np.nan if value.dtype.kind == "f" else {"u": 255, "i": np.iinfo(value.dtype).min}[value.dtype.kind]
        assert np.isnan(value).any() if missing is np.nan else (np.asarray(value) == missing).any(), name


def in_a_loop(x):
    i, total = x.sum(), x.sum() * 0
    while i < 100:
        i, total = i * 2, total + neighbours(x)[2].sum()
    return total


def in_a_function(x):
    return torch.utils.checkpoint.checkpoint(lambda x: neighbours(x)[2].sum(), x, use_reentrant=False)


def in_a_branch(x):
    return torch.cond(x.sum() < 100, lambda x: neighbours(x)[2].sum(), lambda x: x.sum(), (x,))


@pytest.mark.parametrize("function", [in_a_loop, in_a_function, in_a_branch])
def test_results_tell_of_a_bound_within(function):
    x = X.abs()
    for bound, fits in ((60, True), (3, False)):
        found = jax.jit(t2j(function, bounds={"test_lengths.py:neighbours": bound}))(t2j(x))
        if fits:
            np.testing.assert_allclose(found, function(x), 1e-5)
        else:
            assert np.isnan(found)


@pytest.mark.parametrize("count", [0, 1, 5, 8, 300])
def test_few_of_many(count):
    x = torch.zeros(300)
    x[torch.randperm(300, generator=torch.Generator().manual_seed(0))[:count]] = 1.0
    rows = torch.arange(300.0)
    found = jax.jit(t2j(lambda x, rows: (rows[x > 0][:7], torch.where(x > 0)[0][2:6])))(t2j(x), t2j(rows))
    check(found, (rows[x > 0][:7], torch.where(x > 0)[0][2:6]), "few")


@pytest.mark.parametrize("bounds", [{"file.py": 3}, {"file.py:f": -1}, {"file.py:f": True}, {3: 3}])
def test_bounds_that_are_none(bounds):
    with pytest.raises(TypeError, match=r"bounds got .*; wanted 'file.py:line'"):
        t2j(neighbours, bounds=bounds)


def test_bounds_of_lines_that_make_no_length():
    line = neighbours.__code__.co_firstlineno + 2
    bounds = {"test_lengths.py:neighbours": 30, "test_lengths.py:Model.forward": 5, "other.py:neighbours": 9}
    function = jax.jit(t2j(neighbours, bounds=bounds))
    with pytest.warns(UserWarning, match=rf"none of the lines .*: got .*py:{line} in neighbours; w") as told:
        function(t2j(X))
    assert [re.findall(r"bounds= names '([^']*)'", str(x.message))[0] for x in told] == list(bounds)[1:]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        t2j(neighbours, bounds={"test_lengths.py:f": 3})(t2j(X))  # of known values none is asked for
        both = {"test_lengths.py:neighbours": 30, f"test_lengths.py:{line}": 30}
        jax.jit(t2j(neighbours, bounds=both))(t2j(X))


def test_a_loop_over_a_length_is_refused():
    with pytest.raises(TracedValueError, match=r"test_lengths\.py"):
        jax.jit(t2j(lambda x, m: list(range(len(x[m])))))(t2j(X), t2j(MASKS["some"]))


def test_python_has_its_functions_back():
    import builtins

    jax.jit(t2j(lambda x, m: x[m]))(t2j(X), t2j(MASKS["some"]))
    assert [type(x).__name__ for x in (builtins.len, builtins.min, builtins.max)] == ["builtin_function_or_method"] * 3
