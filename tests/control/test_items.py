"""Items of lists, dictionaries and module lists at an index that data decide, and their methods: as in PyTorch."""

import collections

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import torch.distributed as dist
from jax.experimental import checkify
from jax.sharding import PartitionSpec
from torch import nn

from tests.control.test_conditions import QUICK, agree_under_jit
from torch2jax import TracedValueError, t2j

INPUTS = [1, 2, 0.5], [-1, -2, 0.25], [3, -1, 2.5], [0.3, -0.2, 0.1]
EXPERTS = nn.ModuleList([nn.Linear(3, 3) for _ in range(4)])


def expert(x):
    return EXPERTS[x.argmax().item()](x)


def expert_by_a_tensor(x):
    return EXPERTS[x.argmax()](x) + 1


def number(x):
    return x * [1.0, 2.0, 3.0][int(x.argmax())]


def number_of_a_tuple_by_a_tensor(x):
    return x * (1, 2, 3)[x.argmax()]


def bool_of_a_list(x):
    return x + 1 if [True, False, True][int(x.argmax())] else x - 1


def number_from_the_end(x):
    return x * [1.0, 2.0, 3.0, 4.0][int(x.argmax()) - 2]


def item_of_a_deque(x):
    return x * collections.deque([x[0], 2.0, 3.0])[int(x.argmax())]


def index_that_may_be_out_of_range(x):
    try:
        return x * [1.0, 2.0][int(x.argmax())]
    except IndexError:
        return x - 1


def number_is_set(x):
    found = [1, 2, 3]
    found[int(x.argmax())] = 7
    return x + found[0] + found[1] * 10 + found[2] * 100


def tensor_is_written_to(x):
    rows = [torch.zeros(2), torch.ones(2), torch.zeros(2)]
    row = rows[int(x.argmax())]
    row.add_(5)
    return torch.stack(rows)


def list_of_a_list_grows(x):
    found = [[1], [2], [3]]
    found[int(x.argmax())].append(5)
    return x + len(found[0]) + 10 * len(found[1])


def attribute_of_an_object(x):
    found = [Counted(), Counted(), Counted()]
    found[int(x.argmax())].n += 1
    return x + found[0].n + 10 * found[1].n


class Counted:
    def __init__(self):
        self.n = 0


def swapped(x):
    items = list(x)
    i, j = int(x.argmax()), int(x.argmin())
    items[i], items[j] = items[j], items[i]
    return torch.stack(items)


def sorted_by_insertion(x):
    items = list(x)
    for i in range(1, len(items)):
        j = i
        while j > 0 and items[j - 1] > items[j]:
            items[j - 1], items[j] = items[j], items[j - 1]
            j -= 1
    return torch.stack(items)


def table(x):
    rows = [[1, 2, 3], [4, 5, 6], [7, 8, 9]]
    return x * rows[int(x.argmax())][int(x.argmin())]


def function_of_a_list(x):
    return [torch.sin, torch.cos, lambda t: t * 2][int(x.argmax())](x)


def text_of_a_list(x):
    return x + (1 if ["a", "b", "c"][int(x.argmax())] == "a" else 2)


def value_of_a_dictionary(x):
    return x * {0: 1.5, 1: 2.5, 2: 3.5}[int(x.argmax())]


def key_that_may_be_missing(x):
    try:
        return x * {0: 1.5, 2: 3.5}[int(x.argmax())]
    except KeyError:
        return x


def counts(x):
    found = [0] * 3
    for v in x:
        found[int(v > 0)] += 1
    return x + found[0] + 10 * found[1]


def sums_in_a_loop(x):
    found, n = [torch.tensor(0.0)] * 2, 0
    while x.norm() > 0.5 and n < 20:
        x = x * 0.7
        found[n % 2] = found[n % 2] + x.sum()
        n += 1
    return torch.stack(found)


def by_a_bool(x):
    return x * [1, 2][x.sum() > 0] + [3, 4][bool(x[0] > 0)]


def permuted(x):
    items = [x[0], x[1], x[2]]
    return torch.stack([items[i] for i in x.argsort().tolist()])


def traced_back(x):
    k = int(x.argmax())
    path = [k]
    for row in reversed([[0, 1, 2], [2, 1, 0], [1, 1, 2]]):
        k = row[k]
        path.append(k)
    return x + path[0] + 10 * path[1] + 100 * path[2] + 1000 * path[3]


def popped(x):
    items = [1.0, 2.0, 3.0]
    return x * items.pop(int(x.argmax())) + sum(items) + len(items)


def deleted_and_removed(x):
    items = [1, 2, 3]
    del items[int(x.argmax())]
    others = [0, 1, 2]
    others.remove(int(x.argmax()))
    return x + items[0] + 10 * items[1] + 100 * others[0] + 1000 * others[1]


def index_of_the_largest(x):
    items = [v.item() for v in x]
    return x + items.index(max(items)) + items.count(min(items)) * 10


def index_of_what_may_be_missing(x):
    try:
        return x + (5, 7, 1).index(int(x.argmax()))
    except ValueError:
        return x - 1


def value_or_a_default(x):
    return x + {0: 5.0, 2: 7.0}.get(int(x.argmax()), 9.0)


def members(x):
    k = int(x.argmax())
    return x + (1 if k in {0, 2} else 2) + (10 if k in {"a": 1, 2: 3} else 20) + (100 if k in [1, 2] else 200)


def character_and_range(x):
    k = int(x.argmax())
    return x + ord("abc"[k]) + range(5, 10)[k]


def number_of_an_array(x):
    return x * np.array([1.0, 2.0, 3.0])[int(x.argmax())]


def states_of_a_machine(x):
    state, table = 0, {0: {True: 1, False: 0}, 1: {True: 1, False: 2}, 2: {True: 2, False: 2}}
    for is_positive in (x > 0).tolist():
        state = table[state][is_positive]
    return x + state


def confusion_matrix(x):
    found = [[0, 0], [0, 0]]
    for predicted, wanted in zip((x > 0).tolist(), [1, 0, 1], strict=True):
        found[wanted][int(predicted)] += 1
    return torch.tensor(found)


def bools_that_are_asked(x):
    flags = [[flag is True, not flag] for flag in (x > 0).tolist()]
    return x + sum(a for a, _ in flags) + 10 * sum(b for _, b in flags)


def counted_by_keys(x):
    found = {0: 0, 1: 0}
    for v in x:
        found[int(v > 0)] += 1
    return x + found[1]


def removed_with_a_known_one(x):
    items = [int(x.argmax()), 5]
    items.remove(5)
    return x + items[0]


def early_return_of_an_item(x):
    for i in range(3):
        if x[i] < 0:
            return x[i]
    return x[0] * 0


def early_return_of_a_slice(x):
    for i in range(2):
        if x[i] < 0:
            return x[i : i + 2]
    return x[:2] * 0


def stack_until_negative(x):
    stack, total = list(x), x[0] * 0
    while stack:
        v = stack.pop()
        if v < 0:
            break
        total += v
    return total


def length_of_a_chosen_text(x):
    return x + len(["a", "bb", "ccc"][int(x.argmax())])


def joined_text(x):
    return x + (1 if ",".join("pos" if v > 0 else "neg" for v in x) == "pos,pos,pos" else 2)


def arithmetic_of_bools(x):
    return x * (True - bool(x[0] > 0)) + (bool(x[1] > 0) - True)


def sorted_numbers(x):
    items = [v.item() for v in x]
    items.sort(reverse=True)
    return torch.tensor(items) + sorted([-1.0, x[0].item(), 1.0])[1]


def sorted_by_keys(x):
    order = sorted(range(3), key=lambda i: (int(x[i] > 0), -i))
    again = sorted(range(3), key=lambda i: int(x[i] > 0), reverse=True)
    return x[order[0]] + 10 * x[order[1]] + 100 * x[again[0]]


def sorted_pairs(x):
    pairs = sorted(((v.item(), i) for i, v in enumerate(x)), reverse=True)
    listed = [(v.item(), i) for i, v in enumerate(x)]
    listed.sort()
    return x + pairs[0][1] + 10 * listed[0][1] + listed[2][0]


PROGRAMS = [
    counted_by_keys,
    removed_with_a_known_one,
    early_return_of_an_item,
    early_return_of_a_slice,
    stack_until_negative,
    length_of_a_chosen_text,
    joined_text,
    arithmetic_of_bools,
    sorted_numbers,
    sorted_by_keys,
    sorted_pairs,
    popped,
    deleted_and_removed,
    index_of_the_largest,
    index_of_what_may_be_missing,
    value_or_a_default,
    members,
    character_and_range,
    number_of_an_array,
    states_of_a_machine,
    confusion_matrix,
    bools_that_are_asked,
    expert,
    expert_by_a_tensor,
    number,
    number_of_a_tuple_by_a_tensor,
    bool_of_a_list,
    number_from_the_end,
    item_of_a_deque,
    index_that_may_be_out_of_range,
    number_is_set,
    tensor_is_written_to,
    list_of_a_list_grows,
    attribute_of_an_object,
    swapped,
    sorted_by_insertion,
    table,
    function_of_a_list,
    text_of_a_list,
    value_of_a_dictionary,
    key_that_may_be_missing,
    counts,
    sums_in_a_loop,
    by_a_bool,
    permuted,
    traced_back,
]


@pytest.mark.parametrize("program", PROGRAMS)
def test_jitted_as_in_pytorch(program):
    agree_under_jit(program, INPUTS, 1e-5)


@pytest.mark.parametrize("program", [expert, swapped, number, permuted])
def test_gradients(program):
    translated = jax.jit(jax.grad(lambda x: (t2j(program)(x) ** 2).sum()), compiler_options=QUICK)
    for x in INPUTS:
        tensor = torch.tensor(x, requires_grad=True)
        (program(tensor) ** 2).sum().backward()
        np.testing.assert_allclose(translated(jnp.array(x)), tensor.grad, 1e-4, 1e-6, err_msg=str(x))


def test_batched():
    x = jnp.array(INPUTS)
    for program in (number, swapped, counts):
        wanted = torch.stack([program(torch.tensor(row)) for row in INPUTS])
        np.testing.assert_allclose(jax.vmap(t2j(program))(x), wanted, 1e-5)


def test_a_list_of_numbers_is_one_constant():
    text = str(jax.make_jaxpr(t2j(number))(jnp.array(INPUTS[0])))
    assert "cond[" not in text
    assert text.count("dynamic_slice[") == 1


def out_of_range(x):
    return x * [1.0, 2.0][int(x.argmax())]


def test_an_index_out_of_range_is_a_check():
    program = jax.jit(checkify.checkify(t2j(out_of_range, checks="checkify")))
    error, _ = program(jnp.array(INPUTS[0]))
    assert error.get() is None
    error, _ = program(jnp.array([1.0, 2.0, 3.0]))
    assert "list index out of range" in error.get()


def test_results_tell_of_an_index_out_of_range():
    compiled = jax.jit(t2j(out_of_range))
    np.testing.assert_array_equal(compiled(jnp.array(INPUTS[0])), out_of_range(torch.tensor(INPUTS[0])))
    assert jnp.isnan(compiled(jnp.array([1.0, 2.0, 3.0]))).all()


def many(x):
    return list(x)[int(x.argmax())]


def by_a_float(x):
    return [1, 2, 3][x.sum().item()]


def test_what_is_refused():
    with pytest.raises(TracedValueError, match="the index of a list of more than 64 items"):
        jax.jit(t2j(many))(jnp.zeros(100))
    with pytest.raises(TypeError, match="list indices must be integers or slices, not float"):
        jax.jit(t2j(by_a_float))(jnp.zeros(3))


def by_rank(x):
    rank = dist.get_rank()
    return x.chunk(dist.get_world_size())[rank] * [1.0, 2.0, 3.0, 4.0][rank]


@pytest.mark.usefixtures("eight_devices")
def test_items_by_the_rank():
    mesh = jax.make_mesh((4,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
    mapped = jax.shard_map(t2j(by_rank), mesh=mesh, in_specs=PartitionSpec(), out_specs=PartitionSpec("d"))
    with jax.set_mesh(mesh):
        np.testing.assert_array_equal(jax.jit(mapped)(jnp.arange(8.0)), np.arange(8.0) * np.repeat([1, 2, 3, 4], 2))
