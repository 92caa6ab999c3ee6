"""The models of the page: small ones of transformers, and inputs of torchvision's that take no single image."""

import difflib
import importlib
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from scripts.models.guesses import guesses
from scripts.models.small import small_configurations
from torch2jax.tools.models import SpecError, Subject, build, first_line, tensors_of_shapes

__all__ = ["build_transformers", "built"]

_PARAMETERS = 150_000_000  # that a configuration may have, but for the first
_DETECTORS = ("rcnn", "retinanet", "fcos", "ssd")


def built(spec: str) -> Subject:
    """The model of a spec, with example inputs."""
    library, _, name = spec.partition(":")
    if library == "transformers":
        torch.manual_seed(0)
        return build_transformers(name)
    if library != "torchvision":
        return build(spec)
    subject = build(spec, shapes=["1,3,299,299"] if name == "inception_v3" else [])
    module = type(subject.target).__module__
    if any(part in name for part in _DETECTORS):
        subject.args = ([subject.args[0][0]],)
    elif "optical_flow" in module:
        subject.args = tensors_of_shapes(["1,3,128,128"] * 2)  # from one image to the next
    elif "video" in module:
        subject.args = tensors_of_shapes(["1,3,16,224,224"])
    return subject


def build_transformers(name: str) -> Subject:
    """A small model of transformers, with inputs for its signature.

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
