"""Specs of ``transformers:CONFIG``: a model type, a class, or a configuration file; always with random weights."""

import difflib
import importlib
import inspect
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from .guesses import guesses
from .small import small_configurations
from .subject import SpecError, Subject, first_line

__all__ = ["build_transformers"]

_PARAMETERS = 150_000_000  # that a configuration with random weights may have, unless the user names it


def build_transformers(name: str) -> Subject:
    """A model of transformers, small unless a configuration file says otherwise, with inputs for its signature.

    What is guessed is tried: it is the first configuration that a model can be made of, and that runs.
    """
    import transformers

    transformers.logging.set_verbosity_error()
    first: tuple | None = None
    failures: list[Exception] = []
    for config, model_class in _configurations(name, transformers):
        try:
            model = _model(config, model_class, first is not None or bool(failures), transformers)
        except Exception as error:
            failures.append(error)
            continue
        for inputs in guesses(model):
            first = first or (model, inputs)
            if _runs(model, inputs):
                return Subject(f"transformers:{name}", model, kwargs=inputs)
    if first is None:
        raise SpecError(f"transformers:{name} cannot be built: {first_line(failures[0])}") from None
    return Subject(f"transformers:{name}", first[0], kwargs=first[1])


def _model(config: Any, model_class: Any, bounded: bool, transformers: Any):
    """A model in evaluation mode; a bounded one, if it is not too large for an example."""

    def make():
        return model_class._from_config(config) if model_class else transformers.AutoModel.from_config(config)

    if bounded:
        with torch.device("meta"):
            parameters = sum(parameter.numel() for parameter in make().parameters())
        if parameters > _PARAMETERS:
            raise SpecError(f"{parameters:,} parameters are too many for an example")
    return make().eval()


def _runs(model: torch.nn.Module, inputs: dict[str, torch.Tensor]) -> bool:
    try:
        with torch.no_grad():
            model(**inputs)
    except Exception:
        return False
    return True


def _configurations(name: str, transformers: Any) -> Iterator[tuple[Any, Any]]:
    """Configurations to try, and the class of the model where it is not for `AutoModel` to decide."""
    path = Path(name)
    if path.suffix == ".json" or path.is_dir():
        yield _from_file(path / "config.json" if path.is_dir() else path, transformers)
        return
    config_class, model_class = _classes(name, transformers)
    try:
        for config in small_configurations(config_class):
            yield config, model_class
    except Exception as error:
        raise SpecError(f"{config_class.__name__} cannot be made small: {first_line(error)}") from None


def _classes(name: str, transformers: Any) -> tuple[Any, Any]:
    if name in transformers.CONFIG_MAPPING.keys():  # noqa: SIM118  (it is no plain dict)
        config_class = transformers.CONFIG_MAPPING[name]
        return config_class, None if config_class in transformers.MODEL_MAPPING else _of_configuration(config_class)
    found = getattr(transformers, name, None) if name.isidentifier() else None
    if isinstance(found, type) and issubclass(found, transformers.PretrainedConfig):
        return found, None
    if isinstance(found, type) and issubclass(found, transformers.PreTrainedModel) and found.config_class:
        return found.config_class, found
    near = difflib.get_close_matches(name, transformers.CONFIG_MAPPING.keys(), n=3)
    hint = f" (nearest: {', '.join(near)})" if near else ""
    raise SpecError(f"transformers has no model type, configuration or model {name!r}{hint}")


def _of_configuration(config_class: type) -> Any:
    """The model beside a configuration that `AutoModel` does not know: a part of a model, or one for a single use."""
    package = Path(inspect.getfile(config_class)).parent
    for file in sorted(package.glob("modeling_*.py")):
        try:
            module = importlib.import_module(f"{config_class.__module__.rpartition('.')[0]}.{file.stem}")
        except ImportError:
            continue
        for found in vars(module).values():
            is_model = isinstance(found, type) and getattr(found, "config_class", None) is config_class
            if is_model and found.forward is not torch.nn.Module.forward:  # which bases leave as it is
                return found
    return None


def _from_file(path: Path, transformers: Any) -> tuple[Any, Any]:
    try:
        values = json.loads(path.read_text())
        config = transformers.CONFIG_MAPPING[values["model_type"]].from_dict(values)
    except FileNotFoundError:
        raise SpecError(f"no configuration file {path}") from None
    except (KeyError, TypeError, ValueError) as error:
        raise SpecError(f"{path} is no configuration of a model: {first_line(error)}") from None
    architecture = next(iter(values.get("architectures") or ()), "")
    return config, getattr(transformers, architecture, None)
