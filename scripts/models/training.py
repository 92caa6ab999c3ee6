"""Trains a small model in PyTorch and its translation in JAX, and tells how far they come apart."""

import dataclasses

import jax
import jax.numpy as jnp
import torch

from scripts.models.families import FAMILIES
from scripts.models.variation import vary
from torch2jax import t2j
from torch2jax.tensors.trees import map_arguments
from torch2jax.tools.models import Subject
from torch2jax.tools.trial import Trial

__all__ = ["HEAD", "STEPS", "Training", "doubled", "train"]

HEAD = "| family | model | parameters | first loss | last loss | loss | parameters moved | buffers | what fails |"
STEPS = 20
_RATE, _MOMENTUM = 1e-2, 0.9
_TOLERANCE = 1e-6


@dataclasses.dataclass
class Training:
    """How a model was trained.

    Attributes:
        family: its name in `FAMILIES`.
        model: the class.
        parameters: how many.
        losses: PyTorch's first and last.
        loss: the largest relative difference of a loss.
        moved: the largest difference of a parameter, relative to the way that the farthest has gone.
        buffers: the same for buffers, relative to the largest element of each.
        failure: why there is nothing to compare.
    """

    family: str
    model: str = ""
    parameters: int = 0
    losses: tuple[float, float] = (0.0, 0.0)
    loss: float = 0.0
    moved: float = 0.0
    buffers: float = 0.0
    failure: str = ""

    @property
    def agrees(self) -> bool:
        learned = self.losses[1] < self.losses[0]
        return not self.failure and learned and max(self.loss, self.moved, self.buffers) < _TOLERANCE

    def row(self) -> str:
        """The line of the table."""
        if self.failure:
            return f"| {self.family} | {self.model} | {'| ' * 6}`{self.failure.replace('|', '/')}` |"
        numbers = [f"{x:.4g}" for x in self.losses] + [f"{x:.0e}" for x in (self.loss, self.moved, self.buffers)]
        return f"| {self.family} | {self.model} | {self.parameters:,} | {' | '.join(numbers)} |  |"


def train(family: str, steps: int = STEPS) -> Training:
    """Steps of SGD with momentum on one batch, in training mode without dropout, in double precision.

    In single precision batch norms over a few values amplify what rounding makes, in PyTorch as here. The loss is how
    far the outputs are from random ones.
    """
    torch.manual_seed(0)
    model, args, kwargs = FAMILIES[family]()
    vary(model)
    found = Training(family, type(model).__name__, sum(parameter.numel() for parameter in model.parameters()))
    args, kwargs = map_arguments(doubled, (args, kwargs))
    trial = Trial(Subject(family, model.double(), args, kwargs), training=True)
    with torch.no_grad():
        outputs, *_ = trial.pytorch()(trial.inputs)
    targets = {name: torch.randn_like(x) for name, x in outputs.items() if x.is_floating_point()}
    begin = {name: tensor.clone() for name, tensor in trial.state().items()}
    expected, state = _in_pytorch(trial, targets, steps)
    with jax.enable_x64(True):
        actual, arrays = _in_jax(trial, targets, begin, steps)
        arrays = {name: torch.from_numpy(jax.device_get(array).copy()) for name, array in arrays.items()}
    found.losses = expected[0], expected[-1]
    found.loss = max(abs(a - e) / abs(e) for a, e in zip(actual, expected, strict=True))
    names = trial.leaves().keys() - trial.inputs.keys()
    way = max(_far(state[name], begin[name]) for name in names)
    found.moved = max(_far(arrays[name], state[name]) for name in names) / way
    rest = [name for name in state if name not in names and state[name].numel()]
    found.buffers = max((_far(arrays[x], state[x]) / (state[x].abs().max().item() or 1) for x in rest), default=0.0)
    return found


def doubled(leaf):
    is_float = isinstance(leaf, torch.Tensor) and leaf.is_floating_point()
    return leaf.double() if is_float else leaf


def _far(a: torch.Tensor, b: torch.Tensor) -> float:
    return (a.double() - b.double()).abs().max().item() if a.numel() else 0.0


def _in_pytorch(trial: Trial, targets, steps: int) -> tuple[list[float], dict[str, torch.Tensor]]:
    run, losses, optimizer, tensors = trial.pytorch(), [], None, {}
    for _ in range(steps):
        outputs, buffers, parameters = run(trial.inputs)
        optimizer = optimizer or torch.optim.SGD(parameters.values(), _RATE, _MOMENTUM)
        loss = sum((outputs[name] - target).square().mean() for name, target in targets.items())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        tensors = {**parameters, **buffers}
    return losses, {name: tensor.detach() for name, tensor in tensors.items()}


def _in_jax(trial: Trial, targets, begin, steps: int) -> tuple[list[float], dict[str, jax.Array]]:
    wanted, inputs = t2j(targets), t2j(trial.inputs)
    state = {name: jnp.array(t2j(tensor)) for name, tensor in begin.items()}
    names = trial.leaves().keys() - trial.inputs.keys()

    def loss(parameters, state, inputs):
        outputs, buffers = trial.jax(
            {**state, **parameters}, inputs, jax.random.key(0)
        )  # for draws that decide nothing
        return sum(jnp.square(outputs[name] - target).mean() for name, target in wanted.items()), buffers

    @jax.jit
    def step(state, velocity, inputs):
        parameters = {name: state[name] for name in names}
        (value, buffers), gradients = jax.value_and_grad(loss, has_aux=True)(parameters, state, inputs)
        velocity = {name: _MOMENTUM * velocity[name] + gradients[name] for name in names}
        moved = {name: parameters[name] - _RATE * velocity[name] for name in names}
        return value, {**state, **buffers, **moved}, velocity

    velocity, losses = {name: jnp.zeros_like(state[name]) for name in names}, []
    for _ in range(steps):
        value, state, velocity = step(state, velocity, inputs)
        losses.append(float(value))
    return losses, state
