"""Sharded programs on eight virtual devices: their results, and what the devices send each other."""

from .processes import result_of, start


def test_layers():
    """The collectives of the compiled programs are those that one would write by hand."""
    code = """
from torch.distributed.tensor import Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel

torch.manual_seed(0)
x = jnp.sin(jnp.arange(16 * 8 * 16.0)).reshape(16, 8, 16)

def check(module, x, plan=None, forward=None, gradient=None, **axes):
    specs = sharding.specs(module, plan=plan, **axes)
    given = t2j(module.state_dict())
    params = sharding.put(given, specs)
    tensor, data = axes.get("tensor"), axes.get("fsdp") or "data"
    laid = t2j(sharding.constrained(module, tensor=tensor, data=data, plan=plan))
    batch = jax.device_put(x, P(data))
    found, compiled = collectives(lambda p, x: laid(x, state_dict=p), params, batch)
    assert found == forward, found
    close(compiled(params, batch), t2j(module)(x))
    loss = lambda f: lambda p, x: (f(x, state_dict=p) ** 2).sum()
    found, compiled = collectives(
        jax.grad(loss(laid)), params, batch, out_shardings=sharding.shardings(params, specs))
    assert found == gradient, found
    close(compiled(params, batch), jax.grad(loss(t2j(module)))(given, x), 1e-3)

megatron = {"up": ColwiseParallel(), "down": RowwiseParallel()}
with jax.set_mesh(jax.make_mesh((1, 8), ("data", "model"), axis_types=(AxisType.Auto,) * 2)):
    # one sum behind the second product; for the gradient of the inputs, which is not asked for, there would be another
    check(MLP(), x, megatron, {"all-reduce": 1}, {"all-reduce": 1}, tensor="model")
    check(MLP(), x, {"up": "colwise", "down": "rowwise"}, {"all-reduce": 1}, {"all-reduce": 1}, tensor="model")
    # a gather and a reduce-scatter, which for CPUs is a sum of which each takes its part; their transposes in the
    # gradient, and the sum of the gradients of the norms
    stack = torch.nn.Sequential(torch.nn.LayerNorm(16), MLP(), torch.nn.LayerNorm(16))
    in_sequence = {
        "0": SequenceParallel(),
        "1.up": ColwiseParallel(input_layouts=Shard(1)),
        "1.down": RowwiseParallel(output_layouts=Shard(1)),
        "2": SequenceParallel(),
    }
    check(stack, x, in_sequence, {"all-gather": 1, "all-reduce": 1}, {"all-gather": 2, "all-reduce": 3}, tensor="model")
with jax.set_mesh(jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))):
    check(MLP(), x, None, {"all-gather": 2}, {"all-gather": 2, "all-reduce": 1}, fsdp="data")
    check(MLP(), x, None, {}, {"all-reduce": 1})
"""
    result_of(start(code, devices=8))


def test_llama_on_automatic_and_on_explicit_axes():
    code = """
from torch2jax.cli.vision import define_vision_operators
define_vision_operators()
from transformers import LlamaConfig, LlamaForCausalLM

config = LlamaConfig(hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, vocab_size=96)
model = LlamaForCausalLM(config)
given, tokens = dict(t2j(model.state_dict())), jnp.arange(32).reshape(4, 8)

def loss_of(jax_model):
    return lambda params, tokens: jax_model(tokens, labels=tokens, state_dict=params).loss

expected = jax.jit(jax.value_and_grad(loss_of(t2j(model))))(given, tokens)
for kind in (AxisType.Auto, AxisType.Explicit):
    with jax.set_mesh(jax.make_mesh((2, 4), ("data", "model"), axis_types=(kind,) * 2)):
        specs = sharding.specs(model, tensor="model", fsdp="data")
        params = sharding.put(given, specs)
        jax_model = t2j(sharding.constrained(model, tensor="model", data="data"))
        step = jax.value_and_grad(loss_of(jax_model))
        if kind is AxisType.Explicit:
            step = jax.sharding.auto_axes(step, out_sharding=(P(), specs))
        step = jax.jit(step, out_shardings=(None, sharding.shardings(params, specs)))
        result = step(params, jax.device_put(tokens, P("data")))
        close(result, expected, 1e-3)
        assert all(grad.sharding.spec == params[name].sharding.spec for name, grad in result[1].items())
try:
    with jax.set_mesh(jax.make_mesh((2, 4), ("data", "model"))):
        jax.jit(t2j(model))(jax.device_put(tokens, P("data")), state_dict=sharding.put(given, specs))
except Exception as error:
    assert "auto_axes" in "".join(error.__notes__), error
else:
    raise AssertionError("explicit axes now work by themselves")
"""
    result_of(start(code, devices=8))
