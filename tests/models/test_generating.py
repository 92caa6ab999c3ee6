"""`generate` of transformers as one program: the tokens are PyTorch's, and what is not served says so at once."""

from typing import Any

import jax
import numpy as np
import pytest
import torch

from tests.generated import FAMILIES, family
from torch2jax import t2j
from torch2jax.tools.models import define_vision_operators

define_vision_operators()
transformers = pytest.importorskip("transformers")

TOKENS = 8
PROMPTS = torch.tensor([[5, 7, 4, 9], [0, 0, 11, 12]])
MASK = torch.tensor([[1, 1, 1, 1], [0, 0, 1, 1]])


@pytest.fixture(scope="module")
def llama():
    return family("llama")


def compiled(model, traces: list | None = None, **options) -> Any:
    """`generate` as one program of the weights, the prompt, and tensors that belong to it.

    Args:
        traces: gets an item whenever JAX traces.
    """
    generate = t2j(model.generate)

    def complete(params, prompt, **given):
        if traces is not None:
            traces.append(None)
        return generate(prompt, state_dict=params, **given, **options)

    return jax.jit(complete)


def tokens_of(found) -> list:
    return (found.compact() if hasattr(found, "compact") else found).tolist()


@pytest.mark.parametrize("name", ["llama", "mistral", "gemma3", "t5"])
@pytest.mark.slow("compiles a whole generation")
def test_greedy(name):
    """Full, sliding and hybrid caches, and an encoder; without a mask, also where the prompt may have padding."""
    model = family(name)
    options = {"max_new_tokens": TOKENS, "do_sample": False}
    traces, lengths = [], set()
    call, params = compiled(model, traces, **options), t2j(model.state_dict())
    for prompts in (PROMPTS, *torch.randint(3, 60, (4, 2, 4), generator=torch.Generator().manual_seed(1))):
        wanted = model.generate(prompts, **options)
        assert tokens_of(call(params, t2j(prompts))) == wanted.tolist()
        lengths.add(wanted.shape[1])
    assert len(traces) == 1
    assert len(lengths) > 1 or name in ("gemma3", "t5"), "sequences end at several lengths"


@pytest.mark.slow("compiles a whole generation")
def test_traced_mask_and_processors(llama):
    """Processors that need the tokens, also how many there are."""
    options = {"max_new_tokens": TOKENS, "min_new_tokens": 3, "do_sample": False, "repetition_penalty": 1.7}
    found = compiled(llama, **options)(t2j(llama.state_dict()), t2j(PROMPTS), attention_mask=t2j(MASK))
    assert tokens_of(found) == llama.generate(PROMPTS, attention_mask=MASK, **options).tolist()


@pytest.mark.slow("compiles a whole generation")
def test_samples_are_those_of_the_same_key_without_jit(llama):
    options = {"max_new_tokens": TOKENS, "do_sample": True, "temperature": 0.8, "top_k": 9, "top_p": 0.9}
    generate, params = t2j(llama.generate), t2j(llama.state_dict())
    draw = jax.jit(lambda key: generate(t2j(PROMPTS[:1]), state_dict=params, rng=key, **options))
    found = [tokens_of(draw(jax.random.key(seed))) for seed in range(4)]
    assert found == [
        generate(t2j(PROMPTS[:1]), state_dict=params, rng=jax.random.key(seed), **options).tolist() for seed in range(4)
    ]
    assert len({str(x) for x in found}) > 1


@pytest.mark.slow("compiles a whole generation")
def test_second_tokens_have_the_distribution_of_the_model(llama):
    generate, count = t2j(llama.generate), 4000
    draw = jax.vmap(lambda key: generate(t2j(PROMPTS[:1]), rng=key, max_new_tokens=2, do_sample=True, top_k=4).values)
    tokens = np.asarray(jax.jit(draw)(jax.random.split(jax.random.key(0), count)))[:, 0, 4:]
    first = np.bincount(tokens[:, 0]).argmax()
    with torch.no_grad():
        logits = llama(torch.cat([PROMPTS[:1], torch.tensor([[first]])], 1)).logits[0, -1]
    top = logits.topk(4)
    seconds = tokens[tokens[:, 0] == first, 1]
    shares = np.array([(seconds == token).mean() for token in top.indices.numpy()])
    np.testing.assert_allclose(shares, top.values.softmax(-1).numpy(), atol=4 / np.sqrt(len(seconds)))


REFUSED = {
    "num_beams": {"num_beams": 2},
    "cache_implementation='dynamic'": {"cache_implementation": "dynamic"},
    "use_cache=False": {"use_cache": False},
    "output_scores=True": {"output_scores": True, "return_dict_in_generate": True},
    "max_time": {"max_time": 1.0},
    "an assistant": {"prompt_lookup_num_tokens": 2},
    "no_repeat_ngram_size=2": {"no_repeat_ngram_size": 2},
    "encoder_no_repeat_ngram_size=2": {"encoder_no_repeat_ngram_size": 2},
    "guidance_scale=1.5": {"guidance_scale": 1.5},
    "watermarking_config": {"watermarking_config": {"greenlist_ratio": 0.25}},
}


@pytest.mark.parametrize("text", REFUSED)
def test_what_is_not_served_names_the_ways_out(llama, text, monkeypatch):
    monkeypatch.setattr(type(llama), "forward", lambda *_, **__: pytest.fail("the model ran"))
    with pytest.raises(TypeError, match=text) as caught:
        compiled(llama, max_new_tokens=TOKENS, **REFUSED[text]).trace(t2j(llama.state_dict()), t2j(PROMPTS))
    assert "compile=['']" in str(caught.value)
    assert "cache_implementation='static'" in str(caught.value)


def test_a_cache_that_grows_is_refused(llama):
    """One of the user's own, which `generate` also writes to before it asks."""
    cache = transformers.DynamicCache(config=llama.config)
    generate = t2j(llama.generate)
    with pytest.raises(TypeError, match=r"generate under jit got (code|a model)|DynamicCache\..* is written to before"):
        jax.jit(lambda prompt: generate(prompt, past_key_values=cache, max_new_tokens=TOKENS)).trace(t2j(PROMPTS[:1]))


@pytest.mark.slow("compiles two parts")
def test_compiled_parts_have_all_options(llama):
    """Without jit the loop of transformers runs, with beams and scores too."""
    options = {"max_new_tokens": 3, "do_sample": False, "num_beams": 2, "cache_implementation": "static"}
    options |= {"return_dict_in_generate": True, "output_scores": True}
    found = t2j(llama.generate, compile=[""])(t2j(PROMPTS[:1]), **options)
    wanted = llama.generate(PROMPTS[:1], **options)
    assert found.sequences.tolist() == wanted.sequences.tolist()
    assert len(found.scores) == len(wanted.scores)


@pytest.mark.slow("compiles two parts")
def test_compiled_parts_have_processors_that_a_program_has_not(llama):
    call, shared = t2j(llama.generate, compile=[""]), {"max_new_tokens": 6, "min_new_tokens": 6, "do_sample": False}
    prompt = torch.tensor([[9, 9, 8, 8]])
    without = llama.generate(prompt, **shared).tolist()
    for option in ({"no_repeat_ngram_size": 1}, {"encoder_no_repeat_ngram_size": 1}, {"guidance_scale": 4.0}):
        wanted = llama.generate(prompt, **shared, **option).tolist()
        assert call(t2j(prompt), cache_implementation="static", **shared, **option).tolist() == wanted
        assert wanted != without, option


def test_families_have_models():
    assert len(FAMILIES) >= 12
