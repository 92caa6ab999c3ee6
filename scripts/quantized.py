"""Runs models that others have quantized through `t2j`, and writes `docs/tested/quantized-models.md`.

torchao, compressed-tensors and transformers belong in an environment of their own, with the versions of
`constraints.txt`:

    pip install torchao compressed-tensors transformers -c constraints.txt
    python -m scripts.quantized                 # all rows, and the page
    python -m scripts.quantized --only Float8   # print those with it in their name, with their tracebacks
    python -m scripts.quantized --memory        # measure the memory alone, and write that part of the page
    python -m scripts.quantized --training      # train in 8 bits alone, and write that part of the page

Both models have random weights. Where a row fails, the page has its reason.
"""

import argparse
import importlib.metadata
import multiprocessing
import os
import re
import tempfile
import traceback
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import torch
from torchao import float8, optim as ao_optim, quantization as ao
from torchao.prototype import quantized_training as training
from torchao.prototype.quantization import int4
from torchao.quantization import qat
from torchao.quantization.quantize_.workflows.nf4 import nf4_tensor as nf4

from torch2jax import j2t, t2j
from torch2jax.tools.models import define_vision_operators

SQUARE = 128  # rows and columns of a weight that have one scale in FP8Linear
PAGE = Path(__file__).parents[1] / "docs" / "tested" / "quantized-models.md"
_HEAD = """# Quantized models that were run

`python -m scripts.quantized` compares these models with PyTorch on the CPU. [](../quantized.md) explains how to
translate your own.
Versions: {versions}.

- **Models.** The perceptron has three layers (128, 256, 256, 64) and 16 rows of input. Llama is the transformers model
  with 2 layers, width 128 and a vocabulary of 256. It decodes {tokens} tokens greedily, without a cache.
- **Differences** are the largest absolute difference, divided by PyTorch's largest value.
- **Products in 8 bits** counts the products in the call's StableHLO whose operands have 8 bits, out of all products.
- **Bytes** is the size of the compiled program's arguments: state and input.

Models of compressed-tensors were saved by transformers and loaded again. PyTorch's first call converts their weights to
floating point, and `t2j` is called after it. The `FP8Linear` of transformers has only GPU kernels, so both sides use
one written in PyTorch (`fp8_matmul` in `scripts/quantized.py`). For MXFP4, `t2j` of transformers' own function converts
the weights to floating point, with the same bits as in PyTorch.

Differences of about a hundredth, and large differences of gradients, come from numbers half way between two
quantization steps. torchao's symmetric scales put the largest number of each group there (7.5 for int4, 127.5 for
int8), and XLA's division on the CPU is one unit in the last place off for some numbers. So such a number is rounded to
the other step, or is out of range, where its gradient is zero. With equal scales, torchao's fake quantization and its
gradients are the same as PyTorch's to the bit.

| configuration | model | outputs, eager | outputs, `jit` | gradients | tokens | products in 8 bits | bytes |
|---|---|---|---|---|---|---|---|
"""
_MEMORY = """## Memory

Four linear layers with 2048 rows and columns each, one after the other, in float32. The table has the bytes that the
compiled program needs (arguments, results and temporaries), divided by the bytes of the weights and of one activation
for each layer.

The code of torchao makes a floating-point copy of the weight, `qdata.to(x.dtype)`, in PyTorch too, so the graph has it.
For one row, as in decoding, XLA's CPU compiler reads the 8 bits inside the product, if the scale is applied after it.
For more rows, its product is a floating-point kernel, which needs the copy: of one layer at a time with the flag, as in
PyTorch, and of several layers without it. A product of int8 there uses copies in int32.

| configuration | 1 row | 16 rows | 16 rows, `{flag}=false` |
|---|---|---|---|
"""
_TRAINING = """## Training

Two linear layers (64, 128, 64) learn from 32 rows, in three steps of `t2j(step, state=(model, optimizer))` under `jit`.
The table has the largest differences from PyTorch of the gradients that `.backward()` gives, and of the losses. (NF4 is
the frozen weight of layers with LoRA. Weights of int8 are rounded at random after each step.)

| weights | optimizer | gradients | losses |
|---|---|---|---|
"""
_FLAG = "xla_cpu_enable_concurrency_optimized_scheduler"
_MEASURED = (
    *("none (float32)", "Int8WeightOnly", "Float8WeightOnly", "IntxWeightOnly (int8 of rows)"),
    "Int8DynamicActivationInt8Weight",
)
_PRODUCT = re.compile(r"dot_general .*: \(tensor<[^>]*?x([a-z]\w*)>, tensor<[^>]*?x([a-z]\w*)>\)")
_TOKENS = 8
_GROUP = ao.PerGroup(32)
CONFIGS: dict[str, Callable] = {
    "none (float32)": lambda: None,
    "Int8WeightOnly": ao.Int8WeightOnlyConfig,
    "Int8DynamicActivationInt8Weight": ao.Int8DynamicActivationInt8WeightConfig,
    "Int4WeightOnly (plain)": lambda: ao.Int4WeightOnlyConfig(group_size=32),
    "PrototypeInt4WeightOnly (CPU)": lambda: int4.PrototypeInt4WeightOnlyConfig(group_size=32),
    "Int8DynamicActivationInt4Weight (CPU)": int4.Int8DynamicActivationInt4WeightConfig,
    "Float8WeightOnly": ao.Float8WeightOnlyConfig,
    "Float8DynamicActivationFloat8Weight": ao.Float8DynamicActivationFloat8WeightConfig,
    "IntxWeightOnly (int8 of rows)": ao.IntxWeightOnlyConfig,
    "IntxWeightOnly (int4, groups of 32)": lambda: ao.IntxWeightOnlyConfig(torch.int4, _GROUP),
    "Int8DynamicActivationIntxWeight (int4)": lambda: ao.Int8DynamicActivationIntxWeightConfig(torch.int4, _GROUP),
    "QAT of Int8DynamicActivationIntxWeight (int4)": lambda: qat.QATConfig(
        ao.Int8DynamicActivationIntxWeightConfig(torch.int4, _GROUP), step="prepare"
    ),
    "QAT of weights (int4, asymmetric)": lambda: qat.QATConfig(
        weight_config=qat.IntxFakeQuantizeConfig(torch.int4, group_size=32, is_symmetric=False), step="prepare"
    ),
    "QAT of Float8DynamicActivationFloat8Weight": lambda: qat.QATConfig(
        ao.Float8DynamicActivationFloat8WeightConfig(), step="prepare"
    ),
}


def compressed(preset: str) -> Callable:
    """A way to quantize a model of transformers as a checkpoint of compressed-tensors has it, in 8 or 4 bits."""

    def quantize(model: torch.nn.Module) -> torch.nn.Module:
        from compressed_tensors import quantization as ct
        from compressed_tensors.compressors import ModelCompressor
        from compressed_tensors.quantization.utils import calculate_qparams
        from transformers import AutoModelForCausalLM

        groups = {"group_0": ct.preset_name_to_scheme(preset, ["Linear"])}
        ct.apply_quantization_config(model.model, ct.QuantizationConfig(config_groups=groups, ignore=["lm_head"]))
        for layer in model.modules():
            scheme = getattr(layer, "quantization_scheme", None)
            if scheme is not None and scheme.weights is not None:
                groups = layer.weight_scale.numel() if layer.weight_scale.numel() > 1 else 1
                parts = layer.weight.detach().reshape(groups, -1)
                scale, _ = calculate_qparams(parts.amin(1), parts.amax(1), scheme.weights)
                layer.weight_scale.data.copy_(scale.reshape(layer.weight_scale.shape))
                if getattr(layer, "input_scale", None) is not None:
                    layer.input_scale.data.fill_(0.03)
                layer.quantization_status = ct.QuantizationStatus.FROZEN
        compressor = ModelCompressor.from_pretrained_model(model.model)
        compressor.compress_model(model.model)
        with tempfile.TemporaryDirectory() as folder:
            model.model.save_pretrained(folder)
            compressor.update_config(folder)
            return _Logits(AutoModelForCausalLM.from_pretrained(folder).eval())

    return quantize


def fp8_matmul(x, weight, scale, block_size, dtype, activation_scale=None):
    """What the kernel of `FP8Linear` computes: each part of a row, and each square of the weight, has a scale."""
    del activation_scale
    down, across = block_size
    parts = x.flatten(0, -2).float().unflatten(-1, (-1, across))
    steps = parts.abs().amax(-1, keepdim=True) / torch.finfo(weight.dtype).max
    rows = (parts / steps).to(weight.dtype).float() * steps
    scales = scale.repeat_interleave(down, 0)[: weight.shape[0]].repeat_interleave(across, 1)
    return (rows.flatten(-2) @ (weight.float() * scales).t()).to(dtype).unflatten(0, x.shape[:-1])


def fine_grained(model: torch.nn.Module) -> torch.nn.Module:
    """The model with transformers' `FP8Linear`s, and a kernel for them that is written in PyTorch."""
    from transformers.integrations import finegrained_fp8 as fp8

    fp8._FINEGRAINED_FP8 = fp8.FineGrainedFP8(fp8_matmul, fp8_matmul, fp8_matmul)
    for name, linear in list(model.named_modules()):
        if isinstance(linear, torch.nn.Linear) and "lm_head" not in name:
            rows, columns = linear.weight.shape
            layer = fp8.FP8Linear(columns, rows, (SQUARE, SQUARE))
            padded = torch.nn.functional.pad(linear.weight.detach(), (0, 0, 0, -rows % SQUARE))
            squares = padded.reshape(-1, SQUARE, columns // SQUARE, SQUARE)
            scale = squares.abs().amax((1, 3)) / 448
            codes = (squares / scale[:, None, :, None]).reshape(-1, columns)[:rows]
            layer.weight = torch.nn.Parameter(codes.to(torch.float8_e4m3fn), requires_grad=False)
            layer.weight_scale_inv = torch.nn.Parameter(scale, requires_grad=False)
            parent, _, own = name.rpartition(".")
            setattr(model.get_submodule(parent), own, layer)
    return model


OF_TRANSFORMERS: dict[str, Callable] = {
    **{f"compressed-tensors {preset}": compressed(preset) for preset in ("W8A8", "FP8", "FP8_DYNAMIC", "W4A16")},
    "FP8Linear of transformers": fine_grained,
}
"""Ways to quantize a model of transformers, each of which gives the quantized one."""


def mxfp4() -> str:
    """Whether transformers' MXFP4 becomes PyTorch's numbers."""
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    blocks = torch.randint(256, (2, 16, 4, 16), dtype=torch.uint8)
    scales = torch.randint(120, 130, (2, 16, 4), dtype=torch.uint8)
    expected = convert_moe_packed_tensors(blocks, scales)
    for run in (t2j(convert_moe_packed_tensors), jax.jit(t2j(convert_moe_packed_tensors))):
        found = run(t2j(blocks), t2j(scales))
        np.testing.assert_array_equal(found.view(jnp.uint16), expected.view(torch.uint16))
    return "MXFP4 of transformers: the same bits"


def perceptron() -> tuple[torch.nn.Module, torch.Tensor]:
    layers = [torch.nn.Linear(128, 256), torch.nn.ReLU(), torch.nn.Linear(256, 256), torch.nn.ReLU()]
    return torch.nn.Sequential(*layers, torch.nn.Linear(256, 64)), torch.randn(16, 128)


class _Logits(torch.nn.Module):
    """Of tokens, without a cache."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, tokens):
        return self.model(tokens, use_cache=False).logits


def llama() -> tuple[torch.nn.Module, torch.Tensor]:
    define_vision_operators()  # transformers imports torchvision, which need not load beside this build of PyTorch
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": 128, "intermediate_size": 256, "vocab_size": 256, "num_hidden_layers": 2}
    config = LlamaConfig(**sizes, num_attention_heads=4, num_key_value_heads=2)
    return _Logits(LlamaForCausalLM(config)), torch.randint(256, (2, 12))


def difference(result, expected) -> str:
    result, expected = np.asarray(result, np.float32), expected.detach().float().numpy()
    return f"{np.abs(result - expected).max() / np.abs(expected).max():.0e}"


def gradients(model, function, x) -> str:
    """Those of all parameters that PyTorch differentiates, and of an input of floating point."""
    params, names = dict(model.named_parameters()), [n for n, p in model.named_parameters() if p.requires_grad]
    given = j2t(x).requires_grad_() if jnp.issubdtype(x.dtype, jnp.floating) else j2t(x)
    wanted = [params[name] for name in names] + [given] * given.requires_grad
    try:
        expected = torch.autograd.grad(model(given).square().mean(), wanted)
    except RuntimeError:
        return "none in PyTorch"

    def loss(given):
        state = {name: array for name, array in given.items() if name}
        return jnp.square(function(given.get("", x), state_dict=state)).mean()

    found = {name: t2j(params[name].detach()) for name in names} | ({"": x} if given.requires_grad else {})
    found = jax.jit(jax.grad(loss))(found)
    pairs = zip([*names, ""], expected, strict=False)
    return max((difference(found[name], slope) for name, slope in pairs), key=float)


def greedy(call: Callable, tokens, count: int, join: Callable):
    for _ in range(count):
        tokens = join([tokens, call(tokens)[:, -1:].argmax(-1)])
    return tokens


def bytes_of(tree) -> int:
    return sum(array.nbytes for array in jax.tree.leaves(tree))


def _tried(check: Callable[[], str]) -> str:
    """What a check says, or the kind of its error: the reason stands below the table."""
    try:
        return check()
    except Exception as error:
        traceback.print_exc()
        number = _REASONS.setdefault(f"{type(error).__name__}: {_first_line(error)}", len(_REASONS) + 1)
        return f"fails ({number})"


_REASONS: dict[str, int] = {}


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [""])[0][:300]


def row(name: str, make: Callable) -> str:
    torch.manual_seed(0)
    model, given = make()
    model.eval()
    cells = [name, "Llama" if make is llama else "perceptron"]
    try:
        if name in OF_TRANSFORMERS:
            model = OF_TRANSFORMERS[name](model)
        elif (config := CONFIGS[name]()) is not None:
            ao.quantize_(model, config)
        expected = model(given)
    except Exception as error:
        return _line([*cells, f"PyTorch on this CPU: {type(error).__name__}: {_first_line(error)[:120]}", *[""] * 5])
    function, x = t2j(model), t2j(given)
    state = t2j(model.state_dict())
    jitted = jax.jit(lambda state, x: function(x, state_dict=state))

    def tokens() -> str:
        wanted = greedy(model, given, _TOKENS, lambda both: torch.cat(both, 1))
        found = greedy(lambda x: jitted(state, x), x, _TOKENS, lambda both: jnp.concatenate(both, 1))
        return "equal" if np.array_equal(found, wanted) else "differ"

    def products() -> str:
        operands = _PRODUCT.findall(jitted.lower(state, x).as_text())
        in_8_bits = [pair for pair in operands if all(re.match("u?i8|f8", dtype) for dtype in pair)]
        return f"{len(in_8_bits)} of {len(operands)}"

    return _line([
        *cells,
        _tried(lambda: difference(function(x), expected)),
        _tried(lambda: difference(jitted(state, x), expected)),
        _tried(lambda: gradients(model, function, x)),
        _tried(tokens) if make is llama else "",
        _tried(products),
        f"{bytes_of((state, x)):,}",
    ])  # fmt: skip


def trainings() -> list[str]:
    """The part of the page about training, line by line."""
    ways = ((name, make, optimizer) for name, (make, optimizers) in _IN_8_BITS.items() for optimizer in optimizers)
    return [*_TRAINING.splitlines(), *(trained(*way) for way in ways)]


def memory() -> list[str]:
    """The part of the page about memory, line by line."""
    found = [[taken(name, rows) for rows in (1, 16)] for name in _MEASURED]
    os.environ["XLA_FLAGS"] = f"--{_FLAG}=false"  # XLA reads it once in a process
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
        with_flag = list(process.map(taken, _MEASURED, [16] * len(_MEASURED)))
    rows = [_line([name, *cells, last]) for name, cells, last in zip(_MEASURED, found, with_flag, strict=True)]
    return [*_MEMORY.format(flag=_FLAG).splitlines(), *rows]


def taken(name: str, rows: int) -> str:
    """The memory of a program of four layers, in parts of that of its weights and activations."""
    model = torch.nn.Sequential(*(torch.nn.Linear(2048, 2048, bias=False) for _ in range(4))).eval()
    if (config := CONFIGS[name]()) is not None:
        ao.quantize_(model, config)
    function, state, x = t2j(model), t2j(model.state_dict()), jnp.ones((rows, 2048))
    compiled = jax.jit(lambda state, x: function(x, state_dict=state)).lower(state, x).compile()
    sizes = compiled.memory_analysis()
    whole = sizes.argument_size_in_bytes + sizes.output_size_in_bytes + sizes.temp_size_in_bytes
    return f"{whole / (bytes_of(state) + 5 * x.nbytes):.2f}"


class _LoRA(torch.nn.Module):
    """A layer with a frozen weight of NF4 and one of low rank."""

    def __init__(self, linear: torch.nn.Linear):
        super().__init__()
        self.weight = torch.nn.Parameter(nf4.to_nf4(linear.weight.detach(), 64, 1), requires_grad=False)
        self.down = torch.nn.Linear(linear.in_features, 4, bias=False)
        self.up = torch.nn.Linear(4, linear.out_features, bias=False)

    def forward(self, x):
        return nf4.linear_nf4(x, self.weight) + self.up(self.down(x))


def _layers() -> torch.nn.Sequential:
    torch.manual_seed(0)
    first, second = torch.nn.Linear(64, 128, bias=False), torch.nn.Linear(128, 64, bias=False)
    return torch.nn.Sequential(first, torch.nn.ReLU(), second)


def _with(config: Callable) -> Callable:
    def make():
        model = _layers()
        ao.quantize_(model, config())
        return model

    return make


def _with_nf4():
    model = _layers()
    model[0], model[2] = _LoRA(model[0]), _LoRA(model[2])
    return model


_SGD = lambda parameters: torch.optim.SGD(parameters, lr=0.1)
_ADAMW = lambda parameters: torch.optim.AdamW(parameters, lr=1e-2)
_IN_8_BITS: dict[str, tuple[Callable, tuple[Callable, ...]]] = {
    "float32": (_layers, (ao_optim.AdamW8bit, ao_optim.AdamW4bit, ao_optim.AdamWFp8)),
    "float8 (torchao.float8)": (
        lambda: float8.convert_to_float8_training(_layers(), config=float8.Float8LinearConfig(emulate=True)),
        (_SGD, _ADAMW),
    ),
    "NF4 with LoRA": (_with_nf4, (_SGD, _ADAMW)),
    "int8": (_with(training.int8_weight_only_quantized_training), (_SGD,)),
    "int8 of products": (_with(training.int8_mixed_precision_training), (_SGD, _ADAMW)),
    "BitNet": (_with(training.bitnet_training), (_SGD, _ADAMW)),
}


def trained(name: str, make: Callable, optimizer: Callable) -> str:
    """A row of the table of training."""
    x = torch.randn(32, 64, generator=torch.Generator().manual_seed(1))
    model, other = make(), make()

    def gradients(model, x):
        model(x).square().mean().backward()
        return [p.grad for p in model.parameters() if p.requires_grad]

    expected = [gradient.clone() for gradient in gradients(model, x)]
    model.zero_grad()
    stateful = t2j(gradients, state=(model,))
    slopes, _ = jax.jit(stateful)(stateful.init(t2j(x)), t2j(x))

    def step(model, optimizer, x):
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    function = t2j(step, state=(model, optimizer(list(model.parameters()))))
    theirs, key = optimizer(list(other.parameters())), jax.random.key(0)
    state, jitted, pairs = function.init(t2j(x), rng=key), jax.jit(function), []
    for _ in range(3):
        loss, state = jitted(state, t2j(x), rng=key)
        pairs.append(difference(loss, step(other, theirs, x)))
    kind = type(theirs).__name__
    return _line([name, kind, max(map(difference, slopes, expected), key=float), max(pairs, key=float)])


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", metavar="TEXT", help="write no page, print rows with it in their name")
    parser.add_argument("--memory", action="store_true", help="measure and write the memory alone")
    parser.add_argument("--training", action="store_true", help="train and write that part alone")
    options = parser.parse_args()
    only = options.only
    if options.memory or options.training:
        parts = re.split(r"^(?=## )", PAGE.read_text(), flags=re.MULTILINE)
        part = trainings() if options.training else memory()
        others = [x.rstrip() for x in parts if not x.startswith(part[0])]
        PAGE.write_text("\n\n".join([*others, "\n".join(part)]) + "\n")
        return
    rows = []
    for name in (*CONFIGS, *OF_TRANSFORMERS):
        if only is None or only in name:
            for make in (llama,) if name in OF_TRANSFORMERS else (perceptron, llama):
                rows.append(row(name, make))
                print(rows[-1], flush=True)
    print(mxfp4())
    reasons = [f"({number}) {reason}" for reason, number in _REASONS.items()]
    print(*reasons, sep="\n")
    if only is None:
        versions = ", ".join(
            f"{name} {importlib.metadata.version(name)}"
            for name in ("torch", "torchao", "compressed-tensors", "transformers", "jax")
        )
        head = _HEAD.format(versions=versions, tokens=_TOKENS).rstrip()
        text = "\n".join([head, *rows, "", *reasons, "", *memory(), "", *trainings()])
        PAGE.write_text(text.rstrip() + "\n")


if __name__ == "__main__":
    main()
