"""What errors tell of where they come from: the module's path, the user's line, and none of our own frames."""

import pickle
import traceback
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
import torch
from torch import nn

import torch2jax
from torch2jax import j2t, t2j, torch2jax as bridge

OURS = str(Path(torch2jax.__file__).parent)


class Oops(Exception):
    """An exception of the user's own."""


class Checked(nn.Module):
    def __init__(self, error=None):
        super().__init__()
        self.error = error

    def forward(self, x):
        if self.error is not None:
            raise self.error
        return x.numpy()


class Block(nn.Module):
    def __init__(self, part):
        super().__init__()
        self.part = part

    def forward(self, x):
        with torch.no_grad():
            x = self.part(x)  # the line
        return x + 1


def model(part):
    return nn.Sequential(nn.Linear(3, 3), nn.Sequential(Block(part)))


WAYS = {
    "eager": lambda f: f(jnp.ones((2, 3))),
    "jit": lambda f: jax.jit(f)(jnp.ones((2, 3))),
    "grad": lambda f: jax.grad(lambda x: f(x).sum())(jnp.ones((2, 3))),
    "vmap": lambda f: jax.vmap(f)(jnp.ones((2, 3))),
}


def shown(error) -> str:
    return "".join(traceback.format_exception(error))


@pytest.mark.parametrize("way", WAYS)
def test_an_error_names_the_module_and_the_line(way):
    lines = Path(__file__).read_text().splitlines()
    line = 1 + next(i for i, text in enumerate(lines) if text.endswith("# the line"))
    with pytest.raises(RuntimeError, match="cannot be multiplied") as caught:
        WAYS[way](t2j(model(nn.Linear(4, 3))))
    notes = [note for note in caught.value.__notes__ if "in the module" in note]
    module = "Linear(in_features=4, out_features=3, bias=True)"
    assert notes == [f"raised in the module 1.0.part ({module}), at {__file__}:{line} in forward"]
    assert OURS not in shown(caught.value)


@pytest.mark.parametrize("way", WAYS)
def test_an_error_of_the_users_keeps_its_type_and_identity(way):
    error = Oops("no")
    with pytest.raises(Oops) as caught:
        WAYS[way](t2j(model(Checked(error))))
    assert any(note.startswith("raised in the module 1.0.part (Checked()), at") for note in caught.value.__notes__)


class Dismantled(nn.Module):
    """As libraries' modules are whose copies have lost their parts."""

    def forward(self, x):
        vars(self).pop("_modules")
        raise Oops("no")


def test_a_module_without_its_tables_does_not_hide_the_error():
    with pytest.raises(Oops) as caught:
        t2j(model(Dismantled()))(jnp.ones((2, 3)))
    assert any(note.startswith("raised in the module 1.0.part, at") for note in caught.value.__notes__)


def test_what_the_message_has_is_not_said_twice():
    with pytest.raises(torch2jax.TracedValueError) as caught:
        jax.jit(t2j(model(Checked())))(jnp.ones((2, 3)))
    text = shown(caught.value)
    assert "raised in the module 1.0.part (Checked())\n" in text
    assert text.count(f"{__file__}:") == 1


def test_a_function_has_no_module_to_name():
    with pytest.raises(RuntimeError) as caught:
        t2j(lambda x: x @ x)(jnp.ones((2, 3)))
    assert not any("module" in note for note in caught.value.__notes__)
    assert OURS not in shown(caught.value)


@pytest.mark.parametrize("compiled", [False, True])
def test_the_traceback_is_no_longer_than_pytorchs(compiled):
    wrong = model(nn.Linear(4, 3))
    with pytest.raises(RuntimeError) as wanted:
        wrong(torch.ones(2, 3))
    with pytest.raises(RuntimeError) as caught:
        (jax.jit if compiled else lambda f: f)(t2j(wrong))(jnp.ones((2, 3)))
    assert len(traceback.extract_tb(caught.value.__traceback__)) <= len(
        traceback.extract_tb(wanted.value.__traceback__)
    )
    assert caught.value.__cause__ is None or OURS not in shown(caught.value.__cause__)


def test_all_frames_are_shown_if_asked_for():
    before = jax.config.jax_traceback_filtering
    jax.config.update("jax_traceback_filtering", "off")
    try:
        with pytest.raises(RuntimeError) as caught:
            t2j(model(nn.Linear(4, 3)))(jnp.ones((2, 3)))
    finally:
        jax.config.update("jax_traceback_filtering", before)
    assert OURS in shown(caught.value)


def test_errors_of_functions_that_cross():
    def fails(*_):
        raise Oops("no")

    step = t2j(lambda layer, x: fails(layer(x)), state=(nn.Linear(3, 3),))
    for call in (lambda: j2t(fails)(torch.ones(2)), lambda: step.init(jnp.ones((2, 3)))):
        with pytest.raises(Oops) as caught:
            call()
        assert OURS not in shown(caught.value)


def test_the_bridge_shows_the_users_frames_alone():
    def fails(x):
        if x.sum() > 5:
            raise Oops("too much")
        return x * 2

    function = bridge(fails, torch.ones(3))
    with pytest.raises(jax.errors.JaxRuntimeError, match="too much") as caught:
        jax.block_until_ready(jax.jit(function)(jnp.full(3, 4.0)))
    assert "in fails" in str(caught.value)
    assert sum("FILTERING" in note for note in caught.value.__notes__) == 1
    assert OURS not in str(caught.value)


def test_code_that_handles_errors_is_followed_as_before():
    def inner(x):
        if x.sum() > 0:
            raise Oops("positive")
        return x

    def outer(x):
        try:
            return t2j(inner)(x)
        except Oops:
            return x * 2

    for function in (t2j(outer), jax.jit(t2j(outer))):
        assert jnp.array_equal(function(jnp.ones(3)), jnp.full(3, 2.0))
        assert jnp.array_equal(function(-jnp.ones(3)), -jnp.ones(3))


def test_parts_and_steps_name_the_module():
    class Whole(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = model(nn.Linear(4, 3))

        def forward(self, x):
            return self.inner(x)

    step = t2j(lambda whole, x: whole(x), state=(Whole(),))
    for call in (t2j(Whole(), compile=[Block]), lambda x: step.init(x)):
        with pytest.raises(RuntimeError) as caught:
            call(jnp.ones((2, 3)))
        assert any("in the module inner.1.0.part (Linear" in note for note in caught.value.__notes__)
        assert OURS not in shown(caught.value)


@pytest.mark.parametrize("filtered", [True, False])
def test_a_bridge_shows_the_users_frames_alone_while_it_is_built(filtered):
    before = jax.config.jax_traceback_filtering
    jax.config.update("jax_traceback_filtering", before if filtered else "off")
    try:
        with pytest.raises(RuntimeError, match="cannot be multiplied") as caught:
            bridge(lambda x: x @ x, jnp.ones((2, 3)))
    finally:
        jax.config.update("jax_traceback_filtering", before)
    assert (OURS in shown(caught.value)) is not filtered
    if filtered:
        assert len(traceback.extract_tb(caught.value.__traceback__)) == 2
        assert caught.value.__context__ is None  # the trial on meta tensors is no cause


@pytest.mark.parametrize(
    ("warns", "match"),
    [
        (lambda: bridge(lambda x: x * 2, torch.ones(3))(jnp.ones(2)), "unlike its examples"),
        (lambda: t2j(lambda x: torch.add(x, 1, out=torch.ones(2)))(jnp.ones(3)), "was resized"),
        (lambda: t2j(lambda x: (x * 2).requires_grad_().mul(1).grad)(jnp.ones(3)), "not a leaf"),
        (lambda: t2j(lambda x: x[torch.ones(3, dtype=torch.uint8)])(jnp.ones(3)), "uint8"),
        (lambda: t2j(lambda x: torch.empty(2).random_(0, 2**30))(0, rng=jax.random.key(0)), "out of bounds"),
    ],
)
def test_warnings_name_the_users_line(warns, match):
    with pytest.warns(UserWarning, match=match) as caught:
        warns()
    assert {warning.filename for warning in caught} == {__file__}


def test_translated_functions_pickle_as_before():
    assert pickle.loads(pickle.dumps(t2j(nn.Linear(2, 2))))(jnp.ones(2)).shape == (2,)


def test_pytorchs_compiler_leaves_translated_calls_alone():
    linear = torch.nn.Linear(3, 4)
    f, x = t2j(linear), torch.ones(2, 3)
    compiled = torch.compile(lambda x: j2t(f(x.relu())).cos(), backend="eager")
    torch.testing.assert_close(compiled(x), linear(x).cos(), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(j2t(torch.compile(f, backend="eager")(x)), linear(x), rtol=1e-5, atol=1e-6)
    assert f(x).shape == (2, 4)  # as ever
