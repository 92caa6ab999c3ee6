"""`examples/generate.py` gives the tokens of `model.generate`: greedy, by beams, and drawn with the same noise."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from torch2jax import t2j

transformers = pytest.importorskip("transformers")
from examples import generate as example  # noqa: E402

TOKENS, END, PAD = 6, 2, 3


class Case:
    """A small model, its steps and its inputs, and what PyTorch generates."""

    def __init__(self, name: str):
        torch.manual_seed(0)
        self.model, self.inputs = example.build(name), example.inputs_of(name)
        if self.model.config.is_encoder_decoder:
            self.steps, self.before = example.encoder_decoder(self.model, TOKENS), 1
        else:
            self.before = self.inputs["input_ids"].shape[1]
            self.steps = example.causal(self.model, self.before + TOKENS)

    def run(self, function, **options):
        arrays = t2j([*self.inputs.values()])
        return np.asarray(jax.jit(function)(t2j(self.model.state_dict()), *arrays, **options))

    def generated(self, end: int, **options) -> np.ndarray:
        """The tokens that `generate` gives, filled up to their number."""
        ends = {"eos_token_id": end, "pad_token_id": PAD}
        generate = transformers.GenerationMixin.generate  # Whisper's own is for recordings of any length
        found = generate(self.model, **self.inputs, max_new_tokens=TOKENS, do_sample=False, **ends, **options)
        found = found[:, self.before :]
        return torch.nn.functional.pad(found, (0, TOKENS - found.shape[1]), value=PAD).numpy()


@pytest.mark.parametrize("name", example.MODELS)
def test_greedy(name):
    case = Case(name)
    free = case.generated(end=98)
    assert len(set(free.ravel().tolist())) > 2
    end = int(free[0, 2])  # so that one example ends while the other goes on
    found = case.run(example.decode(case.steps, example.greedy, TOKENS, end, PAD))
    np.testing.assert_array_equal(found, case.generated(end))


@pytest.mark.parametrize("name", ["llama", "mamba", "t5"])
def test_beams(name):
    case = Case(name)
    end = int(case.generated(end=98, num_beams=3)[0, 2])
    found = case.run(example.beam_search(case.steps, 3, TOKENS, end, PAD))
    np.testing.assert_array_equal(found, case.generated(end, num_beams=3))


class _Noise(transformers.LogitsProcessor):
    """The noise that `jax.random.categorical` adds, before it takes the largest."""

    def __init__(self, key):
        self.key, self.step = key, 0

    def __call__(self, input_ids, scores):
        noise = jax.random.gumbel(jax.random.fold_in(self.key, self.step), scores.shape, jnp.float32)
        self.step += 1
        return scores + torch.from_numpy(np.array(noise))


def test_sampled_with_the_same_noise():
    case, key = Case("llama"), jax.random.key(1)
    warpers = transformers.LogitsProcessorList(
        [
            transformers.TemperatureLogitsWarper(1.5),
            transformers.TopKLogitsWarper(20),
            transformers.TopPLogitsWarper(0.8),
            _Noise(key),
        ]
    )
    choose = example.sampled(1.5, top_k=20, top_p=0.8)
    found = case.run(example.decode(case.steps, choose, TOKENS, END, PAD), key=key)
    np.testing.assert_array_equal(found, case.generated(END, logits_processor=warpers))
    assert (found != case.generated(END)).any()


def test_steps_write_keys_as_blocks_and_gather_embeddings_only():
    case = Case("llama")
    params, arrays = t2j(case.model.state_dict()), t2j([*case.inputs.values()])
    first = jax.make_jaxpr(case.steps.start, return_shape=True)(params, *arrays)
    logits, state = first[1]
    token = jax.ShapeDtypeStruct(logits.shape[:1], jnp.int32)
    for graph in map(str, (first[0], jax.make_jaxpr(case.steps.step)(params, token, state))):
        assert "scatter[" not in graph
        assert graph.count("gather[") == 1
        assert graph.count("dynamic_update_slice") == 2 * 2  # keys and values of two layers
