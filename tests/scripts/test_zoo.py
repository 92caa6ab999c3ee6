"""The script that compares whole libraries of models: what it chooses, what it keeps, and a model of each kind."""

import jax
import pytest
import torch

from scripts.models import choice, diffusion, worker
from scripts.models.alone import Absent
from scripts.models.answers import ANSWERS, Answers
from scripts.models.exports import Loading
from scripts.models.outcome import Outcome
from scripts.models.page import page, read, read_rows, summary
from scripts.models.reference import by_formula
from scripts.models.training import Training
from scripts.models.variation import vary
from scripts.zoo import wanted
from torch2jax import t2j

AGREES = Outcome("torchvision:alexnet", 61_000_000, 1e-6, 2e-6, 0.5, 1.5, 1234, True)
FAILS = Outcome("timm:a_b", 5, None, failure="outputs: E: a|`b`")
ROUNDED = Outcome("timm:c", 5, 1e-16, 1e-15, 0.5, 1.5, 12, True, note="in single precision: outputs: 1e-01 in output 0")
ABSENT = Outcome("transformers:x", pytorch=False, failure="ValueError: no")
OUTCOMES = {outcome.spec: outcome for outcome in (AGREES, FAILS, ROUNDED, ABSENT)}
SPECS = [*OUTCOMES, "scripts.models.diffusion:VQModel"]


def test_the_page_is_what_is_kept():
    text = "\n".join(page(OUTCOMES, SPECS))
    found = read(text)
    assert found["torchvision:alexnet"] == AGREES
    assert found["timm:a_b"].failure == "outputs: E: a/'b'"
    assert found["timm:c"] == ROUNDED
    assert found["transformers:x"] == ABSENT
    assert "\n".join(page(found, SPECS)) == text
    assert "| all | 5 | 4 | 3 | 2 | 66.7 | 2 |  |" in summary(found, SPECS)


def test_the_page_keeps_the_rows_of_its_sections():
    rows = {
        "train": {"speech": Training("speech", "Model", 5, (2.0, 1.0), 1e-9).row()},
        "load": {
            "torchvision:alexnet": Loading("torchvision:alexnet", 10_000, 2_000_000, 0.0).row(),
            "timm:c": Loading("timm:c", failure="E: a|b").row(),
            "timm:d": Loading("timm:d", 10_000, 2_000_000, 0.5).row(),
        },
    }
    text = "\n".join(page(OUTCOMES, SPECS, rows))
    assert read_rows(text) == rows
    assert "\n".join(page(read(text), SPECS, read_rows(text))) == text
    assert not any(read_rows("\n".join(page(OUTCOMES, SPECS))).values())
    assert "| all | 5 | 4 | 3 | 2 | 66.7 | 2 | 1 of 3 |" in summary(OUTCOMES, SPECS, rows)


def test_a_program_is_loaded_without_pytorch():
    found = worker._loading(f"{__name__}:linear")
    assert found.agrees
    assert found.difference == 0
    assert found.program > 100
    for name in ("torch", "torch.nn", "torch2jax", "torchvision.ops"):
        with pytest.raises(ModuleNotFoundError, match=name):
            Absent().find_spec(name)
    assert Absent().find_spec("safetensors") is None


def test_what_is_wanted():
    assert wanted(SPECS, OUTCOMES, "", None) == SPECS[4:]
    assert wanted(SPECS, OUTCOMES, "", "failed") == [SPECS[1], *SPECS[3:]]
    assert wanted(SPECS, OUTCOMES, "timm", "all") == SPECS[1:3]


def test_small_models_are_chosen():
    assert choice._smallest(["resnet50", "resnet101", "resnet18"]) == "resnet18"
    assert choice._smallest(["vit_h_14", "vit_b_16"]) == "vit_b_16"
    assert choice._smallest(["a_base", "a_tiny_large", "a_small"]) == "a_tiny_large"
    choice.define_vision_operators()
    pytest.importorskip("torchvision")
    assert len(choice._torchvision()) > 25


@pytest.mark.parametrize("name", ["VQModel", "DDIMScheduler"])
def test_a_model_of_diffusers(name):
    choice.define_vision_operators()
    pytest.importorskip("diffusers")
    assert name in diffusion.names()
    model, inputs = getattr(diffusion, name)()
    result = model(*inputs)
    assert isinstance(result if isinstance(result, torch.Tensor) else result[0], torch.Tensor)


def linear():
    return torch.nn.Linear(2, 1), (torch.ones(1, 2),)


def test_a_model_is_compared_and_exported():
    found = worker._outcome(f"{__name__}:linear")
    assert found.agrees, found.failure
    assert found.exports
    assert (found.parameters, bool(found.operations), found.gradient is not None) == (3, True, True)


class Chaotic(torch.nn.Linear):
    def forward(self, x):
        return torch.sin(1e7 * super().forward(x).exp())


def chaotic():
    torch.manual_seed(0)
    return Chaotic(64, 8), (torch.randn(4, 64),)


def test_what_rounding_decides_is_compared_in_double_precision():
    found = worker._outcome(f"{__name__}:chaotic")
    assert found.agrees, found.failure
    assert found.note.startswith("in single precision: outputs: ")
    assert found.forward < 1e-6


class Single(Chaotic):
    def forward(self, x):
        if x.dtype == torch.float64:
            raise RuntimeError("no double precision")
        return super().forward(x)


def single():
    torch.manual_seed(0)
    return Single(64, 8), (torch.randn(4, 64),)


def test_what_takes_no_double_precision_is_said_to_differ():
    found = worker._outcome(f"{__name__}:single")
    assert found.failure.startswith("outputs: ")
    assert not found.note


def test_batch_norm_by_its_formula_is_pytorchs_alone():
    norm, x = torch.nn.BatchNorm2d(3), torch.randn(2, 3, 4, 5)
    vary(norm.eval())
    expected, graph = norm(x), str(jax.make_jaxpr(t2j(norm))(t2j(x)))
    with by_formula():
        assert "AddBackward" in _operations(norm(x))
        torch.testing.assert_close(norm(x), expected)
        assert str(jax.make_jaxpr(t2j(norm))(t2j(x))) == graph
    assert "AddBackward" not in _operations(norm(x))


def _operations(result) -> str:
    """The names of the operations that a result comes from."""
    found, left = "", [result.grad_fn]
    while left:
        node = left.pop()
        if node is not None:
            found += node.name()
            left += [before for before, _ in node.next_functions]
    return found


def test_what_begins_at_a_constant_is_moved():
    model = torch.nn.Sequential(torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 8))
    linear, batches = model[1].weight.clone(), model[0].num_batches_tracked.clone()
    vary(model)
    assert torch.equal(model[1].weight, linear)
    assert torch.equal(model[0].num_batches_tracked, batches)
    for tensor, begins in ((model[0].weight, 1), (model[0].bias, 0), (model[0].running_mean, 0)):
        assert 0 < (tensor - begins).abs().max() < 0.5
    assert (model[0].running_var > 1).all()


def test_what_is_too_large_is_left_out(monkeypatch):
    monkeypatch.setattr(worker, "_PARAMETERS", 2)
    found = worker._outcome(f"{__name__}:linear")
    assert (found.pytorch, found.failure) == (False, "too large to be compared here")


def branching():
    class Branching(torch.nn.Module):
        def forward(self, x):
            return x * float(str(x.detach().sum().item()))

    return Branching(), (torch.ones(2),)


def refusing():
    return torch.nn.Linear(2, 1), (torch.ones(1, 3),)


def test_what_fails_has_its_reason():
    found = worker._outcome(f"{__name__}:branching")
    assert found.pytorch
    assert "TracedValueError" in found.failure
    found = worker._outcome(f"{__name__}:refusing")
    assert not found.pytorch
    assert found.failure.startswith("RuntimeError: PyTorch itself fails")
    assert not worker._outcome(f"{__name__}:nothing").pytorch


def test_what_runs_out_is_tried_in_another_way(monkeypatch):
    tried = []

    def each(run, specs, batch, timeout):
        for spec in specs:
            tried.append((spec, run.keywords["way"]))
            ends = spec == "transformers:large" and run.keywords["way"] is worker._WAYS[0]
            yield spec, "the process ended" if ends else Outcome(spec, failure="an error" if spec == "timm:a" else "")

    monkeypatch.setattr(worker, "each", each)
    found = list(worker.outcomes(["transformers:large", "transformers:small", "timm:a"], 1))
    assert [outcome.spec for outcome in found] == ["transformers:small", "transformers:large", "timm:a"]
    assert [outcome.agrees for outcome in found] == [True, True, False]
    assert [spec for spec, way in tried if way is worker._WAYS[1]] == ["transformers:large", "timm:a"]


def drawing():
    class Drawing(torch.nn.Module):
        def forward(self, x):
            return x + torch.randn(2)

    return Drawing(), (torch.ones(2),)


def test_what_draws_is_not_compared():
    found = worker._outcome(f"{__name__}:drawing")
    assert not found.agrees
    assert "random: values not compared" in found.failure
    assert found.exports


def test_answers_are_told(monkeypatch):
    spec = f"{__name__}:asking"
    assert not worker._outcome(spec).agrees
    monkeypatch.setitem(ANSWERS, spec, Answers({"test_zoo.py:forward": False}, "whether it is large"))
    found = worker._outcome(spec)
    assert found.agrees, found.failure
    assert f"| {spec} | `test_zoo.py:forward=False` | whether it is large |" in page({spec: found}, [])


def asking():
    class Asking(torch.nn.Module):
        def forward(self, x):
            return x[torch.nonzero(x > 9)] if (x > 9).any() else x * 2

    return Asking(), (torch.ones(2),)
