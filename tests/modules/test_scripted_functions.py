"""TorchScript functions: PyTorch's values and errors, eager and under jit."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch import Tensor

from torch2jax import NoRuleError, TracedValueError, t2j

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

X = jnp.array([[0.5, -1.0, 2.0], [3.0, 0.25, -0.75]])


def script(function):
    """Compiled when the test runs, within its filter of warnings."""
    return functools.wraps(function)(lambda *args: torch.jit.script(function)(*args))


class Point(NamedTuple):
    x: Tensor
    rank: int


def control_flow(x):
    total = torch.zeros(3)
    steps = 0
    while steps < 4:
        if steps == 1:
            steps += 2
            continue
        for row in x:
            total = total + row * steps
        steps += 1
    return total, steps


def containers(x):
    names: dict[str, Tensor] = {"a": x}
    names["b"] = x + 1
    parts = [3, 1, 2]
    parts.sort()
    parts.extend([4])
    parts[0] = 7
    last = parts.pop()
    kept = [key + key for key in names.keys()]  # noqa: SIM118
    return (
        names["b"],
        parts,
        parts[1:],
        last,
        3 in parts,
        len(names),
        kept[0] == "aa",
        sum(parts),
        max(parts),
        [1] + [2],
    )


def numbers(x):
    return 7 // 2, -7 % 3, 2**3, x.dim() / 2, float(2), int(3.7), not x.is_floating_point(), min(x.size(0), 5), 3 == 3.0


def dtypes(x, kind: torch.dtype | None = None):
    zeros = torch.zeros([2], dtype=kind, device=x.device)
    return zeros, x.to(torch.int32), x.contiguous(memory_format=torch.contiguous_format), x.dtype == torch.float32


def named(x):
    return Point(x * 2, x.dim())


def in_place(x):
    y = x.clone()
    y[0].add_(10)
    y[:, 1] = 0
    y += 1
    return y


def checked(x: int | list[int] | Tensor):
    if isinstance(x, Tensor):
        return x.dim()
    return x + 1 if isinstance(x, int) else len(x)


def forces(x):
    x = x.detach().requires_grad_(True)
    energy = (x**3).sum()
    gradient = torch.autograd.grad([energy], [x], create_graph=True)[0]
    assert gradient is not None
    return -gradient


def concurrent(x):
    later = torch.jit.fork(torch.relu, x)
    return torch.jit.wait(later)


def concurrent_casts(x):
    later = torch.jit.fork(_cast, torch.arange(3), x)
    return torch.jit.wait(later)


def _cast(numbers, x):
    return x + numbers.to(x)


def without_gradient(x):
    with torch.no_grad():
        y = x * 2
    return y + x, torch.is_grad_enabled()


PROGRAMS = [
    control_flow,
    containers,
    numbers,
    dtypes,
    named,
    in_place,
    checked,
    without_gradient,
]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_values(program):
    function = torch.jit.script(program)
    expected, leave = function(torch.tensor(np.asarray(X))), lambda x: x.detach().numpy() if torch.is_tensor(x) else x
    for run in (t2j(function), jax.jit(t2j(lambda x: script(program)(x)))):
        actual = run(X)
        assert jax.tree.structure(actual) == jax.tree.structure(jax.tree.map(leave, expected)) or program is named
        for one, other in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
            np.testing.assert_allclose(one, leave(other), rtol=1e-6)


def test_arguments_follow_the_schema():
    function = torch.jit.script(checked)
    assert t2j(function)(3) == 4
    assert t2j(lambda: function([3, 4]))() == 2
    scaled = torch.jit.script(_scaled)
    np.testing.assert_array_equal(t2j(scaled)(X), X * 2)
    np.testing.assert_array_equal(t2j(scaled)(X, factor=3), X * 3)
    for args, kwargs, message in [
        ((), {}, "missing value for argument 'x'"),
        ((X, 1.0, 2), {}, "at most 2"),
        ((X,), {"y": 1}, "'y'"),
    ]:
        with pytest.raises(RuntimeError, match=message):
            t2j(scaled)(*args, **kwargs)


def _scaled(x, factor: float = 2.0):
    return x * factor


def test_a_list_of_the_caller_is_not_changed():
    function, given = torch.jit.script(_append), [1]
    assert t2j(lambda: function(given))() == [1, 2]
    assert given == [1]


def _append(items: list[int]):
    items.append(2)
    return items


def test_the_graph_is_that_of_the_same_python():
    traced = torch.jit.trace(lambda x: torch.softmax(x, 1) @ x.T + 1, torch.ones(2, 3))
    by_hand = t2j(lambda x: torch.softmax(x, 1) @ x.T + 1)
    assert str(jax.make_jaxpr(t2j(traced))(X)) == str(jax.make_jaxpr(by_hand)(X))


def test_derivatives_and_batches():
    function = t2j(torch.jit.script(_energy))
    np.testing.assert_allclose(jax.grad(function)(X), jnp.cos(X) * 2, rtol=1e-6)
    np.testing.assert_allclose(jax.jit(jax.vmap(function))(X), (2 * jnp.sin(X)).sum(1), rtol=1e-6)


def _energy(x):
    total = torch.zeros(())
    for _ in range(2):
        total = total + x.sin().sum()
    return total


def _fails(x):
    if x.dim() == 2:
        raise ValueError("only one dimension")
    return x


def _out_of_range(x):
    return x[5]


def _unserved(x):
    return torch.ops.aten._test_optional_floatlist(x, [1.0, 2.0, 3.0])


def _asks(x):
    return x * 2 if float(x.sum()) > 0 else x


def _branches(x):
    return x * 2 if bool(x.sum() > 0) else x


def test_errors():
    with pytest.raises(torch.jit.Error, match="only one dimension"):
        t2j(torch.jit.script(_fails))(X)
    with pytest.raises(IndexError, match="out of range") as raised:
        t2j(torch.jit.script(_out_of_range))(X)
    assert "x[5]" in str(raised.value.__cause__)
    with pytest.raises(NoRuleError, match=r"torch.ops.aten._test_optional_floatlist") as error:
        t2j(torch.jit.script(_unserved))(X[0])
    assert "test_scripted_functions.py" in str(error.value.__cause__)
    with pytest.raises(TracedValueError):
        jax.jit(t2j(torch.jit.script(_asks)))(X)


@pytest.mark.parametrize("program", [forces, concurrent, concurrent_casts])
def test_what_needs_the_python_code_says_so(program):
    with pytest.raises(RuntimeError) as raised:
        t2j(torch.jit.script(program))(X)
    assert any("the Python function or nn.Module" in note for note in raised.value.__notes__)


def test_questions_are_followed():
    branches = jax.jit(t2j(torch.jit.script(_branches)))
    for x in (abs(X) + 1, -abs(X) - 1):
        np.testing.assert_array_equal(branches(x), x * 2 if x.sum() > 0 else x)


@torch.jit.script
class Counter:
    def __init__(self, start: int):
        self.count = start
        self.seen = [start]

    def add(self, number: int) -> int:
        self.count += number
        self.seen.append(self.count)
        return self.count


def _counts(x):
    counter = Counter(2)
    counter.add(3)
    return x * counter.add(1), counter.seen


def test_instances_of_scripted_classes():
    result, seen = t2j(torch.jit.script(_counts))(X)
    np.testing.assert_array_equal(result, X * 6)
    assert seen == [2, 5, 6]


def _pair(x):
    return torch.jit.script(_energy)(x), torch.jit.trace(lambda x: x * 3, (x,))(x), torch.jit.trace(_energy, x)(x)


def test_compiled_within_the_call():
    for run in (t2j(_pair), jax.jit(t2j(_pair))):
        scripted, traced, again = run(X)
        np.testing.assert_allclose(traced, X * 3)
        np.testing.assert_allclose([scripted, again], [t2j(_energy)(X)] * 2, rtol=1e-6)


def test_pytorch_is_left_as_it_was():
    before = vars(torch._C.ScriptFunction)["__call__"], vars(torch._C.ScriptMethod)["__call__"]
    with pytest.raises(torch.jit.Error):
        t2j(torch.jit.script(_fails))(X)
    assert (vars(torch._C.ScriptFunction)["__call__"], vars(torch._C.ScriptMethod)["__call__"]) == before


def _tuples(x):
    return x.topk(2), x.max(dim=0), x.sort(dim=0)


def test_named_tuples_of_operators_are_plain_tuples():
    """As they are in PyTorch, outside of a script."""
    function = torch.jit.script(_tuples)
    x = torch.tensor([[3.0, 1.0, 2.0], [4.0, 6.0, 5.0]])
    expected = function(x)
    for run in (t2j(function), jax.jit(t2j(function))):
        for got, want in zip(run(t2j(x)), expected, strict=True):
            assert type(got) is type(want) is tuple
            np.testing.assert_array_equal(got[0], want[0])
            np.testing.assert_array_equal(got[1], want[1])


def made_of_numbers(x):
    weights = torch.tensor([1.0, 2.0, 4.0])
    table = torch.tensor([[1, 2, 3], [4, 5, 6]])
    room = torch.empty(2, 3)
    room.copy_(x)
    room[0] = weights
    room += table
    other = torch.empty([3])
    other.fill_(float(torch.tensor([5])))
    return weights * x, table, room, other, torch.tensor(2.5), torch.as_tensor([1, 2]) + 1, int(torch.tensor(7))


def listed(x):
    found: list[float] = x.sum(1).tolist()
    return found


def test_values_that_the_interpreter_writes():
    f = script(made_of_numbers)
    expected = f(torch.tensor(np.asarray(X)))
    for run in (t2j(f), jax.jit(t2j(f))):
        for value, wanted in zip(run(X), expected, strict=True):
            np.testing.assert_array_equal(value, wanted)
    slope = jax.grad(lambda x: t2j(f)(x)[0].sum())(X)
    np.testing.assert_array_equal(slope, np.tile([1.0, 2.0, 4.0], (2, 1)))
    with pytest.raises(NotImplementedError, match=r"listed calls tolist\(\).*tensor\[i\]\.item\(\)"):
        t2j(script(listed))(X)
