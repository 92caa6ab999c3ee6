"""The table of operators in docs/lengths.md: ``python -m tests.ops.lengths_table`` writes it from the rules."""

from pathlib import Path

from torch2jax.rules import registry
from torch2jax.rules.tables import name_of
from torch2jax.runtime.layers import SELECTIONS

PAGE = Path(__file__).parents[2] / "docs/lengths.md"
BEGIN, END = "<!-- table:masked -->\n", "<!-- end of table -->"
_EACH, _ROW = "on all that there is room for", "on all rows; one that does not count has a copy of one that does"
_OWN = "by its own rule"
_OF_MAKERS = {
    "_on_rows": ("elements", _EACH),
    "along": ("order, scans and extrema", _OWN),
    "_reduction": ("reductions", "with the neutral element in place of what does not count"),
    **dict.fromkeys(("of_first", "_of_all", "_square", "_of_regions"), ("rows, examples and matrices", _ROW)),
}
"""The function within which a rule is defined, and its group."""
_METADATA = ("element_size", "get_device", "is_", "__len__", "nelement", "numel", "size", "dim", "ndimension")
_OF_MODULES = {
    "functional": ("losses of elements", "each element, and its mean or sum"),
    "lengths": ("sizes and padding", _OWN),
    "selection": ("statistics, losses of classes, joining", _OWN),
    "selection_composed": ("composed", "by those above and below"),
    "selection_dims": ("shapes, parts and writes to all", "views"),
    "selection_matrices": ("matrices and pairs", "by the index of each element, or with zeros for what does not count"),
    "selection_order": ("order, scans and extrema", _OWN),
    "selection_runs": ("indices, scatters, unique values, repetition and counts", _OWN),
    "selection_subscripts": ("subscripts", "numbers and slices are views; then a mask, or indices"),
    "sorting": ("indices, scatters, unique values, repetition and counts", _OWN),
}


def table() -> str:
    """A row for each group: how its functions are served, and their names."""
    SELECTIONS.load()
    groups: dict[tuple[str, str], set[str]] = {}
    for function, rule in registry._masked_rules.items():
        maker, module = rule.__qualname__.partition(".")[0], rule.__module__.rpartition(".")[2]
        name = function if isinstance(function, str) else name_of(function)
        if name != "__get__" and not (module in ("masked", "selection") and name.startswith(_METADATA)):
            groups.setdefault(_OF_MAKERS.get(maker) or _OF_MODULES[module], set()).add(name.replace("::", "."))
    elementwise = {name_of(x) for x, rule in registry.PROVIDED.functions.items() if getattr(rule, "elementwise", False)}
    of_each = groups.pop(_OF_MAKERS["_on_rows"])
    rows = [("elements", _EACH, f"all elementwise functions, and {_names(of_each - elementwise)}")]
    rows += [(*group, _names(names)) for group, names in sorted(groups.items())]
    by_length = {name_of(function) for function in registry._rules_by_length}
    rows.append(("a length among arguments", "with room for its bound", _names(by_length)))
    return "".join(f"| {' | '.join(row)} |\n" for row in [("functions", "how", "names"), ("---",) * 3, *rows])


def _names(names: set[str]) -> str:
    return ", ".join(f"`{name}`" for name in sorted(names))


def parts(page: str) -> tuple[str, str, str]:
    """The page before its table, the table, and what follows."""
    before, _, rest = page.partition(BEGIN)
    found, _, after = rest.partition(END)
    return before + BEGIN, found, END + after


if __name__ == "__main__":
    before, _, after = parts(PAGE.read_text())
    PAGE.write_text(before + table() + after)
