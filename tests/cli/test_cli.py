"""The command line: what it builds, what it prints, and its exit codes."""

import io
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file, save_file
from torch import nn
from typer.testing import CliRunner

from torch2jax import implements
from torch2jax.tools.check import check
from torch2jax.tools.models import Subject, build
from torch2jax_cli.app import app
from torch2jax_cli.reports import fitted, plain_table

SHAPE = ("--shape", "4,8")


@torch.library.custom_op("test_cli::double", mutates_args=())
def double(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def unknown(x: torch.Tensor) -> torch.Tensor:
    return torch.ops.aten._test_optional_floatlist(x, [1.0, 2.0, 3.0])  # PyTorch's own tests have it, and no rule


@implements(torch.ops.test_cli.double)
def _(x):
    return x * 3  # wrong on purpose


@torch.library.custom_op("test_cli::ramp", mutates_args=())
def ramp(x: torch.Tensor) -> torch.Tensor:
    return (x - 1).clamp(min=0)


ramp.register_autograd(
    lambda ctx, gradient: gradient * (ctx.saved_tensors[0] > 1),
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
)


@implements(torch.ops.test_cli.ramp)
def _(x):
    return jnp.maximum(x - 1, 0)  # of slope 1/2 at the kink, where PyTorch's is 0


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(8)
        self.linear = nn.Linear(8, 3)
        self.dropout = nn.Dropout(0.5)

    def forward(self, x):
        return {"logits": self.dropout(self.linear(self.norm(x))), "scale": 2}


def with_inputs():
    return Net(), (torch.ones(4, 8),)


def with_named_inputs():
    return nn.Linear(8, 2), {"input": torch.ones(4, 8)}


def product(x, y):
    return x @ y, (x * x).sum()


class Scaled(nn.Module):
    def forward(self, x):
        return x * float(x.numpy().max()) if (x > 9).any() else x * 2


def tied():
    first, second = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
    second.weight = first.weight
    return nn.Sequential(first, second)


@torch.library.custom_op("test_cli::turned", mutates_args=())
def turned(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@implements(torch.ops.test_cli.turned)
def _(x):
    return x / 0  # wrong on purpose


def drawn_for_nothing(x):
    nn.Linear(2, 2)
    return x * 2


class Noise(nn.Module):
    def forward(self, x):
        return x + torch.randn_like(x)


def run(*arguments, columns: int | None = None):
    """What the command prints to a file, or to one that is said to have so many columns, wherever tests run."""
    width = {"COLUMNS": columns and str(columns), "FORCE_COLOR": None, "TTY_COMPATIBLE": None}
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], env=width)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def here(name: str) -> str:
    return f"{__name__}:{name}"


class TestCheck:
    def test_agreement_of_everything(self):
        result = run("check", here("Net"), *SHAPE, "--grad", "--vmap", "--train")
        assert result.exit_code == 0, result.output
        for text in ("agrees with PyTorch", "43 parameters", "float32[4,8]", "outputs", "gradients", "vmap"):
            assert text in result.output
        for text in ("training: outputs", "training: buffers", "training: gradients", "nn.functional.linear"):
            assert text in result.output

    @pytest.mark.parametrize("factory", ["with_inputs", "with_named_inputs"])
    def test_factory_gives_inputs(self, factory):
        assert run("check", here(factory), "--grad").exit_code == 0

    def test_function_of_several_inputs(self):
        result = run("check", here("product"), "--shape", "4,8", "--shape", "8,2", "--grad", "--vmap")
        assert result.exit_code == 0, result.output

    def test_compiled_function(self):
        assert run("check", "torch:sin", "--shape", "3", "--grad").exit_code == 0

    def test_disagreement(self):
        result = run("check", here("double"), "--shape", "3")
        assert result.exit_code == 1
        assert "differs from PyTorch" in result.output
        assert "differs, most in output 0" in result.output

    def test_operator_without_rule(self):
        result = run("check", here("unknown"), "--shape", "3")
        assert result.exit_code == 3
        assert "cannot be translated" in result.output
        assert "NoRuleError" in result.output

    def test_a_kink_at_which_the_other_slope_is_taken(self):
        report = check(Subject("ramp", ramp, (torch.ones(3),)), grad=True)
        assert report.passed
        assert report.checks[1].agreement.moved > 0.9
        report = check(Subject("ramp", ramp, (torch.full((3,), 2.0),)), grad=True)
        assert report.passed
        assert report.checks[1].agreement.moved == 0

    def test_tolerance(self):
        assert run("check", here("double"), "--shape", "3", "--tolerance", "1").exit_code == 0

    def test_random_values_are_not_compared(self):
        report = check(Subject("noise", Noise(), (torch.ones(3),)), train=True)
        assert [row.note.partition(":")[0] for row in report.checks] == ["random", "random"]
        report = check(Subject("drawn for nothing", drawn_for_nothing, (torch.ones(3),)))
        assert report.checks[0].agreement is not None
        assert report.passed

    def test_an_answer_is_told(self):
        model = (here("Scaled"), "--shape", "4")
        text = " ".join(run("check", *model).output.replace("│", " ").split())  # of lines that are wrapped
        assert "is never True, say so: t2j(..., branches={'test_cli.py:" in text
        for said in ("test_cli.py:forward=False", "forward=False"):
            result = run("check", *model, "--grad", "--branch", said)
            assert result.exit_code == 0, result.output
        for bad in ("test_cli.py=False", "test_cli.py:forward=maybe", "forward"):
            result = run("check", *model, "--branch", bad)
            assert result.exit_code == 2
            assert "FILE:FUNCTION=BOOL" in result.stderr

    def test_model_is_left_as_it_is(self):
        model = Net()
        before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        assert check(Subject("net", model, (torch.randn(4, 8),)), grad=True, train=True).passed
        assert model.training
        assert model.dropout.p == 0.5
        assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
        assert all(parameter.grad is None for parameter in model.parameters())


class TestInputs:
    @pytest.mark.parametrize("suffix", ["npy", "npz", "pt", "safetensors"])
    def test_file(self, tmp_path, suffix):
        path, array = tmp_path / f"inputs.{suffix}", np.ones((4, 8), np.float32)
        if suffix == "npy":
            np.save(path, array)
        elif suffix == "npz":
            np.savez(path, x=array)
        elif suffix == "pt":
            torch.save((torch.from_numpy(array),), path)
        else:
            from safetensors.torch import save_file

            save_file({"x": torch.from_numpy(array)}, path)
        assert run("check", here("Net"), "--input", path).exit_code == 0

    def test_dtype(self):
        result = run("check", "torch:bitwise_not", "--shape", "3:int64")
        assert result.exit_code == 0
        assert "int64[3]" in result.output


class TestSpecs:
    def test_file(self, tmp_path):
        path = tmp_path / "of_a_user.py"
        path.write_text(
            "import torch\nimport beside\n"
            "program = torch.export.export(torch.nn.Linear(8, 2).eval(), (torch.ones(4, 8),))\n"
            "model, inputs, pair = program.module(), torch.ones(4, 8), lambda x, y: x + y\n"
        )
        (tmp_path / "beside.py").write_text("")
        result = run("check", path, "--grad")
        assert result.exit_code == 0, result.output
        assert "float32[4,8]" in result.output
        assert run("check", path, "--train").exit_code == 2
        assert run("check", f"{path}:pair", "--shape", "3", "--shape", "3").exit_code == 0
        assert "has no modle (nearest: 'model'" in run("check", f"{path}:modle").stderr

    @pytest.mark.models
    def test_model_type_of_transformers(self):
        result = run("check", "transformers:bert")
        assert result.exit_code == 0, result.output
        assert "input_ids=int64[1,16]" in result.output

    @pytest.mark.models
    def test_configuration_file_of_transformers(self, tmp_path):
        values = {"model_type": "bert", "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
        values |= {"intermediate_size": 64, "vocab_size": 99, "architectures": ["BertForMaskedLM"]}
        (tmp_path / "config.json").write_text(json.dumps(values))
        result = run("check", f"transformers:{tmp_path / 'config.json'}", "--shape", "2,7")
        assert result.exit_code == 0, result.output
        assert "input_ids=int64[2,7]" in result.output

    @pytest.mark.models
    def test_folder_of_a_checkpoint(self, tmp_path):
        build("transformers:BertForMaskedLM").target.save_pretrained(tmp_path)
        saved = load_file(tmp_path / "model.safetensors")["bert.embeddings.word_embeddings.weight"]
        subject = build(f"transformers:{tmp_path}", weights=tmp_path)
        assert type(subject.target).__name__ == "BertForMaskedLM"
        assert torch.equal(subject.target.bert.embeddings.word_embeddings.weight, saved)
        result = run(
            "check", f"transformers:{tmp_path}", "--weights", tmp_path / "model.safetensors", "--dtype", "bfloat16"
        )
        assert result.exit_code == 0, result.output

    @pytest.mark.models
    @pytest.mark.parametrize("spec", ["torchvision:squeezenet1_1", "timm:test_resnet"])
    def test_image_models(self, spec):
        result = run("check", spec, "--shape", "1,3,64,64")
        assert result.exit_code == 0, result.output

    @pytest.mark.models
    @pytest.mark.parametrize(
        ("name", "inputs"), [("vit", ["pixel_values"]), ("t5", ["input_ids", "attention_mask", "decoder_input_ids"])]
    )
    def test_small_models_of_transformers(self, name, inputs):
        subject = build(f"transformers:{name}")
        assert list(subject.kwargs) == inputs
        subject.target(**subject.kwargs)

    @pytest.mark.models
    @pytest.mark.parametrize(("name", "message"), [("wav2vec2", "--shape or --input"), ("llava", "parameters")])
    def test_what_transformers_does_not_tell(self, name, message):
        with pytest.raises(ValueError, match=message):
            build(f"transformers:{name}")


class TestErrors:
    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["nonsense"], "cannot tell what 'nonsense' is"),
            (["no_such_module:thing"], "no module named no_such_module"),
            (["models/no_such.py:Net"], "no file models/no_such.py"),
            (["no_such.py"], "no file no_such.py"),
            (["torch:no_such_function"], "torch has no no_such_function"),
            (["torch.nn:Liner"], "nearest: 'Linear'"),
            (["torch:float32", "--shape", "3"], "wanted a module, a function, or a factory"),
            (["torchvision:resnet81"], "nearest: 'resnet18'"),
            (["timm:resnet81"], "nearest: 'resnet18'"),
            (["transformers:bertt"], "nearest: 'bert'"),
            (["model.pt2"], "wanted FILE.py (its model and inputs)"),
            (["torch:sin"], "give --shape or --input"),
            (["torch:sin", "--shape", "3,x"], "bad shape '3,x'"),
            (["torch:sin", "--shape", "-3"], "cannot be negative"),
            (["torch:sin", "--shape", "3:float31"], "no dtype of PyTorch"),
            (["torch:sin", "--input", "no_such_file.npy"], "no input file"),
            (["torch:sin", "--input", __file__], "cannot tell what"),
            (["torch:sin", "--shape", "3", "--input", "x.npy"], "not both"),
            (["torch:sin", "--shape", "3", "--train"], "is a function"),
            ([here("Net"), "--shape", "4,9"], "PyTorch itself fails on float32[4,9]"),
        ],
    )
    def test_one_line_and_exit_code_2(self, arguments, message):
        result = run("check", *arguments, "--quiet")
        assert result.exit_code == 2
        assert message in result.stderr
        assert result.stderr.count("\n") == 1
        assert not result.stdout


class TestOptions:
    def test_weights(self, tmp_path):
        model = nn.Linear(8, 2)
        for name in ("weights.pt", "weights.safetensors"):
            path, state = tmp_path / name, {key: x.detach() for key, x in model.state_dict().items()}
            torch.save(state, path) if name.endswith("pt") else save_file(state, path)
            subject = build(here("with_named_inputs"), weights=path)
            assert torch.equal(subject.target.weight, model.weight)
        assert run("check", here("with_named_inputs"), "--weights", path).exit_code == 0

    def test_tied_weights_are_in_a_file_once(self, tmp_path):
        path = tmp_path / "weights.safetensors"
        save_file({"0.weight": torch.ones(4, 4)}, path)
        subject = build(here("tied"), weights=path, shapes=["2,4"])
        assert subject.target[1].weight is subject.target[0].weight
        assert (subject.target[1].weight == 1).all()

    @pytest.mark.parametrize(
        ("state", "message"),
        [
            (
                {"weight": torch.ones(2, 8), "bais": torch.ones(2)},
                "have 'bais', and the module has not (nearest: 'bias'",
            ),
            ({"weight": torch.ones(2, 8)}, "have no 'bias'"),
            ({"weight": torch.ones(2, 9), "bias": torch.ones(2)}, "size mismatch for weight"),
            (None, "there is no such file"),
        ],
    )
    def test_weights_that_do_not_fit(self, tmp_path, state, message):
        if state is not None:
            torch.save(state, tmp_path / "weights.pt")
        result = run("check", here("with_named_inputs"), "--weights", tmp_path / "weights.pt")
        assert result.exit_code == 2
        assert message in result.stderr

    @pytest.mark.parametrize(("dtype", "shown"), [("bfloat16", "bfloat16[4,8]"), ("float64", "float64[4,8]")])
    def test_dtype(self, dtype, shown):
        result = run("check", here("Net"), *SHAPE, "--dtype", dtype, "--grad", "--json")
        report = json.loads(result.stdout)
        assert report["inputs"] == shown
        assert report["passed"]
        limit = 1e-12 if dtype == "float64" else 3e-2  # computed in 64 bits, then
        assert report["checks"][0]["agreement"]["relative"] < limit
        assert not jax.config.jax_enable_x64

    def test_dtype_is_of_floating_point(self):
        for dtype in ("int8", "bfloat17"):
            assert "no dtype of floating point" in run("check", here("Net"), *SHAPE, "--dtype", dtype).stderr

    def test_tolerance_is_not_negative(self):
        assert run("check", "torch:sin", "--shape", "3", "--tolerance", "-1").exit_code == 2
        with pytest.raises(ValueError, match="wanted a relative error"):
            check(torch.sin, (torch.ones(3),), tolerance=float("nan"))

    def test_json(self):
        report = json.loads(run("check", here("Net"), *SHAPE, "--grad", "--json").stdout)
        assert report["verdict"] == "agrees with PyTorch"
        assert [row["name"] for row in report["checks"]] == ["outputs", "gradients"]
        assert report["checks"][0]["times"]["compile"] > 0
        assert report["operators"]["torch-level rule"]["nn.functional.linear"] == 1
        failed = json.loads(run("check", here("unknown"), "--shape", "3", "--json").stdout)
        assert failed["verdict"] == "cannot be translated"
        assert failed["checks"][0]["error"].startswith("NoRuleError")
        refused = run("check", "nonsense", "--json")
        assert json.loads(refused.stdout)["exit_code"] == refused.exit_code == 2

    def test_what_is_not_finite_is_null(self):
        report = json.loads(run("check", here("turned"), "--shape", "2", "--json").stdout)
        assert report["checks"][0]["agreement"]["absolute"] is None

    def test_progress_is_a_line_for_each_step(self):
        lines = run("check", "torch:sin", "--shape", "3").stderr.splitlines()
        assert [line.partition("] ")[2] for line in lines] == [
            "importing PyTorch and JAX",
            "building torch:sin",
            *("running PyTorch", "tracing outputs", "compiling outputs", "running outputs"),
        ]
        assert not run("check", "torch:sin", "--shape", "3", "--quiet").stderr

    @pytest.mark.parametrize("columns", [60, 80, 200])
    def test_width(self, columns):
        result = run("check", here("Net"), *SHAPE, "--grad", "--quiet", columns=columns)
        lines = result.stdout.splitlines()
        assert max(map(len, lines)) == columns
        for text in ("abs error", "rel error", "PyTorch", "tensors", "agrees", "gradients", "nn.functional.linear"):
            assert text in result.stdout
        assert "…" not in result.stdout

    def test_cells_stay_whole(self):
        for width in range(20, 40):
            table = plain_table("trace", "compile", "run", "PyTorch")
            table.add_row("12.3 ms", "111.5 ms", "14 µs", "114.5 µs")
            console = Console(width=width, file=io.StringIO(), legacy_windows=False)
            with console.capture() as shown:
                console.print(fitted(table, console))
            assert all(text in shown.get() for text in ("12.3 ms", "114.5 µs", "PyTorch")), shown.get()
            assert "…" not in shown.get()


class TestOps:
    def test_pattern(self):
        result = run("ops", "nn.functional.*gelu*")
        assert result.exit_code == 0
        assert result.stdout.splitlines()[0].split() == ["nn.functional.gelu", "torch-level", "rule"]
        assert result.stdout.splitlines()[-1] == "1 operator: 1 torch-level rule"

    def test_part_of_a_name(self):
        assert "Tensor.relu_" in run("ops", "relu").output

    def test_everything(self):
        assert " operators: " in run("ops").stdout.splitlines()[-1]

    def test_aten(self):
        assert "aten.relu " in run("ops", "aten.relu*", "--aten").output

    def test_no_match(self):
        assert run("ops", "no_such_operator").exit_code == 2
