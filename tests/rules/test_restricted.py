"""Tensors that must not be written to with gradients on: PyTorch's errors, by the way that they were made."""

import pytest
import torch

from torch2jax import t2j

WRITES = {
    "add_": lambda view: view.add_(1),
    "transpose_": lambda view: view.transpose_(0, 1),
    "as_strided_": lambda view: view.as_strided_((1,), (1,)),
}
MODES = {"no_grad": torch.no_grad, "inference": torch.inference_mode}


def outcome(function):
    try:
        function()
    except RuntimeError as error:
        return str(error).partition(" and is being")[0]
    return "none"


def made_in(mode, write, *, requires_grad, of_view):
    base = torch.ones(2, 3, requires_grad=requires_grad).clone()
    with MODES[mode]():
        view = base.view(2, 3)
    if of_view:
        view = view[:1] if view.requires_grad or not requires_grad else view.view(2, 3)
    write(view)


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("requires_grad", [True, False])
def test_views_made_without_gradients(mode, write, requires_grad):
    def function(of_view):
        return outcome(lambda: made_in(mode, WRITES[write], requires_grad=requires_grad, of_view=of_view))

    assert t2j(function)(False) == function(False)
    assert ("view of a view" in t2j(function)(True)) == ("view of a view" in function(True))


def test_what_became_of_a_view_that_was_made_without_gradients():
    def function(mode):
        base = torch.ones(2, requires_grad=True).clone()
        with MODES[mode]():
            view = base.view(2)
        base.mul_(2)
        return outcome(lambda: view.grad_fn)

    for mode in MODES:
        assert t2j(function)(mode).split(" has been")[0] == function(mode).split(" has been")[0] != "none"


def test_a_view_of_what_requires_grad_since():
    def function():
        base = torch.ones(2)
        view, detached = base[:], base.detach()
        base.requires_grad_()
        detached.add_(1)
        return outcome(lambda: view.add_(1))

    assert t2j(function)() == function() != "none"


def test_inference_tensors():
    def function():
        with torch.inference_mode():
            made = torch.ones(2, 3, requires_grad=True)
            inside = made.view(-1)
        outside = made.view(-1)
        return [
            fact for x in (inside, outside) for fact in (x.requires_grad, x._is_view(), x.is_leaf, x.is_inference())
        ]

    def written_to(write):
        with torch.inference_mode():
            made = torch.ones(2, 3)
        WRITES[write](made)

    assert t2j(function)() == function()
    for write in WRITES:
        for run in (written_to, t2j(written_to)):
            with pytest.raises(RuntimeError, match="Inplace update to inference tensor outside InferenceMode"):
                run(write)


def test_inference_tensors_have_the_derivatives_of_others():
    def gradients():
        with torch.inference_mode():
            a = torch.full((3,), 4.0)
        x = torch.full((3,), 2.0, requires_grad=True)
        return torch.autograd.grad((a * x + a / x).sum(), x)[0]

    assert t2j(gradients)().tolist() == [3.0] * 3


def test_attributes_that_cannot_be_deleted():
    def function(name):
        try:
            delattr(torch.ones(2, requires_grad=True), name)
        except RuntimeError as error:
            return str(error)

    for name in ("data", "requires_grad", "_grad_fn", "_backward_hooks"):
        assert t2j(function)(name) == function(name) is not None
    with pytest.raises(TypeError, match="data has to be a tensor"):
        t2j(lambda: setattr(torch.ones(2), "data", None))()
