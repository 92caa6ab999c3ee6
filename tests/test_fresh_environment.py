"""In the environment that README's first command makes, README's blocks run; a process uses programs of another."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.test_readme import README, blocks

ROOT = Path(__file__).parent.parent

# As tests/test_readme.py runs a page. A wheel of PyTorch for CPUs may have come with a torchvision that does not load.
PAGE = """
import linecache, sys
from torch2jax.tools.models import define_vision_operators
define_vision_operators()
text = open("blocks.py").read()
linecache.cache["README.md"] = len(text), None, text.splitlines(True), "README.md"
exec(compile(text, "README.md", "exec"), {"__name__": "readme"})
"""

KEPT = """
import sys, jax, torch
from torch2jax import t2j
jax.config.update("jax_compilation_cache_dir", sys.argv[1])
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Dropout(0.5))
f = t2j(model)
params, _ = f.split()
def loss(params, x, key):
    return f(x, state_dict=params, rng=key).sum()
jax.jit(jax.grad(loss))(params, jax.numpy.ones((2, 3)), jax.random.key(0))
"""


@pytest.mark.slow("installs the package and its models in a new environment")
def test_blocks_of_the_readme(tmp_path: Path):
    files = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True, text=True).stdout
    for file in filter(None, files.split("\0")):
        if file.partition("/")[0] in (
            "torch2jax",
            "torch2jax_cli",
            "README.md",
            "LICENSE",
            "pyproject.toml",
            "constraints.txt",
        ):
            (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / file, tmp_path / file)
    (tmp_path / "page.py").write_text(PAGE)
    (tmp_path / "blocks.py").write_text("\n".join(blocks("python", README)))
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = blocks("bash")[0].replace("python3 -m venv", f"{sys.executable} -m venv", 1)
    subprocess.run(command, shell=True, cwd=tmp_path, env=environment, check=True)
    subprocess.run([".venv/bin/python", "page.py"], cwd=tmp_path, env=environment, check=True)


@pytest.mark.slow("starts PyTorch and JAX twice")
def test_compiled_programs_are_kept_for_the_next_process(tmp_path: Path):
    (tmp_path / "program.py").write_text(KEPT)
    kept = []
    for _ in range(2):
        environment = os.environ | {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
        subprocess.run([sys.executable, "program.py", "programs"], cwd=tmp_path, env=environment, check=True)
        kept.append(sorted(file.name for file in (tmp_path / "programs").iterdir() if file.name.endswith("-cache")))
    assert any(name.startswith("jit_loss") for name in kept[0])
    assert kept[0] == kept[1], json.dumps(kept, indent=1)
