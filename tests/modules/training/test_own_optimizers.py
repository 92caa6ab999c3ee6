"""Optimizers as people write them, within a step: what they keep, and when they make it, is as in PyTorch."""

import collections
import copy
import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from jax import lax
from torch.optim import Optimizer

from scripts.optimizers import train
from tests.modules.training.test_training_steps import QUICK
from torch2jax import t2j

STEPS = 7


def network() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Linear(3, 2)


def batch(k: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(k)
    return torch.randn(8, 3, generator=generator), torch.randn(8, 2, generator=generator)


# The kinds.


class Own(Optimizer):
    """The rule for one parameter is a method."""

    def __init__(self, params, lr=0.1, **options):
        super().__init__(params, {"lr": lr, **options})

    @torch.no_grad()
    def step(self, closure=None):
        del closure
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    self.update(p, p.grad, self.state[p], group)

    def update(self, p, g, state, group):
        raise NotImplementedError


class Waits(Own):
    def update(self, p, g, state, group):
        if "m" not in state:
            state["m"] = torch.zeros_like(p)
            return
        state["m"].mul_(0.9).add_(g)
        p.sub_(state["m"], alpha=group["lr"])


class ScalesFirst(Own):
    def update(self, p, g, state, group):
        if len(state) == 0:
            state["m"] = torch.zeros_like(p)
            p.mul_(0.5)
        state["m"].lerp_(g, 0.3)
        p.sub_(group["lr"] * state["m"])


class FirstGradient(Own):
    def update(self, p, g, state, group):
        if "m" not in state:
            state["m"] = g.clone()
        else:
            state["m"].mul_(0.5).add_(g)
        p.add_(state["m"], alpha=-group["lr"])


class Nested(Own):
    def update(self, p, g, state, group):
        if "G" not in state:
            state["G"] = {"a": torch.zeros_like(p), "b": [torch.ones_like(p), (torch.zeros_like(p), None)], 3: "name"}
        kept = state["G"]
        kept["a"].add_(g)
        kept["b"][0] = 0.9 * kept["b"][0] + g.square()
        kept["b"][1] = (kept["b"][1][0] + kept["a"], None)
        p.sub_(group["lr"] * (kept["a"] + kept["b"][1][0]) / kept["b"][0].sqrt())


class Flag(Own):
    def update(self, p, g, state, group):
        if not state.get("ready", False):
            state["m"], state["ready"] = g * 2, True
        state["m"].mul_(0.9).add_(g, alpha=0.1)
        p.sub_(group["lr"] * state["m"])


class FlagAlone(Own):
    """Nothing else tells its first step apart."""

    def update(self, p, g, state, group):
        if not state.get("seen"):
            state["seen"] = True
            p.mul_(0.9)
        p.sub_(g, alpha=group["lr"])


class FlagOfOptimizer(Own):
    def __init__(self, params):
        super().__init__(params)
        self.first, self.mode = True, "warm"

    def step(self, closure=None):
        self.scale = 0.5 if self.first else 1.0
        super().step(closure)
        self.first, self.mode = False, "hot"

    def update(self, p, g, state, group):
        p.sub_(g * (group["lr"] * self.scale * (2 if self.mode == "hot" else 1)))


class Toggles(Own):
    def __init__(self, params):
        super().__init__(params)
        self.even = True

    def step(self, closure=None):
        super().step(closure)
        self.even = not self.even

    def update(self, p, g, state, group):
        p.sub_(g if self.even else g.sign() * 0.1, alpha=group["lr"])


class GroupCounter(Own):
    def __init__(self, params):
        super().__init__(params, k=0, weight_sum=0.0)

    def step(self, closure=None):
        for group in self.param_groups:
            group["k"] += 1
            group["weight_sum"] += group["lr"] * group["k"]
        super().step(closure)

    def update(self, p, g, state, group):
        p.sub_(g * (group["lr"] / group["k"] ** 0.5 / (1 + group["weight_sum"])))


class CountsInState(Own):
    """Its counter stands beside the states of parameters."""

    def __init__(self, params):
        super().__init__(params)
        self.state["k"] = 0

    def step(self, closure=None):
        self.state["k"] += 1
        super().step(closure)

    def update(self, p, g, state, group):
        p.sub_(g * group["lr"] / self.state["k"])


class TakesBoth(Own):
    """It asks whether a weight is a tensor, and gives that the dtype of the parameters."""

    def __init__(self, params):
        super().__init__(params, k=0)

    def update(self, p, g, state, group):
        group["k"] += 1
        weight = 1 / (1 + group["k"])
        if isinstance(weight, torch.Tensor):
            weight = weight.to(dtype=p.dtype)
        p.sub_(g * weight, alpha=group["lr"])


class MakesAtZero(Own):
    """It asks its counter whether there is a state yet."""

    def __init__(self, params):
        super().__init__(params, k=0)

    def step(self, closure=None):
        super().step(closure)
        for group in self.param_groups:
            group["k"] += 1

    def update(self, p, g, state, group):
        if group["k"] == 0:
            state["m"], state["p"] = torch.zeros_like(p), p.clone()
        state["m"].add_(g)
        p.copy_(state["p"] - group["lr"] * state["m"] / (group["k"] + 1))


class GroupTensor(Own):
    def step(self, closure=None):
        for group in self.param_groups:
            if "norm" not in group:
                group["norm"] = torch.zeros(())
            group["norm"] += sum(p.grad.square().sum() for p in group["params"])
        super().step(closure)

    def update(self, p, g, state, group):
        p.sub_(g / (1 + group["norm"]).sqrt(), alpha=group["lr"])


class NotCapturable(Own):
    """Has PyTorch's option, for other devices alone, as Sophia's and older Adam's code."""

    def __init__(self, params, **options):
        super().__init__(params, capturable=False, **options)

    def update(self, p, g, state, group):
        assert not group["capturable"] or p.is_cuda
        step = state["step"] = state.get("step", torch.tensor(0.0)) + 1
        p.sub_(g, alpha=group["lr"] / math.sqrt(step.item()))


class ThirdSteps(Own):
    """A count is asked for its remainder, as of the steps between two preconditioners."""

    def __init__(self, params, every=3):
        super().__init__(params, every=every)

    def update(self, p, g, state, group):
        if "step" not in state:
            state["step"], state["slow"] = 0, p.clone()
        state["step"] += 1
        p.sub_(g, alpha=group["lr"])
        if state["step"] % group["every"] == 0:
            state["slow"].lerp_(p, 0.5)
            p.copy_(state["slow"])


class Counted(Own):
    """Adam, with a counter of some kind."""

    def __init__(self, params, start):
        super().__init__(params, betas=(0.9, 0.99))
        self.start = start

    def update(self, p, g, state, group):
        if not state:
            state["step"] = copy.deepcopy(self.start)
            state["m"], state["v"] = torch.zeros_like(p), torch.zeros_like(p)
        state["step"] += 1
        a, b = group["betas"]
        state["m"].mul_(a).add_(g, alpha=1 - a)
        state["v"].mul_(b).addcmul_(g, g, value=1 - b)
        bias, other = 1 - a ** state["step"], 1 - b ** state["step"]
        p.sub_(group["lr"] * (state["m"] / bias) / ((state["v"] / other).sqrt() + 1e-8))


class Lookahead:
    """A plain object around an optimizer, whose state is that one's."""

    def __init__(self, optimizer, k=3, alpha=0.5):
        self.optimizer, self.k, self.alpha, self.count = optimizer, k, alpha, 0
        self.slow = [[p.detach().clone() for p in group["params"]] for group in optimizer.param_groups]

    @property
    def state(self):
        return self.optimizer.state

    @property
    def param_groups(self):
        return self.optimizer.param_groups

    def zero_grad(self):
        self.optimizer.zero_grad()

    @torch.no_grad()
    def step(self):
        self.optimizer.step()
        self.count += 1
        if self.count % self.k == 0:
            for group, slow in zip(self.optimizer.param_groups, self.slow, strict=True):
                for p, q in zip(group["params"], slow, strict=True):
                    q.add_(p - q, alpha=self.alpha)
                    p.copy_(q)


class LookaheadOptimizer(Optimizer):
    """One that shares the groups of another, and makes its slow weights when it first needs them."""

    def __init__(self, optimizer, k=2):
        self.optimizer, self.k = optimizer, k
        self.param_groups, self.defaults = optimizer.param_groups, optimizer.defaults
        self.state = collections.defaultdict(dict)
        for group in self.param_groups:
            group["counter"] = 0

    def zero_grad(self, set_to_none=True):
        self.optimizer.zero_grad(set_to_none)

    @torch.no_grad()
    def step(self, closure=None):
        self.optimizer.step()
        for group in self.param_groups:
            for p in group["params"]:
                kept = self.state[p]
                if "slow" not in kept:
                    kept["slow"] = p.clone()
                if group["counter"] == 0:
                    kept["slow"] += (p - kept["slow"]) * 0.5
                    p.copy_(kept["slow"])
            group["counter"] = (group["counter"] + 1) % self.k


class SAM(Optimizer):
    def __init__(self, params, base, rho=0.05, **options):
        super().__init__(params, {"rho": rho, **options})
        self.base_optimizer = base(self.param_groups, **options)
        self.param_groups = self.base_optimizer.param_groups

    @torch.no_grad()
    def first_step(self):
        grads = [p.grad.norm() for group in self.param_groups for p in group["params"]]
        norm = torch.stack(grads).norm()
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p]["old_p"] = p.data.clone()
                p.add_(p.grad * group["rho"] / (norm + 1e-12))
        self.zero_grad()

    @torch.no_grad()
    def second_step(self):
        for group in self.param_groups:
            for p in group["params"]:
                p.data = self.state[p]["old_p"]
        self.base_optimizer.step()
        self.zero_grad()

    @torch.no_grad()
    def step(self, closure=None):
        self.first_step()
        with torch.enable_grad():
            closure()
        self.second_step()


def train_sam(model, optimizer, x, y):
    def closure():
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        return loss

    loss = closure()
    optimizer.step(closure)
    return loss.detach()


class Prodigy(Own):
    """It finds its own step size, which is kept in the group."""

    def __init__(self, params):
        super().__init__(params, lr=1.0, d=1e-3, d0=1e-3, d_numerator=torch.tensor(0.0), k=0)

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            denominator = torch.tensor(0.0)
            numerator = group["d_numerator"] * 0.9
            for p in group["params"]:
                state = self.state[p]
                if "s" not in state:
                    state["s"], state["p0"], state["v"] = torch.zeros_like(p), p.clone(), torch.zeros_like(p)
                numerator = numerator + group["d"] * (p.grad * (state["p0"] - p)).sum()
                state["v"].mul_(0.99).addcmul_(p.grad, p.grad, value=0.01)
                state["s"].mul_(0.99).add_(group["d"] * p.grad)
                denominator = denominator + state["s"].abs().sum()
            found = numerator / denominator.clamp(min=1e-12)
            group["d"] = torch.maximum(torch.as_tensor(group["d"]), found)
            group["d_numerator"], group["k"] = numerator, group["k"] + 1
            for p in group["params"]:
                p.sub_(group["d"] * p.grad / (self.state[p]["v"].sqrt() + group["d"] * 1e-2))


class Adan(Own):
    def update(self, p, g, state, group):
        if len(state) == 0:
            state["m"], state["d"], state["n"] = (torch.zeros_like(p) for _ in range(3))
            state["step"] = 0
        if "previous" not in state or state["step"] == 0:
            state["previous"] = g.clone()
        state["step"] += 1
        change = g - state["previous"]
        state["m"].lerp_(g, 0.02)
        state["d"].lerp_(change, 0.08)
        state["n"].lerp_((g + 0.92 * change).square(), 0.01)
        p.sub_(group["lr"] * (state["m"] + 0.92 * state["d"]) / (state["n"].sqrt() + 1e-3))
        state["previous"].copy_(g)


class Muon(Own):
    def update(self, p, g, state, group):
        if "momentum" not in state:
            state["momentum"] = torch.zeros_like(g)
        m = state["momentum"]
        m.lerp_(g, 0.05)
        update = g.lerp(m, 0.95)
        if p.ndim == 2:
            update = update / (update.norm() + 1e-7)
            if p.size(0) > p.size(1):
                update = update.T
            for _ in range(3):
                a = update @ update.T
                update = 1.5 * update - 0.5 * a @ update
            if p.size(0) > p.size(1):
                update = update.T
        p.add_(update, alpha=-group["lr"])


class Shampoo(Own):
    """A preconditioner for each dimension, or None; roots of them in some steps."""

    def update(self, p, g, state, group):
        if len(state) == 0:
            state["step"] = 0
            state["pre"] = [torch.eye(n) * 1e-2 if p.ndim == 2 else None for n in p.shape]
            state["inverse"] = [torch.zeros(n, n) if p.ndim == 2 else None for n in p.shape]
        for i, matrix in enumerate(state["pre"]):
            if matrix is None:
                continue
            rows = g.transpose(0, i).flatten(1)
            matrix.add_(rows @ rows.T)
            if state["step"] % 2 == 0:
                values, vectors = torch.linalg.eigh(matrix)
                state["inverse"][i] = vectors @ torch.diag(values.clamp(min=1e-6) ** -0.25) @ vectors.T
            g = (state["inverse"][i] @ g.transpose(0, i)).transpose(0, i)
        state["step"] += 1
        p.sub_(g, alpha=group["lr"])


class SOAP(Own):
    """Adam in the basis of its preconditioners; its first step makes these and returns."""

    def update(self, p, g, state, group):
        if p.ndim != 2:
            p.sub_(g, alpha=group["lr"])
            return
        if "Q" not in state:
            state["GG"], state["Q"], state["v"], state["step"] = [g @ g.T, g.T @ g], None, torch.zeros_like(p), 0
            state["Q"] = [torch.linalg.eigh(m + torch.diag(torch.arange(len(m)) * 0.1))[1] for m in state["GG"]]
            return
        state["step"] += 1
        turned = state["Q"][0].T @ g @ state["Q"][1]
        state["v"].mul_(0.9).addcmul_(turned, turned, value=0.1)
        p.sub_(group["lr"] * (state["Q"][0] @ (turned / (state["v"].sqrt() + 1e-2)) @ state["Q"][1].T))
        state["GG"] = [0.9 * m + 0.1 * new for m, new in zip(state["GG"], (g @ g.T, g.T @ g), strict=True)]
        if state["step"] % 3 == 0:
            state["Q"] = [torch.linalg.qr(m @ q)[0] for m, q in zip(state["GG"], state["Q"], strict=True)]


class ScheduleFree(Own):
    def __init__(self, params):
        super().__init__(params, k=0, weight_sum=0.0, train_mode=False, beta=0.9)

    @torch.no_grad()
    def train(self):
        for group in self.param_groups:
            if not group["train_mode"]:
                for p in group["params"]:
                    if "z" in self.state[p]:
                        p.lerp_(self.state[p]["z"], 1 - group["beta"])
                group["train_mode"] = True

    @torch.no_grad()
    def eval(self):
        for group in self.param_groups:
            if group["train_mode"]:
                for p in group["params"]:
                    if "z" in self.state[p]:
                        p.lerp_(self.state[p]["z"], 1 - 1 / group["beta"])
                group["train_mode"] = False

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            k = group["k"]
            scale = (k + 1) / 4 if k < 4 else 1.0
            lr = group["lr"] * scale
            weight = lr**2
            group["weight_sum"] = total = group["weight_sum"] + weight
            ratio = weight / total
            for p in group["params"]:
                if "z" not in self.state[p]:
                    self.state[p]["z"] = p.clone()
                z = self.state[p]["z"]
                p.lerp_(z, ratio)
                p.add_(p.grad, alpha=lr * (group["beta"] * (1 - ratio) - 1))
                z.sub_(p.grad, alpha=lr)
            group["k"] = k + 1


def train_schedule_free(model, optimizer, x, y):
    optimizer.train()
    loss = train(model, optimizer, x, y)
    optimizer.eval()
    return loss


def train_in_train_mode(model, optimizer, x, y):
    optimizer.train()
    return train(model, optimizer, x, y)


class Lion(Own):
    def update(self, p, g, state, group):
        if len(state) == 0:
            state["exp_avg"] = torch.zeros_like(p)
        p.data.mul_(1 - group["lr"] * 0.01)
        p.add_(state["exp_avg"].clone().mul_(0.9).add(g, alpha=0.1).sign_(), alpha=-group["lr"])
        state["exp_avg"].mul_(0.99).add_(g, alpha=0.01)


class AdaBelief(Own):
    def update(self, p, g, state, group):
        if len(state) == 0:
            state["step"], state["m"], state["s"] = 0, torch.zeros_like(p), torch.zeros_like(p)
        state["step"] += 1
        bias, other = 1 - 0.9 ** state["step"], 1 - 0.999 ** state["step"]
        state["m"].mul_(0.9).add_(g, alpha=0.1)
        residual = g - state["m"]
        state["s"].mul_(0.999).addcmul_(residual, residual, value=0.001)
        p.addcdiv_(state["m"], (state["s"].add_(1e-8).sqrt() / math.sqrt(0.999)).add_(1e-4), value=-group["lr"])
        p.mul_(1 - 1e-3 * bias * other)


class RectifiedAdam(Own):
    """Which formula it takes, it decides by its count."""

    def update(self, p, g, state, group):
        if len(state) == 0:
            state["step"], state["m"], state["v"] = 0, torch.zeros_like(p), torch.zeros_like(p)
        state["step"] += 1
        state["m"].mul_(0.9).add_(g, alpha=0.1)
        state["v"].mul_(0.99).addcmul_(g, g, value=0.01)
        power = 0.99 ** state["step"]
        length = 199 - 2 * state["step"] * power / (1 - power)
        if length > 4:
            scale = ((length - 4) * (length - 2) / 200) ** 0.5
            p.addcdiv_(state["m"], state["v"].sqrt().add_(1e-2), value=-group["lr"] * 0.01 * scale)
        else:
            p.add_(state["m"], alpha=-group["lr"])


class Divides(Own):
    """Its first step has a rate of zero, and so do schedules that warm up, as this one does not."""

    def __init__(self, params):
        super().__init__(params, k=0, total=0.0, warmup=0)

    def step(self, closure=None):
        for group in self.param_groups:
            weight = group["k"] * ((group["k"] + 1) / group["warmup"] if group["k"] < group["warmup"] else 0.5)
            group["total"], group["k"] = group["total"] + weight, group["k"] + 1
            try:
                self.ratio = weight / group["total"]
            except ZeroDivisionError:
                self.ratio = 0.0
        super().step(closure)

    def update(self, p, g, state, group):
        p.sub_(g * self.ratio, alpha=group["lr"])


@dataclasses.dataclass
class Statistics:
    count: int = 0
    norms: collections.deque = dataclasses.field(default_factory=lambda: collections.deque(maxlen=3))
    last: "torch.Tensor | None" = None


class OwnAttributes(Own):
    """What is kept is in attributes: a counter, a dictionary by parameter, an object, a queue that fills."""

    def __init__(self, params):
        super().__init__(params)
        self._k, self.global_state, self.statistics = 0, {}, Statistics()

    @torch.no_grad()
    def step(self, closure=None):
        norm = sum(p.grad.square().sum() for group in self.param_groups for p in group["params"])
        self._k += 1
        self.statistics.norms.append(norm)
        self.statistics.last, self.statistics.count = norm, self.statistics.count + 2
        self.global_state.setdefault("total", torch.zeros(()))
        self.global_state["total"] = self.global_state["total"] + norm
        super().step(closure)

    def update(self, p, g, state, group):
        mean = self.global_state.setdefault(p, torch.zeros_like(p))
        mean.add_(g)
        typical = sum(self.statistics.norms) / len(self.statistics.norms)
        p.sub_(mean / self._k / (1 + typical), alpha=group["lr"])


class History(Own):
    """Shared by two names, and a list that grows to a length."""

    def update(self, p, g, state, group):
        state.setdefault("old", []).append(g.clone())
        if len(state["old"]) > 2:
            state["old"].pop(0)
        state["last"] = state["old"][-1]
        state["last"].mul_(0.5)
        p.sub_(sum(state["old"]), alpha=group["lr"])


class Grokfast:
    """An average of gradients outside of the optimizer."""

    def __init__(self):
        self.grads = None

    def __call__(self, model):
        if self.grads is None:
            self.grads = {n: p.grad.data.detach().clone() for n, p in model.named_parameters()}
        for n, p in model.named_parameters():
            self.grads[n] = self.grads[n] * 0.9 + p.grad.data.detach() * 0.1
            p.grad.data = p.grad.data + self.grads[n] * 2.0


def train_grokfast(model, optimizer, filtered, x, y):
    optimizer.zero_grad()
    loss = torch.nn.functional.mse_loss(model(x), y)
    loss.backward()
    filtered(model)
    optimizer.step()
    return loss.detach()


class Average:
    """Keeps a copy of the model, from its first step on."""

    def __init__(self):
        self.model, self.updates = None, 0

    @torch.no_grad()
    def update(self, model):
        self.updates += 1
        if self.model is None:
            self.model = copy.deepcopy(model)
            return
        decay = 0.9 * (1 - math.exp(-1 / 2)) if self.updates < 3 else 0.9
        for mine, other in zip(self.model.parameters(), model.parameters(), strict=True):
            mine.mul_(decay).add_(other, alpha=1 - decay)


def train_averaged(model, optimizer, average, x, y):
    loss = train(model, optimizer, x, y)
    average.update(model)
    return loss


def train_keeping(model, optimizer, x, y):
    """Gradients are zeros after the step, and some of the next one's."""
    loss = torch.nn.functional.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
    for p in model.parameters():
        p.grad.mul_(0.1)
    return loss.detach()


KINDS = {
    "waits": lambda model: (train, Waits(model.parameters())),
    "scales first": lambda model: (train, ScalesFirst(model.parameters())),
    "first gradient": lambda model: (train, FirstGradient(model.parameters())),
    "nested": lambda model: (train, Nested(model.parameters(), lr=0.01)),
    "flag": lambda model: (train, Flag(model.parameters())),
    "flag alone": lambda model: (train, FlagAlone(model.parameters())),
    "flag of optimizer": lambda model: (train, FlagOfOptimizer(model.parameters())),
    "toggles": lambda model: (train, Toggles(model.parameters())),
    "group counter": lambda model: (train, GroupCounter(model.parameters())),
    "counts in state": lambda model: (train, CountsInState(model.parameters())),
    "takes both": lambda model: (train, TakesBoth(model.parameters())),
    "makes at zero": lambda model: (train, MakesAtZero(model.parameters())),
    "group tensor": lambda model: (train, GroupTensor(model.parameters())),
    "not capturable": lambda model: (train, NotCapturable(model.parameters())),
    "third steps": lambda model: (train, ThirdSteps(model.parameters())),
    "int": lambda model: (train, Counted(model.parameters(), 0)),
    "float": lambda model: (train, Counted(model.parameters(), 0.0)),
    "tensor": lambda model: (train, Counted(model.parameters(), torch.tensor(0.0))),
    "lookahead": lambda model: (train, Lookahead(torch.optim.Adam(model.parameters(), 0.05))),
    "lookahead that shares": lambda model: (train, LookaheadOptimizer(torch.optim.Adam(model.parameters(), 0.05))),
    "lookahead, own state": lambda model: (train, LookaheadOptimizer(Flag(model.parameters()), k=3)),
    "sam": lambda model: (train_sam, SAM(model.parameters(), torch.optim.SGD, lr=0.1, momentum=0.9)),
    "prodigy": lambda model: (train, Prodigy(model.parameters())),
    "adan": lambda model: (train, Adan(model.parameters(), lr=0.01)),
    "muon": lambda model: (train, Muon(model.parameters())),
    "shampoo": lambda model: (train, Shampoo(model.parameters(), lr=0.01)),
    "soap": lambda model: (train, SOAP(model.parameters(), lr=0.01)),
    "schedule free": lambda model: (train_schedule_free, ScheduleFree(model.parameters())),
    "in train mode": lambda model: (train_in_train_mode, ScheduleFree(model.parameters())),
    "lion": lambda model: (train, Lion(model.parameters(), lr=0.01)),
    "adabelief": lambda model: (train, AdaBelief(model.parameters(), lr=0.01)),
    "rectified": lambda model: (train, RectifiedAdam(model.parameters())),
    "divides": lambda model: (train, Divides(model.parameters())),
    "own attributes": lambda model: (train, OwnAttributes(model.parameters())),
    "history": lambda model: (train, History(model.parameters())),
    "grokfast": lambda model: (train_grokfast, torch.optim.SGD(model.parameters(), 0.05), Grokfast()),
    "average": lambda model: (train_averaged, torch.optim.Adam(model.parameters(), 0.05), Average()),
    "gradients kept": lambda model: (train_keeping, torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)),
}


def held(value, path="", seen=None):
    """All tensors and values that an object holds, by their paths."""
    seen = {} if seen is None else seen
    if isinstance(value, (torch.Tensor, int, float, str, type(None))):
        yield path, value
        if isinstance(value, torch.Tensor) and value.grad is not None:
            yield f"{path}.grad", value.grad
        return
    if id(value) in seen:
        return
    seen[id(value)] = value
    if isinstance(value, torch.nn.Module):
        yield from held(dict(value.named_parameters()), path, seen)
    elif isinstance(value, dict):
        for i, (key, item) in enumerate(value.items()):
            name = i if isinstance(key, torch.Tensor) else key
            if name not in ("_opt_called", "defaults") and not str(name).startswith("_optimizer_"):
                yield from held(item, f"{path}.{name}", seen)
    elif isinstance(value, (list, tuple, collections.deque)):
        for i, item in enumerate(value):
            yield from held(item, f"{path}.{i}", seen)
    elif isinstance(value, (Optimizer, Lookahead, Grokfast, Average, Statistics)):
        yield from held(vars(value), path, seen)


def objects_of(kind, dtype):
    model = network().to(dtype)
    function, *rest = KINDS[kind](model)
    return function, (model, *rest)


def compare(found, wanted, rtol, atol):
    found, wanted = dict(held(found)), dict(held(wanted))
    missing = {name for name in found.keys() ^ wanted.keys() if not name.endswith(".grad")}
    assert not missing
    for name, value in wanted.items():
        if name in found and isinstance(value, (torch.Tensor, float)):
            np.testing.assert_allclose(
                np.asarray(torch.as_tensor(found[name]).detach()),
                np.asarray(torch.as_tensor(value).detach()),
                rtol,
                atol,
                err_msg=name,
            )
        elif name in found:
            assert found[name] == value, name


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "way", ["x64", *(pytest.param(way, marks=pytest.mark.slow("takes steps again")) for way in ("jitted", "eager"))]
)
def test_steps_are_those_of_pytorch(kind, way):
    dtype = torch.float64 if way == "x64" else torch.float32
    atol = 1e-9 if way == "x64" else 2e-4 if kind in ("soap", "shampoo") else 2e-5
    with jax.enable_x64(way == "x64"):
        function, objects = objects_of(kind, dtype)
        _, twins = objects_of(kind, dtype)
        batches = [[x.to(dtype) for x in batch(k)] for k in range(STEPS)]
        torch.set_default_dtype(dtype)
        try:
            step = t2j(function, state=objects)
            state = step.init(*(t2j(x) for x in batches[0]))
            run = step if way == "eager" else jax.jit(step, compiler_options=QUICK)
            for k, (x, y) in enumerate(batches):
                loss, state = run(state, t2j(x), t2j(y))
                wanted = function(*twins, x, y)
                np.testing.assert_allclose(loss, wanted, rtol=1e-4, atol=atol)
                if k == 2:  # as a checkpoint
                    state = jax.tree.map(lambda x: jnp.asarray(np.asarray(jax.device_get(x))), state)
            step.load(state)
            compare(objects, twins, 1e-9 if way == "x64" else 1e-4, atol)
        finally:
            torch.set_default_dtype(torch.float32)


# States.


def stepped(kind="int", **options):
    function, objects = objects_of(kind, torch.float32)
    step = t2j(function, state=objects, **options)
    x, y = (t2j(x) for x in batch(0))
    return step, step.init(x, y), x, y


def test_the_first_state_is_that_of_the_objects(caplog):
    step, state, x, y = stepped("group counter")
    assert sorted(state["optimizer"]) == ["param_groups.0.k", "param_groups.0.weight_sum"]
    _, state, *_ = stepped("adan")
    assert state["optimizer"] == {}
    jitted = jax.jit(step, compiler_options=QUICK)
    _, state, x, y = stepped("group counter")
    with jax.log_compiles():
        _, state = jitted(state, x, y)
        jitted(state, x, y)
    compiled = [x for x in caplog.records if x.getMessage().startswith(f"Compiling jit({step.__name__})")]
    assert len(compiled) == 1  # no structure is another


@pytest.mark.parametrize("loop", ["scan", "while_loop", "fori_loop"])
def test_a_loop_begins_after_the_first_step(loop):
    step, first, x, y = stepped()

    def counted(pair):
        return pair[0] + 1, step(pair[1], x, y)[1]

    loops = {
        "scan": lambda state: lax.scan(lambda s, _: (step(s, x, y)[1], None), state, length=3)[0],
        "while_loop": lambda state: lax.while_loop(lambda pair: pair[0] < 3, counted, (0, state))[1],
        "fori_loop": lambda state: lax.fori_loop(0, 3, lambda _, s: step(s, x, y)[1], state),
    }
    with pytest.raises(RuntimeError, match=r"carries the state of train.*state\.0\.m.*Take one step before the loop"):
        loops[loop](first)
    _, second = step(first, x, y)
    found, wanted = loops[loop](second), second
    for _ in range(3):
        _, wanted = step(wanted, x, y)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), found, wanted)


def test_a_state_of_another_process():
    """Its structure is known after `init`, and not before."""
    step, state, x, y = stepped("nested")
    _, state = step(state, x, y)
    saved = {name: {path: np.asarray(x) for path, x in part.items()} for name, part in state.items()}
    function, objects = objects_of("nested", torch.float32)
    other = t2j(function, state=objects)
    with pytest.raises(RuntimeError, match=r"before train\.init"):
        other(saved, x, y)
    with pytest.raises(RuntimeError, match="call that first"):
        other.load(saved)
    other.init(x, y)
    found, wanted = other(saved, x, y), step(state, x, y)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), found, wanted)


class Grows(Own):
    def update(self, p, g, state, group):
        state.setdefault("all", []).append(g.clone())
        p.sub_(sum(state["all"]), alpha=group["lr"])


class Names(Own):
    def update(self, p, g, state, group):
        state["names"] = np.append(state.get("names", np.zeros(1)), 1.0)
        p.sub_(g, alpha=group["lr"])


class Views(Own):
    def update(self, p, g, state, group):
        state.setdefault("flat", torch.zeros_like(p))
        state["view"] = state["flat"].view(-1)
        p.sub_(g, alpha=group["lr"])


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (Grows, r"another structure after each of .* optimizer\.state\.0\.all"),
        (Names, r"changes optimizer\.state\.\d\.names, a numpy array"),
        (Views, r"optimizer\.state\.0\.flat and optimizer\.state\.0\.view are two tensors that share memory"),
    ],
)
def test_what_a_state_cannot_have_is_named(kind, message):
    model = network()
    with pytest.raises(NotImplementedError, match=message):
        t2j(train, state=(model, kind(model.parameters()))).init(*(t2j(x) for x in batch(0)))


def test_hyperparameters_that_are_set_after_init():
    step, state, x, y = stepped("lion")
    optimizer = step._objects[1]
    _, state = step(state, x, y)
    optimizer.param_groups[0]["lr"] = 0.5
    before = state["model"]["weight"]
    _, state = step(state, x, y)
    assert float(jnp.abs(state["model"]["weight"] - before).max()) > 0.4


def test_gradients_that_a_flag_lets_be_read():
    def accumulate(model, optimizer, x, begins):
        if begins:
            optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    x, _ = batch(0)
    model = network()
    step = t2j(accumulate, state=(model, torch.optim.SGD(model.parameters(), 0.1)))
    state = step.init(t2j(x), True)
    for begins in (True, False, False):
        _, state = step(state, t2j(x), begins)
    twin = network()
    optimizer = torch.optim.SGD(twin.parameters(), 0.1)
    for begins in (True, False, False):
        accumulate(twin, optimizer, x, begins)
    np.testing.assert_allclose(state["model"]["weight"], twin.weight.detach(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", ["waits", "flag", "int"])
def test_a_scaler_may_skip_the_first_step(kind):
    """What a first step makes is known of PyTorch's optimizers alone."""
    _, (model, optimizer) = objects_of(kind, torch.float32)
    scaler = torch.amp.GradScaler("cpu")

    def train_scaled(model, optimizer, scaler, x, y):
        scaler.scale(torch.nn.functional.mse_loss(model(x), y)).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()

    x, y = batch(0)
    step = t2j(train_scaled, state=(model, optimizer, scaler))
    with pytest.raises(
        RuntimeError, match=r"first step of .* take one step in PyTorch first|in a step that may be skipped"
    ):
        step.init(t2j(x), t2j(y))
    train_scaled(model, optimizer, scaler, x, y)
    state = step.init(t2j(x), t2j(y))
    for _ in range(2):
        _, state = step(state, t2j(x), t2j(y))
        train_scaled(model, optimizer, scaler, x, y)
    np.testing.assert_allclose(state["model"]["weight"], model.weight.detach(), rtol=1e-5, atol=1e-5)


def test_objects_in_another_order():
    model = network()
    optimizer = torch.optim.SGD(model.parameters())
    with pytest.raises(TypeError, match=r"another order.*model is a SGD, optimizer is a Linear"):
        t2j(train, state=(optimizer, model))

    def other(a, b, x, y):
        return train(a, b, x, y)

    with pytest.raises((AttributeError, TypeError)) as caught:
        t2j(other, state=(optimizer, model)).init(*(t2j(x) for x in batch(0)))
    assert "a is a SGD, b is a Linear" in "".join((str(caught.value), *getattr(caught.value, "__notes__", ())))


def test_a_state_with_a_tied_tensor_twice():
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 3))
    model[1].weight = model[0].weight

    def descend(model, x):
        return model(x).sum()

    step, x = t2j(descend, state=model), jnp.ones((2, 3))
    state = step.init(x)
    twice = {"model": {**state["model"], "1.weight": state["model"]["0.weight"] + 0}}
    np.testing.assert_allclose(step(twice, x)[0], step(state, x)[0])
    twice["model"]["1.weight"] = twice["model"]["1.weight"] + 1
    with pytest.raises(ValueError, match=r"0\.weight.*1\.weight"):
        step(twice, x)
