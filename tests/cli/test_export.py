"""``torch2jax export``: the files that it writes, and what it refuses."""

from pathlib import Path

import jax
import numpy as np
import pytest
import torch
from torch import nn

from .test_cli import here, run

pytest.importorskip("flatbuffers")
safetensors = pytest.importorskip("safetensors.flax")


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.norm = nn.Embedding(8, 4), nn.BatchNorm1d(4)
        self.head = nn.Linear(4, 8, bias=False)
        self.head.weight = self.embedding.weight
        self.dropout = nn.Dropout(0.5)

    def forward(self, ids, scale=1.0):
        return {"logits": self.head(self.dropout(self.norm(self.embedding(ids).mT).mT)) * scale}


model = Tied()


def with_inputs():
    return model, {"ids": torch.ones(2, 3, dtype=torch.int64), "scale": 2.0}


def load(path: Path) -> jax.export.Exported:
    return jax.export.deserialize(bytearray(path.read_bytes()))


def here_too(name: str) -> str:
    return here(name).replace("test_cli", "test_export")


def test_program_and_weights(tmp_path):
    path = tmp_path / "model.jaxexport"
    result = run("export", here_too("with_inputs"), path, "--grad")
    assert result.exit_code == 0, result.output
    assert "call(ids=ids, state_dict=state)" in result.output
    assert model.training
    state = safetensors.load_file(tmp_path / "model.safetensors")
    assert "head.weight" not in state  # it is the embedding's
    exported, ids = load(path), np.array([[1, 2, 3], [4, 5, 6]], np.int32)
    assert exported.platforms == ("cpu", "cuda", "tpu")
    found = exported.call(ids=ids, state_dict=state)["logits"]
    expected = model.eval()(torch.from_numpy(ids), 2.0)["logits"]
    model.train()
    np.testing.assert_allclose(found, expected.detach(), rtol=1e-5, atol=1e-6)
    weights = {name: x for name, x in state.items() if x.dtype == "float32"}
    grads = jax.grad(lambda weights: exported.call(ids=ids, state_dict=state | weights)["logits"].sum())(weights)
    assert (grads["embedding.weight"] != 0).any()


def test_function(tmp_path):
    path = tmp_path / "product.jaxexport"
    result = run("export", here("product"), path, "--shape", "4,8", "--shape", "8,2", "--platforms", "cpu")
    assert result.exit_code == 0, result.output
    assert "call(x, x1)" in result.output
    assert [file.name for file in tmp_path.iterdir()] == ["product.jaxexport"]
    product, square = load(path).call(np.ones((4, 8), np.float32), np.ones((8, 2), np.float32))
    assert (product == np.full((4, 2), 8)).all()
    assert square == 32


def test_symbolic_sizes(tmp_path):
    path = tmp_path / "product.jaxexport"
    options = ("--shape", "b,8", "--shape", "8,n", "--constraint", "n >= 3", "--platforms", "cpu")
    result = run("export", here("product"), path, *options)
    assert result.exit_code == 0, result.output
    product, _ = load(path).call(np.ones((5, 8), np.float32), np.ones((8, 7), np.float32))
    assert (product == np.full((5, 7), 8)).all()


@pytest.mark.parametrize(
    ("arguments", "message", "code"),
    [
        (["torch:sin", "--shape", "b,c("], "bad shape", 2),
        (["torch:sin", "--shape", "b", "--constraint", "b > "], "bad shape or constraint", 2),
        (["torch:sin", "--shape", "3", "--platforms", "cpu,gpu"], "unknown platform 'gpu'", 2),
        (["nonsense"], "cannot tell what 'nonsense' is", 2),
        (["torch:linalg.eigvals", "--shape", "3,3"], "JAX has no eig for 'tpu'", 3),
        ([here("unknown"), "--shape", "3"], "NoRuleError", 3),
    ],
)
def test_refusals(tmp_path, arguments, message, code):
    spec, *options = arguments
    result = run("export", spec, tmp_path / "out.jaxexport", *options)
    assert result.exit_code == code
    assert message in result.stderr
    assert not list(tmp_path.iterdir())


def test_a_place_that_cannot_be_written_to_is_refused_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr("torch2jax.tools.files.export", None)  # nothing is exported before
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("")
    for name, text in (("none/x", "none is no folder"), ("folder", "is a folder"), ("file/x", "file is no folder")):
        result = run("export", here_too("with_inputs"), tmp_path / name, "--quiet")
        assert result.exit_code == 2, result.output
        assert text in result.output.replace("\n", "")


def test_what_the_system_says_of_a_file_is_one_line(tmp_path, monkeypatch):
    def refuses(path, data):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "write_bytes", refuses)
    result = run("export", "torch:sin", tmp_path / "x.jaxexport", "--shape", "3", "--quiet")
    assert result.exit_code == 2, result.output
    assert "cannot be written: Permission denied" in result.output.replace("\n", "")
