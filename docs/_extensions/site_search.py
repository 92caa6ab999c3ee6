"""The site's search: words that people type lead to the heading that answers them, and tables of results to nothing."""

from typing import TYPE_CHECKING

from docutils import nodes
from sphinx import addnodes

if TYPE_CHECKING:
    from sphinx.application import Sphinx
    from sphinx.environment import BuildEnvironment

# Tables, which "Is it supported?" searches, and pages that tell of the inside or of what was.
TABLES = ("tested/", "control-flow-programs", "walk", "changelog")

# What is typed, and where it leads: a page, with a heading.
WORDS = {
    "autocast": "performance#mixed-precision",
    "batch norm": "using#modules-and-their-state",
    "batch statistics": "faq#what-does-batch-norm-do-when-the-batch-is-split",
    "batchnorm": "using#modules-and-their-state",
    "boolean mask": "lengths",
    "branch": "control-flow",
    "brancherror": "errors#errors-of-torch2jax",
    "cache": "faq#why-is-the-first-call-slow",
    "checkpoint": "state",
    "compile": "decoding#compile-submodules",
    "could not import module": "install#torchvision-that-does-not-load",
    "cuda": "install#nvidia-gpus",
    "custom op": "faq#how-do-i-use-a-numpy-kernel-in-a-model-with-gradients",
    "data parallel": "faq#how-do-i-use-several-gpus",
    "dataloader": "neighbours#data",
    "ddp": "distributed#distributeddataparallel",
    "device": "key-ideas#devices",
    "dropout": "using#randomness",
    "endedcallerror": "errors#errors-of-torch2jax",
    "error message": "errors",
    "eval": "faq#why-do-my-outputs-differ-a-lot",
    "flex_attention": "performance#flexible-attention",
    "float16": "performance#mixed-precision",
    "float64": "faq#my-model-is-float64",
    "for": "key-ideas#what-loops-become",
    "freeze": "faq#fine-tuning-lora-and-frozen-layers",
    "generate": "decoding",
    "gpu": "install#nvidia-gpus",
    "grad requires real- or complex-valued inputs": "faq#grad-requires-real--or-complex-valued-inputs-got-int32",
    "gradient": "autograd",
    "hessian": "tutorials/curvature#hessian-vector-products-and-the-full-hessian",
    "hugging face": "decoding",
    "if": "control-flow",
    "in-place": "using#in-place-writes",
    "install": "install",
    "int64": "faq#why-do-i-get-int32-where-pytorch-has-int64",
    "jagged": "sparse#jagged-tensors",
    "jax_compilation_cache_dir": "faq#why-is-the-first-call-slow",
    "jax_debug_nans": "faq#my-loss-is-nan",
    "jit": "key-ideas#your-code-runs-once",
    "kv cache": "decoding#a-loop-of-your-own",
    "learning rate": "training#a-training-step-of-pytorch",
    "llm": "decoding",
    "load_state_dict": "state#back-to-pytorch",
    "log": "faq#how-do-i-print-or-log-a-value",
    "logging": "faq#how-do-i-print-or-log-a-value",
    "loop": "key-ideas#what-loops-become",
    "lora": "faq#fine-tuning-lora-and-frozen-layers",
    "loss is nan": "faq#my-loss-is-nan",
    "lr_scheduler": "training#a-training-step-of-pytorch",
    "max_steps": "control-flow#gradients",
    "memory": "faq#it-needs-too-much-memory",
    "mixed precision": "performance#mixed-precision",
    "multi-gpu": "faq#how-do-i-use-several-gpus",
    "nan": "faq#my-loss-is-nan",
    "nested": "sparse#jagged-tensors",
    "nnx": "neighbours#flax-nnx",
    "nonzero": "lengths",
    "noruleerror": "errors#errors-of-torch2jax",
    "np.asarray": "faq#code-that-calls-numpy-or-scipy-fails",
    "numpy": "faq#code-that-calls-numpy-or-scipy-fails",
    "ode": "tutorials/loops#a-loop-that-stops-on-data",
    "operator torchvision::nms does not exist": "install#torchvision-that-does-not-load",
    "optax": "training#with-optax",
    "optimizer": "training#a-training-step-of-pytorch",
    "out of memory": "faq#it-needs-too-much-memory",
    "overflowerror": "key-ideas#dtypes",
    "pack_padded_sequence": "lengths#lengths-as-numbers",
    "padded": "lengths",
    "parallel": "large-models",
    "peft": "faq#fine-tuning-lora-and-frozen-layers",
    "per-example gradients": "faq#how-do-i-get-per-example-gradients",
    "per-sample gradients": "faq#how-do-i-get-per-example-gradients",
    "pip install": "install",
    "print": "faq#how-do-i-print-or-log-a-value",
    "quantize": "quantized",
    "random": "using#randomness",
    "recompile": "faq#why-is-the-first-call-slow",
    "requires_grad": "autograd#whether-inputs-require-grad",
    "rng": "using#randomness",
    "root finding": "tutorials/loops#a-loop-that-stops-on-data",
    "save": "state",
    "scheduler": "training#a-training-step-of-pytorch",
    "seed": "using#randomness",
    "serve": "export",
    "several gpus": "faq#how-do-i-use-several-gpus",
    "sharding": "large-models",
    "slow": "faq#why-is-the-first-call-slow",
    "state_dict": "using#modules-and-their-state",
    "static_argnames": "faq#an-option-that-i-pass-is-traced",
    "syncbatchnorm": "faq#what-does-batch-norm-do-when-the-batch-is-split",
    "torch.compile": "compiled#torchcompile",
    "torchvision": "install#torchvision-that-does-not-load",
    "tpu": "install#tpus",
    "tracedvalueerror": "faq#tracedvalueerror-python-needs-a-number",
    "unexpectedtracererror": "errors#errors-from-jax-or-pytorch",
    "vmap": "using",
    "while": "control-flow#loops",
    "x64": "key-ideas#dtypes",
}


def is_table(page: str) -> bool:
    """A page of results that the search leaves out; the page that lists them stays."""
    return page.startswith(TABLES) and page != "tested/index"


def _add_words(app: "Sphinx", document: nodes.document) -> None:
    """Entries of the index, which the search puts first, at the end of the page that they lead to."""
    here = app.env.docname
    places = {word: place.partition("#")[::2] for word, place in WORDS.items()}
    ids = {section.get("slug"): section["ids"][0] for section in document.findall(nodes.section)} | {"": ""}
    entries = [("single", word, ids[anchor], "main", None) for word, (page, anchor) in places.items() if page == here]
    if entries:
        next(document.findall(nodes.section)).append(addnodes.index(entries=entries))


def _leave_out(app: "Sphinx", env: "BuildEnvironment") -> None:
    for page in env.found_docs:
        if is_table(page):
            env.metadata[page]["nosearch"] = "1"


def setup(app: "Sphinx") -> dict[str, bool]:
    """Sphinx calls this."""
    app.connect("doctree-read", _add_words)
    app.connect("env-updated", _leave_out)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
