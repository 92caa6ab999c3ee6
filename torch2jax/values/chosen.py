"""Functions of selections by masks of unknown values: by a declared rule, an elementwise one, or a body."""

import types
from collections.abc import Callable
from typing import Any

from ..errors import TracedValueError
from ..internals.dispatch import DisableAutocast
from ..rules import autocast, registry
from ..rules.features import handles
from ..translation import Call
from .selected import Selected, pass_on_origin
from .selected_at_axis import SelectedAtAxis, apply_elementwise


@handles(Selected, 0)
def run_selected(call: Call, function: Any, args: tuple, kwargs: dict) -> Any:
    """The result of a function of a selection by a traced mask."""
    return _run(call, function, args, kwargs, registry.lookup_selected, Selected.words)


@handles(SelectedAtAxis, -1)  # also beside a selection
def run_at_axis(call: Call, function: Any, args: tuple, kwargs: dict) -> Any:
    """The result of a function of a selection by a traced mask along a later dimension."""
    return _run(call, function, args, kwargs, registry.lookup_at_axis, SelectedAtAxis.words)


def _run(call: Call, function: Any, args: tuple, kwargs: dict, lookup: Callable, words: str) -> Any:
    rule = registry.lookup(function)
    device = autocast.region()
    if device is not None and rule is not None:
        treatment = autocast.of_function(function, rule, device)
        if treatment.is_operator:
            with DisableAutocast():
                return _run(call, function, *treatment.cast(args, kwargs), lookup, words)
    declared = lookup(function)
    if declared is not None:
        with call.inside():
            return pass_on_origin(declared(*args, **kwargs), args, kwargs)
    if rule is not None and rule.elementwise:
        with call.inside():
            return apply_elementwise(rule, *rule.names.placed(function, args, kwargs))
    if rule is None and isinstance(function, types.FunctionType) and not call.is_own_body(function, args):
        return call.run_body(function, args, kwargs)
    name = function.__self__.__name__ if function.__name__ == "__get__" else function.__name__
    raise TracedValueError(f"torch.{name} of what {words}")
