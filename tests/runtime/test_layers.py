"""Layers are loaded when code first needs them, and nothing else imports them."""

import ast
import functools
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

import torch2jax
from torch2jax import t2j
from torch2jax.rules.tables import PROVIDED
from torch2jax.runtime import patches
from torch2jax.runtime.layers import LAYERS

ROOT = Path(torch2jax.__file__).parent
MODULES = [module for layer in LAYERS for module in layer.modules]


def _imported_by(path: Path) -> Iterator[Path]:
    """The files of the package that a file imports, anywhere in it."""
    package = path.relative_to(ROOT).parts[:-1]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = [*package[: len(package) - node.level + 1], *(node.module or "").split(".")]
            folder = ROOT.joinpath(*filter(None, base))
            for found in (folder, *(folder / alias.name for alias in node.names)):
                yield from (file for file in (found.with_suffix(".py"), found / "__init__.py") if file.is_file())


def _is_in(path: Path, module: str) -> bool:
    file = ROOT.joinpath(*module.split("."))
    return path == file.with_suffix(".py") or file in path.parents


@pytest.mark.parametrize("start", ["modules/convert.py", "ops/__init__.py"])
def test_no_import_leads_to_a_layer(start):
    seen, ahead = {}, [(ROOT / start, None)]
    while ahead:
        path, by = ahead.pop()
        if path not in seen:
            seen[path] = by
            ahead += [(found, path) for found in _imported_by(path)]
    wrong = {
        f"{path.relative_to(ROOT)} of a layer is imported by {by.relative_to(ROOT)}"
        for path, by in seen.items()
        if by is not None and any(_is_in(path, module) for module in MODULES)
        if not any(_is_in(by, module) for module in MODULES)
    }
    assert not wrong, "wanted LAYER.name of torch2jax.runtime.layers, which imports it when it is needed"


def _run_anew(program: str) -> str:
    """What a program prints in a process of its own."""
    return subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout.strip()


MODELS = """
import sys

import jax
import torch
from torch import nn

from torch2jax import t2j
from torch2jax.runtime.layers import LAYERS


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.norm = nn.Embedding(10, 8), nn.LayerNorm(8)
        self.project, self.out, self.dropout = nn.Linear(8, 24), nn.Linear(8, 8), nn.Dropout(0.1)
        self.register_buffer("mask", torch.tril(torch.ones(6, 6)).bool())

    def forward(self, ids):
        x = self.embedding(ids) + torch.arange(ids.shape[1])[:, None] * 0.01
        parts = self.project(self.norm(x)).split(8, -1)
        q, k, v = [part.view(*part.shape[:-1], 2, 4).transpose(1, 2) for part in parts]
        length = ids.shape[1]
        weights = (q @ k.transpose(-1, -2) / 2).masked_fill(~self.mask[:length, :length], float("-inf"))
        y = self.dropout(nn.functional.softmax(weights, -1)) @ v
        return x + self.dropout(self.out(y.transpose(1, 2).reshape(x.shape)))


class Recurrent(nn.LSTM):
    def forward(self, x):
        return super().forward(x)[0]


network = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
images = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 2))
models = [
    (network, torch.randn(3, 4)),
    (images, torch.randn(2, 3, 8, 8)),
    (nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), torch.randn(2, 5, 8)),
    (Recurrent(4, 5), torch.randn(2, 3, 4)),
    (Attention(), torch.randint(0, 10, (2, 6))),
]
for model, x in models:
    function = t2j(model)
    params, buffers = function.split()

    def loss(params, x, key):
        result, state = function(x, state_dict=params | buffers, rng=key, return_state_dict=True)
        return (result**2).sum(), state

    jax.jit(jax.grad(loss, has_aux=True)).lower(params, t2j(x), jax.random.key(0))
"""


@pytest.mark.slow("imports PyTorch and JAX in a process of its own, and traces five models there")
def test_models_load_no_layer():
    names = "[x for layer in LAYERS for x in layer.modules if 'torch2jax.' + x in sys.modules]"
    assert _run_anew(f"{MODELS}\nprint({names})") == "[]"


@pytest.mark.parametrize("layer", LAYERS, ids=lambda layer: layer.modules[0])
def test_layers_have_what_they_list(layer):
    layer.load()
    assert all(f"torch2jax.{module}" in sys.modules for module in layer.modules)
    with pytest.raises(AttributeError, match="has no_such_thing"):
        _ = layer.no_such_thing


# Which older releases run by themselves, and newer ones by functions that are replaced.
OLDER = ("all_gather_into_tensor", "reduce_scatter_tensor")
PATCHED = [(layer, name) for layer in LAYERS for name in layer.patched if not name.endswith(OLDER)]


@pytest.mark.parametrize(("layer", "name"), PATCHED, ids=[name for _, name in PATCHED])
def test_layers_replace_what_they_wait_for(layer, name):
    layer.load()
    jax.jit(t2j(lambda x: x)).lower(jnp.ones(2))
    assert not patches._awaiting[layer]
    module, _, path = name.partition(":")
    *owners, name = path.split(".")
    owner = functools.reduce(getattr, owners, sys.modules[module])
    found = vars(owner)[name]
    is_replaced = [patch for patch in patches._patches if patch[:2] in ((owner, name), (found, "__code__"))]
    assert is_replaced or found in PROVIDED.functions


RULES = """
import torch

import torch2jax
from torch2jax.rules.tables import PROVIDED, _in_layers
from torch2jax.runtime.layers import LAYERS


def names_of(function):
    packet = getattr(function, "overloadpacket", function)
    name = getattr(packet, "_qualified_op_name", packet)
    return {name, name.partition("::")[0] + "::"} if isinstance(name, str) else {function}


def is_patched(function):
    paths = (function.__name__, f"{function.__qualname__}.forward")
    known = (name.rpartition(":") for layer in LAYERS for name in layer.patched)
    return any(module == function.__module__ and path in paths for module, _, path in known)


users = torch2jax.implements(torch._int_mm)(lambda input, mat2: input)
for layer in LAYERS:
    before = dict(PROVIDED.functions)
    layer.load()
    for function in PROVIDED.functions.keys() - before.keys():
        if names_of(function).isdisjoint(_in_layers) and not is_patched(function):
            print(layer.modules[0], function)
assert PROVIDED.functions[torch._int_mm].body is users, "a layer has replaced a rule of the user's"
"""


@pytest.mark.slow("imports PyTorch and JAX in a process of its own")
def test_layers_list_the_functions_that_they_have_rules_for():
    assert not _run_anew(RULES), "wanted these functions in the layer of runtime/layers.py"


# What the first function of a layer gives in the midst of a call.
FIRST = {
    "torch.sparse_coo_tensor(torch.tensor([[0, 1]]), x, (2,)).to_dense()": "[1. 1.]",
    "torch.fake_quantize_per_tensor_affine(x, 0.25, 0, 0, 255)": "[1. 1.]",
    "x + len(torch.optim.SGD([x.clone().requires_grad_()], lr=1.0).param_groups)": "[2. 2.]",
    "torch.jit.script(torch.nn.Identity())(x)": "[1. 1.]",
    "x * torch.distributed.is_initialized()": "[0. 0.]",
    "x if x.sum() > 0 else -x": "[1. 1.]",
}


@pytest.mark.slow("imports PyTorch and JAX in a process of its own")
def test_layers_are_loaded_in_the_midst_of_a_call():
    lines = ["import jax, jax.numpy as jnp, torch, torch2jax"]
    lines += [f"print(jax.jit(torch2jax.t2j(lambda x: {code}))(jnp.ones(2)))" for code in FIRST]
    assert _run_anew("\n".join(lines)).splitlines() == [*FIRST.values()]


THREADS = """
import threading

import jax
import jax.numpy as jnp
import torch
import torch.distributed.nn.functional

from torch2jax import t2j

codes, found = [{codes}], [{results}]


def run(number):
    for code, result in zip(codes[number:] + codes[:number], found[number:] + found[:number], strict=True):
        assert str(jax.jit(t2j(code))(jnp.ones(2))) == result
    print("served\\n", end="")  # at once: other threads print, too


for number in range(len(codes)):
    threading.Thread(target=run, args=(number,)).start()
"""


@pytest.mark.slow("imports PyTorch and JAX in a process of its own")
def test_threads_may_need_layers_at_once():
    codes = ", ".join(f"lambda x: {code}" for code in FIRST)
    program = THREADS.format(codes=codes, results=", ".join(map(repr, FIRST.values())))
    assert _run_anew(program).split() == ["served"] * len(FIRST)


FORMS = """
import torch2jax
from torch2jax.rules.registry import PROVIDED
from torch2jax.runtime.layers import LAYERS

rules = {id(x): x for table in (PROVIDED.functions, PROVIDED._found) for x in table.values() if hasattr(x, "__dict__")}
before = {key: dict(vars(x)) for key, x in rules.items()}
for layer in LAYERS:
    layer.load()
changed = {name for key, x in rules.items() for name, value in vars(x).items() if before[key].get(name, x) is not value}
print(sorted(changed))
"""


def test_layers_give_other_rules_only_what_loads_them():
    # `ArrayRule` loads the layer where a rule has no form for traced values yet, so nothing else may be given so.
    assert _run_anew(FORMS) == "['of_unknown']"


INDICES = """
import jax
import jax.numpy as jnp
import torch

from torch2jax import t2j

x = jnp.array([1.0, -1.0, 2.0])
functions = lambda x: torch.where(x > 0)[0], torch.unique, lambda x: x.repeat_interleave((x > 0).long())
print([jax.jit(t2j(function))(x).compact().tolist() for function in functions])
"""


def test_rules_have_their_form_for_traced_values_in_a_new_process():
    assert _run_anew(INDICES) == "[[0, 2], [-1.0, 1.0, 2.0], [1.0, 2.0]]"
