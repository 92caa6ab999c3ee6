"""Deep copies of modules keep what was one object one, where `copy.deepcopy` does not."""

import threading
import types
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch import nn

from torch2jax import BranchError, t2j
from torch2jax.modules.skeleton import copy_structure


class _Child(nn.Module):
    def __init__(self, parent, reference):
        super().__init__()
        object.__setattr__(self, "parent", reference(parent))

    def forward(self, x):
        parent = self.parent() if isinstance(self.parent, weakref.ref) else self.parent
        return x * parent.scale


class _Parent(nn.Module):
    def __init__(self, reference):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor([1.0, 2.0, 3.0]))
        self.child = _Child(self, reference)

    def forward(self, x):
        return self.child(x)


@pytest.mark.parametrize("reference", [weakref.ref, weakref.proxy], ids=["ref", "proxy"])
def test_weights_of_a_parent_that_a_part_has_weakly(reference):
    model, x = _Parent(reference), torch.tensor([1.0, -1.0, 0.5])
    state = t2j(model.state_dict())
    new = {"scale": state["scale"] * 3}
    np.testing.assert_array_equal(t2j(model)(t2j(x), state_dict=new), t2j(x) * new["scale"])
    gradient = jax.grad(lambda state: t2j(model)(t2j(x), state_dict=state).sum())(state)
    np.testing.assert_array_equal(gradient["scale"], t2j(x))


class _Doubles(list):
    def append(self, value):
        super().append(value * 2)


class _Attributes:
    pass


def _module(**attributes):
    module = nn.Module()
    for name, value in attributes.items():
        setattr(module, name, value)
    return module


def test_a_list_is_not_filled_by_the_append_of_its_class():
    items = _Doubles([1.0])
    items.name = "of doubles"
    copied = copy_structure(_module(items=items), {})
    assert type(copied.items) is _Doubles
    assert list(copied.items) == [1.0]
    assert copied.items.name == "of doubles"


def test_views_of_arrays_stay_views():
    array = np.arange(12.0).reshape(3, 4)
    copied = copy_structure(_module(all=array, rows=array[::-2], column=array.T[1]), {})
    copied.rows[0, 1] = 7
    assert copied.all[2, 1] == copied.column[2] == 7
    assert array[2, 1] == 9
    one, other = copy_structure(_module(views=(array[:2], array[1:])), {}).views
    one[1] = 5
    assert (other[0] == 5).all()
    alone = copy_structure(_module(view=array[1]), {}).view
    assert alone.base is None


def test_an_array_in_the_memory_of_a_copied_tensor_is_only_read():
    tensor = torch.ones(3)
    copied = copy_structure(_module(tensor=tensor, array=tensor.numpy()), {})
    with pytest.raises(ValueError, match="read-only"):
        copied.array[0] = 2
    copy_structure(_module(array=tensor.numpy()), {}).array[0] = 2
    assert tensor[0] == 1


def test_weak_containers_lead_to_copies():
    key, other = _Attributes(), _Attributes()
    copied = copy_structure(
        _module(
            objects=[key, other],
            by_key=weakref.WeakKeyDictionary({key: [1]}),
            by_name=weakref.WeakValueDictionary(a=other),
            all=weakref.WeakSet([key, other]),
        ),
        {},
    )
    assert copied.by_key[copied.objects[0]] == [1]
    assert copied.by_name["a"] is copied.objects[1]
    assert set(copied.all) == set(copied.objects)
    assert key not in copied.all


def test_what_a_weak_reference_leads_to_outside_is_shared():
    outside = _Attributes()
    assert copy_structure(_module(reference=weakref.ref(outside)), {}).reference() is outside


def test_what_cannot_be_copied_is_shared_and_no_more():
    lock, table = threading.Lock(), {"a": [1]}
    module = _module(held={"lock": lock, "rows": [1]}, library=types, both=(table, table.keys()))
    copied = copy_structure(module, {})
    assert copied.held["lock"] is lock
    assert copied.held["rows"] is not module.held["rows"]
    assert copied.library is types
    assert copied.both is module.both  # the keys lead to the dictionary, so it is not copied apart from them


def test_objects_with_one_dictionary_of_attributes_have_one():
    one, other = _Attributes(), _Attributes()
    one.m, other.__dict__ = 0, one.__dict__
    copied = copy_structure(_module(objects=[one, other]), {}).objects
    copied[0].n = 1
    assert copied[1].n == 1
    assert not hasattr(one, "n")


_TABLE: dict = {}


class _Notes(nn.Module):
    def forward(self, x):
        self.table = _TABLE
        if x.sum() > 0:
            self.table["seen"] = 1
        return x + float("seen" in self.table)


def test_an_attribute_may_be_an_object_from_outside():
    """It is not one of the copy's only because a module has it."""
    model = _Notes()
    for x in (jnp.ones(3), -jnp.ones(3)):
        np.testing.assert_array_equal(t2j(model)(x), x + float(x[0] > 0))
        _TABLE.clear()
    with pytest.raises(BranchError, match="a dict holds something else on each side"):
        jax.jit(t2j(model))(jnp.ones(3))
    assert not _TABLE


class _Temporary:
    """Its state is made for the copy alone."""

    def __getstate__(self):
        return {"rows": [1, 2]}


def test_what_is_made_for_a_copy_is_not_taken_for_something_else():
    module = _module(objects=[_Temporary() for _ in range(200)], names=[[i] for i in range(200)])
    memo: dict = {}
    for _ in range(3):
        copied = copy_structure(module, dict(memo))
        assert all(each.rows == [1, 2] for each in copied.objects)
        assert copied.names == module.names
        assert len({id(each.rows) for each in copied.objects}) == 200
