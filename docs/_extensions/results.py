"""One list of all that was measured, for the filter of `supported.md`.

The rows are those of the tables of results, and the entries of PyTorch's operator database. They go to the site as a
script, which a page opened from a folder may load too (it may not fetch JSON).
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch.testing._internal.common_methods_invocations import op_db

if TYPE_CHECKING:
    from sphinx.application import Sphinx

PAGE = "supported"
SCRIPT = "results.js"


class Result(NamedTuple):
    """What was measured of one thing, with a mark (`yes`, `but`, `no` or `-`), a sentence, and the page that has it."""

    kind: str
    name: str
    mark: str
    text: str
    link: str


def results(docs: Path) -> list[Result]:
    """All results that the pages in a folder have."""
    return [*_operators(docs), *_models(docs), *_uses(docs), *_modules(docs), *_files(docs), *_differences(docs)]


def _tables(page: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """The rows of a page's tables, each by the heads of its columns, with the heading that it is under."""
    heading, heads = "", None
    for line in page.read_text().splitlines():
        if line.startswith("#"):
            heading = line.lstrip("# ")
        if not line.startswith("|"):
            heads = None
            continue
        cells = [cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if heads is None:
            heads = cells
        elif not set("".join(cells)) <= set("-: "):
            yield heading, dict(zip(heads, cells, strict=True))


def _link(page: str, heading: str = "") -> str:
    anchor = re.sub(r"[^a-z0-9 -]", "", heading.lower()).replace(" ", "-")
    return f"{page}.html" + (f"#{anchor}" if anchor else "")


def _plain(text: str) -> str:
    return re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", text).replace("`", "").replace("**", "")


def _operators(docs: Path) -> Iterator[Result]:
    """The operator database: an entry passes if no column misses one and nothing of it is left out."""
    rows = list(_tables(docs / "tested/coverage.md"))
    left_out = [(_plain(row["entries"]), row) for _, row in rows if "entries" in row]
    everything = next(row for heading, row in rows if heading == "By dtype" and row["dtype"] == "all")
    counts = [cell.split("/") for cell in everything.values() if "/" in cell]
    if any(passed != tried for passed, tried in counts):
        return  # then the page would have to say which
    for op in op_db:
        name = f"{op.name}.{op.variant_test_name}" if op.variant_test_name else op.name
        exceptions = [row for pattern, row in left_out if _names(pattern, name)]
        if any(row["dtypes"] == row["columns"] == "all" for row in exceptions):
            mark, text = "no", exceptions[0]["reason"]
        else:
            mark = "but" if exceptions else "yes"
            text = "agrees with PyTorch in all that was compared"
            for row in exceptions:
                text += f"; not compared ({row['dtypes']}: {row['columns']}): {row['reason']}"
        yield Result("operator", _public(name), mark, _plain(text), _link("tested/coverage"))


def _public(name: str) -> str:
    """The name of an entry in `torch`: the database names functions and methods without that."""
    first = name.split(".")[0]
    for place, prefix in (torch, "torch."), (torch.Tensor, "torch.Tensor."):
        if hasattr(place, first):
            return prefix + name
    return name


def _names(pattern: str, name: str) -> bool:
    """Whether an entry of the list of what is left out means an operator: `sparse.*` means all that begin so."""
    return any(re.fullmatch(re.escape(part.strip()).replace(r"\*", ".*"), name) for part in pattern.split(","))


def _models(docs: Path) -> Iterator[Result]:
    for heading, row in _tables(docs / "tested/models.md"):
        if "what fails" not in row or "forward" not in row:
            continue
        fails, name = _plain(row["what fails"]), _plain(row["model"])
        if fails.startswith("PyTorch:"):
            yield Result("model", name, "-", "PyTorch does not run it here", _link("tested/models", heading))
        elif fails.startswith("but") or not fails:
            text = f"outputs differ by {row['forward']}, gradients by {row['gradients']}"
            text += f"; {fails}" if fails else ""
            yield Result("model", name, "but" if fails else "yes", text, _link("tested/models", heading))
        else:
            yield Result("model", name, "no", fails, _link("tested/models", heading))


def _uses(docs: Path) -> Iterator[Result]:
    for heading, row in _tables(docs / "tested/libraries.md"):
        if "e" in row.get("gradients", "") and "fails" not in row.values():  # what fails has a table of its own
            text = f"outputs differ by {row['forward']}, gradients by {row['gradients']}"
            yield Result("library", _plain(f"{row['library']}: {row['use']}"), "yes", text, _link("tested/libraries"))
        elif "reason" in row:
            name = _plain(f"{row['library']}: {row['use']}")
            yield Result("library", name, "no", _plain(row["reason"]), _link("tested/libraries", heading))


def _modules(docs: Path) -> Iterator[Result]:
    for heading, row in _tables(docs / "tested/module-options.md"):
        if "option" in row:
            yield Result(
                "module", _plain(row["option"]), "no", _plain(row["why"]), _link("tested/module-options", heading)
            )
        elif "module" in row:
            agree = row["agree"] == row["options"]
            text = f"{row['agree']} of {row['options']} options of its constructor agree, in training under jit"
            yield Result(
                "module", f"torch.{row['module']}", "yes" if agree else "but", text, _link("tested/module-options")
            )


def _files(docs: Path) -> Iterator[Result]:
    for _, row in _tables(docs / "tested/torch-tests.md"):
        if "pass translated" in row and row["%"] and row["file"] != "all":
            text = f"{row['pass translated']} of {row['the rest']} tests pass translated ({row['%']} %)"
            mark = "yes" if row["pass translated"] == row["the rest"] else "but"
            yield Result("PyTorch's tests", _plain(row["file"]), mark, text, _link("tested/torch-tests"))


def _differences(docs: Path) -> Iterator[Result]:
    for heading, row in _tables(docs / "differences.md"):
        if "where" in row:
            text = f"PyTorch: {row['PyTorch']}. Here: {row['here']}. Why: {row['why']}"
            yield Result("difference", _plain(row["where"]), "but", _plain(text), _link("differences", heading))


def _write(app: "Sphinx", error: Exception | None) -> None:
    if error is None and app.builder.format == "html":
        rows = json.dumps(results(Path(app.srcdir)), ensure_ascii=False)
        (Path(app.outdir) / "_static" / SCRIPT).write_text(f"const RESULTS = {rows};\n")


def _load(app: "Sphinx", page: str, template: str, context: dict, doctree: object) -> None:
    if page == PAGE:
        app.add_js_file(SCRIPT)
        app.add_js_file("supported.js")


def setup(app: "Sphinx") -> dict[str, bool]:
    """Sphinx calls this."""
    app.connect("html-page-context", _load)
    app.connect("build-finished", _write)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
