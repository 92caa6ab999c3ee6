"""What a trial runs: a copy of the module, with what shares memory there as it does in the module."""

import torch
from torch import nn

from torch2jax.tools.trial import copied


def test_parameters_on_one_memory_stay_so():
    module = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 2))
    module[1].weight = nn.Parameter(module[0].weight.data, requires_grad=False)
    module[2].weight = module[0].weight
    other = copied(module)
    first, second, third = (layer.weight for layer in other)
    assert first is third
    assert first.data_ptr() == second.data_ptr() != module[0].weight.data_ptr()
    assert (first.requires_grad, second.requires_grad) == (True, False)
    assert all(type(weight) is nn.Parameter for weight in other.parameters())
    torch.testing.assert_close(other.state_dict(), module.state_dict())
