"""Conditions of Python's about traced values: both answers are followed, as PyTorch takes the one or the other."""

import contextlib
import copy
import functools
import itertools
import linecache
import threading
import warnings
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from jax.experimental import checkify
from torch._higher_order_ops import scan, while_loop
from torch.utils._pytree import tree_map
from torch.utils.checkpoint import checkpoint

from torch2jax import TracedValueError, t2j
from torch2jax.control import operators
from torch2jax.runtime.errors import BranchError
from torch2jax.runtime.errors.tracebacks import is_raised_by_code
from torch2jax.tensors.tensor import Torchish

QUICK = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
INPUTS = [np.array(x, np.float32) for x in ([1, 2, 4], [-1, -2, -4], [0.25, -0.5, 0.125], [-9, 8, 5])]


def agree(function, inputs=INPUTS, differentiable=True, **options):
    """PyTorch's values and gradients, under jit and in a batch, whichever path the inputs take."""
    translated = t2j(function, **options)
    compiled = functools.partial(jax.jit, compiler_options=QUICK)
    jitted, mapped = compiled(translated), compiled(jax.vmap(translated))
    expected = [tree_map(lambda x: np.asarray(x), function(torch.from_numpy(x.copy()))) for x in inputs]
    batch = mapped(jnp.stack(inputs))
    for i, (x, wanted) in enumerate(zip(inputs, expected, strict=True)):
        for got in (jitted(x), jax.tree.map(lambda leaf, i=i: leaf[i], batch)):
            jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, 1e-5, 1e-6), got, wanted)
            assert [leaf.dtype for leaf in jax.tree.leaves(got)] == [
                jax.dtypes.canonicalize_dtype(leaf.dtype) for leaf in jax.tree.leaves(wanted)
            ]
    if differentiable:
        slope = compiled(jax.grad(lambda x: sum(jnp.sum(leaf) for leaf in jax.tree.leaves(translated(x)))))
        for x in inputs:
            leaf = torch.from_numpy(x.copy()).requires_grad_()
            total = sum(torch.as_tensor(result).sum() for result in jax.tree.leaves(function(leaf))) + 0 * leaf.sum()
            np.testing.assert_allclose(slope(x), torch.autograd.grad(total, leaf)[0], 1e-5, 1e-6)


def agree_under_jit(function, inputs, tolerance):
    """PyTorch's values, for lists of numbers, whichever path they take; the function is compiled once."""
    translated = jax.jit(t2j(function), compiler_options=QUICK)
    for x in inputs:
        wanted = function(torch.tensor(x)).detach()
        np.testing.assert_allclose(translated(jnp.array(x)), wanted, tolerance, err_msg=str(x))


def primitives(function, *args, **options):
    """The primitives of a graph, those of branches after that of these."""
    found = []

    def enter(jaxpr):
        for step in jaxpr.eqns:
            found.append(str(step.primitive))
            for branch in step.params.get("branches", ()):
                enter(branch.jaxpr)

    enter(jax.make_jaxpr(t2j(function, **options))(*args).jaxpr)
    return found


def either(x):
    if x.sum() > 0:  # noqa: SIM108 - as code is written
        y = x * 2
    else:
        y = x - 1
    return (y + 1).sin() + x


def nested(x):
    if x.sum() > 0:
        return (x.cos(), x.max()) if x[0] > 0.5 else (x.sin(), x.min())
    return x + 1, x.mean()


def by_and_or(x):
    if x.min() > 0 or (x.max() > 6 and not x[0] > 0):
        return x.exp()
    return x.abs()


def of_any_dtype(x):
    if x[0].long():
        return x * 2
    return x * 3 if bool((x > 0).any().item()) and int((x > -1).all()) and float(x[1] < 0) else x


def loop_with_end(x):
    for _ in range(6):
        if x.abs().sum() < 1:
            break
        x = x / 2
    return x


def chained(x):
    for i in range(3):
        if x[i] > 0:
            x = x * (i + 2)
    return x


def written(x):
    y, rows = torch.zeros(3, 2), x.clone()
    column = y[:, 0]
    if x.sum() > 0:
        column += x
        rows[1:].mul_(2)
    else:
        y[1] = x[0]
    if y.sum() > 4:
        rows.zero_()
    return y, rows


def early(x):
    return x.mean() if (x > 0).any() else 0.0


def of_numbers(x):
    return (1 if x.sum() > 0 else 2), bool((x > 0).all()), x


def known_within(x):
    steps = torch.arange(3)
    if x.sum() > 0:
        steps = steps * 2
    return x * sum(step.item() for step in steps), torch.nonzero(steps).float()[0] * x[0]


def takes_gradients(x):
    leaf = x.detach().clone().requires_grad_()
    y = (leaf**2).sum() if leaf.sum() > 0 else leaf.prod()
    y.backward()
    assert leaf.grad is not None
    return leaf.grad * 10 if leaf.grad.max() > 3 else leaf.grad


def takes_gradients_of_gradients(x):
    leaf = x.detach().clone().requires_grad_()
    (slope,) = torch.autograd.grad(((leaf**3).sum() if leaf[0] > 0 else leaf.sin().sum()), leaf, create_graph=True)
    if slope.sum() > 1:
        slope = slope * 2
    return torch.autograd.grad(slope.sum(), leaf)[0]


@pytest.mark.parametrize(
    ("function", "differentiable"),
    [
        (either, True),
        (nested, True),
        (by_and_or, True),
        (of_any_dtype, True),
        (loop_with_end, True),
        (chained, True),
        (written, True),
        (early, True),
        (of_numbers, False),
        (known_within, True),
        (takes_gradients, False),
        (takes_gradients_of_gradients, False),
    ],
)
def test_both_answers_are_followed(function, differentiable):
    agree(function, differentiable=differentiable)


def test_a_graph_has_once_what_is_before_and_behind_a_branch():
    def written_by_hand(x):
        y = jax.lax.cond(x.sum() > 0, lambda x: x * 2, lambda x: x - 1, x)
        return jnp.sin(y + 1) + x

    expected = jax.make_jaxpr(written_by_hand)(INPUTS[0])
    assert sorted(primitives(either, INPUTS[0])) == sorted([str(x.primitive) for x in expected.eqns] + ["mul", "sub"])
    assert primitives(chained, INPUTS[0]).count("cond") == 3
    assert primitives(lambda x: x.sin() if x.sum() > 0 else torch.sin(x), INPUTS[0]) == ["sin"]


def test_a_network_behind_a_branch_is_there_once():
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.GELU(), torch.nn.LayerNorm(4), torch.nn.Linear(4, 1))

    def function(x):
        if x.sum() > 0:
            x = x * 2
        return model(x)

    found = primitives(function, INPUTS[0])
    assert found.count("dot_general") == primitives(model, INPUTS[0]).count("dot_general")
    assert found.count("cond") == 1
    agree(lambda x: function(x).detach(), differentiable=False)


def test_graphs_without_a_condition_are_as_they_were():
    def asked(x):
        if x.shape[0] == 3 and torch.arange(3).sum() == 3:
            return x.sin() * torch.ones(3)
        return x

    plain, unasked = (jax.make_jaxpr(t2j(asked, max_paths=count))(INPUTS[0]) for count in (64, 1))
    assert str(plain) == str(unasked)


def test_a_check_costs_nothing():
    def checked(x):
        if torch.min(x) < -100 or torch.max(x) > 100:
            raise ValueError(f"outside {x}")
        assert (x[1:] != x[:-1]).all(), "equal"
        if torch.isnan(x).any():
            fail("nan")
        return x.sin()

    def fail(text):
        raise RuntimeError(text) from None

    assert primitives(checked, INPUTS[0]) == ["sin"]
    agree(checked)
    with pytest.raises(ValueError, match="outside"):
        t2j(checked)(INPUTS[0] * 1000)


def test_many_checks_are_not_too_many_paths():
    def checked(x):
        y = x if x.sum() > 0 else -x
        for i in range(80):
            assert (x * i).sum() > -1e9
        return y.sin()

    assert primitives(checked, INPUTS[0], max_paths=8)[-1] == "sin"


def test_the_message_of_a_check_may_ask_for_values():
    def described(x):
        return f"{x.max().item():.2f}"

    names: dict = {"described": described}
    code = """
def checked(x):
    if x.max() > 100:
        raise ValueError(f"got {[float(value) for value in x]}, "
            f"at most {described(x) if len(x) else 0}")
    assert x.min() > -100, [value.item() for value in x if len(x)]
    return x.sin()
"""
    exec(compile(code, __file__, "exec"), names)  # an assert that pytest does not change
    checked = names["checked"]
    assert primitives(checked, INPUTS[0]) == ["sin"]

    def computed(x):
        return x if x.max() > 100 else x * complex(x.max()).real

    with pytest.raises(TracedValueError, match=r"complex\(tensor\) needs the value"):
        primitives(computed, INPUTS[0])


def test_checks_of_pytorchs_own_modules():
    def clipped(x):
        y = torch.nn.Parameter(x.clone())
        y.sum().backward()
        norm = torch.nn.utils.clip_grad_norm_([y], 1.0, error_if_nonfinite=True)
        torch._check(bool(norm < 1e9), lambda: "large")
        return y.grad

    assert "cond" not in primitives(clipped, INPUTS[0])
    agree(clipped, differentiable=False)


def test_pytorchs_own_modules_may_show_values_in_messages():
    """It looks for the rows of each cluster, and counts them: its error tells the smallest and largest class."""
    module = torch.nn.AdaptiveLogSoftmaxWithLoss(6, 9, [4])
    x, state = torch.linspace(-1, 1, 24).reshape(4, 6), t2j(dict(module.named_parameters()))

    def loss(state, x, classes):
        return t2j(module)(x, classes, state_dict=state).loss

    slopes = jax.jit(jax.value_and_grad(loss))
    for classes in (torch.tensor([0, 8, 3, 5]), torch.tensor([0, 1, 3, 2])):
        module.zero_grad()
        expected = module(x, classes).loss
        expected.backward()
        got, gradients = slopes(state, t2j(x), t2j(classes))
        np.testing.assert_allclose(got, expected.item(), rtol=1e-5)
        for name, parameter in module.named_parameters():
            want = np.zeros(parameter.shape) if parameter.grad is None else parameter.grad
            np.testing.assert_allclose(gradients[name], want, atol=1e-6, err_msg=name)


def test_distributions_check_their_arguments_where_checks_are_made():
    def density(x):
        return torch.distributions.Normal(torch.zeros(3), x, validate_args=True).log_prob(x)

    np.testing.assert_allclose(jax.jit(t2j(density))(INPUTS[0]), density(torch.from_numpy(INPUTS[0])), rtol=1e-6)
    found = jax.jit(checkify.checkify(t2j(density, checks="checkify")))
    assert found(INPUTS[0])[0].get() is None
    assert "scale" in found(INPUTS[1])[0].get()


@pytest.fixture
def all_frames():
    """Shows frames of this package, as within a translated call."""
    before = jax.config.jax_traceback_filtering
    jax.config.update("jax_traceback_filtering", "off")
    yield
    jax.config.update("jax_traceback_filtering", before)


@pytest.mark.parametrize(
    ("raises", "is_check"),
    [
        (lambda: fails(ValueError("x")), True),
        (lambda: fails_by_assertion(), True),
        (lambda: fails_after(KeyError("x"), lambda: {}["a"]), True),
        (lambda: {}["a"], False),
        (lambda: 1 / 0, False),
        (lambda: torch.zeros(2).view(3), False),
        (lambda: jnp.zeros(2).reshape(3), False),
        (lambda: torch.nn.Linear(2, 3)(torch.zeros(4)), False),
        (lambda: fails_after(ValueError("x"), lambda: jnp.zeros(2).reshape(3)), False),
        (lambda: fails_after(ValueError("x"), lambda: t2j(lambda x: x.view(3))(jnp.zeros(2))), False),
        (lambda: torch.distributions.Normal(0.0, -1.0), False),
    ],
)
def test_what_code_raises_itself(raises, is_check, all_frames):
    with pytest.raises(Exception) as caught:  # noqa: PT011 - of all kinds
        raises()
    assert is_raised_by_code(caught.value, __file__) == is_check


def fails(error):
    with contextlib.nullcontext():
        raise error


def fails_by_assertion():
    try:
        assert not INPUTS, "x"
    finally:
        pass


def fails_after(error, function):
    try:
        function()
    except Exception:
        raise error  # noqa: B904 - as code does


def test_an_error_of_the_translation_is_no_check():
    def function(x):
        if x.sum() > 0:
            return x
        return torch.tensor(x.repeat(99).tolist()).sum(0)

    with pytest.raises(TracedValueError) as caught:
        jax.jit(t2j(function))(INPUTS[0])
    lines = [f"test_conditions.py:{function.__code__.co_firstlineno + n} in function" for n in (1, 3)]
    assert all(line in str(caught.value) for line in lines)
    line = function.__code__.co_firstlineno + 1
    assert f"t2j(..., branches={{'test_conditions.py:{line}': True}})" in str(caught.value)
    for place in (f"test_conditions.py:{line}", "control/test_conditions.py:function", "function"):
        said = jax.jit(t2j(function, branches={place: True}))
        np.testing.assert_array_equal(said(INPUTS[0]), INPUTS[0])


def test_what_is_said_of_lines_that_ask_nothing():
    def function(x):
        return x.sqrt() if (x > 0).all() else x

    with pytest.warns(UserWarning, match=r"branches= names 'x\.py:3', which is none .*test_conditions\.py:\d+"):
        jax.jit(t2j(function, branches={"x.py:3": True}))(INPUTS[0])


def test_an_error_on_all_paths_is_that_error():
    def function(x):
        if x.sum() > 0:
            x = x * 2
        return x.view(7)

    with pytest.raises(RuntimeError, match="invalid for input of size 3"):
        jax.jit(t2j(function))(INPUTS[0])

    def always(x):
        if x.sum() > 0:
            raise ValueError("positive")
        raise ValueError("negative")

    with pytest.raises(ValueError, match=r"positive|negative"):
        jax.jit(t2j(always))(INPUTS[0])


def test_what_was_said_is_checked_where_checks_are_made():
    def function(x):
        return x.sqrt() if (x > 0).all() else x

    said = t2j(function, branches={"test_conditions.py:function": True}, checks="checkify")
    assert "was told that the answer is True" in str(checkify.checkify(jax.jit(said))(INPUTS[1])[0].get())
    assert "cond" not in primitives(function, INPUTS[0], branches={"test_conditions.py:function": True})


def rooted(x):
    if (x > 0).all():
        return x.sqrt(), x.argmax(), x > 1
    return x, x.argmin(), x < 1


def test_results_tell_where_what_was_said_does_not_hold():
    """No number comes of an answer that is wrong: nan, and the least integer."""
    said = t2j(rooted, branches={"test_conditions.py:rooted": True})
    right, wrong = jnp.array([1.0, 4.0]), jnp.array([1.0, -4.0])
    least = np.iinfo(jnp.zeros(0, int).dtype).min
    roots, place, _ = jax.jit(said)(right)
    np.testing.assert_array_equal(roots, [1, 2])
    assert place == 1
    roots, place, _ = jax.jit(said)(wrong)
    assert np.isnan(roots).all()
    assert place == least
    roots, places, _ = jax.vmap(said)(jnp.stack([right, wrong]))
    np.testing.assert_array_equal(np.isnan(roots), [[False, False], [True, True]])
    assert places.tolist() == [1, least]
    slope = jax.jit(jax.grad(lambda x: said(x)[0].sum()))
    np.testing.assert_array_equal(slope(right), [0.5, 0.25])
    assert np.isnan(slope(wrong)).all()
    np.testing.assert_array_equal(said(wrong)[0], wrong)  # without a trace the code itself decides


def test_what_was_said_within_a_loop_is_heeded():
    def halved(x):
        while x.norm() > 1:
            x = x / 2 if (x > 0).all() else x / 4
        return x

    said = jax.jit(t2j(halved, branches={f"test_conditions.py:{halved.__code__.co_firstlineno + 2}": True}))
    np.testing.assert_allclose(said(jnp.array([30.0, 40.0])), halved(torch.tensor([30.0, 40.0])).numpy())
    assert np.isnan(said(jnp.array([-30.0, 40.0]))).all()


def checked_deeply(x):
    if x.sum() > 0:
        if x.max() > 100:
            raise ValueError("large {x}")
        return x * 2
    if x.min() < -100:
        raise IndexError("small")
    return x


def test_checks_of_checkify():
    found = jax.jit(checkify.checkify(t2j(checked_deeply, checks="checkify")))
    for x in INPUTS:
        error, result = found(x)
        assert error.get() is None
        np.testing.assert_array_equal(result, checked_deeply(torch.from_numpy(x)))
    assert "ValueError: large {x} (at " in found(INPUTS[0] * 100)[0].get()
    assert "IndexError: small (at " in found(INPUTS[1] * 100)[0].get()
    several = jax.jit(checkify.checkify(jax.vmap(t2j(checked_deeply, checks="checkify"))))
    assert several(jnp.stack(INPUTS))[0].get() is None
    assert "small" in several(jnp.stack([INPUTS[0], INPUTS[1] * 100]))[0].get()


def test_checks_while_the_program_runs():
    found = jax.jit(jax.grad(lambda x: t2j(checked_deeply, checks="raise")(x).sum()))
    np.testing.assert_array_equal(found(INPUTS[0]), [2, 2, 2])
    for x, text in ((INPUTS[0] * 100, "ValueError: large {x}"), (INPUTS[1] * 100, "IndexError: small")):
        with pytest.raises(jax.errors.JaxRuntimeError, match=text):
            jax.block_until_ready(found(x))


def test_unknown_options_are_errors():
    with pytest.raises(ValueError, match="checks got 'no'"):
        t2j(either, checks="no")
    with pytest.raises(ValueError, match="max_paths got 0"):
        t2j(either, max_paths=0)
    wrong: list[Any] = [
        {"file.py": True},
        {"file.py:1": 1},
        {3: True},
        {"3": True},
        {":f": True},
        {"f:": True},
        {"": True},
    ]
    for branches in wrong:
        with pytest.raises(TypeError, match=r"wanted 'file\.py:line'"):
            t2j(either, branches=branches)


@pytest.mark.parametrize(
    ("function", "texts"),
    [
        (lambda x: x[0] if x.sum() > 0 else x, ("in result:", "float32[]", "float32[3]")),
        (lambda x: x if x.sum() > 0 else x.int(), ("in result:", "float32[3]", "int32[3]")),
        (lambda x: (x, x) if x.sum() > 0 else x, ("in result:", "(float32[3], float32[3])", "float32[3]")),
        (lambda x: x if x.sum() > 0 else None, ("in result:", "float32[3]", "None")),
        (lambda x: "yes" if x.sum() > 0 else "no", ("in result:", "'yes'", "'no'")),
        (lambda x: x.sum().int() if x.sum() > 0 else 0.5, ("in result:", "int32[]", "0.5")),
    ],
)
def test_ends_that_are_not_alike(function, texts):
    with pytest.raises(BranchError) as caught:
        jax.jit(t2j(function))(INPUTS[0])
    assert f"{__file__}:{function.__code__.co_firstlineno} in <lambda>" in str(caught.value)
    assert all(text in str(caught.value) for text in texts)


def grown(x):
    found = []
    while x.sum() > 1:
        x = x / 2
        found.append(x)
    return x


def test_loops_that_grow_are_too_many_paths():
    with pytest.raises(TracedValueError, match=r"more than 8 paths.*torch\.while_loop") as caught:
        jax.jit(t2j(grown, max_paths=8))(INPUTS[0])
    assert f"{__file__}:{grown.__code__.co_firstlineno + 2}" in str(caught.value)

    def tried(x):
        found = []
        while x.sum() > 1:
            x = x / 2 if x.max() > x.min() else x - 1
            found.append(x)
        return x

    with pytest.raises(TracedValueError, match="more than 8 paths"):
        jax.jit(t2j(tried, max_paths=8))(INPUTS[0])
    with pytest.raises(TracedValueError, match=r"bool\(tensor\) needs the value"):
        jax.jit(t2j(grown, max_paths=1))(INPUTS[0])


def merged(x):
    """Of two sorted lists: which list ends first is known where each comparison is."""
    a, b = x[:1].tolist(), x[1:].tolist()
    i = j = 0
    out = []
    while i < len(a) and j < len(b):
        if a[i] < b[j]:
            out.append(a[i])
            i += 1
        else:
            out.append(b[j])
            j += 1
    return torch.tensor(out + a[i:] + b[j:])


def test_loops_that_count_by_what_conditions_choose_end_on_each_way():
    translated = jax.jit(t2j(merged, max_paths=6), compiler_options=QUICK)
    for x in ([1.0, 2.0, 3.0], [2.0, 1.0, 3.0], [4.0, 1.0, 3.0]):
        np.testing.assert_array_equal(translated(jnp.array(x)), merged(torch.tensor(x)))


def until_small(x):
    while x.sum() > 1:
        x = x / 2
    return x


def until_an_exception(x):
    while True:
        x = x / 2
        if x.sum() < 1:
            raise ValueError("small")


def loop_before_an_exception(x):
    while x.sum() > 1:
        x = x / 2
    raise ValueError("end")


def loop_with_checks(x):
    iterations = 0
    while True:
        x = x * 2
        if x.sum() > 100:
            return x
        if x.min() < -iterations:
            raise ValueError("negative")
        iterations += 1


def loop_with_a_choice_before_an_exception(x):
    for _ in range(100):
        x = x + 1 if x.sum() > 0 else x - 1
    raise ValueError("end")


def test_exceptions_behind_a_loop():
    for function in (loop_before_an_exception, loop_with_a_choice_before_an_exception):
        with pytest.raises(ValueError, match="end"):
            jax.make_jaxpr(t2j(function))(INPUTS[0])


def test_loops_that_nothing_but_an_exception_ends(monkeypatch):
    """It is assumed never to be raised, as of any check: then nothing ends the loop."""
    monkeypatch.setattr(operators, "_MANY", 16)
    with pytest.raises(BranchError, match=r"the loop at .*:\d+ in until_an_exception goes on whatever the data are"):
        jax.make_jaxpr(t2j(until_an_exception))(INPUTS[0])
    agree(loop_with_checks, inputs=[INPUTS[0]], differentiable=False)
    place = f"test_conditions.py:{until_small.__code__.co_firstlineno + 1}"
    with pytest.raises(BranchError, match=r"in until_small goes on whatever the data are.* by `branches=`"):
        jax.make_jaxpr(t2j(until_small, branches={place: True}))(INPUTS[0])


def test_more_paths_can_be_allowed():
    def halved(x):
        found = []
        for _ in range(20):
            if x.sum() < 1:
                break
            x = x / 2
            found.append(x)
        return x

    with pytest.raises(BranchError, match="more than 16 paths"):
        jax.make_jaxpr(t2j(halved, max_paths=16))(INPUTS[0])
    jax.make_jaxpr(t2j(halved, max_paths=21))(INPUTS[0])


def test_checks_at_many_lines(monkeypatch):
    lines = [f"    if (x * {i}).sum() < -1e9: raise ValueError({i})" for i in range(40)]
    text, names = "\n".join(["def checked(x):", *lines, "    return x.sin()"]), dict[str, Any]()
    file = "/checked.py"
    monkeypatch.setitem(linecache.cache, file, (len(text), None, text.splitlines(keepends=True), file))
    exec(compile(text, file, "exec"), names)
    assert primitives(names["checked"], INPUTS[0], max_paths=4) == ["sin"]


@pytest.mark.parametrize("iterations", [24, 63])
def test_loops_that_may_end_early(iterations):
    def halved(x):
        for _ in range(iterations):
            if x.sum() < 1:
                break
            x = x / 2
        return x

    for scale in (1, 100):
        np.testing.assert_array_equal(jax.jit(t2j(halved))(INPUTS[0] * scale), t2j(halved)(INPUTS[0] * scale))


class Counting(torch.nn.Module):
    mean: torch.Tensor

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(3, 3)
        self.register_buffer("count", torch.zeros((), dtype=torch.long))
        self.register_buffer("mean", torch.zeros(3))

    def forward(self, x):
        if x.sum() > 0:
            self.count += 1
            self.mean.lerp_(x, 0.5)
            return self.linear(x)
        self.mean = self.mean - 1
        return x


def test_buffers_come_back_from_every_path():
    module = Counting()
    arrays = {name: jnp.asarray(x.detach().numpy()) for name, x in module.state_dict().items()}
    jitted = jax.jit(t2j(module), static_argnames="return_state_dict")
    for x in INPUTS:
        expected = Counting()
        expected.load_state_dict(module.state_dict())
        result, state = jitted(x, state_dict=arrays, return_state_dict=True)
        np.testing.assert_allclose(result, expected(torch.from_numpy(x)).detach(), 1e-5, 1e-6)
        for name, value in expected.state_dict().items():
            np.testing.assert_allclose(state[name], value, 1e-5, 1e-6)
    assert module.count == 0


def test_constants_are_there_once():
    weight = torch.randn(200, 200)

    def function(x):
        y = torch.cat([x, torch.ones(197)])
        return weight.sin() @ y if x.sum() > 0 else (weight @ y) * 2

    assert len(jax.make_jaxpr(t2j(function))(INPUTS[0]).consts) <= 2
    agree(lambda x: function(x) * 0.01)


def test_random_numbers_are_those_of_the_path_that_is_gone():
    def function(x):
        noise = torch.rand(3)
        if x.sum() > 0:
            noise = noise + torch.randn(3)
        return x + noise, torch.rand(())

    key = jax.random.key(3)
    for x in INPUTS:
        eager, jitted = t2j(function)(x, rng=key), jax.jit(t2j(function))(x, rng=key)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, 1e-6), eager, jitted)


def test_masks_work_behind_conditions():
    def spline(x, low, high):
        if torch.min(x) < low or torch.max(x) > high:
            raise ValueError("outside")
        return x.clamp(low, high) ** 2

    def function(x):
        inside = (x > -3) & (x < 3)
        y = torch.zeros_like(x)
        y[~inside] = x[~inside]
        if torch.any(inside):
            y[inside] = spline(x[inside], -3.0, 3.0)
        return y, y[inside].sum()

    agree(function)


def test_blocks_follow_conditions_themselves():
    def function(x):
        total = torch.zeros(())

        def step(carry, x) -> Any:
            if x > 1.5:
                carry = carry + x
            elif x < -1.5:
                total.add_(1)
            assert bool(carry > -1e6)
            return carry, carry * 2

        def halve(x):
            return (x / 2 if x.max() > 3 else x / 4,)

        def choose(x):
            return x.sin() if x[0] > 0.5 else x.cos()

        if isinstance(x, Torchish):
            last, stacked = cast(Any, scan)(step, torch.zeros(()), x)
            (small,) = while_loop(lambda x: x.abs().max() > 1, halve, (x,))
            return last, stacked, small, torch.cond(x.sum() > 0, choose, torch.clone, (x,)), total
        small, last, rows = x, torch.zeros(()), []
        for value in x:
            last, row = step(last, value)
            rows.append(row)
        while small.abs().max() > 1:
            (small,) = halve(small)
        return last, torch.stack(rows), small, choose(x) if x.sum() > 0 else x, total

    agree(function, differentiable=False)
    with pytest.raises(Exception, match=r"float32\[1\] where .*, float32\[3\] where"):
        jax.jit(t2j(lambda x: torch.cond(x[0] > 0, lambda x: x[:1] if x[1] > 0 else x, torch.clone, (x,))))(INPUTS[0])


class Chooses(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * 2 if x.sum() > 0 else x * 3

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        if x.max() > 7:
            return None
        return gradient * 5 if x.sum() > 0 else gradient * x


def test_custom_backwards_ask():
    agree(Chooses.apply)

    def own(x):
        x = x.detach().requires_grad_()
        return torch.autograd.grad(Chooses.apply(x).sum(), x, allow_unused=True, materialize_grads=True)[0]

    agree(own, differentiable=False)


def test_transformations_of_functions_that_ask():
    def inner(x):
        return (x**2).sum() if x.sum() > 0 else x.prod()

    def function(x):
        value, tangent = torch.func.jvp(inner, (x,), (x,))[:2]
        rows = torch.vmap(lambda row: row * 2 if x[0] > 0 else row)(x[None])
        return torch.func.grad(inner)(x), value, tangent, torch.func.hessian(inner)(x), rows

    agree(function, differentiable=False)
    with pytest.raises(RuntimeError, match="vmap: It looks like you're attempting to use a Tensor in some"):
        jax.jit(t2j(torch.vmap(lambda x: x * 2 if x > 0 else x)))(INPUTS[0])


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_checkpointed_code_asks(use_reentrant):
    def inner(x):
        assert x.max() < 1e6
        return x.sin() * 2 if x.sum() > 0 else x.cos()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that no input requires grad
        agree(lambda x: checkpoint(inner, x, use_reentrant=use_reentrant), differentiable=False)
    slope = jax.jit(jax.grad(lambda x: t2j(lambda x: checkpoint(inner, x, use_reentrant=use_reentrant))(x).sum()))
    for x in INPUTS:
        np.testing.assert_allclose(slope(x), 2 * np.cos(x) if x.sum() > 0 else -np.sin(x), 1e-5)


def test_scans_and_meshes_of_jax_compose():
    inputs = jnp.stack(INPUTS)
    expected = np.stack([either(torch.from_numpy(x)) for x in INPUTS])
    _, scanned = jax.jit(lambda xs: jax.lax.scan(lambda c, x: (c, t2j(either)(x)), 0, xs))(inputs)
    np.testing.assert_allclose(scanned, expected, 1e-5)
    mesh = jax.make_mesh((1,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
    spec = jax.sharding.PartitionSpec("i")
    sharded = jax.shard_map(lambda x: t2j(either)(x[0])[None], mesh=mesh, in_specs=spec, out_specs=spec)
    np.testing.assert_allclose(jax.jit(sharded)(inputs[:1]), expected[:1], 1e-5)
    exported = jax.export.export(jax.jit(t2j(either)))(inputs[0])
    np.testing.assert_allclose(exported.call(inputs[1]), expected[1], 1e-5)
    remat = jax.grad(jax.checkpoint(lambda x: t2j(either)(x).sum()))
    np.testing.assert_allclose(remat(inputs[1]), jax.grad(lambda x: t2j(either)(x).sum())(inputs[1]), 1e-5)
    hessian = jax.jit(jax.hessian(lambda x: t2j(either)(x).sum()))
    np.testing.assert_allclose(hessian(inputs[0]), np.diag(-4 * np.sin(2 * inputs[0] + 1)), 1e-4, 1e-5)


def test_an_answer_holds_for_the_same_condition():
    def twice(x):
        if x.max() > 0:
            shape = x[:2]
        y = x.sin()
        return y[:2] + shape if x.max() > 0 else y[:2]

    assert primitives(twice, INPUTS[0]).count("cond") == 1
    agree(twice)


def test_code_that_handles_everything():
    def function(x):
        try:
            y = x * 2 if x.sum() > 0 else x
        except:  # noqa: E722 - as there is code that does
            return x * 100
        return y

    agree(function)


def test_an_endless_loop_that_handles_everything_is_refused():
    def function(x):
        for n in itertools.count(1):
            try:
                if (x * n).sum() > 100:
                    return x * n
            except:  # noqa: E722 - as there is code that does
                pass

    with pytest.raises(BranchError, match="more than 64 paths through it"):
        jax.jit(t2j(function))(INPUTS[0])


def test_a_loop_of_tries_that_handles_everything():
    def function(x):
        for _ in range(3):
            try:
                x = x * 2 if x.sum() > 0 else x + 1
            except:  # noqa: E722 - as there is code that does
                x = x * 100
        return x

    agree(function)


def test_threads_follow_their_own_conditions():
    found = {}

    def run(i):
        found[i] = jax.jit(t2j(chained))(INPUTS[i])

    threads = [threading.Thread(target=run, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for i, x in enumerate(INPUTS):
        np.testing.assert_allclose(found[i], chained(torch.from_numpy(x)))


def test_code_without_end_is_no_branch():
    def deeper(x):
        return deeper(x + 1)

    def run(x):
        return deeper(x) if x.sum() > 0 else deeper(x * 2)

    with pytest.raises(RecursionError):
        jax.jit(t2j(run))(jnp.ones(2))


class Named(NamedTuple):
    loss: Any
    rest: Any


MANY = {f"weight{number}": torch.ones(2) for number in range(20)}
UNLIKE = {
    "a tuple that is longer": (
        lambda x: (x[x > 0], {"a": 1, "b": [x]}),
        lambda x: (x,),
        "in result: (Padded(values, length), {'a': 1, 'b': [float32[3]]}) where it is True, (float32[3],) where",
    ),
    "a tree for a leaf": (lambda x: {"a": x}, lambda x: {"a": (x, x)}, "in result['a']: float32[3] where"),
    "a name more": (
        lambda x: ({**MANY, "more": x.double()}, x),
        lambda x: (MANY, x),
        "in result[0]['more']: float32[3] where it is True, nothing where it is False;",
    ),
    "a name less": (lambda x: [[MANY]], lambda x: [[{}]], "in result[0][0]['weight0']: float32[2] where"),
    "several": (lambda x: MANY, lambda x: {}, "where it is True, nothing where it is False (and 19 more);"),
    "another dtype": (
        lambda x: Named(x, [x, x, 0]),
        lambda x: Named(x, [x, x.int(), 1]),
        "in result.rest[1]: float32[3] where it is True, int32[3] where it is False;",
    ),
    "numbers of dimensions": (lambda x: (x, x), lambda x: (x, x[None]), "in result[1]: float32[3] where it is True"),
    "another text": (lambda x: [x, "a"], lambda x: [x, "b"], "in result[1]: 'a' where it is True, 'b' where"),
    "lengths of lists": (lambda x: [x], lambda x: [x, x], "dtypes. Instead of a list that grows on one side, keep a"),
    "None": (lambda x: [x, x], lambda x: [x, None], "in result[1]: float32[3] where it is True, None where"),
    "a number for a large tree": (
        lambda x: [MANY],
        lambda x: [1],
        "in result[0]: a dict of 20 leaves where it is True, 1",
    ),
    "another class": (
        lambda x: Named(x, x),
        lambda x: (x, x),
        "in result: Named(loss=float32[3], rest=float32[3]) where",
    ),
}


@pytest.mark.parametrize("name", UNLIKE)
def test_an_error_of_branches_names_the_first_place_where_they_differ(name):
    yes, no, told = UNLIKE[name]
    with pytest.raises(BranchError) as caught:
        jax.jit(t2j(lambda x: yes(x) if x.sum() > 0 else no(x)))(jnp.ones(3))
    assert told in str(caught.value)
    assert len(str(caught.value).split(" tests a traced value")[1]) < 400


def test_a_backward_pass_on_each_side():
    def gradient(x):
        weight = torch.ones(2, requires_grad=True)
        if x.sum() < 0:
            (weight * x).sum().backward()
        else:
            (weight * 2 * x).sum().backward()
        return weight.grad.detach()

    compiled = jax.jit(t2j(gradient))
    assert compiled(jnp.array([3.0, 4.0])).tolist() == [6, 8]
    assert compiled(jnp.array([3.0, -4.0])).tolist() == [3, -4]


class _Meter:
    def __init__(self):
        self.total, self.count = 0.0, 0


def _in_a_variable(x):
    total = 0
    for v in x.repeat(4):
        if v > 0:
            total += v
        elif v < -3:
            total -= 1
    return total


def _in_an_attribute(x):
    meter = _Meter()
    for i in range(8):
        v = x.sum() * (i - 3)
        if v > 0:
            meter.total += v
            meter.count += 1
    return meter.total / max(meter.count, 1)


def _in_a_dictionary(x):
    totals = {"all": 0.0}
    for i in range(8):
        v = x.sum() * (i - 3)
        if v > 0:
            totals["all"] += v
    return totals["all"]


def _of_an_older_tensor(x):
    older = x[0] * 1
    total = older if x.sum() > 0 else 0.0
    total += 1
    if x[1] > 0:
        total += 2
    return total * 10 + older


def _of_which_another_name_has_the_number(x):
    total = 0.0
    if x.sum() > 0:
        total = total + x.sum()
    before = total
    if x[0] > 1:
        total += 1
    return before * 100 + total


@pytest.mark.parametrize(
    "program",
    [
        _in_a_variable,
        _in_an_attribute,
        _in_a_dictionary,
        _of_an_older_tensor,
        _of_which_another_name_has_the_number,
    ],
)
def test_sums_that_are_numbers_on_one_side(program):
    compiled = jax.jit(t2j(program), compiler_options=QUICK)
    for x in ([3.0, 4.0], [-3.0, -4.0], [3.0, -4.0], [-3.0, 4.0]):
        assert compiled(jnp.array(x)) == float(program(torch.tensor(x)))


def test_deep_copies_on_one_side():
    base = torch.nn.Linear(2, 1)

    def best(x):
        model = copy.deepcopy(base)
        kept, least = copy.deepcopy(model.state_dict()), float("inf")
        for _ in range(3):
            with torch.no_grad():
                model.weight.mul_(0.5)
            loss = (model(x) - 1).square().sum()
            if loss < least:
                kept, least = copy.deepcopy(model.state_dict()), loss
        model.load_state_dict(kept)
        return model(x).detach()

    compiled = jax.jit(t2j(best), compiler_options=QUICK)
    for x in ([3.0, 4.0], [-3.0, -4.0]):
        np.testing.assert_allclose(compiled(jnp.array(x)), best(torch.tensor(x)), 1e-5)


def _of_another_device(x):
    if x.sum() > 0:
        torch.set_autocast_enabled("cuda", True)
    return x @ x


def _of_another_dtype(x):
    if x.sum() > 0:
        torch.set_autocast_dtype("cpu", torch.float16)
    return x @ x


@pytest.mark.parametrize("function", [_of_another_device, _of_another_dtype])
def test_settings_of_one_side_are_refused(function):
    before = torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cpu")
    with pytest.raises(BranchError, match="a setting or a generator of PyTorch's is changed on one side"):
        jax.jit(t2j(function))(np.ones((3, 3), np.float32))
    assert (torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cpu")) == before


def _replaced(x):
    y = x * 2
    if x.sum() > 0:
        y.data = x * 3
    return y


def _detached(x):
    y = x * 2
    if x.sum() > 0:
        y.detach_()
    return y


@pytest.mark.parametrize("function", [_replaced, _detached])
def test_tensors_that_one_side_makes_others_are_refused(function):
    with pytest.raises(
        BranchError, match=r"a tensor from outside is changed itself \(by \.data or detach_\) on one side"
    ):
        jax.jit(t2j(function))(INPUTS[0])


def _required(x):
    weight = torch.ones(3)
    if x.sum() > 0:
        weight.requires_grad_()
    return x * (2.0 if weight.requires_grad else 1.0)


def test_a_side_may_require_grad():
    for x in INPUTS:
        np.testing.assert_array_equal(jax.jit(t2j(_required))(x), _required(torch.from_numpy(x)))


def _fails_on_one_side(x, options=None):
    if x.sum() > 0:
        return x * 2
    return x * options["scale"]


def _fails_in_a_loop(x, options=None):
    while x.sum() > 9:
        x = x * options["scale"]
    return x


@pytest.mark.parametrize(("function", "side", "wanted"), [(_fails_on_one_side, False, 2), (_fails_in_a_loop, True, 1)])
def test_an_error_on_a_side_or_in_a_loop_tells_of_the_condition(function, side, wanted):
    with pytest.raises(TypeError, match="not subscriptable") as raised:
        jax.jit(t2j(function))(np.ones(3, np.float32))
    (note,) = [x for x in raised.value.__notes__ if "both of its sides are traced" in x]
    line = function.__code__.co_firstlineno + 1
    assert f"test_conditions.py:{line} in {function.__name__} is {side}" in note
    other = {f"test_conditions.py:{line}": not side}
    found = jax.jit(t2j(function, branches=other))(np.ones(3, np.float32))
    np.testing.assert_array_equal(found, np.full(3, wanted, np.float32))


@pytest.mark.parametrize("made", [lambda: torch.ones(3, requires_grad=True), lambda: torch.nn.Parameter(torch.ones(3))])
def test_a_gradient_that_one_side_makes(made):
    """Behind the condition, the other side has none: the rest goes into both."""

    def asked(x):
        weight = made()
        if x.sum() > 1:
            (weight * x).sum().backward()
        return x * 2 if weight.grad is None else weight.grad

    for x in INPUTS:
        found = jax.jit(t2j(asked), compiler_options=QUICK)(x)
        np.testing.assert_array_equal(found, asked(torch.tensor(x)).detach().numpy())
