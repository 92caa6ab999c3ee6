"""The public API is what tests/public_api.txt lists: no name or argument comes, goes or changes unnoticed.

``python -m tests.test_public_api`` writes the file. What is removed or changed is in CHANGELOG.md as well.
"""

import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

MODULES = ["torch2jax", "torch2jax.sharding", "torch2jax.tools"]
LISTED = Path(__file__).parent / "public_api.txt"
REFERENCE = Path(__file__).parent.parent / "docs/reference"


def _shown(name: str, thing) -> str:
    if inspect.isclass(thing) and issubclass(thing, BaseException):
        return f"{name}: {', '.join(base.__name__ for base in thing.__bases__)}"
    if inspect.isclass(thing):
        return f"{name}: class with {', '.join(member for member in dir(thing) if not member.startswith('_'))}"
    if not callable(thing):
        return f"{name}: {type(thing).__name__}"
    parameters = inspect.signature(thing).parameters.values()
    bare = [parameter.replace(annotation=inspect.Parameter.empty) for parameter in parameters]
    return f"{name}{re.sub(r' at 0x[0-9a-f]+', '', str(inspect.Signature(bare)))}"


def _public() -> Iterator[str]:
    for module in map(importlib.import_module, MODULES):
        for name in sorted(module.__all__):
            yield _shown(f"{module.__name__}.{name}", getattr(module, name))


def test_nothing_public_changes_unnoticed():
    assert [*_public()] == LISTED.read_text().splitlines()


def test_the_reference_has_every_public_name():
    text = "\n".join(page.read_text() for page in REFERENCE.glob("*.md"))
    documented = set(re.findall(r"^\.\. auto\w+:: (?:[\w.]+\.)?(\w+)", text, flags=re.MULTILINE))
    wanted = {name for module in MODULES for name in importlib.import_module(module).__all__}
    assert wanted <= documented, sorted(wanted - documented)


def main() -> None:
    LISTED.write_text("\n".join(_public()) + "\n")


if __name__ == "__main__":
    main()
