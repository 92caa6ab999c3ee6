"""The documentation's order: what its search finds, its table of options, and what a newcomer needs first."""

import inspect
import re
import runpy
import tomllib
import warnings
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest
import torch

from tests.test_readme import README, anchors, blocks
from torch2jax import sharding, t2j

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
FIRST = [
    ROOT / "README.md",
    *(DOCS / f"{name}.md" for name in ("index", "install", "getting-started", "key-ideas", "faq")),
]


@pytest.fixture(scope="module")
def search():
    pytest.importorskip("docutils", reason="the environment of the newest releases has no Sphinx")
    return SimpleNamespace(**runpy.run_path(str(DOCS / "_extensions/site_search.py")))


def test_words_lead_to_headings(search):
    for word, place in search.WORDS.items():
        page, _, anchor = place.partition("#")
        assert (DOCS / f"{page}.md").exists(), word
        assert not anchor or anchor in anchors((DOCS / f"{page}.md").read_text()), (word, place)
        assert not search.is_table(page), word


def test_tables_are_left_out_of_the_search(search):
    tables = {page.stem for page in (DOCS / "tested").glob("*.md")} - {"index"}
    assert all(search.is_table(f"tested/{name}") for name in tables)
    assert not search.is_table("tested/index")
    linked = (DOCS / "tested/index.md").read_text()
    assert all(f"]({name}.md)" in linked for name in tables), tables


def test_the_table_of_options_has_each_of_them():
    table = (DOCS / "reference/translate.md").read_text().partition("## Options")[2].partition("\n## ")[0]
    options = [name for name in inspect.signature(t2j).parameters if name != "thing"]
    assert sorted(re.findall(r"^\| `(\w+)` \|", table, flags=re.MULTILINE)) == sorted(options)


def test_the_first_command_installs_what_the_readme_imports():
    command = blocks("bash")[0]
    groups = command.partition(".[")[2].partition("]")[0].split(",")
    asked = [*PROJECT["dependencies"], *(x for group in groups for x in PROJECT["optional-dependencies"][group])]
    names = {re.split("[><]", requirement)[0] for requirement in asked} | {"torch2jax"}
    imported = re.findall(r"^(?:import|from) (\w+)", "\n".join(blocks("python")), flags=re.MULTILINE)
    assert set(imported) <= names, set(imported) - names


def test_the_first_pages_have_the_same_command():
    commands = {
        blocks("bash", page.read_text())[0]
        for page in (ROOT / "README.md", DOCS / "index.md", DOCS / "getting-started.md")
    }
    assert len(commands) == 1, commands


def test_torchvision_is_installed_in_the_command_that_installs_torch():
    for page in FIRST[:4]:
        commands = [line for block in blocks("bash", page.read_text()) for line in block.splitlines()]
        installs = [line for line in commands if "pip install" in line and "dev" not in line]
        with_torch = [line for line in installs if re.search(r" '?torch['< ]", line)]
        assert with_torch, page
        assert all(" torchvision" in line for line in with_torch), page


def test_the_line_for_cpus_asks_for_a_supported_pytorch():
    (bound,) = (x.partition(",")[2] for x in PROJECT["dependencies"] if x.startswith("torch>="))
    assert set(re.findall(r"'torch(<.*?)'", (DOCS / "install.md").read_text())) == {bound}


def _halved(x):
    while x.sum() > 1:
        x = x / 2
    return x.sum()


def _of_numpy(x):
    return x if x.sum() < 0 else torch.from_numpy(x.numpy())


def _without_weights():
    return t2j(torch.nn.Linear(3, 2, device="meta"))(X)


X, LINEAR = jnp.ones((2, 3)), torch.nn.Linear(3, 2)
MESSAGES = {
    "a random operator needs a key": lambda: t2j(torch.nn.Dropout())(X),
    "needs the value of a tensor that depends on a traced input": lambda: jax.jit(t2j(lambda x: f"{x.sum():.1f}"))(X),
    "tests a traced value, so both branches are traced": lambda: jax.jit(t2j(_of_numpy))(X),
    "a gradient through it needs a bound on its iterations": lambda: jax.grad(jax.jit(t2j(_halved)))(X),
    "of which no bound is seen": lambda: jax.jit(t2j(lambda x: torch.zeros(x.sum().long())))(X),
    "to have the same dtype": lambda: t2j(LINEAR)(X.astype("bfloat16")),
    "should be the same": lambda: t2j(torch.nn.Conv1d(2, 2, 1))(X.astype("bfloat16")),
    "expected scalar type Long": lambda: t2j(torch.nn.functional.cross_entropy)(X, jnp.ones(2)),
    "tensors used as indices must be long": lambda: t2j(lambda x: x[x[0]])(X),
    "state_dict has names that the module lacks": lambda: t2j(LINEAR)(X, state_dict={"w": X}),
    "is on the meta device, and state_dict does not have it": _without_weights,
    "is in training mode and writes its buffers": lambda: t2j(torch.nn.BatchNorm1d(3))(X),
}


@pytest.mark.parametrize(("words", "call"), MESSAGES.items(), ids=MESSAGES)
def test_the_page_of_errors_has_the_words_of_messages(words, call):
    assert f"*{words}*" in (DOCS / "errors.md").read_text()
    with warnings.catch_warnings(action="error"), pytest.raises(Exception, match=words):
        call()


def test_the_page_of_errors_has_no_other_words():
    table = (DOCS / "errors.md").read_text().partition("the most common messages")[2].partition("\nCode that runs")[0]
    assert set(re.findall(r"(?<!\w)\*([^*]+)\*(?!\w)", table)) == set(MESSAGES)


@pytest.mark.parametrize("page", FIRST, ids=lambda page: page.name)
def test_first_pages_have_no_words_of_the_house(page: Path):
    words = r"known values?|selections?|journal|shadow|Torchish|compiled parts?|parts of a model|restarts?\b"
    assert not re.findall(rf"\b({words})", page.read_text())


@pytest.mark.parametrize("page", FIRST[:4], ids=lambda page: page.name)
def test_first_pages_warn_of_the_name_on_pypi(page: Path):
    assert "another project" in page.read_text().partition("```python")[0]


def test_the_readme_names_the_doctor():
    assert "torch2jax doctor" in README.partition("## A first program")[0]


@pytest.mark.models
@pytest.mark.slow("imports transformers")
@pytest.mark.usefixtures("eight_devices")
def test_the_picture_of_a_sharded_weight(capsys):
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=96, **sizes))
    mesh = jax.make_mesh((2, 4), ("data", "model"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    params = sharding.put(model.state_dict(), sharding.specs(model, mesh, tensor="model", fsdp="data"), mesh)
    jax.debug.visualize_array_sharding(params["model.layers.0.mlp.up_proj.weight"], use_color=False)
    lines = [line.rstrip() for line in capsys.readouterr().out.strip().splitlines()]
    assert "\n".join(lines) in (DOCS / "large-models.md").read_text()
