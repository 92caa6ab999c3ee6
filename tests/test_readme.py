"""The README and the documentation are right: their Python runs, and their commands name what there is."""

import linecache
import re
import shlex
import sys
import tomllib
from pathlib import Path

import pytest

from torch2jax.tools.models import define_vision_operators
from torch2jax_cli import main

define_vision_operators()  # transformers imports torchvision

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(language: str, text: str = README) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)


def commands() -> list[list[str]]:
    return [shlex.split(part) for block in blocks("bash") for line in block.splitlines() for part in line.split("&&")]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
@pytest.mark.slow("runs all programs of a page")
def test_python_blocks_run(page: Path):
    text = page.read_text()
    namespace: dict = {"__name__": page.stem}
    source = [""] * text.count("\n")
    starts = []
    for block in blocks("python", text):
        lines = block.splitlines(keepends=True)
        starts.append(text[: text.index(block)].count("\n"))
        source[starts[-1] : starts[-1] + len(lines)] = lines
    source = [line or "\n" for line in source]
    linecache.cache[str(page)] = len(text), None, source, str(page)  # conditions are read from the source
    for start, block in zip(starts, blocks("python", text), strict=True):
        exec(compile("\n" * start + block, str(page), "exec"), namespace)


def test_every_example_is_found():
    assert len(blocks("python")) >= 7


def test_example_is_short():
    assert len([line for line in blocks("python")[0].splitlines() if line.strip()]) <= 10


def test_commands_install_extras_that_exist():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    asked = [
        name
        for command in commands()
        for group in re.findall(r"\.\[(.*?)\]", " ".join(command))
        for name in group.split(",")
    ]
    assert asked
    assert set(asked) <= set(extras)
    assert (ROOT / "constraints.txt").is_file()


def test_ci_runs_the_test_command():
    (tests,) = [command for command in commands() if command[1:3] == ["-m", "scripts.tests"]]
    assert " ".join(['"$python"', *tests[1:]]) + "\n" in (ROOT / ".ci/run").read_text()


def test_one_version_is_named():
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    (newest, *_) = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)
    (cited,) = re.findall(r"^version: (\S+)", (ROOT / "CITATION.cff").read_text(), flags=re.MULTILINE)
    assert newest == cited == version


@pytest.mark.models
@pytest.mark.slow("compiles a real model and its gradients")
def test_main_job_command_agrees(monkeypatch):
    (check,) = [command for command in commands() if command[0].endswith("torch2jax")]
    monkeypatch.setattr(sys, "argv", check)
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code


WRITTEN = [
    *PAGES,
    *sorted((ROOT / "docs").glob("*/*.md")),
    *(ROOT / f"{x}.md" for x in ("CONTRIBUTING", "CHANGELOG", "SECURITY")),
]


@pytest.mark.parametrize("page", WRITTEN, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files_and_headings(page: Path):
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        file, _, anchor = link.partition("#")
        if "://" in file:
            continue
        target = page.parent / file if file else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target.read_text()), link


def anchors(text: str) -> set[str]:
    """The anchors of headings, as GitHub and the site make them."""
    heads = re.findall(r"^#+ +(.*)$", text, flags=re.MULTILINE)
    plain = [re.sub(r"[^\w\- ]", "", re.sub(r"\[(.*?)\]\(.*?\)", r"\1", head).lower()) for head in heads]
    return {head.replace(" ", "-") for head in plain}
