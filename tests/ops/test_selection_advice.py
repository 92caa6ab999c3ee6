"""What errors about mask selections advise is right: each text belongs to a kind, and each kind has programs.

A text that names no way of its own has the three of `TracedValueError`: to call the function without jit, to close over
the input, and to rewrite the line with masks.
"""

import ast
import functools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest
import torch
import torch.nn.functional as F

import torch2jax
from tests.refusals import error_of, refusal
from torch2jax import Padded, t2j

X = torch.linspace(-2, 2, 24).mul(7).sin().reshape(6, 4)
MASK = torch.tensor([True, False, True, False, False, True])
CLASSES = torch.tensor([0, 1, 1, 2, 0, 3])
FIRST = torch.tensor([0])
Program = Callable[[torch.Tensor, torch.Tensor], Any]


def written(x, at, value):
    x = x.clone()
    x[at] = value
    return x


def square(x, m):
    return x[m] @ x[m].T


GENERAL: dict[str, Program] = {
    "a view": lambda x, m: x[m].view(2, -1, len(x[m])),
    "masked_scatter": lambda x, m: x[m].masked_scatter(x[m] > 0, x),
    "layer_norm over it": lambda x, m: F.layer_norm(x[m], x[m].shape),
    "a reduction": lambda x, m: F.kl_div(x[m], x[m].softmax(1), reduction="batchmean"),
    "weights of classes": lambda x, m: F.cross_entropy(x[m][:, m[:4]], CLASSES[m].clamp(max=0), label_smoothing=0.1),
    "conv1d along it": lambda x, m: F.conv1d(x[m].T[None], torch.ones(1, 4, 2)),
    "conv1d beside it": lambda x, m: F.conv1d(x.T[None], x[m][:, :, None]),
    "interpolate along it": lambda x, m: F.interpolate(x[m].T[None], size=5),
    "max_pool1d along it": lambda x, m: F.max_pool1d(x[m].T[None], 2),
    "grid_sample": lambda x, m: F.grid_sample(x[None, None], x[m][None, None, :, :2], align_corners=False),
    "cov by weights": lambda x, m: x[m].T.cov(fweights=CLASSES[m] + 1),
    "isin": lambda x, m: torch.isin(x, x[m]),
    "bucketize": lambda x, m: torch.bucketize(x, x[m][:, 0].sort()[0]),
    "searchsorted": lambda x, m: torch.searchsorted(x[m][:, 0].sort()[0], x),
    "roll over all": lambda x, m: x[m].roll(1),
    "take_along_dim": lambda x, m: torch.take_along_dim(x[m], CLASSES),
    "chunk": lambda x, m: torch.cat(x[m].chunk(2)),
    "without a rule": lambda x, m: torch.kron(x[m], x[:2]),
    "tensordot(out=)": lambda x, m: torch.tensordot(x[m], x[m], ([0], [0]), out=torch.empty(4, 4)),
    "tensor_split by a tensor": lambda x, m: x[m].tensor_split(FIRST + 1)[0],
    "trapezoid": lambda x, m: torch.trapezoid(x[m][:, 0], x[:3, 0]),
    "matrix_norm": lambda x, m: torch.linalg.matrix_norm(x[m], 2),
    "fill_diagonal_": lambda x, m: x[m].fill_diagonal_(1.0, wrap=True),
    "diag_embed": lambda x, m: torch.diag_embed(x[m][:, 0], 1),
    "combinations": lambda x, m: torch.combinations(x[m][:, 0], 3),
    "unbind along it": lambda x, m: torch.stack(x[m].T.unbind(1)),
    "written through a copy": lambda x, m: x[m].T.reshape(-1).mul_(2),
    "diff beside": lambda x, m: x.diff(dim=0, append=x[m]),
    "diff with more": lambda x, m: x[m].diff(dim=0, append=x),
    "norm(out=)": lambda x, m: torch.norm(x[m], out=torch.empty(())),
    "nuclear norm": lambda x, m: torch.norm(x[m], p="nuc"),
    "reflected": lambda x, m: F.pad(x[m].T, (1, 1), mode="reflect"),
    "padded": lambda x, m: F.pad(square(x, m), (1, 1)),
    "pad_sequence": lambda x, m: torch.nn.utils.rnn.pad_sequence([x[m].T, x.T[:2, :3]]),
    "scatter_add": lambda x, m: x.scatter_add(0, CLASSES[m][:, None].expand(-1, 4), x),
    "einsum": lambda x, m: torch.einsum("...k->...", x[m]),
    "a diagonal": lambda x, m: torch.einsum("nn->n", square(x, m)),
    "unique": lambda x, m: torch.unique(x[m], sorted=False, return_inverse=True)[1],
    "quantile": lambda x, m: x[:, 0].quantile(x[m][:, 0].sigmoid()),
    "split": lambda x, m: torch.cat(x[m].split(2)),
    "a mask of known size": lambda x, m: x[m][x[:3] > 0],
    "a range": lambda x, m: sum([x[0] * i for i in range(0, 4, m.sum().item())]),
    "written to nested": lambda x, m: written(square(x, m), True, 1.0),
    "probabilities": lambda x, m: F.cross_entropy(x[m], x[m].softmax(1)),
    "another order": lambda x, m: x[m].T.reshape(12),
    "a step": lambda x, m: x[:: m.sum().item()],
    "a step of rows": lambda x, m: x[m][:: m.sum().item()],
    "added to a tensor": lambda x, m: x[:3].clone().add_(x[m]),
}
OF_VALUES: dict[str, Program] = {  # more than the mask decides on shapes here
    "unique along": lambda x, m: torch.unique(x[m], dim=1),
    "places in a number": lambda x, m: torch.nonzero(x[0, 0]),
}


REWRITTEN: dict[str, Program] = {
    "isin": lambda x, m: ((x[..., None, None] == x) & m[:, None]).any(-1).any(-1),
    "bucketize": lambda x, m: ((x[..., None] > x[:, 0]) & m).sum(-1),
    "searchsorted": lambda x, m: ((x[..., None] > x[:, 0]) & m).sum(-1),
    "a reduction": lambda x, m: F.kl_div(x[m], x[m].softmax(1), reduction="sum") / m.sum(),
    "norm(out=)": lambda x, m: torch.where(m[:, None], x, 0).norm(),
    "einsum": lambda x, m: torch.einsum("nk->n", x[m]),
    "a diagonal": lambda x, m: (x[m] ** 2).sum(1),
    "layer_norm over it": lambda x, m: (x[m] - x[m].mean()) / (x[m].var(unbiased=False) + 1e-5).sqrt(),
    "cov by weights": lambda x, m: torch.where(m[:, None], x, 0).T.cov(fweights=torch.where(m, CLASSES + 1, 0)),
    "unique along": lambda x, m: x[m].T[x[m][0].argsort()].T,
}


class Way(NamedTuple):
    """A program that fails, what the error says, and the program that does it, with `bounds=`, or without jit."""

    fails: Program
    says: str
    follows: Program
    bounds: dict[str, int] | None = None
    jits: bool = True


def repeats(x, m):
    return x.repeat_interleave(x[:, 0].mul(3).long().abs(), 0)


def counts(x, m):
    return torch.bincount(x[m][:, 0].mul(3).long().abs())


def slope_at_places(x, m):
    return torch.func.grad(lambda x: x[torch.nonzero(x)[:, 0]].sum())(x[:, 0])


def slope_of_number(x, m):
    return torch.func.grad(lambda x: (x * len(torch.unique(x.round()))).sum())(x[:, 0])


def slope_of_repeats(x, m):
    return torch.func.grad(lambda x: x.repeat_interleave(x.long().abs()).sum())(x[:, 0] * 3)


def added(x, m):
    total = torch.zeros(4)
    for row in x[m]:
        total = total + row
    return total


WAYS: dict[str, Way] = {
    "unbind": Way(lambda x, m: sum(x[m].unbind()), "iterate over the tensor itself", added),
    "repeats of a bound": Way(repeats, r"t2j\(bounds=\)", repeats, {"test_selection_advice.py:repeats": 20}),
    "repeats of a size": Way(
        repeats,
        "without output_size",
        lambda x, m: x.repeat_interleave(x[:, 0].mul(3).long().abs(), 0, output_size=OUTPUT),
    ),
    "counts of a bound": Way(counts, r"t2j\(bounds=\)", counts, {"test_selection_advice.py:counts": 9}),
    "a mask in place of places": Way(
        slope_at_places,
        "subscript by the mask itself",
        lambda x, m: torch.func.grad(lambda x: x[x != 0].sum())(x[:, 0]),
    ),
    "places without jit": Way(
        slope_at_places,
        r"give it x\.detach\(\), without jit",
        lambda x, m: torch.func.grad(lambda x: x[torch.nonzero(x.detach())[:, 0]].sum())(x[:, 0]),
        jits=False,
    ),
    "unique numbers without jit": Way(
        slope_of_number,
        r"torch\.unique, within .* give it x\.detach\(\), without jit",
        lambda x, m: torch.func.grad(lambda x: (x * len(torch.unique(x.detach().round()))).sum())(x[:, 0]),
        jits=False,
    ),
    "repeats without jit": Way(
        slope_of_repeats,
        r"torch\.repeat_interleave, within .* give it x\.detach\(\), without jit",
        lambda x, m: torch.func.grad(lambda x: x.repeat_interleave(x.detach().long().abs()).sum())(x[:, 0] * 3),
        jits=False,
    ),
    "letters": Way(
        lambda x, m: torch.einsum("n->n", x[m]), "wanted a letter for each", lambda x, m: torch.einsum("nk->nk", x[m])
    ),
    "a mean of integers": Way(
        lambda x, m: CLASSES[m].mean(), "pass dtype=", lambda x, m: CLASSES[m].mean(dtype=torch.float32)
    ),
}
OUTPUT = int(X[:, 0].mul(3).long().abs().sum())

REFUSED_BY_PYTORCH: dict[str, Program] = {
    "dtypes of a write": lambda x, m: written(x, m, CLASSES[m][:, None]),
    "index_put of another dtype": lambda x, m: x.index_put((CLASSES[m],), CLASSES[m][:, None].expand(-1, 4)),
    "values of more dimensions": lambda x, m: x.index_put((m.nonzero()[:, 0],), torch.ones(1, 3, 4)),
    "too many indices": lambda x, m: x[m][0, :, m],
    "repeat": lambda x, m: x[m].repeat(2),
    "meshgrid": lambda x, m: torch.meshgrid(x[m][:, 0], x[m][:, 0], indexing="zz"),
    "permute": lambda x, m: x[m].permute(1, 1),
    "topk": lambda x, m: x[m][:, 0].topk(40),
    "a view": lambda x, m: x[m][: len(x)].reshape(5, 5),
    "a reduction": lambda x, m: F.triplet_margin_loss(x[m], x[m], x[m], reduction="most"),
    "kthvalue": lambda x, m: x[m][:, 0].kthvalue(40),
    "padding_side": lambda x, m: torch.nn.utils.rnn.pad_sequence([x[m], x], padding_side="top"),
    "quantile of integers": lambda x, m: CLASSES[m].quantile(0.5),
    "quantile by a matrix": lambda x, m: x[m].quantile(torch.ones(1, 1)),
    "quantile by another dtype": lambda x, m: x[m].quantile(torch.ones(1).half()),
    "quantile by a name": lambda x, m: x[m].quantile(0.5, interpolation="most"),
    "quantile beyond": lambda x, m: x[m].quantile(1.5),
    "a step": lambda x, m: x[m][::0],
    "a target of another shape": lambda x, m: x[m].T.cos_().add_(x[m][0, 0, None, None, None]),
    "a range": lambda x, m: list(range(0, m.sum().item(), 0)),
}
EVERY = {
    **{f"general: {name}": program for name, program in (GENERAL | OF_VALUES).items()},
    **{f"ways: {name}": way.fails for name, way in WAYS.items()},
    **{f"PyTorch's: {name}": program for name, program in REFUSED_BY_PYTORCH.items()},
}


def compiled(program: Program, **options):
    return jax.jit(t2j(program, **options))(t2j(X), t2j(MASK))


@functools.cache
def message(name: str) -> str:
    return str(error_of(compiled, EVERY[name]))


def expect_same(found, program: Program) -> None:
    if isinstance(found, Padded):
        found = found.compact()
    np.testing.assert_allclose(np.asarray(found), program(X.clone(), MASK), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", GENERAL | OF_VALUES)
def test_the_ways_out_of_a_value(name):
    program = (GENERAL | OF_VALUES)[name]
    text = message(f"general: {name}")
    for way in ("call the function without jit", "close over it", r"rewrite the line with torch\.where or masks"):
        assert re.search(way, text), text
    expect_same(t2j(program)(t2j(X), t2j(MASK)), program)
    if name in OF_VALUES:
        expect_same(jax.jit(t2j(lambda: program(X, MASK)))(), program)
    else:
        expect_same(jax.jit(t2j(lambda x: program(x, MASK)))(t2j(X)), program)


@pytest.mark.parametrize("name", REWRITTEN)
def test_lines_with_masks(name):
    expect_same(compiled(REWRITTEN[name]), (GENERAL | OF_VALUES)[name])


@pytest.mark.parametrize("name", WAYS)
def test_ways_that_texts_name(name):
    way = WAYS[name]
    assert re.search(way.says, message(f"ways: {name}")), message(f"ways: {name}")
    try:
        wanted = way.fails(X.clone(), MASK)
    except RuntimeError:  # PyTorch refuses it as well
        wanted = way.follows(X.clone(), MASK)
    found = compiled(way.follows, bounds=way.bounds or {}) if way.jits else t2j(way.follows)(t2j(X), t2j(MASK))
    expect_same(found, lambda *_: wanted)


@pytest.mark.parametrize("name", REFUSED_BY_PYTORCH)
def test_what_pytorch_refuses_too(name):
    assert refusal(REFUSED_BY_PYTORCH[name], X.clone(), MASK) is not None
    assert message(f"PyTorch's: {name}")


# Each text of the sources.

ROOT = Path(torch2jax.__file__).parent
FILES = [
    *sorted((ROOT / "ops").glob("selection*.py")),
    ROOT / "values/masked.py",
    ROOT / "values/masked_functions.py",
]


class Text(NamedTuple):
    """An error that a source makes: its type, a pattern of its message, and whether it names a way of its own."""

    place: str
    error: str
    pattern: str
    constant: str
    has_instead: bool

    @property
    def kind(self) -> str:
        if self.error == "TracedValueError" and not self.has_instead and r"t2j\(bounds=\)" not in self.pattern:
            return "general"
        return "ways" if self.has_instead or re.search(r"wanted|pass\\ |bounds", self.pattern) else "PyTorch's"


def texts() -> list[Text]:
    found = []
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id.endswith("Error"):
                has_instead = any(x.arg == "instead" for x in node.keywords)
                first = node.args[0]
                words = "".join(x.value for x in getattr(first, "values", [first]) if isinstance(x, ast.Constant))
                place = f"{path.name}:{node.lineno}"
                found.append(Text(place, node.func.id, _pattern(first), words, has_instead))
    return found


def _pattern(node: ast.expr) -> str:
    if isinstance(node, ast.Constant):
        return re.escape(str(node.value))
    if isinstance(node, ast.JoinedStr):
        return "".join(map(_pattern, node.values))
    source = ast.unparse(node)
    return r"[\w.()]+" if re.search(r"name|what", source) else ".+"


OTHERS_ANSWER = {
    "torch.cross along a boolean-mask selection": "PyTorch warns of it; see test_selection_rows.py",
    "the length of a boolean-mask selection": "of Python's own functions, which `len` serves",
    "torchvision.ops. of images that a boolean mask selected": "needs torchvision's compiled operators",
    "torch. , by such a tensor,": "each of these functions has a rule that comes first",
    "torch.nn.utils.rnn.pad_sequence of a boolean-mask selection along a later dimension": "it has no rule there",
    "a boolean-mask selection": "of one that no line of the user's has made",
    "torch.ops. of what a boolean mask chose": "of PyTorch's dispatcher, where an operator has no rule",
}
"""Texts that no program was found for, by their constant parts: they have the ways of `TracedValueError`."""


@pytest.mark.slow("traces the programs of all texts")
def test_each_text_has_a_program():
    messages = {name: message(name) for name in EVERY}
    missing = {}
    for text in texts():
        ending = " needs the value" if text.error == "TracedValueError" else ""
        of_kind = [x for name, x in messages.items() if name.startswith(text.kind)]
        if text.constant in OTHERS_ANSWER:
            assert text.kind == "general"
        elif not any(re.match(text.pattern + ending, x) for x in of_kind):
            missing[text.place] = text.kind, text.pattern
    assert missing == {}
