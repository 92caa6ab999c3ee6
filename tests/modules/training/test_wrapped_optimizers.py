"""Optimizers and schedulers inside wrappers, as accelerate prepares them for `transformers.Trainer`."""

import contextlib
import functools
import inspect
import re
from typing import ClassVar

import jax
import numpy as np
import pytest
import torch
from torch.optim import lr_scheduler

from tests.modules.training.test_training_steps import batch, build
from torch2jax import t2j
from torch2jax.runtime.errors import BranchError
from torch2jax.tools.models import define_vision_operators

STEPS = 5


class Shared:
    """A state that all objects of the class have in common, as accelerate's `GradientState`."""

    common: ClassVar[dict] = {}

    def __init__(self):
        self.__dict__ = self.common
        if not self.common:
            self.steps_now, self.count = True, 1


class Wrapped(torch.optim.Optimizer):
    """An optimizer around another, which does not begin as one itself, as accelerate's `AcceleratedOptimizer`."""

    def __init__(self, optimizer, scaler=None):
        self.optimizer, self.scaler, self.shared, self.was_skipped = optimizer, scaler, Shared(), False
        if scaler is not None:
            self.has_stepped = False
            self.own_step, self.noting_step = optimizer.step, self._noting(optimizer.step)
        optimizer.load_state_dict(optimizer.state_dict())

    def _noting(self, method):
        def step(*args, **kwargs):
            self.has_stepped = True
            return method(*args, **kwargs)

        return step

    state = property(lambda self: self.optimizer.state)
    param_groups = property(lambda self: self.optimizer.param_groups)
    defaults = property(lambda self: self.optimizer.defaults)

    def zero_grad(self, set_to_none=None):
        if self.shared.steps_now:
            assert "set_to_none" in inspect.signature(self.optimizer.zero_grad).parameters
            self.optimizer.zero_grad(set_to_none=True)

    def step(self, closure=None):
        if not self.shared.steps_now:
            return
        if self.scaler is None:
            self.optimizer.step(closure)
            return
        self.optimizer.step = self.noting_step
        self.scaler.step(self.optimizer, closure)
        self.scaler.update()
        self.was_skipped, self.has_stepped = not self.has_stepped, False
        self.optimizer.step = self.own_step


class WrappedScheduler:
    """As accelerate's `AcceleratedScheduler`."""

    def __init__(self, scheduler, optimizer):
        self.scheduler, self.optimizers, self.shared = scheduler, [optimizer], Shared()

    def step(self):
        if self.shared.steps_now and not any(optimizer.was_skipped for optimizer in self.optimizers):
            self.scheduler.step()

    def get_last_lr(self):
        return self.scheduler.get_last_lr()


class Accelerates:
    """As accelerate's `Accelerator`: it decides for all wrappers in which calls they step."""

    def __init__(self, count=1):
        self.shared, self.calls = Shared(), 0
        self.shared.count, self.shared.steps_now = count, True

    @contextlib.contextmanager
    def accumulate(self):
        self.calls += 1
        self.shared.steps_now = self.calls % self.shared.count == 0
        yield

    def backward(self, loss):
        (loss / self.shared.count).backward()


@pytest.fixture(autouse=True)
def _another_state(monkeypatch):
    monkeypatch.setattr(Shared, "common", {})


def prepared():
    model = build()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    scheduler = lr_scheduler.LambdaLR(optimizer, lambda epoch: max(0.0, 1 - epoch / STEPS))
    wrapper = Wrapped(optimizer)
    return model, wrapper, WrappedScheduler(scheduler, wrapper)


def train(model, optimizer, scheduler, x, y):
    loss = torch.nn.functional.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
    scheduler.step()
    optimizer.zero_grad()
    return loss


def taken(step, state, *args, **options):
    losses, jitted = [], jax.jit(step)
    for _ in range(STEPS - 1):
        loss, state = jitted(state, *args, **options)
        losses.append(float(loss))
    return losses, state


def expect_same(losses, wanted, model, other):
    np.testing.assert_allclose(losses, wanted, rtol=1e-5)
    for one, two in zip(model.parameters(), other.parameters(), strict=True):
        np.testing.assert_allclose(one.detach(), two.detach(), rtol=1e-4, atol=1e-5)


def test_steps_are_those_of_pytorch():
    objects, others = prepared(), prepared()
    wanted = [train(*others, *batch()).item() for _ in range(STEPS - 1)]
    step = t2j(train, state=objects)
    losses, state = taken(step, step.init(*map(t2j, batch())), *map(t2j, batch()))
    step.load(state)
    expect_same(losses, wanted, objects[0], others[0])
    assert objects[2].get_last_lr() == pytest.approx(others[2].get_last_lr())
    assert all(type(rate) is float for rate in objects[2].get_last_lr())
    counters = [name for name in state["optimizer"] if name.endswith("step")]
    assert counters == ["optimizer.state.*.step"]
    assert train(*objects, *batch()).item() == pytest.approx(train(*others, *batch()).item(), rel=1e-4)


def test_a_scaler_in_a_wrapper():
    """The wrapper closes over its optimizer, which is not the copy: without the wrapper it works."""

    def wrapped(model, optimizer, scaler, x, y):
        scaler.scale(torch.nn.functional.mse_loss(model(x), y)).backward()
        optimizer.step()

    def plain(model, optimizer, scaler, x, y):
        loss = torch.nn.functional.mse_loss(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        return loss

    def objects():
        model = build()
        return model, torch.optim.SGD(model.parameters(), lr=0.1), torch.amp.GradScaler("cpu", init_scale=64.0)

    mine, others = objects(), objects()
    with pytest.raises(RuntimeError, match="the optimizer without the wrapper"):
        t2j(wrapped, state=(mine[0], Wrapped(*mine[1:]), mine[2])).init(*map(t2j, batch()))
    wanted = [plain(*others, *batch()).item() for _ in range(STEPS - 1)]
    step = t2j(plain, state=mine)
    losses, state = taken(step, step.init(*map(t2j, batch())), *map(t2j, batch()))
    step.load(state)
    expect_same(losses, wanted, mine[0], others[0])


def test_a_scheduler_of_a_wrapper_that_a_call_makes():
    def trained(x, y):
        model = torch.nn.Linear(3, 2)
        torch.nn.init.constant_(model.weight, 0.1)
        torch.nn.init.zeros_(model.bias)
        wrapper = Wrapped(torch.optim.SGD(model.parameters(), lr=0.1))
        scheduler = lr_scheduler.StepLR(wrapper, 1, gamma=0.5)
        for _ in range(3):
            train(model, wrapper, scheduler, x, y)
        return model.weight.detach()

    found = jax.jit(t2j(trained))(*map(t2j, batch()), rng=jax.random.key(0))
    np.testing.assert_allclose(found, trained(*batch()), rtol=1e-5)


def accumulating(model, optimizer, scheduler, accelerates, x, y):
    with accelerates.accumulate():
        loss = torch.nn.functional.mse_loss(model(x), y)
        accelerates.backward(loss)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        return loss


def test_what_a_closure_changes_of_the_objects_is_refused():
    objects, accelerates = prepared(), Accelerates(count=2)
    step = t2j(lambda *args: accumulating(*args[:3], accelerates, *args[3:]), state=objects)
    with pytest.raises(RuntimeError, match=r"shared\.steps_now of the object itself.*Pass the other object in state="):
        step.init(*map(t2j, batch()))


def test_a_state_in_common_is_one_state():
    """The copies of objects with one ``__dict__`` have one: what one of them sets, others read."""
    objects, accelerates = prepared(), Accelerates(count=2)
    step = t2j(accumulating, state=(*objects, accelerates))
    with pytest.raises(BranchError) as caught:
        step.init(*map(t2j, batch()))
    assert "Make the condition a Python value" in "".join(caught.value.__notes__)
    one = Shared()
    step = t2j(lambda a, b, x: [setattr(a, "scale", a.scale * 2), x * b.scale][1], state=(one, Shared()))
    one.scale = 3.0
    state = step.init(1.0)
    assert len(jax.tree.leaves(state)) == 1
    for factor in (6.0, 12.0):
        result, state = step(state, 1.0)
        assert result == factor
    step.load(state)
    assert Shared().scale == 12.0


def test_accumulation_by_a_flag():
    """What the error about `accumulating` advises."""

    def flagged(model, optimizer, scheduler, accelerates, x, y, last):
        accelerates.shared.steps_now = last
        loss = torch.nn.functional.mse_loss(model(x), y)
        accelerates.backward(loss)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        return loss

    others = prepared()
    one = Accelerates(count=2)
    wanted = [accumulating(*others, one, *batch()).item() for _ in range(4)]
    objects = prepared()
    step = t2j(flagged, state=(*objects, Accelerates(count=2)))
    state = step.init(*map(t2j, batch()), last=True)
    jitted, losses = jax.jit(step, static_argnames="last"), []
    for i in range(4):
        loss, state = jitted(state, *map(t2j, batch()), last=i % 2 == 1)
        losses.append(float(loss))
    step.load(state)
    expect_same(losses, wanted, objects[0], others[0])


class Trains:
    def __init__(self, model, optimizer, lr_scheduler):
        self.model, self.optimizer, self.lr_scheduler = model, optimizer, lr_scheduler


def test_an_object_that_holds_the_others():
    """A step that reaches the optimizer by another object says so, and takes that object."""

    def of_trainer(model, optimizer, x, y):
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        trainer.optimizer.step()
        trainer.optimizer.zero_grad()
        return loss

    model, wrapper, scheduler = prepared()
    trainer = Trains(model, wrapper, scheduler)
    with pytest.raises(RuntimeError, match=re.escape("t2j(train_step, state=(trainer,))")):
        t2j(of_trainer, state=(model, wrapper)).init(*map(t2j, batch()))

    def train_step(trainer, x, y):
        return train(trainer.model, trainer.optimizer, trainer.lr_scheduler, x, y)

    other = prepared()
    wanted = [train(*other, *batch()).item() for _ in range(STEPS - 1)]
    step = t2j(train_step, state=(trainer,))
    losses, state = taken(step, step.init(*map(t2j, batch())), *map(t2j, batch()))
    step.load(state)
    expect_same(losses, wanted, model, other[0])


@pytest.mark.slow("imports transformers, and compiles a model's steps")
def test_a_training_step_of_transformers(tmp_path):
    """`Trainer.training_step` with what accelerate prepares."""
    pytest.importorskip("accelerate")
    define_vision_operators()  # transformers imports torchvision
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

    def made():
        torch.manual_seed(0)
        model = GPT2LMHeadModel(GPT2Config(n_embd=16, n_layer=1, n_head=2, vocab_size=20, n_positions=8))
        arguments = TrainingArguments(tmp_path, report_to=[], use_cpu=True, learning_rate=0.01, optim="sgd")
        trainer = Trainer(model.eval(), arguments)
        trainer.current_gradient_accumulation_steps = 1
        trainer.create_optimizer_and_scheduler(STEPS)
        return trainer, trainer.accelerator.prepare(model, trainer.optimizer, trainer.lr_scheduler)

    def stepping(trainer, model, optimizer, scheduler, inputs):
        loss = trainer.training_step(model, inputs)
        trainer.accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        return loss

    ids = torch.arange(16).reshape(2, 8)
    inputs = {"input_ids": ids, "labels": ids}
    (mine, objects), (trainer, others) = made(), made()
    for part in (*objects[0].modules(), *others[0].modules()):  # its keys are not PyTorch's seeds
        part.__dict__.update({"p": 0.0} if isinstance(part, torch.nn.Dropout) else {})
    wanted = [stepping(trainer, *others, inputs).item() for _ in range(STEPS - 1)]
    step = t2j(functools.partial(stepping, mine), state=objects)
    losses, state = taken(step, step.init(t2j(inputs)), t2j(inputs))
    step.load(state)
    expect_same(losses, wanted, objects[0], others[0])
    assert objects[2].get_last_lr() == pytest.approx(others[2].get_last_lr())
