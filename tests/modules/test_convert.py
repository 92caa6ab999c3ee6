"""Translated functions: what goes in, what comes out, and how JAX's transformations treat them."""

import collections
import dataclasses
import functools
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from torch2jax import TracedValueError, j2t, t2j

Pair = collections.namedtuple("Pair", ["left", "right"])


@dataclasses.dataclass
class Record:
    value: torch.Tensor
    name: str = "record"


def test_transformations():
    def f(x):
        return (torch.sin(x) * x**3).sum()

    def g(x):
        return jnp.sum(jnp.sin(x) * x**3)

    x = jnp.linspace(0.1, 1, 5)
    translated = t2j(f)
    for transform in (jax.jit, jax.grad, jax.hessian, jax.jacfwd, jax.jacrev, jax.checkpoint, jax.value_and_grad):
        actual, expected = transform(translated)(x), transform(g)(x)
        jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=2e-5), actual, expected)
    xs = jnp.stack([x, 2 * x])
    np.testing.assert_allclose(jax.vmap(translated)(xs), jax.vmap(g)(xs), rtol=1e-5)
    np.testing.assert_allclose(jax.jvp(translated, (x,), (x,))[1], jax.jvp(g, (x,), (x,))[1], rtol=1e-5)


def test_scan():
    step = t2j(lambda carry, x: (carry * 0.5 + x, carry.sum()))
    carry, sums = jax.lax.scan(step, jnp.zeros(3), jnp.ones((4, 3)))
    np.testing.assert_allclose(carry, 1.875)
    np.testing.assert_allclose(sums, [0, 3, 4.5, 5.25])


def test_shard_map():
    devices = jax.devices()
    mesh = jax.sharding.Mesh(devices, "x")
    spec = jax.sharding.PartitionSpec("x")
    f = jax.shard_map(t2j(lambda x: x * 2 + 1), mesh=mesh, in_specs=spec, out_specs=spec)
    np.testing.assert_array_equal(f(jnp.arange(4.0 * len(devices))), np.arange(4.0 * len(devices)) * 2 + 1)


@pytest.mark.parametrize("transform", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_results_keep_their_containers(transform):
    def f(x):
        return {"pair": Pair(x, x + 1), "list": [x * 2], "record": Record(x * 3), "none": None, "dim": x.max(0)}

    result = transform(t2j(f))(jnp.arange(3.0))
    assert isinstance(result["pair"], Pair)
    assert isinstance(result["record"], Record)
    assert result["record"].name == "record"
    assert isinstance(result["list"], list)
    assert result["none"] is None
    np.testing.assert_array_equal(result["record"].value, [0, 3, 6])
    np.testing.assert_array_equal(result["pair"].right, [1, 2, 3])
    assert result["dim"].values == 2
    assert result["dim"].indices == 2


def test_arguments_are_trees_and_others_reach_the_code_as_they_are():
    seen = {}

    def f(pair, *, record, flag, text, scale=None):
        seen.update(flag=flag, text=text, scale=scale, kind=type(pair), tensor=isinstance(record.value, torch.Tensor))
        return pair.left * pair.right + record.value

    result = t2j(f)(Pair(jnp.ones(2), jnp.full(2, 3.0)), record=Record(jnp.ones(2)), flag=True, text="mode")
    np.testing.assert_array_equal(result, [4, 4])
    assert seen == {"flag": True, "text": "mode", "scale": None, "kind": Pair, "tensor": True}


def test_python_scalars_stay_python_eagerly():
    assert t2j(lambda x: (x.shape[0], 2.5, "text"))(jnp.ones(3)) == (3, 2.5, "text")


def test_numpy_and_tensor_arguments():
    result = t2j(lambda x, y: x + y)(np.ones(2, np.float32), torch.ones(2))
    assert isinstance(result, jax.Array)
    np.testing.assert_array_equal(result, [2, 2])


def test_closed_over_tensors_are_constants():
    weight = torch.arange(3.0)
    np.testing.assert_array_equal(jax.jit(t2j(lambda x: x * weight))(jnp.ones(3)), [0, 1, 2])


def test_closed_over_module():
    torch.manual_seed(0)
    layer = torch.nn.Linear(3, 2)
    actual = jax.jit(t2j(lambda x: layer(x).relu()))(jnp.ones((4, 3)))
    np.testing.assert_allclose(actual, layer(torch.ones(4, 3)).relu().detach(), rtol=1e-5)


def test_writing_to_a_closed_over_tensor_stays_inside_and_warns_once():
    outside = torch.zeros(3)

    def f(x):
        outside.add_(x)
        outside.mul_(2)
        return outside + 0

    with pytest.warns(UserWarning, match="outside the call") as caught:
        result = t2j(f)(jnp.ones(3))
    assert len(caught) == 1
    assert __file__ in str(caught[0].message)
    np.testing.assert_array_equal(result, [2, 2, 2])
    assert torch.equal(outside, torch.zeros(3))


@pytest.mark.filterwarnings("ignore:translated code writes in place")
def test_a_closed_over_module_keeps_its_own_tensors():
    counter = torch.nn.BatchNorm1d(2)
    count = counter.num_batches_tracked

    def f(x):
        counter.num_batches_tracked += 1
        counter.running_mean *= 3
        return x + counter.num_batches_tracked

    np.testing.assert_array_equal(t2j(f)(jnp.ones(3)), [2, 2, 2])
    assert counter.num_batches_tracked is count
    assert count == 0


def test_input_arrays_are_never_written():
    x = jnp.zeros(3)
    np.testing.assert_array_equal(t2j(lambda x: x.add_(1))(x), [1, 1, 1])
    np.testing.assert_array_equal(x, [0, 0, 0])
    tensor = torch.zeros(3)
    with pytest.warns(UserWarning, match="outside the call"):
        t2j(lambda x: x.add_(1))(tensor)
    assert torch.equal(tensor, torch.zeros(3))


def test_nested_translations():
    inner = t2j(lambda x: torch.sin(x))

    def outer(x):
        assert isinstance(inner(x), torch.Tensor)
        return inner(x) + j2t(jnp.ones(3))

    np.testing.assert_allclose(jax.jit(t2j(outer))(jnp.zeros(3)), 1)


def test_jit_inside_a_translation_inside_jit():
    inner = jax.jit(t2j(lambda x: x * 2))
    outer = jax.jit(t2j(lambda x: t2j(lambda y: y + 1)(x)))
    np.testing.assert_allclose(outer(inner(jnp.ones(3))), 3)


def test_python_on_values_works_eagerly_and_is_a_clear_error_under_jit():
    def f(x):
        if complex(x.sum()).real > 0:  # the line the error names
            return x * 2
        return -x

    np.testing.assert_array_equal(t2j(f)(jnp.ones(2)), [2, 2])
    np.testing.assert_array_equal(jax.grad(lambda x: t2j(f)(x).sum())(jnp.ones(2)), [2, 2])
    with pytest.raises(TracedValueError) as caught:
        jax.jit(t2j(f))(jnp.ones(2))
    message = str(caught.value)
    line = f.__code__.co_firstlineno + 1
    assert f"{__file__}:{line}" in message
    assert "torch.where" in message


def test_everything_is_restored_after_an_exception():
    def f(x):
        with torch.no_grad():
            raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        t2j(f)(jnp.ones(2))
    assert torch.is_grad_enabled()
    assert type(torch.zeros(2) + 1) is torch.Tensor
    assert not torch.overrides._get_current_function_mode_stack()
    assert not torch.utils._python_dispatch._get_current_dispatch_mode_stack()


def test_ambient_no_grad_neither_stops_gradients_nor_is_changed():
    with torch.no_grad():
        assert jax.grad(t2j(lambda x: (x * x).sum()))(jnp.ones(())) == 2
        assert not torch.is_grad_enabled()


def test_no_grad_and_detach_stop_gradients():
    def f(x):
        with torch.no_grad():
            y = x * 2
        return (x * y + x.detach() * 5).sum()

    assert jax.grad(t2j(f))(jnp.asarray(3.0)) == 6


def test_missing_rule_is_one_clear_error():
    torch.library.define("torch2jax_tests::unknown", "(Tensor x) -> Tensor")
    with pytest.raises(NotImplementedError) as caught:
        t2j(lambda x: torch.ops.torch2jax_tests.unknown(x))(jnp.ones((2, 2)))
    message = str(caught.value)
    assert "torch2jax_tests.unknown" in message
    assert __file__ in message
    assert "implements" in message


def test_eight_threads_at_once():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))
    translated, x = t2j(model), np.random.default_rng(0).standard_normal((8, 3, 4)).astype(np.float32)
    with torch.no_grad():
        expected = [model(torch.from_numpy(each)).numpy() for each in x]
    failures = []

    def work(i):
        try:
            for _ in range(10):
                np.testing.assert_allclose(translated(jnp.asarray(x[i])), expected[i], rtol=1e-4, atol=1e-6)
                assert type(torch.ones(2)) is torch.Tensor
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_a_leaked_tensor_says_what_is_wrong():
    kept = []
    t2j(lambda x: kept.append(x) or x)(jnp.ones(2))
    with pytest.raises(RuntimeError, match="call that has ended"):
        kept[0] + 1


def test_pytorch_is_as_it_was():
    def parts():
        return [torch.random.default_generator, torch.random._manual_seed_impl, torch.manual_seed, torch.rand]

    before, state = parts(), torch.get_rng_state()
    t2j(lambda x: torch.manual_seed(3) and x + torch.rand(2))(jnp.ones(2))
    with pytest.raises(ZeroDivisionError):
        t2j(lambda x: 1 / 0)(jnp.ones(2))
    assert all(a is b for a, b in zip(before, parts(), strict=True))
    assert torch.equal(state, torch.get_rng_state())


def test_shapes_that_do_not_broadcast_are_pytorchs_error():
    with pytest.raises(RuntimeError, match=r"shapes \[2\], \[3\], which do not broadcast"):
        t2j(torch.add)(jnp.ones(2), jnp.ones(3))
