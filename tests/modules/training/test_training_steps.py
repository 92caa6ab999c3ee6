"""Training steps: modules, optimizers, schedulers and scalers go in and come out, and 20 steps are PyTorch's."""

import copy
import pickle
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from jax import lax
from torch.optim import lr_scheduler, swa_utils
from torch.testing._internal.common_optimizers import optim_db

from torch2jax import t2j

STEPS = 20
QUICK = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}


def compiled(function, **options):
    return jax.jit(function, compiler_options=QUICK, **options)


def build(seed: int = 0) -> torch.nn.Module:
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2))


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(8, 3, generator=generator), torch.randn(8, 2, generator=generator)


def arrays(*tensors) -> list[np.ndarray]:
    return [tensor.detach().numpy() for tensor in tensors]


def train(model, optimizer, x, y):
    loss = torch.nn.functional.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss


def taken(step, state, *args, steps: int = STEPS):
    """What so many steps return, and the state after them; it may be the first that makes what later ones have."""
    step, results = compiled(step), []
    for _ in range(steps):
        result, state = step(state, *args)
        results.append(result)
    return results, state


def scanned(step, state, *args, steps: int):
    """The same in a loop of JAX's, after a first step that makes what later ones have."""
    _, state = step(state, *args)
    state, results = compiled(lambda state: lax.scan(lambda s, _: step(s, *args)[::-1], state, length=steps - 1))(state)
    return results, state


def check(step, objects, *args, steps: int = STEPS, atol: float = 2e-6, rtol: float = 1e-4, scale: float = 1):
    """Takes steps here and in PyTorch; results, and all that the objects hold, must be equal after them.

    Gradients are of the order of `scale`.
    """
    train = step._function
    state = step.init(*arrays(*args))
    results, state = taken(step, state, *arrays(*args), steps=steps)
    twins = copy.deepcopy(objects)
    wanted = [train(*objects, *args) for _ in range(steps)]
    np.testing.assert_allclose(np.stack(results), torch.stack(wanted).detach().numpy(), atol=atol, rtol=rtol)
    step_of_twins = t2j(train, state=twins)
    step_of_twins.init(*arrays(*args))
    step_of_twins.load(state)
    for twin, thing in zip(twins, objects, strict=True):
        torch.testing.assert_close(
            physical(twin), physical(thing), atol=atol if twin is twins[0] else atol * scale, rtol=rtol
        )
    return state


def physical(thing) -> dict:
    """The tensors and numbers that PyTorch saves of an object, by their paths."""
    found = {}

    def gather(path, value):
        if isinstance(value, dict):
            for key, item in value.items():
                gather((*path, key), item)
        elif isinstance(value, (list, tuple)):
            gather(path, dict(enumerate(value)))
        elif isinstance(value, (int, float, torch.Tensor)):
            found[path] = value

    gather((), thing.state_dict())
    return found


def configurations(full: bool):
    """Every optimizer and option of PyTorch's own tests, in each form it has; or the first and the last options."""
    for info in optim_db:
        if info.only_supports_sparse_grads or info.step_requires_closure:
            continue
        inputs = info.optim_inputs_func(device="cpu")
        forms = [name for name in ("foreach", "fused") if name in info.supported_impls]
        for i, each in enumerate(inputs):
            chosen = [{}, *({name: True} for name in forms)]
            if isinstance(each.kwargs.get("lr"), torch.Tensor):
                chosen = [{}]
            if not full:
                chosen = chosen[:1] if i == 0 or not forms else chosen[1:] if i == len(inputs) - 1 else []
            if not full and 0 < i < len(inputs) - 1:
                continue
            for form in chosen:
                name = f"{info.optim_cls.__name__}-{each.desc}-{'-'.join(form) or 'plain'}".replace(" ", "_")
                yield pytest.param(info.optim_cls, {**each.kwargs, **form}, id=name)


def pytest_generate_tests(metafunc):
    if "kwargs" in metafunc.fixturenames and "optimizer_class" in metafunc.fixturenames:
        metafunc.parametrize("optimizer_class, kwargs", list(configurations(metafunc.config.getoption("--full"))))


def parameters_for(optimizer_class, model):
    is_muon = optimizer_class is torch.optim.Muon
    return [p for p in model.parameters() if p.ndim == 2 or not is_muon]


def test_every_optimizer(optimizer_class, kwargs):
    model = build()
    optimizer = optimizer_class(parameters_for(optimizer_class, model), **copy.deepcopy(kwargs))
    # Muon computes in bfloat16; centered, RMSprop divides by a small difference of what processors round differently
    loose = optimizer_class is torch.optim.Muon or kwargs.get("centered")
    check(t2j(train, state=(model, optimizer)), (model, optimizer), *batch(), atol=2e-3 if loose else 2e-5)


SCHEDULERS = {
    "step": lambda o: lr_scheduler.StepLR(o, 3, 0.5),
    "several steps": lambda o: lr_scheduler.MultiStepLR(o, [3, 7, 7]),
    "constant": lambda o: lr_scheduler.ConstantLR(o),
    "linear": lambda o: lr_scheduler.LinearLR(o),
    "exponential": lambda o: lr_scheduler.ExponentialLR(o, 0.9),
    "polynomial": lambda o: lr_scheduler.PolynomialLR(o, 30, 2.0),
    "cosine": lambda o: lr_scheduler.CosineAnnealingLR(o, 7),
    "restarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 5, 2),
    "cyclic": lambda o: lr_scheduler.CyclicLR(o, 0.001, 0.1, step_size_up=4, mode="exp_range", gamma=0.99),
    "one cycle": lambda o: lr_scheduler.OneCycleLR(o, 0.1, total_steps=30),
    "lambda": lambda o: lr_scheduler.LambdaLR(o, lambda epoch: 0.9**epoch if epoch < 5 else 0.5),
    "product": lambda o: lr_scheduler.MultiplicativeLR(o, lambda epoch: 0.9),
    "chained": lambda o: lr_scheduler.ChainedScheduler(
        [lr_scheduler.ConstantLR(o, 0.5, 4), lr_scheduler.ExponentialLR(o, 0.9)]
    ),
    "sequential": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.LinearLR(o, total_iters=5), lr_scheduler.ExponentialLR(o, 0.9)], [5]
    ),
    "averaging": lambda o: swa_utils.SWALR(o, 0.05, anneal_epochs=5),
}


def train_scheduled(model, optimizer, scheduler, x, y):
    loss = train(model, optimizer, x, y)
    scheduler.step()
    return loss


@pytest.mark.parametrize("name", SCHEDULERS)
def test_schedulers(name):
    model = build()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scheduler = SCHEDULERS[name](optimizer)
    state = check(t2j(train_scheduled, state=(model, optimizer, scheduler)), (model, optimizer, scheduler), *batch())
    np.testing.assert_allclose(state["optimizer"]["param_groups.0.lr"], optimizer.param_groups[0]["lr"], atol=1e-7)


def test_scheduler_of_adam_changes_betas():
    model = build()
    optimizer = torch.optim.Adam(model.parameters(), foreach=True)
    scheduler = lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=30)
    check(t2j(train_scheduled, state=(model, optimizer, scheduler)), (model, optimizer, scheduler), *batch(), atol=2e-5)


@pytest.mark.parametrize("mode", ["min", "max"])
def test_scheduler_that_looks_at_the_loss(mode):
    model = build()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = lr_scheduler.ReduceLROnPlateau(optimizer, mode, patience=2, cooldown=1)

    def train_plateau(model, optimizer, scheduler, x, y):
        loss = train(model, optimizer, x, y)
        scheduler.step(loss.detach())
        return loss

    check(t2j(train_plateau, state=(model, optimizer, scheduler)), (model, optimizer, scheduler), *batch())
    assert (optimizer.param_groups[0]["lr"] < 0.1) == (mode == "max")


@pytest.mark.parametrize("foreach", [None, True, False])
def test_clipping_and_accumulation(foreach):
    def train_clipped(model, optimizer, x, y):
        total = 0
        for part, target in zip(x.chunk(2), y.chunk(2), strict=True):
            loss = torch.nn.functional.mse_loss(model(part), target) / 2
            loss.backward()
            total = total + loss.detach()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1, foreach=foreach)
        torch.nn.utils.clip_grad_value_(model.parameters(), 0.04, foreach=foreach)
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
        return total + norm

    model = build()
    optimizer = torch.optim.AdamW(model.parameters(), foreach=foreach)
    check(t2j(train_clipped, state=(model, optimizer)), (model, optimizer), *batch(), atol=2e-5)


def test_gradients_are_kept_for_the_next_step():
    """One call accumulates, whatever the optimizer does; its gradients are state."""

    def accumulate(model, x, y):
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        return loss

    model = build()
    step = t2j(accumulate, state=model)
    state = step.init(*arrays(*batch()))
    _, state = scanned(step, state, *arrays(*batch()), steps=3)
    for _ in range(3):
        accumulate(model, *batch())
    for name, parameter in model.named_parameters():
        np.testing.assert_allclose(state["model"][f"{name}.grad"], parameter.grad.numpy(), rtol=1e-5, atol=1e-6)


def test_gradients_that_nobody_asks_for_are_no_state():
    def train_late(model, optimizer, x, y):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    model = build()
    step = t2j(train_late, state=(model, torch.optim.SGD(model.parameters(), lr=0.1)))
    assert sorted(step.init(*arrays(*batch()))["model"]) == sorted(model.state_dict())


@pytest.mark.parametrize(
    ("optimizer_of", "clips"),
    [
        (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), True),
        (lambda p: torch.optim.Adam(p, lr=0.1), False),
        (lambda p: torch.optim.Adam(p, lr=0.1, fused=True), False),
    ],
)
def test_gradient_scaler(optimizer_of, clips):
    """Some steps overflow: they are skipped, and the scale backs off, grows, and backs off again."""
    model = build()
    optimizer = optimizer_of(model.parameters())
    scaler = torch.amp.GradScaler(
        "cpu", init_scale=2.0**126, growth_factor=2.0**40, backoff_factor=2.0**-40, growth_interval=5
    )

    def train_scaled(model, optimizer, scaler, x, y):
        loss = torch.nn.functional.mse_loss(model(x), y)
        scaler.scale(loss * 2.0**12).backward()
        if clips:
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        return loss

    objects = (model, optimizer, scaler)
    state = check(t2j(train_scaled, state=objects), objects, *batch(), atol=2e-5, scale=2.0**12)
    assert float(state["scaler"]["_scale"]) == scaler.get_scale() != 2.0**126


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x)), lambda x: x])
def test_a_scaler_made_in_the_call(copied):
    """One for CUDA acts where there is none; a copy is the call's own."""

    def scaled(x):
        scaler = copied(torch.amp.GradScaler("cuda", init_scale=8.0))
        return scaler.scale(x), scaler.is_enabled()

    outputs, is_enabled = t2j(scaled)(jnp.ones(3))
    np.testing.assert_array_equal(outputs, 8 * np.ones(3))
    assert is_enabled


@pytest.mark.parametrize("kwargs", [{}, {"multi_avg_fn": swa_utils.get_ema_multi_avg_fn(0.9), "use_buffers": True}])
def test_averaged_model(kwargs):
    model = torch.nn.Sequential(torch.nn.Linear(3, 4, bias=False), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    averaged = swa_utils.AveragedModel(model, **kwargs)

    def train_averaged(model, optimizer, averaged, x, y):
        loss = train(model, optimizer, x, y)
        averaged.update_parameters(model)
        return loss

    check(t2j(train_averaged, state=(model, optimizer, averaged)), (model, optimizer, averaged), *batch(), atol=1e-5)


@pytest.mark.parametrize(
    "decay", [lambda rate: max(rate * 0.5, 0.02), lambda rate: min(0.02, rate), lambda rate: max([rate])]
)
def test_extremes_of_numbers_outside_of_jit(decay):
    """A number of the state is known there, and once `max` asked itself for it again and again."""
    model = build()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def train_decaying(model, optimizer, x, y):
        loss = train(model, optimizer, x, y)
        group = optimizer.param_groups[0]
        if loss > 0:
            group["lr"] = decay(group["lr"])
        return loss

    step = t2j(train_decaying, state=(model, optimizer))
    state = step.init(*arrays(*batch()))
    for _ in range(4):
        loss, state = step(state, *arrays(*batch()))
        np.testing.assert_allclose(loss, train_decaying(model, optimizer, *batch()).detach().numpy(), rtol=1e-5)


def test_statistics_of_an_averaged_model():
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    averaged = swa_utils.AveragedModel(model)
    step = t2j(lambda averaged, x: swa_utils.update_bn([x[:4], x[4:]], averaged), state=(averaged,))
    x, _ = batch()
    state = step.init(*arrays(x))
    _, state = compiled(step)(state, *arrays(x))
    swa_utils.update_bn([x[:4], x[4:]], averaged)
    for name, buffer in averaged.named_buffers():
        np.testing.assert_allclose(state["averaged"][name], buffer.numpy(), rtol=1e-5)


# Purity.


def snapshot(*things):
    return copy.deepcopy([thing.state_dict() for thing in things]), [
        sorted(map(hash, set(vars(thing)) - {"_opt_called"})) for thing in things
    ]  # a scheduler's note


@pytest.mark.parametrize("fails", [False, True])
def test_the_objects_stay_as_they_are(fails):
    model = build()
    optimizer = torch.optim.Adam(model.parameters())
    scheduler = lr_scheduler.StepLR(optimizer, 1)
    scaler = torch.amp.GradScaler("cpu")
    hooks = []
    optimizer.register_step_post_hook(lambda *_: hooks.append(1))
    before = snapshot(model, optimizer, scheduler, scaler)

    def everything(model, optimizer, scheduler, scaler, x, y):
        scaler.scale(torch.nn.functional.mse_loss(model(x), y)).backward()
        scaler.step(optimizer)
        scaler.update()
        scheduler.step()
        if fails:
            raise ZeroDivisionError
        return model[0].weight.grad.sum()

    step = t2j(everything, state=(model, optimizer, scheduler, scaler))
    x, y = arrays(*batch())
    if fails:
        with pytest.raises(ZeroDivisionError):
            step.init(x, y)
    else:
        compiled(step)(step.init(x, y), x, y)
        assert hooks
    torch.testing.assert_close(snapshot(model, optimizer, scheduler, scaler), before, rtol=0, atol=0)
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not torch.compiler.is_compiling()


@pytest.mark.parametrize("of", ["optimizer", "scheduler", "scaler"])
def test_what_is_not_passed_is_not_changed(of):
    model = build()
    optimizer = torch.optim.Adam(model.parameters())
    scheduler = lr_scheduler.StepLR(optimizer, 1)
    scaler = torch.amp.GradScaler("cpu")
    before = snapshot(model, optimizer, scheduler, scaler)

    def step(x, y):
        loss = torch.nn.functional.mse_loss(model(x), y)
        if of == "scaler":
            loss = scaler.scale(loss)
        loss.backward()
        optimizer.step() if of == "optimizer" else scheduler.step()

    with pytest.raises(RuntimeError, match=r"state=.*step.init"):
        t2j(step)(*arrays(*batch()))
    torch.testing.assert_close(snapshot(model, optimizer, scheduler, scaler), before, rtol=0, atol=0)


def test_state_is_donated_and_two_steps_are_compiled(caplog):
    """The first, and those after it."""
    model = build()
    optimizer = torch.optim.AdamW(model.parameters())
    scheduler = lr_scheduler.CosineAnnealingLR(optimizer, 10)
    step = t2j(train_scheduled, state=(model, optimizer, scheduler))
    x, y = arrays(*batch())
    jitted = compiled(step, donate_argnums=0)
    first = step.init(x, y)
    assert not any(name.startswith("state") for name in first["optimizer"])
    with jax.log_compiles():
        _, second = jitted(first, x, y)
        state = second
        for _ in range(3):
            _, state = jitted(state, x, y)
    assert sum(x.getMessage().startswith(f"Compiling jit({step.__name__})") for x in caplog.records) == 2
    assert all(x.is_deleted() for x in first["model"].values())
    moments = [x for name, x in second["optimizer"].items() if name.startswith("state")]
    assert all(x.is_deleted() for x in [*second["model"].values(), *moments])
    torch.testing.assert_close(model.state_dict(), build().state_dict(), rtol=0, atol=0)


def test_eager_steps_and_keys():
    """Without jit, and with a random operator."""
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Dropout(0.5)).train()
    optimizer = torch.optim.Adam(model.parameters())
    step = t2j(train, state=(model, optimizer))
    x, y = arrays(*batch())
    key = jax.random.key(0)
    state = step.init(x, y, rng=key)
    eager, jitted = step(state, x, y, rng=key), compiled(step)(state, x, y, rng=key)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), eager, jitted)
    with pytest.raises(RuntimeError, match="needs a key"):
        step(state, x, y)


def test_training_goes_on_in_pytorch():
    """Steps in PyTorch, steps here, steps in PyTorch."""
    models = build(), build()
    optimizers = [torch.optim.Adam(model.parameters(), lr=0.01, amsgrad=True) for model in models]
    (model, other), (optimizer, another) = models, optimizers
    for _ in range(2):
        train(model, optimizer, *batch())
    step = t2j(train, state=(model, optimizer))
    _, state = scanned(step, step.init(*arrays(*batch())), *arrays(*batch()), steps=3)
    step.load(state)
    train(model, optimizer, *batch())
    for _ in range(6):
        train(other, another, *batch())
    torch.testing.assert_close(physical(model), physical(other), atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(physical(optimizer), physical(another), atol=1e-5, rtol=1e-4)


def test_parameters_outside_of_modules_and_groups():
    w, v = (torch.nn.Parameter(torch.ones(3) * i) for i in (1, 2))
    optimizer = torch.optim.SGD([{"params": [w], "lr": 0.1}, {"params": [v], "weight_decay": 0.1}], lr=0.2)

    def descend(optimizer, x):
        w, v = (group["params"][0] for group in optimizer.param_groups)
        loss = ((w * v).sum() * x).square().sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    check(t2j(descend, state=optimizer), (optimizer,), torch.tensor([0.01, 0.02]))


def test_the_step_of_a_hyperparameter_that_the_function_changes():
    def train_annealed(model, optimizer, x, y):
        loss = train(model, optimizer, x, y)
        for group in optimizer.param_groups:
            group["lr"] *= 0.9
            group["weight_decay"] = group["weight_decay"] / 2
        return loss

    model = build()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.5)
    check(t2j(train_annealed, state=(model, optimizer)), (model, optimizer), *batch(), atol=2e-5)


def test_a_list_of_one_number_is_a_number_in_a_state():
    """As PyTorch takes those of old checkpoints."""
    norm = torch.nn.BatchNorm1d(2)
    step = t2j(lambda norm, x: norm(x).sum(), state=norm)
    x = jnp.ones((3, 2))
    state = step.init(x)
    (name,) = state
    state[name]["num_batches_tracked"] = jnp.asarray([7])
    _, new = jax.jit(step)(state, x)
    assert new[name]["num_batches_tracked"] == 8
    step.load(state)
    assert norm.num_batches_tracked == 7
    state[name]["running_mean"] = jnp.ones(1)
    with pytest.raises(RuntimeError, match=r"size mismatch for norm\.running_mean"):
        step.load(state)


def test_errors_say_what_to_do():
    model = build()
    step = t2j(train, state=(model, torch.optim.SGD(model.parameters(), lr=0.1)))
    x, y = arrays(*batch())
    with pytest.raises(RuntimeError, match="init"):
        step({}, x, y)
    state = step.init(x, y)
    with pytest.raises(RuntimeError, match=r"size mismatch for model.0.bias"):
        step({**state, "model": {**state["model"], "0.bias": jnp.zeros(7)}}, x, y)
    with pytest.raises(RuntimeError, match=r"lacks model.0.bias"):
        step({**state, "model": {key: x for key, x in state["model"].items() if key != "0.bias"}}, x, y)
    with pytest.raises(RuntimeError, match=r"0.wieght.*nearest: '0.weight'"):
        step({**state, "model": {**state["model"], "0.wieght": jnp.zeros(7)}}, x, y)
    with pytest.raises(TypeError, match="function that takes it first"):
        t2j(model, state=model)


# Functions that build what they train.


DIFFERENTIABLE = [info.optim_cls for info in optim_db if "differentiable" in info.supported_impls]


@pytest.mark.parametrize("optimizer_class", DIFFERENTIABLE, ids=lambda x: x.__name__)
def test_differentiable_optimizers(optimizer_class):
    """The derivative of a step, with respect to the parameter and its gradient."""

    def stepped(p, gradient):
        p = p.clone()
        p.grad = gradient
        optimizer = optimizer_class([p], lr=0.1, differentiable=True)
        optimizer.step()
        return (p**2).sum()

    p, gradient = (torch.tensor(x, requires_grad=True) for x in ([1.0, 2.0, -3.0], [0.5, -1.0, 2.0]))
    wanted = torch.autograd.grad(stepped(p, gradient), (p, gradient), materialize_grads=True)
    found = jax.grad(t2j(stepped), argnums=(0, 1))(*arrays(p, gradient))
    for array, tensor in zip(found, wanted, strict=True):
        np.testing.assert_allclose(array, tensor.numpy(), rtol=1e-4, atol=1e-5)


def test_optimizers_of_a_call_keep_the_arguments_of_their_step():
    class Scaled(torch.optim.SGD):
        def step(self, closure=None, *, grad_scaler=None):
            del closure
            found.append(grad_scaler)

    def function(x):
        weight = torch.nn.Parameter(x)
        optimizer = Scaled([weight], lr=0.1)
        optimizer._step_supports_amp_scaling = True
        scaler = torch.amp.GradScaler("cpu")
        scaler.scale(weight.sum()).backward()
        with warnings.catch_warnings(action="ignore"):
            scaler.step(optimizer)

    found = []
    t2j(function)(jnp.ones(2))
    assert isinstance(found[0], torch.amp.GradScaler)


def test_a_state_is_loaded_after_init():
    model = build()
    optimizer = torch.optim.AdamW(model.parameters())
    x, y = arrays(*batch())
    step = t2j(train, state=(model, optimizer))
    _, state = step(step.init(x, y), x, y)
    another = t2j(train, state=(model, optimizer))
    with pytest.raises(RuntimeError, match=r"optimizer.state.*which the objects lack.* call that first"):
        another.load(state)
    another.init(x, y)
    another.load(state)
