"""Models exported for any batch and any length: what these programs compute, with their gradients."""

import jax
import pytest
import torch

from torch2jax import export, j2t, t2j

torchvision = pytest.importorskip("torchvision")
transformers = pytest.importorskip("transformers")

from torchvision import models  # noqa: E402
from torchvision.models.swin_transformer import PatchMergingV2, SwinTransformerBlockV2  # noqa: E402


def vit():
    return models.VisionTransformer(16, 8, 1, num_heads=2, hidden_dim=8, mlp_dim=16, num_classes=3)


def swin_v2():
    options = {"block": SwinTransformerBlockV2, "downsample_layer": PatchMergingV2, "num_classes": 3}
    return models.SwinTransformer([2, 2], 8, [2, 1], [2, 4], [4, 4], **options)


def t5():
    """Its relative positions go through integers that 32 bits do not hold, where they are not chosen."""
    config = transformers.T5Config(
        vocab_size=23, d_model=8, d_kv=4, d_ff=16, num_layers=1, num_heads=2, dropout_rate=0.0, decoder_start_token_id=0
    )
    return transformers.T5ForConditionalGeneration(config)


def llama():
    sizes = {"hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=23, **sizes))


def _states(model):
    return {name: t2j(parameter.detach()) for name, parameter in model.named_parameters()}


def _assert_agrees(program, model, output_of, **inputs):
    """Compares outputs, and the gradient of every parameter."""
    arrays = {name: t2j(x) for name, x in inputs.items()}

    def loss(state):
        output = output_of(program(**arrays, state_dict=state))
        return (output**2).mean(), output

    grads, found = jax.jit(jax.grad(loss, has_aux=True))(_states(model))
    model.zero_grad()
    expected = output_of(model(**inputs))
    (expected**2).mean().backward()
    torch.testing.assert_close(j2t(found), expected.detach(), rtol=1e-4, atol=1e-5)
    for name, parameter in model.named_parameters():
        wanted = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        torch.testing.assert_close(j2t(grads[name]), wanted, rtol=1e-3, atol=1e-5, msg=name)


@pytest.mark.parametrize("build", [vit, swin_v2])
def test_any_batch_of_images(build):
    torch.manual_seed(0)
    model = build().eval()
    shape = jax.export.symbolic_shape("b, 3, 16, 16", constraints=["b >= 2"])
    exported = export(t2j(model))(x=jax.ShapeDtypeStruct(shape, "float32"), state_dict=_states(model))
    assert str(exported.out_avals[0].shape) == "(b, 3)"
    _assert_agrees(exported.call, model, lambda output: output, x=torch.randn(5, 3, 16, 16))


@pytest.mark.parametrize("build", [llama, t5])
def test_any_batch_of_any_length(build):
    torch.manual_seed(0)
    model = build().eval()
    names = {"input_ids": "b, s", **({"decoder_input_ids": "b, t"} if model.config.is_encoder_decoder else {})}
    scope = jax.export.SymbolicScope(["b >= 2", "s >= 2", *(["t >= 2"] if len(names) > 1 else [])])
    given = {
        name: jax.ShapeDtypeStruct(jax.export.symbolic_shape(shape, scope=scope), "int32")
        for name, shape in names.items()
    }
    exported = export(t2j(model))(**given, state_dict=_states(model))
    inputs = {name: torch.randint(3, 23, (3, 40 - 7 * i)) for i, name in enumerate(names)}
    _assert_agrees(exported.call, model, lambda output: output["logits"], **inputs)
