"""`docs/supported.md` lists what the pages of results say, and counts it as they do."""

import importlib.util
from collections import Counter
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1] / "docs"


@pytest.fixture(scope="module")
def extension():
    specification = importlib.util.spec_from_file_location("results", DOCS / "_extensions/results.py")
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def test_counts_are_those_of_the_pages(extension):
    found = Counter((result.kind, result.mark) for result in extension.results(DOCS))
    models = next(row for _, row in extension._tables(DOCS / "tested/models.md") if row["library"] == "all")
    assert found["model", "yes"] + found["model", "but"] == int(models["agree"])
    assert found["model", "no"] == int(models["run in PyTorch"]) - int(models["agree"])
    assert found["model", "-"] == int(models["tried"]) - int(models["run in PyTorch"])
    uses = (DOCS / "tested/libraries.md").read_text()
    assert f"{found['library', 'yes'] + found['library', 'no']} uses: {found['library', 'yes']} agree" in uses
    options = (DOCS / "tested/module-options.md").read_text()
    assert f"options of {found['module', 'yes'] + found['module', 'but']} modules" in options


def test_operators_are_marked_by_what_the_page_leaves_out(extension):
    marks = {result.name: result.mark for result in extension.results(DOCS) if result.kind == "operator"}
    assert marks["torch.nn.functional.conv2d"] == marks["torch.Tensor.new_zeros"] == "yes"
    assert marks["torch.as_strided_scatter"] == "but"
    assert marks["torch.complex"] == "but"
    assert marks["torch.chalf"] == "no"


def test_links_lead_to_pages(extension):
    pages = {result.link.partition("#")[0] for result in extension.results(DOCS)}
    assert all((DOCS / page.replace(".html", ".md")).exists() for page in pages)
    assert len(pages) >= 6
