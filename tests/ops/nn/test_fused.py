"""Attention by kernels of the platform: who asks for them gets their calls, and the numbers of plain attention.

No machine of these tests has a GPU or a TPU. What is seen is which calls the graphs have; what Pallas' interpreter
computes; and cuDNN's operands, with JAX's other implementation in its place.
"""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import tpu as pallas_tpu
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec as P
from torch.nn import functional as F

from torch2jax import export, fused_attention, t2j
from torch2jax.ops.nn import fused, kernels, scores

PLATFORMS = ("cpu", "cuda", "tpu")
CUDNN, PALLAS = "__cudnn$fmhaSoftmax", "tpu_custom_call"
BFLOAT = jax.ShapeDtypeStruct((1, 2, 1024, 64), jnp.bfloat16)


@pytest.fixture
def with_cudnn(monkeypatch):
    """A JAX that finds cuDNN; nothing of it is called where programs are lowered."""
    monkeypatch.setattr("jax._src.cudnn.fused_attention_stablehlo.check_cudnn_version", lambda: 91000)


@pytest.fixture
def for_short_ones(monkeypatch):
    monkeypatch.setattr(fused, "_LONG", 0)


def attend(*operands, **options):
    return t2j(lambda *operands: F.scaled_dot_product_attention(*operands, **options))(*operands)


def calls(*operands, platforms=("tpu",), function=attend, rules=None, **options) -> set[str]:
    """The custom calls of the graph for these platforms."""
    with rules or fused_attention():
        traced = jax.jit(lambda *operands: function(*operands, **options)).trace(*operands)
        text = traced.lower(lowering_platforms=platforms).as_text()
    return set(re.findall(r"custom_call @([\w$]+)\(", text))


def gradients(*operands, **options):
    def loss(*operands):
        return jnp.square(attend(*operands, **options).astype(jnp.float32)).sum()

    return jax.grad(loss, (0, 1, 2))(*operands)


@pytest.mark.parametrize("function", [attend, gradients])
def test_each_platform_has_its_call(with_cudnn, function):
    suffix = {"Backward"} if function is gradients else set()
    cudnn = {CUDNN, *(CUDNN + each for each in suffix)}
    of_platform = {"cpu": set(), "cuda": cudnn, "tpu": {PALLAS}}
    for platform, expected in of_platform.items():
        assert calls(BFLOAT, BFLOAT, BFLOAT, platforms=(platform,), function=function, is_causal=True) == expected
    assert calls(BFLOAT, BFLOAT, BFLOAT, platforms=PLATFORMS, function=function) == {*cudnn, PALLAS}


def test_other_platforms_have_the_graph_that_they_have_without():
    def graph():
        traced = jax.jit(t2j(F.scaled_dot_product_attention)).trace(BFLOAT, BFLOAT, BFLOAT)
        return traced.lower(lowering_platforms=("rocm",)).as_text()

    with fused_attention():
        asked = graph()
    assert asked == graph()


def of_shape(*shape, dtype="bfloat16"):
    return jax.ShapeDtypeStruct(shape, dtype)


MASK = jax.ShapeDtypeStruct((1, 1, 1024, 1024), bool)
PADDING = jax.ShapeDtypeStruct((1, 1, 1, 1024), bool)


@pytest.mark.parametrize(
    ("operands", "options", "on_tpu", "on_cuda"),
    [
        ([of_shape(4, 1024, 64)] * 3, {}, True, True),
        ([of_shape(1024, 64)] * 3, {"is_causal": True}, True, True),
        ([of_shape(2, 3, 2, 1024, 64)] * 3, {"scale": 0.3}, True, True),
        ([of_shape(1, 8, 1024, 64), *[of_shape(1, 2, 1024, 64)] * 2], {"enable_gqa": True}, True, True),
        ([BFLOAT, *[of_shape(1, 2, 2048, 64)] * 2], {}, True, True),
        ([BFLOAT, *[of_shape(1, 2, 2048, 64)] * 2], {"is_causal": True}, False, False),
        ([BFLOAT, BFLOAT, BFLOAT, PADDING], {}, True, True),
        ([BFLOAT, BFLOAT, BFLOAT, MASK], {}, False, True),
        ([BFLOAT, BFLOAT, BFLOAT, of_shape(1, 1, 1024, 1024)], {}, False, False),  # numbers to add
        ([of_shape(1, 2, 1024, 64, dtype="float32")] * 3, {}, True, False),
        ([of_shape(1, 2, 1024, 64, dtype="float16")] * 3, {}, False, True),
        ([of_shape(1, 2, 1030, 64)] * 3, {}, False, True),
        ([of_shape(1, 2, 1024, 63)] * 3, {}, True, False),
        ([BFLOAT, BFLOAT, of_shape(1, 2, 1024, 32)], {}, False, False),
        ([of_shape(1, 64, 512, 64)] * 3, {}, False, False),  # short
    ],
)
def test_what_kernels_take(with_cudnn, operands, options, on_tpu, on_cuda):
    assert (PALLAS in calls(*operands, platforms=("tpu",), **options)) == on_tpu
    found = calls(*operands, platforms=("cuda",), **options)
    assert any(name.startswith("__cudnn$fmha") for name in found) == on_cuda


def test_without_cudnn_there_is_plain_attention():
    assert calls(BFLOAT, BFLOAT, BFLOAT, platforms=("cuda",)) == set()


def test_a_tpu_has_plain_attention_while_64_bits_are_on():
    with jax.enable_x64(True):
        assert calls(BFLOAT, BFLOAT, BFLOAT) == set()


def test_dropout_and_errors_are_those_of_plain_attention(for_short_ones):
    operands, rng = [jnp.ones((4, 8))] * 3, jax.random.key(0)

    def dropping():
        attend = t2j(lambda *operands: F.scaled_dot_product_attention(*operands, dropout_p=0.5))
        return str(jax.make_jaxpr(attend)(*operands, rng=rng))

    with fused_attention():
        graph = dropping()
        with pytest.raises(RuntimeError, match="is_causal"):
            attend(*operands, jnp.ones((4, 4), bool), is_causal=True)
        with pytest.raises(RuntimeError, match="cannot be multiplied"):
            attend(*operands[:2], jnp.ones((3, 8)))
    assert graph == dropping()


# Values, on the CPU.


def _operands(heads=2, key_heads=2, queries=128, keys=128, features=8):
    shapes = (2, heads, queries, features), *[(2, key_heads, keys, features)] * 2
    keys_of_random = jax.random.split(jax.random.key(0), 4)
    operands = [jax.random.normal(key, shape) for key, shape in zip(keys_of_random, shapes, strict=False)]
    padding = jnp.ones((2, 1, 1, keys), bool).at[0, 0, 0, keys // 3 :].set(False).at[1].set(False)  # one of them, all
    return operands, padding


def xla_attention(*operands, implementation, mask=None, **options):
    """JAX's own, but for fully masked rows, whose mean cuDNN gives too."""
    assert implementation == "cudnn"
    return _attention_of_jax(*operands, mask=mask, implementation="xla", **options)


_attention_of_jax = jax.nn.dot_product_attention


@pytest.mark.parametrize("kernel", [kernels.cudnn_attention, kernels.pallas_attention])
@pytest.mark.parametrize("options", ["causal", "padding and shared keys"])
def test_kernels_compute_what_plain_attention_does(kernel, options, monkeypatch):
    monkeypatch.setattr(jax.nn, "dot_product_attention", xla_attention)
    is_causal = options == "causal"
    operands, padding = _operands(heads=2 if is_causal else 4)
    mask = () if is_causal else (padding,)

    @functools.partial(jax.jit, static_argnums=0)
    def both(attend, *operands):
        value, pull = jax.vjp(lambda *operands: attend(*operands, *mask, is_causal=is_causal, scale=0.3), *operands)
        return value, *pull(jnp.cos(jnp.arange(value.size * 1.0)).reshape(value.shape))

    with pallas_tpu.force_tpu_interpret_mode():
        found = both(kernel, *operands)
    expected = both(scores.attention, *operands)
    for got, want in zip(found, expected, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def test_a_mask_for_each_query_has_rows_that_attend_to_nothing(monkeypatch):
    monkeypatch.setattr(jax.nn, "dot_product_attention", xla_attention)
    operands, _ = _operands(queries=6, keys=5)
    mask = (jnp.arange(30).reshape(1, 1, 6, 5) % 3 > 0).at[0, 0, 2].set(False)
    found = jax.jit(functools.partial(kernels.cudnn_attention, is_causal=False, scale=0.5))(*operands, mask)
    np.testing.assert_allclose(found, scores.attention(*operands, mask, scale=0.5), rtol=1e-4, atol=1e-6)


def _derivatives():
    """Derivatives of all kinds, of a function that attends with and without a mask."""
    operands, mask = _operands(queries=3, keys=4, features=2)
    operands, directions = tuple(operands), tuple(jnp.cos(x) for x in operands)

    def g(query, key, value):
        return jnp.sin(attend(query, key, value, mask)).sum() + attend(query, key, value, is_causal=True).sum()

    yield g(*operands)
    yield jax.grad(g, (0, 1, 2))(*operands)
    yield jax.jvp(g, operands, directions)
    yield jax.jvp(lambda key: g(operands[0], key, operands[2]), operands[1:2], directions[1:2])
    yield jax.jvp(jax.grad(g, (0, 1, 2)), operands, directions)
    yield jax.grad(lambda *x: jnp.square(jax.grad(g, 1)(*x)).sum(), (0, 1, 2))(*operands)
    yield jax.jvp(lambda *x: jax.jvp(g, x, directions)[1], operands, directions)
    yield jax.vmap(g, (0, None, None))(jnp.stack([operands[0], directions[0]]), *operands[1:])
    yield jax.vmap(jax.grad(g, 1), (None, 1, None))(operands[0], jnp.stack(operands[1:], 1), operands[2])
    yield jax.jacfwd(g, 2)(*operands)
    yield jax.grad(jax.checkpoint(g))(*operands)


def test_all_derivatives_are_those_of_plain_attention(for_short_ones):
    expected = jax.jit(lambda: list(_derivatives()))()
    with fused_attention():
        found = jax.jit(lambda: list(_derivatives()))()
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), found, expected)


def test_gradients_that_the_code_takes_itself(for_short_ones):
    def code(query, key, value):
        query.requires_grad_()
        F.scaled_dot_product_attention(query, key, value).square().sum().backward()
        return query.grad

    operands, _ = _operands()
    expected = jax.jit(t2j(code))(*operands)
    with fused_attention():
        np.testing.assert_allclose(t2j(code)(*operands), expected, rtol=1e-4, atol=1e-5)


# Several devices, and programs as files.


MESH = AbstractMesh((2, 4), ("data", "model"), axis_types=(AxisType.Auto,) * 2)


@pytest.mark.parametrize(
    ("shape", "mask", "takes"),
    [
        ((2, 8, 1024, 64), (2, 1, 1, 1024), True),
        ((2, 8, 1024, 64), (1, 1, 1, 1024), True),
        ((2, 6, 1024, 64), None, False),
    ],
)
def test_each_device_has_its_part(shape, mask, takes):
    sharding = NamedSharding(MESH, P("data"))
    operands = [jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=sharding)] * 3
    operands += [] if mask is None else [jax.ShapeDtypeStruct(mask, bool, sharding=NamedSharding(MESH, P()))]
    for function in (attend, gradients):
        rules = fused_attention(MESH, batch="data", heads="model")
        assert (PALLAS in calls(*operands, function=function, rules=rules)) == takes


def test_parts_on_one_device(for_short_ones):
    operands, mask = _operands()
    mesh = jax.make_mesh((1, 1), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    with fused_attention(mesh, batch="data", heads=("model",)):
        found = attend(*operands, mask), jax.jit(gradients)(*operands)
    expected = attend(*operands, mask), gradients(*operands)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), found, expected)


def test_axes_that_the_mesh_lacks():
    with pytest.raises(ValueError, match=r"the axes rows; the mesh has \['data', 'model'\]"):
        fused_attention(MESH, batch="rows")
    with pytest.raises(ValueError, match=r"the axes data; the mesh has \[\]"):
        fused_attention(batch="data")


def test_exported_programs(with_cudnn):
    function = t2j(F.scaled_dot_product_attention)
    with fused_attention():
        exported = export(function, platforms=["cpu", "tpu"])(BFLOAT, BFLOAT, BFLOAT)
        assert PALLAS in exported.mlir_module()
        with pytest.raises(ValueError, match=re.escape(CUDNN)):  # not one that JAX keeps from version to version
            export(function, platforms=PLATFORMS)(BFLOAT, BFLOAT, BFLOAT)
        checks = [jax.export.DisabledSafetyCheck.custom_call(CUDNN)]
        exported = export(function, platforms=PLATFORMS, disabled_checks=checks)(BFLOAT, BFLOAT, BFLOAT)
    assert CUDNN in exported.mlir_module()
    x = jnp.ones(BFLOAT.shape, BFLOAT.dtype)
    np.testing.assert_array_equal(exported.call(x, x, x), x)


def test_it_is_asked_for():
    def operations():
        equations = jax.make_jaxpr(t2j(F.scaled_dot_product_attention))(BFLOAT, BFLOAT, BFLOAT).eqns
        return [equation.primitive.name for equation in equations]

    assert "attention" not in operations()
    with fused_attention():
        assert operations() == ["attention"]


def test_without_jit(for_short_ones):
    operands = [jax.random.normal(jax.random.key(i), (1, 2, 8, 4)) for i in range(3)]
    expected = attend(*operands), gradients(*operands)
    with fused_attention(), jax.disable_jit():
        got = attend(*operands), gradients(*operands)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6), got, expected)
