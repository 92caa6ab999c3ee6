"""PyTorch inside JAX on eight virtual devices: each calls the function on its own shard, or the call is refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

from torch2jax import torch2jax, torch2jax_without_vjp

pytestmark = pytest.mark.usefixtures("eight_devices")

ROWS = np.arange(32, dtype=np.float32).reshape(16, 2)
WEIGHTS = np.array([1.0, 3.0], np.float32)
WHOLE = jax.ShapeDtypeStruct((16, 2), "float32"), jax.ShapeDtypeStruct((16,), "float32")


class Function:
    """A function of PyTorch's that notes the shapes that it is called with."""

    def __init__(self):
        self.shapes = []

    def __call__(self, a, w):
        self.shapes.append(tuple(a.shape))
        return torch.sin(a) * w, a.sum(1)


def reference(a, w):
    return jnp.sin(a) * w, a.sum(1)


def loss(f):
    return lambda a, w: (f(a, w)[0] ** 2).sum()


def mesh_of(kind: AxisType):
    return jax.make_mesh((8,), ("x",), axis_types=(kind,))


def place(mesh, value, *spec):
    return jax.device_put(value, NamedSharding(mesh, P(*spec)))


def close(actual, expected):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5), actual, expected)


def refused(call, match, kind=ValueError):
    with pytest.raises(kind, match=match):
        jax.block_until_ready(call())


@pytest.mark.parametrize(
    "options",
    [{}, {"output_shapes": (jax.ShapeDtypeStruct((16, 2), "float32"), jax.ShapeDtypeStruct((16,), "float32"))}],
)
def test_out_specs_call_the_function_on_each_shard(options):
    mesh, function = mesh_of(AxisType.Explicit), Function()
    a, w = place(mesh, ROWS, "x"), place(mesh, WEIGHTS)
    f = torch2jax(function, ROWS, WEIGHTS, out_specs=P("x"), **options)
    with jax.set_mesh(mesh):
        for call in (f, jax.jit(f)):
            function.shapes.clear()
            result = call(a, w)
            close(result, reference(ROWS, WEIGHTS))
            assert result[0].sharding.spec in (P("x", None), P("x"))
            assert set(function.shapes) == {(2, 2)}
        for wrap in (lambda g: g, jax.jit):
            close(wrap(jax.grad(loss(f), (0, 1)))(a, w), jax.grad(loss(reference), (0, 1))(ROWS, WEIGHTS))
    close(f(ROWS, WEIGHTS), reference(ROWS, WEIGHTS))  # nothing sharded: called once on all of it


def test_out_specs_of_two_axes():
    mesh = jax.make_mesh((4, 2), ("x", "y"), axis_types=(AxisType.Explicit,) * 2)
    with jax.set_mesh(mesh):
        torch2jax(Function(), ROWS, WEIGHTS, out_specs=(P("x", "y"), P("x")), depth=0)
        result = jax.jit(torch2jax(lambda a: a * 2, ROWS, out_specs=P("x", "y")))(place(mesh, ROWS, "x", "y"))
        close(result, ROWS * 2)


@pytest.mark.parametrize("kind", [AxisType.Explicit, AxisType.Auto])
def test_the_older_spelling(kind):
    mesh, function = mesh_of(kind), Function()
    f = torch2jax_without_vjp(function, ROWS, WEIGHTS, output_sharding_spec=(P("x"), P("x")))
    close(f(place(mesh, ROWS, "x"), place(mesh, WEIGHTS)), reference(ROWS, WEIGHTS))
    assert (2, 2) in function.shapes


MESSAGE = "no out_specs="


def test_a_sharded_input_without_out_specs_is_refused_on_explicit_axes():
    mesh, f = mesh_of(AxisType.Explicit), torch2jax(Function(), ROWS, WEIGHTS)
    with jax.set_mesh(mesh):
        a, w = place(mesh, ROWS, "x"), place(mesh, WEIGHTS)
        refused(lambda: f(a, w), MESSAGE)
        refused(lambda: jax.jit(f)(a, w), MESSAGE)
        refused(lambda: jax.jit(lambda a, w: f(a * 2, w))(a, w), MESSAGE)
        close(f(place(mesh, ROWS), w), reference(ROWS, WEIGHTS))
        close(jax.jit(lambda a, w: f(jax.sharding.reshard(a, P()), w))(a, w), reference(ROWS, WEIGHTS))


def test_a_sharded_input_without_out_specs_is_refused_on_automatic_axes():
    mesh, f = mesh_of(AxisType.Auto), torch2jax(Function(), ROWS, WEIGHTS)
    a, w = place(mesh, ROWS, "x"), place(mesh, WEIGHTS)
    refused(lambda: f(a, w), MESSAGE)
    refused(lambda: jax.jit(f)(a, w), "sharded", Exception)
    refused(lambda: jax.jit(lambda a, w: f(a * 2, w))(a, w), "sharded", Exception)
    close(f(place(mesh, ROWS), w), reference(ROWS, WEIGHTS))
    close(jax.jit(f)(place(mesh, ROWS), w), reference(ROWS, WEIGHTS))
    close(f(ROWS, WEIGHTS), reference(ROWS, WEIGHTS))


@pytest.mark.parametrize("kind", [AxisType.Explicit, AxisType.Auto])
def test_inside_shard_map_each_device_calls_on_its_shard(kind):
    mesh, function = mesh_of(kind), Function()
    f = torch2jax(function, ROWS[:2], WEIGHTS)
    sharded = jax.shard_map(f, mesh=mesh, in_specs=(P("x"), P()), out_specs=P("x"))
    args = place(mesh, ROWS, "x"), place(mesh, WEIGHTS)
    for call in (sharded, jax.jit(sharded)):
        function.shapes.clear()
        close(call(*args), reference(ROWS, WEIGHTS))
        assert function.shapes == [(2, 2)] * 8
    expected = jax.grad(loss(reference), (0, 1))(ROWS, WEIGHTS)
    with jax.set_mesh(mesh):
        for wrap in (lambda g: g, jax.jit):
            close(wrap(jax.grad(loss(sharded), (0, 1)))(*args), expected)


def test_inside_pmap():
    everywhere = jax.pmap(torch2jax(Function(), ROWS[:2], WEIGHTS), in_axes=(0, None))
    close(everywhere(ROWS.reshape(8, 2, 2), WEIGHTS)[0].reshape(16, 2), reference(ROWS, WEIGHTS)[0])
