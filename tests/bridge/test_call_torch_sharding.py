"""PyTorch inside JAX on eight virtual devices: each calls the function on its own shard, or the call is refused."""

from .test_call_torch_concurrency import run

SETUP = """
mesh = jax.make_mesh((8,), ("x",), axis_types=(AxisType.Explicit,))
auto = jax.make_mesh((8,), ("x",), axis_types=(AxisType.Auto,))
rows = np.arange(32, dtype=np.float32).reshape(16, 2)
w = np.array([1.0, 3.0], np.float32)
shapes = []

def fn(a, w):
    shapes.append(tuple(a.shape))
    return torch.sin(a) * w, a.sum(1)

def reference(a, w):
    return jnp.sin(a) * w, a.sum(1)

def place(mesh, value, *spec):
    return jax.device_put(value, NamedSharding(mesh, P(*spec)))

def close(actual, expected):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5), actual, expected)

def refused(call, match, kind=ValueError):
    try:
        jax.block_until_ready(call())
    except kind as error:
        assert match in str(error), error
    else:
        raise AssertionError("not refused")
"""


def test_out_specs_call_the_function_on_each_shard():
    run(
        SETUP
        + """
a, v = place(mesh, rows, "x"), place(mesh, w)
whole = (jax.ShapeDtypeStruct((16, 2), "float32"), jax.ShapeDtypeStruct((16,), "float32"))
for options in ({}, {"output_shapes": whole}):
    f = torch2jax(fn, rows, w, out_specs=P("x"), **options)
    with jax.set_mesh(mesh):
        for call in (f, jax.jit(f)):
            shapes.clear()
            result = call(a, v)
            close(result, reference(rows, w))
            assert result[0].sharding.spec == P("x", None) or result[0].sharding.spec == P("x"), result[0].sharding
            assert all(shape == (2, 2) for shape in shapes), shapes
        for wrap in (lambda g: g, jax.jit):
            gradients = wrap(jax.grad(lambda a, w: (f(a, w)[0] ** 2).sum(), (0, 1)))(a, v)
            close(gradients, jax.grad(lambda a, w: (reference(a, w)[0] ** 2).sum(), (0, 1))(rows, w))
    close(f(rows, w), reference(rows, w))  # nothing sharded: called once on all of it

two = jax.make_mesh((4, 2), ("x", "y"), axis_types=(AxisType.Explicit,) * 2)
with jax.set_mesh(two):
    f = torch2jax(fn, rows, w, out_specs=(P("x", "y"), P("x")), depth=0)
    result = jax.jit(torch2jax(lambda a: a * 2, rows, out_specs=P("x", "y")))(place(two, rows, "x", "y"))
    close(result, rows * 2)
""",
        devices=8,
    )


def test_the_older_spelling():
    run(
        SETUP
        + """
from torch2jax import torch2jax_without_vjp
for some in (mesh, auto):
    f = torch2jax_without_vjp(fn, rows, w, output_sharding_spec=(P("x"), P("x")))
    close(f(place(some, rows, "x"), place(some, w)), reference(rows, w))
assert (2, 2) in shapes
""",
        devices=8,
    )


def test_a_sharded_input_without_out_specs_is_refused():
    run(
        SETUP
        + """
f = torch2jax(fn, rows, w)
message = "no out_specs="
with jax.set_mesh(mesh):
    a, v = place(mesh, rows, "x"), place(mesh, w)
    refused(lambda: f(a, v), message)
    refused(lambda: jax.jit(f)(a, v), message)
    refused(lambda: jax.jit(lambda a, v: f(a * 2, v))(a, v), message)
    close(f(place(mesh, rows), v), reference(rows, w))
    close(jax.jit(lambda a, v: f(jax.sharding.reshard(a, P()), v))(a, v), reference(rows, w))
a, v = place(auto, rows, "x"), place(auto, w)
refused(lambda: f(a, v), message)
refused(lambda: jax.jit(f)(a, v), "sharded", Exception)
refused(lambda: jax.jit(lambda a, v: f(a * 2, v))(a, v), "sharded", Exception)
close(f(place(auto, rows), v), reference(rows, w))
close(jax.jit(f)(place(auto, rows), v), reference(rows, w))
close(f(rows, w), reference(rows, w))
""",
        devices=8,
    )


def test_inside_shard_map_each_device_calls_on_its_shard():
    run(
        SETUP
        + """
f = torch2jax(fn, rows[:2], w)
for some in (mesh, auto):
    sharded = jax.shard_map(f, mesh=some, in_specs=(P("x"), P()), out_specs=P("x"))
    args = place(some, rows, "x"), place(some, w)
    for call in (sharded, jax.jit(sharded)):
        shapes.clear()
        close(call(*args), reference(rows, w))
        assert shapes == [(2, 2)] * 8, shapes
    loss = lambda a, w: (sharded(a, w)[0] ** 2).sum()
    expected = jax.grad(lambda a, w: (reference(a, w)[0] ** 2).sum(), (0, 1))(rows, w)
    with jax.set_mesh(some):
        for wrap in (lambda g: g, jax.jit):
            close(wrap(jax.grad(loss, (0, 1)))(*args), expected)
everywhere = jax.pmap(f, in_axes=(0, None))
close(everywhere(rows.reshape(8, 2, 2), w)[0].reshape(16, 2), reference(rows, w)[0])
""",
        devices=8,
    )
