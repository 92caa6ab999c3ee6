"""Models with their inputs: from Python objects, and from specs such as ``torchvision:resnet18``."""

import contextlib
import dataclasses
import functools
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch

from ..modules.checkpoints import tensors_of
from ..runtime.errors.locations import how_to_install, nearest
from ..tensors.trees import map_arguments

_IDS_BELOW = 8
_FORMS = (
    "wanted FILE.py (its model and inputs), FILE.py:NAME or package.module:NAME; transformers:TYPE or "
    "transformers:FILE.json; torchvision:NAME or timm:NAME"
)
_LENGTH, _PADDING = 16, 4
_MOST_PARAMETERS = 150_000_000
_SIZES = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "head_dim": 16,
}


class SpecError(ValueError):
    """A model, a shape or a file that the user named cannot be used; the message is one line."""


class TranslationError(RuntimeError):
    """A model cannot be translated, or its translation cannot be compiled, run or exported; see the cause."""


@dataclasses.dataclass
class Subject:
    """A PyTorch callable and its arguments.

    Args:
        name: the spec it was built from.
        target: a module, or a function of tensors.
        args: positional arguments.
        kwargs: keyword arguments.
        branches: which branch to take on traced conditions; see `t2j`.
    """

    name: str
    target: torch.nn.Module | Callable
    args: tuple = ()
    kwargs: dict[str, Any] = dataclasses.field(default_factory=dict)
    branches: Mapping[str, bool] = dataclasses.field(default_factory=dict)

    @property
    def module(self) -> torch.nn.Module | None:
        """The target if it is a module, else None."""
        return self.target if isinstance(self.target, torch.nn.Module) else None

    def describe_inputs(self) -> str:
        """The inputs as ``float32[1,3,224,224], mask=bool[1,7]``."""
        parts = [_describe(value) for value in self.args]
        return ", ".join(parts + [f"{name}={_describe(value)}" for name, value in self.kwargs.items()])


def _describe(value: object) -> str:
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}".replace(" ", "")
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_describe, value))}]"
    return repr(value)


def first_line(error: BaseException) -> str:
    """The first line of an error's message, or its type."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def error_text(error: BaseException) -> str:
    """The first line of an error, with notes of advice, but without those about tracebacks."""
    notes = [note for note in getattr(error, "__notes__", ()) if not note.startswith("---")]
    return "\n".join([first_line(error), *notes])


@contextlib.contextmanager
def translating(what: str) -> Iterator[None]:
    """Turns an error of the code within into a `TranslationError` with the message `what`."""
    try:
        yield
    except (SpecError, TranslationError):
        raise
    except Exception as error:
        raise TranslationError(f"{what}: {type(error).__name__}: {error_text(error)}") from error


@contextlib.contextmanager
def refusing_bad_inputs(subject: Subject) -> Iterator[None]:
    """Turns an error of PyTorch's own into a `SpecError`: there is nothing to translate."""
    try:
        yield
    except Exception as error:
        raise SpecError(f"PyTorch itself fails on {subject.describe_inputs()}: {first_line(error)}") from error


def build(
    spec: str,
    *,
    shapes: Sequence[str] = (),
    inputs: str | Path | None = None,
    weights: str | Path | None = None,
    dtype: str | None = None,
) -> Subject:
    """Builds the model of a spec, such as ``torchvision:resnet18`` or ``my_package.models:make``. Downloads nothing.

    Args:
        spec: what to build, as on the command line.
        shapes: the shapes of random inputs, such as ``1,3,224,224`` or ``1,16:int64``; by default the model's own
            examples.
        inputs: a file that holds the inputs instead.
        weights: a file or folder that holds the weights, as for `torch2jax.load_state`; by default they are random.
        dtype: the dtype to cast the module and its floating-point inputs to, such as ``bfloat16``.

    Raises:
        SpecError: with a message of one line.
    """
    args, kwargs = tensors_of_shapes(shapes), {}
    if inputs is not None:
        if shapes:
            raise SpecError("give --shape or --input, not both")
        args, kwargs = _read_inputs(Path(inputs))
    torch.manual_seed(0)
    subject = _built(spec, bool(args or kwargs))
    if args or kwargs:
        subject.args, subject.kwargs = _fill(subject, args, kwargs)
    if not subject.args and not subject.kwargs:
        raise SpecError(f"{spec} has no example inputs of its own: give --shape or --input")
    if weights is not None:
        _load_weights(subject, Path(weights))
    if dtype is not None:
        _cast(subject, dtype)
    return subject


def subject_of(
    target: Subject | torch.nn.Module | Callable | str, args: tuple = (), kwargs: Mapping[str, object] | None = None
) -> Subject:
    """The model and inputs that a tool is given.

    Raises:
        SpecError: it is none of these, or there are no inputs.
    """
    if isinstance(target, Subject):
        return target
    if isinstance(target, str):
        subject = _built(target, True) if args or kwargs else build(target)
    elif callable(target):
        subject = Subject(getattr(target, "__qualname__", type(target).__name__), target)
    else:
        raise SpecError(f"got a {type(target).__name__}; wanted a module, a function of tensors, or a spec")
    if args or kwargs:
        subject.args, subject.kwargs = tuple(args), dict(kwargs or {})
    if not subject.args and not subject.kwargs:
        raise SpecError(f"got no inputs for {subject.name}: give them as args=(tensor,), or by name as kwargs={{...}}")
    return subject


def _fill(subject: Subject, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
    """The given arguments; a model whose inputs go by name takes positional ones in that order."""
    if kwargs or not subject.kwargs:
        return args, kwargs
    if len(args) > len(subject.kwargs):
        raise SpecError(f"got {len(args)} inputs; {subject.name} takes {', '.join(subject.kwargs)}")
    filled = {}
    for name, value in zip(subject.kwargs, args, strict=False):
        wanted = subject.kwargs[name].dtype
        filled[name] = value if value.dtype == wanted else value.abs().to(wanted)
    return (), filled


def _built(spec: str, has_inputs: bool) -> Subject:
    library, _, name = spec.partition(":")
    if library in _LIBRARIES and name:
        define_vision_operators()
        try:
            return _LIBRARIES[library](name)
        except ModuleNotFoundError as error:
            raise SpecError(f"{spec} needs {error.name or library}: {how_to_install('models')}") from None
    where, _, name = (spec, "", "model") if spec.endswith(".py") else spec.rpartition(":")
    if not where or not name:
        raise SpecError(f"cannot tell what {spec!r} is: {_FORMS}")
    return _of_code(where, name, has_inputs)


# Models of libraries.


@functools.cache
def define_vision_operators() -> bool:
    """Makes torchvision importable, if it is installed, though its compiled library does not load beside this build of
    PyTorch.

    The library defines operators that the package looks up when it is imported; their schemas are enough for that.
    Other libraries import torchvision when it is installed, so this comes before them.

    Returns whether that was necessary.
    """
    try:
        importlib.import_module("torchvision")
    except ModuleNotFoundError:
        return False
    except RuntimeError as error:
        if "torchvision::" not in str(error):
            raise
        for name in ("nms", "qnms"):
            schema = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
            torch.library.define(f"torchvision::{name}", schema)
        importlib.import_module("torchvision")
        return True
    return False


def _torchvision(name: str) -> Subject:
    """A model of torchvision with random weights, on one random image."""
    from torchvision import models

    if name not in models.list_models():
        raise SpecError(f"torchvision has no model {name!r}{nearest(name, models.list_models())}")
    takes = inspect.signature(models.get_model_builder(name)).parameters
    options = {"weights_backbone": None} if "weights_backbone" in takes else {}
    model = models.get_model(name, weights=None, **options)
    return Subject(f"torchvision:{name}", model, tensors_of_shapes(["1,3,224,224"]))


def _timm(name: str) -> Subject:
    """A model of timm with random weights, on one random image of the size it was made for."""
    import timm
    from timm.data.config import resolve_model_data_config

    if not timm.is_model(name):
        raise SpecError(f"timm has no model {name!r}{nearest(name, timm.list_models())}")
    model = timm.create_model(name, pretrained=False)
    sizes = resolve_model_data_config(model)["input_size"]
    return Subject(f"timm:{name}", model, tensors_of_shapes([",".join(map(str, (1, *sizes)))]))


def _transformers(name: str) -> Subject:
    """A model of transformers with random weights, with few narrow layers unless a file has its configuration."""
    import transformers

    transformers.logging.set_verbosity_error()
    path = Path(name)
    try:
        if path.suffix == ".json" or path.is_dir():
            config = transformers.AutoConfig.from_pretrained(path, local_files_only=True)
            model_class = getattr(transformers, next(iter(config.architectures or ()), ""), None)
        else:
            config_class, model_class = _transformers_classes(name, transformers)
            config = _small(config_class)

        def make():
            return model_class._from_config(config) if model_class else transformers.AutoModel.from_config(config)

        if path.suffix != ".json" and not path.is_dir():
            with torch.device("meta"):
                count = sum(parameter.numel() for parameter in make().parameters())
            if count > _MOST_PARAMETERS:
                raise SpecError(f"its default configuration has {count:,} parameters; write a smaller one to a file")
        model = make().eval()
    except SpecError:
        raise
    except Exception as error:
        raise SpecError(f"transformers:{name} cannot be built: {first_line(error)}") from None
    return Subject(f"transformers:{name}", model, kwargs=_transformers_inputs(model))


def _transformers_classes(name: str, transformers: Any) -> tuple[Any, Any]:
    """The classes of a configuration and, where a model class is named, of the model."""
    if name in transformers.CONFIG_MAPPING.keys():  # noqa: SIM118  (it is no plain dict)
        return transformers.CONFIG_MAPPING[name], None
    found = getattr(transformers, name, None) if name.isidentifier() else None
    if isinstance(found, type) and issubclass(found, transformers.PretrainedConfig):
        return found, None
    if isinstance(found, type) and issubclass(found, transformers.PreTrainedModel) and found.config_class:
        return found.config_class, found
    raise SpecError(
        f"transformers has no model type, configuration or model {name!r}"
        f"{nearest(name, transformers.CONFIG_MAPPING.keys())}"
    )


def _small(config_class: type) -> object:
    """A configuration of few narrow layers, where it has the usual sizes under any of its names for them."""
    default = config_class()
    names = {default.attribute_map.get(name, name): size for name, size in _SIZES.items()}
    return config_class(**{name: size for name, size in names.items() if type(getattr(default, name, None)) is int})


def _transformers_inputs(model: Any) -> dict[str, torch.Tensor]:
    """Random words, the last of them padding, or a random image; nothing for models with other inputs."""
    config, taken = model.config, inspect.signature(model.forward).parameters
    generator = torch.Generator().manual_seed(0)
    if model.main_input_name == "pixel_values":
        size, channels = getattr(config, "image_size", 224), getattr(config, "num_channels", 3)
        sizes = size if isinstance(size, (list, tuple)) else (size, size)
        return {"pixel_values": torch.randn(1, channels, *sizes, generator=generator)}
    if model.main_input_name != "input_ids":
        return {}
    below = config.get_text_config().vocab_size
    names = ["input_ids", *(["decoder_input_ids"] if config.is_encoder_decoder else [])]
    inputs = {name: torch.randint(below // 2, below, (1, _LENGTH), generator=generator) for name in names}
    if "attention_mask" in taken:  # models leave out one of ones
        inputs["attention_mask"] = (torch.arange(_LENGTH) < _LENGTH - _PADDING)[None].long()
    return {name: inputs[name] for name in taken if name in inputs}


_LIBRARIES: dict[str, Callable[[str], Subject]] = {
    "timm": _timm,
    "torchvision": _torchvision,
    "transformers": _transformers,
}

# Models of your own code.


def _of_code(where: str, name: str, has_inputs: bool) -> Subject:
    """The object under a name in a module or file."""
    module, spec = (_of_file(Path(where)) if where.endswith(".py") else _imported(where)), f"{where}:{name}"
    found = module
    for part in name.split("."):
        if not hasattr(found, part):
            raise SpecError(f"{where} has no {name}{nearest(part, [x for x in dir(found) if not x.startswith('_')])}")
        found = getattr(found, part)
    if not callable(found):
        raise SpecError(f"{spec} is {type(found).__name__}; wanted a module, a function, or a factory")
    inputs = getattr(module, "inputs", None) if where.endswith(".py") else None
    subject = _called(spec, found, has_inputs or inputs is not None)
    if not (subject.args or subject.kwargs):
        subject.args, subject.kwargs = _as_arguments(() if inputs is None else inputs)
    return subject


def _as_arguments(value: object) -> tuple[tuple, dict[str, object]]:
    """A tensor, a tuple or list of positional arguments, or a dict of keyword ones."""
    if isinstance(value, dict):
        return (), value
    return tuple(value) if isinstance(value, (list, tuple)) else (value,), {}


def _of_file(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if not path.is_file() or spec is None or spec.loader is None:
        raise SpecError(f"no file {path}")
    sys.path.insert(0, str(path.parent))  # as `python FILE` does
    module = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _imported(name: str) -> ModuleType:
    if "" not in sys.path:
        sys.path.insert(0, "")  # as `python -m` does
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = error.name or name
    if not f"{name}.".startswith(f"{missing}."):
        raise SpecError(f"no module named {missing}, which {name} imports")
    raise SpecError(
        f"no module named {missing}: modules are looked for in {Path.cwd()} and in this environment; run the command "
        "in the folder that holds it, or name that by PYTHONPATH"
    )


def _called(name: str, found: Callable, has_inputs: bool) -> Subject:
    """The module itself, or what a class or function without parameters makes: the module, and perhaps its inputs."""
    if isinstance(found, torch.nn.Module):
        return Subject(name, found)
    if not isinstance(found, type) and (_requires_arguments(found) or (has_inputs and _parameters(found))):
        return Subject(name, found)
    try:
        made = found()
    except TypeError as error:
        raise SpecError(f"{name} cannot be called without arguments: {error}") from None
    if isinstance(made, tuple) and made and isinstance(made[0], torch.nn.Module):
        given = made[1] if len(made) == 2 and isinstance(made[1], (tuple, dict)) else made[1:]
        return Subject(name, made[0], *_as_arguments(given))
    if isinstance(made, torch.nn.Module):
        return Subject(name, made)
    raise SpecError(f"{name}() gave {type(made).__name__}; wanted a module, or a tuple of a module and its inputs")


def _parameters(function: Callable) -> list[inspect.Parameter]:
    try:
        return list(inspect.signature(function).parameters.values())
    except ValueError:  # compiled functions tell no signature
        return [inspect.Parameter("input", inspect.Parameter.POSITIONAL_ONLY)]


def _requires_arguments(function: Callable) -> bool:
    variable = inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL
    return any(x.default is x.empty and x.kind not in variable for x in _parameters(function))


# What options say.


def read_branches(texts: list[str]) -> dict[str, bool]:
    """The answers to conditions on traced values, by place, from texts such as ``model.py:forward=False``."""
    branches = {}
    for text in texts:
        location, _, given = text.rpartition("=")
        file, colon, at = location.rpartition(":")
        is_valid = file and at if colon else at.isidentifier()
        if not is_valid or given.lower() not in ("true", "false"):
            raise SpecError(
                f"bad answer {text!r}: wanted FUNCTION=BOOL, FILE:FUNCTION=BOOL or FILE:LINE=BOOL, "
                "as model.py:forward=False"
            )
        branches[location] = given.lower() == "true"
    return branches


def tensors_of_shapes(texts: Sequence[str]) -> tuple[torch.Tensor, ...]:
    """Random tensors for shapes such as ``1,3,224,224`` or ``1,16:int64``, the same ones in every run."""
    generator = torch.Generator().manual_seed(0)
    return tuple(_random(*_parse(text), generator) for text in texts)


def _parse(text: str) -> tuple[tuple[int, ...], torch.dtype]:
    sizes, _, name = text.partition(":")
    dtype = getattr(torch, name or "float32", None)
    if not isinstance(dtype, torch.dtype):
        raise SpecError(f"bad shape {text!r}: {name!r} is no dtype of PyTorch")
    try:
        shape = tuple(int(size) for size in sizes.split(",")) if sizes else ()
    except ValueError:
        raise SpecError(f"bad shape {text!r}: wanted sizes such as 1,3,224,224 or 1,16:int64") from None
    if any(size < 0 for size in shape):
        raise SpecError(f"bad shape {text!r}: sizes cannot be negative")
    return shape, dtype


def _random(shape: Sequence[int], dtype: torch.dtype, generator: torch.Generator) -> torch.Tensor:
    if dtype.is_floating_point or dtype.is_complex:
        wide = dtype if dtype.is_complex else torch.float32
        return torch.randn(shape, generator=generator, dtype=wide).to(dtype)
    below = 2 if dtype == torch.bool else _IDS_BELOW
    return torch.randint(below, shape, generator=generator).to(dtype)


def _read_inputs(path: Path) -> tuple[tuple, dict[str, object]]:
    try:
        if path.suffix == ".npy":
            value = torch.from_numpy(np.load(path))
        elif path.suffix == ".npz":
            with np.load(path) as arrays:
                value = {name: torch.from_numpy(arrays[name]) for name in arrays.files}
        elif path.suffix == ".safetensors":
            value = dict(tensors_of(path))
        elif path.suffix in (".pt", ".pth"):
            value = torch.load(path, weights_only=True)
        else:
            raise SpecError(f"cannot tell what {path} holds: wanted .pt, .pth, .npy, .npz or .safetensors")
    except FileNotFoundError:
        raise SpecError(f"no input file {path}") from None
    except SpecError:
        raise
    except Exception as error:
        raise SpecError(f"cannot read the inputs in {path}: {first_line(error)}") from None
    return _as_arguments(value)


def _load_weights(subject: Subject, path: Path) -> None:
    """Gives a module all weights of a checkpoint; a folder is for its library, where that has a ``from_pretrained``."""
    module: Any = subject.module
    if module is None:
        raise SpecError(f"{subject.name} is a function: --weights is for modules")
    try:
        if path.is_dir() and hasattr(module, "from_pretrained"):
            subject.target = type(module).from_pretrained(path, local_files_only=True).train(module.training)
            return
        state = dict(tensors_of(path))
    except Exception as error:
        raise SpecError(f"cannot read the weights in {path}: {first_line(error)}") from None
    wanted = module.state_dict()
    for name in state:
        if name not in wanted:
            raise SpecError(f"the weights in {path} have {name!r}, and the module has not{nearest(name, wanted)}")
    memory = lambda tensor: (tensor.data_ptr(), tensor.shape, tensor.stride())
    given = {memory(tensor) for name, tensor in wanted.items() if name in state}  # files hold shared memory once
    for name, tensor in wanted.items():
        if name not in state and memory(tensor) not in given:
            raise SpecError(f"the weights in {path} have no {name!r}{nearest(name, state)}")
    try:
        module.load_state_dict(state, strict=False)
    except RuntimeError as error:
        raise SpecError(f"the weights in {path} do not fit: {str(error).strip().splitlines()[-1].strip()}") from None


def _cast(subject: Subject, dtype: str) -> None:
    found = getattr(torch, dtype, None)
    if not isinstance(found, torch.dtype) or not found.is_floating_point:
        raise SpecError(f"{dtype!r} is no dtype of floating point: wanted bfloat16, float16, float32 or float64")

    def leaf(value: object):
        return value.to(found) if isinstance(value, torch.Tensor) and value.is_floating_point() else value

    subject.args, subject.kwargs = map_arguments(leaf, (subject.args, subject.kwargs))
    if subject.module is not None:
        try:
            subject.module.to(found)
        except Exception as error:
            raise SpecError(f"{subject.name} cannot be cast to {dtype}: {first_line(error)}") from None
