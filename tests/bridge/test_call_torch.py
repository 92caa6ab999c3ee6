"""PyTorch inside JAX: values, types, trees, errors, and what is copied."""

import enum
import subprocess
import sys
import time
import warnings
from collections import OrderedDict
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from torch2jax import (
    Size,
    dtype_j2t,
    j2t,
    torch2jax,
    torch2jax_auto,
    torch2jax_with_vjp,
    torch2jax_without_vjp,
    tree_j2t,
    tree_t2j,
)
from torch2jax.bridge import ffi


def spec(*shape, dtype=jnp.float32):
    return jax.ShapeDtypeStruct(shape, dtype)


def test_calls_eagerly_and_under_jit():
    f = torch2jax(lambda a, b: a @ b, torch.ones(2, 3), spec(3, 4))
    a, b = jnp.arange(6.0).reshape(2, 3), jnp.arange(12.0).reshape(3, 4)
    np.testing.assert_allclose(f(a, b), a @ b)
    np.testing.assert_allclose(jax.jit(lambda a, b: jnp.sin(f(a * 2, b)) + 1)(a, b), jnp.sin(2 * a @ b) + 1, rtol=1e-6)


def test_one_equation_in_the_jaxpr():
    def shift(x):
        return x + 1

    f = torch2jax(shift, spec(3))
    jaxpr = jax.make_jaxpr(f)(jnp.ones(3))
    assert [eqn.primitive.name for eqn in jaxpr.eqns] == ["torch_call"]
    assert "function=shift results=(float32[3],)" in str(jaxpr)


def test_trees_in_and_out():
    def fn(batch, pair, *, scale):
        return {"sum": batch["x"] + pair[0] * scale, "rest": (pair[1], [batch["x"].sum()])}

    x, y, z, s = jnp.ones(3), jnp.arange(3.0), jnp.arange(2), jnp.float32(2)
    f = torch2jax(fn, {"x": x}, (y, z), example_kw={"scale": s})
    result = f({"x": x}, (y, z), scale=s)
    np.testing.assert_allclose(result["sum"], x + 2 * y)
    np.testing.assert_array_equal(result["rest"][0], z)
    assert result["rest"][1][0] == 3


def test_dictionaries_that_jax_cannot_sort():
    class Key(enum.Enum):
        A, B = 1, 2

    f = torch2jax(lambda x: {"sum": x[Key.A] + x[Key.B], Key.A: x[Key.A]}, {Key.A: spec(3), Key.B: spec(3)})
    given = {Key.A: jnp.arange(3.0), Key.B: jnp.ones(3)}
    for call in (f, lambda given: jax.jit(f)(OrderedDict(given))):
        result = call(given)
        np.testing.assert_array_equal(result["sum"], [1, 2, 3])
        np.testing.assert_array_equal(result[Key.A], [0, 1, 2])


def test_containers_that_jax_does_not_know():
    f = torch2jax(lambda x: torch.max(x, dim=0), spec(4, 3))
    result = f(jnp.arange(12.0).reshape(4, 3))
    np.testing.assert_allclose(result.values, [9, 10, 11])
    np.testing.assert_array_equal(result.indices, [3, 3, 3])


@pytest.mark.parametrize(
    "output_shapes",
    [Size([3]), (3,), jax.ShapeDtypeStruct((3,), jnp.float32), jnp.zeros(3), torch.zeros(3)],
    ids=["Size", "tuple", "ShapeDtypeStruct", "array", "tensor"],
)
def test_output_shapes_keep_the_function_uncalled(output_shapes):
    calls = []

    def fn(x):
        calls.append(x.device.type)
        return x + 1

    f = torch2jax(fn, spec(3), output_shapes=output_shapes)
    assert jax.eval_shape(f, jnp.ones(3)).shape == (3,)
    assert calls == []
    np.testing.assert_allclose(f(jnp.ones(3)), 2)
    assert calls == ["cpu"]


class Pair(NamedTuple):
    first: object
    second: object


@pytest.mark.parametrize(
    ("fn", "output_shapes"),
    [
        (lambda x: (x, 2 * x), [(3,), (3,)]),
        (lambda x: [x, 2 * x], Pair((3,), (3,))),
        (lambda x: Pair(x, 2 * x), ((3,), (3,))),
        (lambda x: {"a": (x, [2 * x])}, {"a": [(3,), ((3,),)]}),
        (lambda x: x, [(3,)]),
        (lambda x: (x,), (3,)),
        (lambda x: [(x,)], ((3,),)),
        (lambda x: torch.max(x[None], dim=0), [spec(3), jax.ShapeDtypeStruct((3,), jnp.int32)]),
    ],
)
def test_results_take_the_declared_structure(fn, output_shapes):
    f = torch2jax(fn, spec(3), output_shapes=output_shapes)
    x = jnp.arange(3.0)
    for call in (f, jax.jit(f)):
        result = call(x)
        wanted = jax.tree.structure(output_shapes, is_leaf=lambda node: node == (3,))
        assert jax.tree.structure(result) == wanted
        for array, tensor in zip(jax.tree.leaves(result), jax.tree.leaves(fn(j2t(x))), strict=True):
            np.testing.assert_array_equal(array, tensor)
    if wanted.num_leaves == 2 and "a" not in str(wanted):
        _, pull = jax.vjp(lambda x: jax.tree.leaves(f(x))[0], x)
        np.testing.assert_array_equal(pull(jnp.ones(3))[0], np.ones(3))


def test_keys_are_no_sequence():
    f = torch2jax(lambda x: {"b": x, "a": x}, spec(3), output_shapes={"a": (3,), "c": (3,)})
    with pytest.raises(jax.errors.JaxRuntimeError, match="got results"):
        f(jnp.ones(3))["a"].block_until_ready()


def test_shapes_are_inferred_on_meta_tensors_or_by_one_run():
    seen = []

    def on_meta(x):
        seen.append(x.device.type)
        return x * 2

    torch2jax(on_meta, torch.ones(3))
    assert seen == ["meta"]

    def in_numpy(x):
        return torch.from_numpy(np.sin(x.numpy()))

    x = jnp.arange(3.0)
    np.testing.assert_allclose(torch2jax(in_numpy, x)(x), np.sin(x), rtol=1e-6)


@pytest.mark.slow("imports the package in a process of its own")
def test_results_are_inferred_without_pytorchs_compiler():
    """PyTorch's kernels for meta tensors import it, which takes a second; afterwards they are as they were."""
    code = """
import sys, torch, jax.numpy as jnp
from torch2jax import torch2jax
from torch2jax.internals.dispatch import DISABLED, _functions

def f(x):
    return torch.where(x > 0, torch.nn.functional.gelu(x), x.sin() * 2).mean(-1) + torch.cat([x, x], 1).sum(-1)

torch2jax(f, jnp.ones((4, 4)))(jnp.ones((4, 4)))
assert "torch._dynamo" not in sys.modules
assert len(_functions()) > 100 and not any(hasattr(function, DISABLED) for function in _functions())
torch.empty(3, device="meta").sin()
assert sum(getattr(function, DISABLED, function) is not function for function in _functions()) == 1
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=80)


ALL_DTYPES = [
    *("bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"),
    *("float16", "bfloat16", "float32", "float64", "complex64", "complex128"),
    *("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"),
]


@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 3), (2, 3)], ids=str)
def test_all_dtypes_mixed_in_one_call(shape):
    with jax.enable_x64(True):
        arrays = [jnp.ones(shape, name) for name in ALL_DTYPES]
        f = torch2jax(lambda *tensors: tuple(t.clone() for t in reversed(tensors)), *arrays)
        for array, result in zip(reversed(arrays), f(*arrays), strict=True):
            assert result.dtype == array.dtype
            np.testing.assert_array_equal(np.asarray(result), np.asarray(array))


def test_int64_is_held_as_int32_without_x64():
    logits, labels = jnp.ones((4, 3)), jnp.array([0, 1, 2, 0])
    f = torch2jax(torch.nn.functional.cross_entropy, torch.ones(4, 3), torch.zeros(4, dtype=torch.int64))
    assert labels.dtype == jnp.int32
    np.testing.assert_allclose(f(logits, labels), np.log(3), rtol=1e-6)
    counts = torch2jax(lambda x: x.sum(), labels)(labels)
    assert (counts.dtype, int(counts)) == (jnp.int32, 3)


def test_inputs_are_not_copied():
    addresses = []

    def fn(x, y):
        addresses.append([x.data_ptr(), y.data_ptr()])
        return x + y

    x, y = jnp.ones(1000), jnp.ones(1000)
    f = torch2jax(fn, x, y, mutates=False)
    f(x, y).block_until_ready()
    assert addresses[-1] == [x.unsafe_buffer_pointer(), y.unsafe_buffer_pointer()]


def _in_place(x):
    return x.add_(1)


def _through_data(x):
    x.data.mul_(2)
    return x + 0


def _through_view(x):
    x[0] = 7
    return x.clone()


def _through_numpy(x):
    x.numpy()[:] = 3
    return x


def _through_out(x):
    return torch.sin(x, out=x)


def _when_positive(x):
    if x.sum() > 0:
        x.zero_()
    return x.clone()


@pytest.mark.parametrize("known", [False, True], ids=["inferred", "output_shapes"])
@pytest.mark.parametrize("fn", [_in_place, _through_data, _through_view, _through_numpy, _through_out, _when_positive])
def test_writes_reach_only_copies(fn, known):
    f = torch2jax(fn, spec(4), output_shapes=spec(4) if known else None)
    for sign in (-1, 1, -1, 1):  # the first call tells nothing about a function that looks at values
        x = jnp.arange(1.0, 5.0) * sign
        before = np.array(x)
        expected = fn(torch.from_numpy(before.copy()))
        np.testing.assert_allclose(f(x), expected)
        np.testing.assert_array_equal(x, before)


def test_running_statistics_are_written_to_copies():
    """PyTorch's operator writes to them, and its schema does not say so."""

    def fn(x, mean, var):
        y = torch.nn.functional.batch_norm(x, mean, var, training=True)
        return y, mean, var

    x, mean, var = jax.random.normal(jax.random.key(0), (5, 3)), jnp.zeros(3), jnp.ones(3)
    f = torch2jax(fn, x, mean, var)
    for _ in range(2):
        results = f(x, mean, var)
        np.testing.assert_allclose(results[2], 0.9 + 0.1 * jnp.var(x, axis=0, ddof=1), rtol=1e-5)
        np.testing.assert_array_equal(mean, 0)
        np.testing.assert_array_equal(var, 1)


def test_what_is_written_to_is_found_once_and_the_rest_is_not_copied():
    addresses = []

    def fn(x, y):
        addresses.append((x, y))
        return y.add_(x)

    x, y = jnp.ones(3), jnp.ones(3)
    f = torch2jax(fn, x, y, output_shapes=spec(3))
    for _ in range(2):
        f(x, y).block_until_ready()
    assert addresses[-1][0].data_ptr() == x.unsafe_buffer_pointer()
    assert addresses[-1][1].data_ptr() != y.unsafe_buffer_pointer()


def test_results_in_any_layout():
    f = torch2jax(
        lambda x: (x.T, x[:, ::2], x.conj(), x.expand(2, 2, 3), x.flip(0).requires_grad_()),
        spec(2, 3, dtype="complex64"),
    )
    x = jnp.arange(6.0).reshape(2, 3) * (1 + 2j)
    for result, expected in zip(f(x), (x.T, x[:, ::2], x.conj(), jnp.stack([x, x]), x[::-1]), strict=True):
        np.testing.assert_allclose(result, expected)


def test_numbers_and_none_as_results():
    result = torch2jax(lambda x: (x.shape[0], None, 2.5, np.float32(3)), spec(4))(jnp.ones(4))
    assert result == (4, None, 2.5, 3)


def test_an_exception_carries_pytorchs_traceback_and_the_next_call_works():
    def fails_on_negative(x):
        if x.min() < 0:
            return x @ torch.ones(99)
        return x * 2

    f = jax.jit(torch2jax(fails_on_negative, spec(3), output_shapes=spec(3)))
    for _ in range(3):
        traceback = r"(?s)in fails_on_negative.*x @ torch.ones\(99\).*RuntimeError: "
        with pytest.raises(jax.errors.JaxRuntimeError, match=traceback) as error:
            f(-jnp.ones(3)).block_until_ready()
        assert "inconsistent tensor size" in str(error.value)
        np.testing.assert_allclose(f(jnp.ones(3)), 2)


@pytest.mark.parametrize(
    ("fn", "message"),
    [
        (lambda x: x[:2], r"result 0 of <lambda> has shape \(2,\); wanted \(3,\)"),
        (lambda x: x.double(), r"has dtype torch.float64; wanted torch.float32"),
        (lambda x: x.bool(), r"has dtype torch.bool; wanted torch.float32"),
        (lambda x: (x, x), r"got results PyTreeDef\(\(\*, \*\)\); wanted PyTreeDef\(\*\)"),
        (lambda x: None, r"got results PyTreeDef\(None\)"),
    ],
    ids=["shape", "dtype", "bool", "count", "none"],
)
def test_results_unlike_the_declared_are_an_error(fn, message):
    with jax.enable_x64(True):
        f = torch2jax(fn, spec(3), output_shapes=spec(3))
        with pytest.raises(jax.errors.JaxRuntimeError, match=message):
            f(jnp.ones(3, "float32")).block_until_ready()


def test_other_shapes_are_specialised_once_with_one_warning():
    seen = []

    def fn(x):
        seen.append(tuple(x.shape))
        return x.sum(0)

    f = torch2jax(fn, spec(3, 2))
    with pytest.warns(UserWarning, match="unlike its examples") as caught:
        shapes = [f(jnp.ones(shape)).shape for shape in [(4, 2), (5, 6), (4, 2)]]
    assert shapes == [(2,), (6,), (2,)]
    assert len(caught) == 1
    assert seen.count((4, 2)) == 3  # inferred once, called twice


def test_auto_takes_its_examples_from_the_first_call():
    f = torch2jax_auto(lambda x, *, y: x * y)
    np.testing.assert_allclose(f(jnp.ones(3), y=jnp.full(3, 2.0)), 2)
    with pytest.warns(UserWarning, match="unlike its examples"):
        assert jax.jit(f)(jnp.ones(4), y=jnp.ones(4)).shape == (4,)
    np.testing.assert_allclose(jax.grad(lambda x: f(x, y=x).sum())(jnp.arange(3.0)), [0, 2, 4])


def test_inside_jit_on_traced_shapes():
    @jax.jit
    def compute(a, b):
        return torch2jax(torch.add, a, b, output_shapes=spec(*a.shape))(a, b) - b

    np.testing.assert_allclose(compute(jnp.ones(3), jnp.ones(3)), 1)
    np.testing.assert_allclose(compute(jnp.ones((2, 2)), jnp.ones((2, 2))), 1)


def test_callback_is_the_slow_way_out():
    f = torch2jax(lambda x: (x.sin(), x.bfloat16()), spec(3), method="callback")
    x = jnp.arange(3.0)
    sine, half = jax.jit(f)(x)
    np.testing.assert_allclose(sine, np.sin(x), rtol=1e-6)
    assert half.dtype == jnp.bfloat16
    np.testing.assert_allclose(jax.grad(lambda x: f(x)[0].sum())(x), np.cos(x), rtol=1e-6)
    assert "pure_callback" not in str(jax.make_jaxpr(f)(x))
    with pytest.raises(jax.errors.JaxRuntimeError, match="ZeroDivisionError"):
        torch2jax(lambda x: x / (1 // 0), spec(3), output_shapes=spec(3), method="callback")(x).block_until_ready()


def test_an_exception_on_a_thread_of_xlas():
    def fails(x):
        raise LookupError("on the pool")

    f = torch2jax(fails, spec(200, 200), output_shapes=(200, 200))
    program = jax.jit(lambda x: f(x @ x) @ x)  # too long for XLA to run it on the calling thread
    for _ in range(3):
        with pytest.raises(jax.errors.JaxRuntimeError, match=r"(?s)in fails.*LookupError: on the pool"):
            program(jnp.ones((200, 200))).block_until_ready()


def test_a_call_costs_less_than_half_of_a_callback():
    x = jnp.ones(16)
    fast, slow = (jax.jit(torch2jax(torch.add, x, x, method=method)) for method in ("ffi", "callback"))

    def best(program):
        def seconds():
            start = time.perf_counter()
            for _ in range(100):
                program(x, x).block_until_ready()
            return time.perf_counter() - start

        return min(seconds() for _ in range(10))

    best(fast)
    assert best(fast) < best(slow) / 2


def test_an_unknown_interface_names_versions_and_the_way_out(monkeypatch):
    monkeypatch.setattr(ffi, "header_version", lambda: (1, 0))
    with pytest.raises(
        NotImplementedError, match=r'interface 1\.0; torch2jax knows versions 0\.3 to.*method="callback"'
    ):
        torch2jax(torch.sin, spec(3))
    x = jnp.arange(3.0)
    np.testing.assert_allclose(torch2jax(torch.sin, spec(3), method="callback")(x), np.sin(x), rtol=1e-6)


def test_a_tpu_is_a_clear_error():
    f = torch2jax(torch.sin, spec(3))
    with pytest.raises(NotImplementedError, match="sin cannot be called on tpu"):
        jax.jit(f).trace(jnp.ones(3)).lower(lowering_platforms=("tpu",))


@pytest.mark.parametrize("options", [{"vmap_method": "magic"}, {"method": "magic"}], ids=str)
def test_unknown_options(options):
    with pytest.raises(ValueError, match=r"got .*='magic'; wanted one of"):
        torch2jax(torch.sin, spec(3), **options)


def test_an_example_that_is_no_array():
    with pytest.raises(TypeError, match="example argument of type str"):
        torch2jax(lambda x, mode: x, spec(3), "mean")


def test_wrap_torch2jax_names():
    a, b = torch.randn(10, 2), torch.randn(10, 2)
    x, y = tree_t2j((a, b))
    assert torch.equal(tree_j2t({"x": x})["x"], a)
    assert dtype_j2t(x.dtype) == torch.float32
    with_vjp = torch2jax_with_vjp(torch.nn.functional.mse_loss, a, b, depth=2)
    np.testing.assert_allclose(jax.grad(with_vjp)(x, y), (x - y) / 10, rtol=1e-5)
    without = torch2jax_without_vjp(
        lambda a, b, *, c: a + b * c, a, b, example_kw={"c": a}, output_shapes=Size(a.shape)
    )
    np.testing.assert_allclose(without(x, y, c=x), x + y * x, rtol=1e-6)
    with pytest.raises(TypeError, match="no gradient of this order"):
        jax.grad(lambda x: without(x, y, c=x).sum())(x)


def test_a_function_inside_pytorchs_modes_runs_outside_them():
    f = torch2jax(lambda x: torch.autograd.grad((x.requires_grad_() ** 2).sum(), x)[0], spec(3), output_shapes=spec(3))
    with torch.no_grad(), torch.device("meta"):
        np.testing.assert_allclose(f(jnp.ones(3)), 2)


def test_no_warning_in_ordinary_use():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        f = torch2jax(torch.sin, spec(3))
        jax.grad(lambda x: f(x).sum())(f(jnp.ones(3)))


def test_trying_a_module_out_leaves_its_buffers():
    module = torch.nn.BatchNorm1d(3)
    f = torch2jax(module, spec(4, 3))
    assert module.num_batches_tracked == 0
    assert not module.running_mean.any()
    f(jnp.ones((4, 3))).block_until_ready()
    assert module.num_batches_tracked == 1


def test_no_inputs_or_no_results():
    np.testing.assert_array_equal(jax.jit(torch2jax(lambda: torch.ones(3)))(), 1)
    assert torch2jax(lambda x: (), spec(3))(jnp.ones(3)) == ()


def test_loops_and_donation():
    f = torch2jax(lambda x: x * 2, spec(3))
    _, doubled = jax.lax.while_loop(lambda c: c[0] < 5, lambda c: (c[0] + 1, f(c[1])), (0, jnp.ones(3)))
    np.testing.assert_array_equal(doubled, 32)
    np.testing.assert_array_equal(jax.jit(f, donate_argnums=0)(jnp.ones(3)), 2)
