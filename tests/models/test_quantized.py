"""Quantized models: a product of 8 bits stays one, with the weight as it is held; a Llama of such layers decodes."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from benchmarks.quantized import Int8Linear, quantize
from torch2jax import t2j

ROWS, COLUMNS, WIDTH = 16, 512, 256
_GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(ROWS, WIDTH, generator=_GENERATOR)
WEIGHT = torch.randn(COLUMNS, WIDTH, generator=_GENERATOR)
SCALE = WEIGHT.abs().amax(1)


def _int8(x, codes, scale):
    """Both in 8 bits, the input row by row."""
    step = x.abs().amax(1, keepdim=True) / 127
    return torch._int_mm((x / step).round().to(torch.int8), codes.t()) * step * scale


def _float8(recipe):
    def product(x, codes, scale):
        one = x.new_ones(())
        step = x.abs().amax(1, keepdim=True) / 448 if recipe == "rows" else x.abs().amax() / 448
        rows = (x / step).to(torch.float8_e4m3fn)
        of_weight = scale[None] if recipe == "rows" else one
        return torch._scaled_mm(rows, codes.t(), step, of_weight, out_dtype=torch.float32)

    return product


_INT8 = (WEIGHT / SCALE[:, None] * 127).round().to(torch.int8), SCALE / 127
_FLOAT8 = (WEIGHT / SCALE[:, None] * 448).to(torch.float8_e4m3fn), SCALE / 448
SCHEMES = {
    "int8 with int8": (_int8, _INT8, r"xi8>, tensor<512x256xi8>\) -> tensor<16x512xi32>"),
    "float8, scales of rows": (
        _float8("rows"),
        _FLOAT8,
        r"xf8E4M3FN>, tensor<512x256xf8E4M3FN>\) -> tensor<16x512xf32>",
    ),
    "float8, one scale": (_float8("one"), _FLOAT8, r"xf8E4M3FN>, tensor<512x256xf8E4M3FN>\) -> tensor<16x512xf32>"),
}


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_product_of_8_bits_stays_one(scheme):
    function, weight, product = SCHEMES[scheme]
    run, arrays = jax.jit(t2j(function)), [t2j(x) for x in (X, *weight)]
    expected = function(X, *weight)
    np.testing.assert_allclose(run(*arrays), expected, rtol=2e-2, atol=2e-2 * expected.abs().max().item())
    text = run.lower(*arrays).as_text()
    (found,) = re.findall(r"dot_general .*", text)
    assert re.search(product, found)
    assert not re.search(r"tensor<(512x256|256x512)xf32>", text)  # no copy of the weight in floating point


def test_memory_is_that_of_the_weights_and_activations():
    """XLA's CPU has products of int8, but none of 8-bit floats: it makes copies of those in float32."""
    weight = torch.zeros(2048, 1024, dtype=torch.int8), torch.ones(2048)
    arrays = [t2j(x) for x in (torch.ones(ROWS, 1024), *weight)]
    compiled = jax.jit(t2j(_int8), compiler_options={"xla_backend_optimization_level": 3}).lower(*arrays).compile()
    memory = compiled.memory_analysis()
    kept = memory.argument_size_in_bytes + memory.output_size_in_bytes
    assert kept + memory.temp_size_in_bytes <= 1.1 * kept


@pytest.fixture
def llama():
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "vocab_size": 64, "num_hidden_layers": 2}
    config = LlamaConfig(**sizes, num_attention_heads=4, num_key_value_heads=2, initializer_range=0.5)
    return quantize(LlamaForCausalLM(config).eval())


def test_a_quantized_llama_decodes(llama):
    tokens = torch.randint(3, 60, (2, 6), generator=_GENERATOR)
    options = {"do_sample": False, "max_new_tokens": 5, "min_new_tokens": 5, "pad_token_id": 0}
    expected = llama.generate(tokens, attention_mask=torch.ones_like(tokens), **options)[:, 6:]
    assert sum(isinstance(layer, Int8Linear) for layer in llama.modules()) == 14
    function, state = t2j(llama), dict(t2j(llama.state_dict()))
    assert state["model.layers.0.mlp.up_proj.codes"].dtype == jnp.int8

    def logits(state, ids):
        return function(ids, use_cache=False, state_dict=state).logits

    def decode(state, ids):
        """Over the whole text each time: places that are still to come are hidden by the causal mask."""

        def step(ids, place):
            token = logits(state, ids)[:, place - 1].argmax(-1).astype(ids.dtype)
            return ids.at[:, place].set(token), token

        padded = jnp.pad(ids, ((0, 0), (0, 5)))
        return jax.lax.scan(step, padded, 6 + jnp.arange(5))[1].T

    program = jax.jit(decode)
    np.testing.assert_array_equal(program(state, t2j(tokens)), expected)
    products = re.findall(r"dot_general .*: \((.*)\) ->", program.lower(state, t2j(tokens)).as_text())
    assert sum("xi8>" in operands for operands in products) == 14
