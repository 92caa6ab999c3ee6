"""Recurrent layers and their cells, packed sequences."""

import functools
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from jax import lax

from ...internals.jax import varying_axes
from ...rules.array_rule import InnerRule
from ...rules.registry import implements, implements_tensors
from ...tracing.traces import varying
from ..arrays import cast, like
from ..shape import stack
from ..values import values
from .embedding import take_rows
from .linear import linear

aten = torch.ops.aten


class _Cell(NamedTuple):
    """One kind of recurrence: ``step(projected input, states, hidden weight, hidden bias)`` gives the new states."""

    step: Callable
    states: int
    folds_bias: bool
    """True if the hidden bias may be added to the projected input, once for all steps."""


def _parts(gates, count: int):
    size = gates.shape[-1] // count
    return [lax.slice_in_dim(gates, i * size, (i + 1) * size, axis=-1) for i in range(count)]


def _lstm_step(projected, states, w_hh, b_hh, w_hr=None):
    hidden, cell = states
    i, f, g, o = _parts(lax.add(projected, linear(hidden, w_hh, b_hh)), 4)
    cell = lax.add(lax.mul(lax.logistic(f), cell), lax.mul(lax.logistic(i), lax.tanh(g)))
    hidden = lax.mul(lax.logistic(o), lax.tanh(cell))
    return (hidden if w_hr is None else linear(hidden, w_hr)), cell


def _gru_step(projected, states, w_hh, b_hh):
    (hidden,) = states
    of_hidden = linear(cast(hidden, w_hh.dtype), w_hh, b_hh)
    (reset, update, new), (h_reset, h_update, h_new) = _parts(projected, 3), _parts(of_hidden, 3)
    reset, update = lax.logistic(lax.add(reset, h_reset)), lax.logistic(lax.add(update, h_update))
    new = lax.tanh(lax.add(new, lax.mul(reset, h_new)))
    new, update = cast(new, hidden.dtype), cast(update, hidden.dtype)  # in mixed precision it is wider
    return (lax.add(new, lax.mul(update, lax.sub(hidden, new))),)


def _rnn_step(activation, projected, states, w_hh, b_hh):
    return (activation(lax.add(projected, linear(states[0], w_hh, b_hh))),)


def _relu(x):
    return lax.select(lax.gt(x, lax.full_like(x, 0)), x, lax.full_like(x, 0))


_CELLS = {
    "lstm": _Cell(_lstm_step, 2, True),
    "gru": _Cell(_gru_step, 1, False),
    "rnn_tanh": _Cell(functools.partial(_rnn_step, lax.tanh), 1, True),
    "rnn_relu": _Cell(functools.partial(_rnn_step, _relu), 1, True),
}


def _project(cell: _Cell, input, w_ih, b_ih, b_hh):
    """The input's part of the gates, and the part of the hidden bias that is left for each step."""
    input = cast(input, w_ih.dtype)
    if b_ih is not None and cell.folds_bias:
        return linear(input, w_ih, lax.add(b_ih, b_hh)), None
    return linear(input, w_ih, b_ih), b_hh


def _direction(cell: _Cell, input, states, weights, has_biases: bool, valid, reverse: bool):
    """One layer in one direction over ``(time, batch, features)``: the output and the last states.

    Where `valid` is false, after the end of a shorter sequence, the states stay as they are.
    """
    w_ih, w_hh, *rest = weights
    b_ih, b_hh, *rest = rest if has_biases else (None, None, *rest)
    projected, b_hh = _project(cell, input, w_ih, b_ih, b_hh)

    def step(states, at):
        projected, keep = at
        new = cell.step(projected, states, w_hh, b_hh, *rest)
        if keep is not None:
            new = tuple(lax.select(_columns(keep, n), n, old) for n, old in zip(new, states, strict=True))
        return new, new[0]

    # Within jax.shard_map: states that are the same on all devices do not stay so.
    axes = frozenset[str]().union(*map(varying_axes, (projected, *states, *weights)))
    states = tuple(varying(state, axes) for state in states)
    states, output = lax.scan(step, states, (projected, valid), reverse=reverse)
    return output, states


def _columns(mask, like):
    return lax.broadcast_in_dim(mask, like.shape, (0,))


def _layer(input, states, weights, kind: str, layer: int, has_biases: bool, bidirectional: bool, batch_sizes=None):
    """One layer, in one or both directions: the output and the last states, ``(directions, batch, features)``."""
    directions = 2 if bidirectional else 1
    valid = None if batch_sizes is None else _valid(batch_sizes)
    per_direction = len(weights) // directions
    outputs, lasts = [], []
    for i in range(directions):
        first = tuple(lax.index_in_dim(state, layer * directions + i, keepdims=False) for state in states)
        own = weights[i * per_direction : (i + 1) * per_direction]
        output, last = _direction(_CELLS[kind], input, first, own, has_biases, valid, reverse=i == 1)
        outputs.append(output)
        lasts.append([lax.expand_dims(state, (0,)) for state in last])
    last = [parts[0] if directions == 1 else lax.concatenate(parts, 0) for parts in zip(*lasts, strict=True)]
    return (outputs[0] if directions == 1 else lax.concatenate(outputs, 2), *last)


_LAYER = InnerRule(_layer, "recurrent_layer")


def _recurrent(kind: str, input, states, weights, has_biases, num_layers, dropout, train, bidirectional, batch_sizes):
    """All layers over ``(time, batch, features)``: the output, and the last states of all layers."""
    per_layer = len(weights) // num_layers
    lasts = []
    for layer in range(num_layers):
        own = list(weights[layer * per_layer : (layer + 1) * per_layer])
        input, *last = _LAYER((input, states, own, kind, layer, has_biases, bidirectional, batch_sizes), {})
        lasts.append(last)
        if dropout and train and layer < num_layers - 1:
            input = torch.dropout(input, dropout, train)
    return input, *(parts[0] if num_layers == 1 else torch.cat(parts) for parts in zip(*lasts, strict=True))


def _implements_recurrent(kind: str):
    packet = getattr(aten, kind)

    @implements_tensors(getattr(torch, kind), packet.input, packet.data)
    def rule(*args):
        if isinstance(args[3], (list, tuple)):
            return _packed(*args)
        input, hx, params, has_biases, num_layers, dropout, train, bidirectional, batch_first = args
        input = input.transpose(0, 1) if batch_first else input
        output, *last = _recurrent(
            kind, input, _as_list(hx), params, has_biases, num_layers, dropout, train, bidirectional, None
        )
        return output.transpose(0, 1) if batch_first else output, *last

    def _packed(data, batch_sizes, hx, params, has_biases, num_layers, dropout, train, bidirectional):
        sizes = _known_sizes(batch_sizes)
        padded = _PAD((data, sizes), {})
        output, *last = _recurrent(
            kind, padded, _as_list(hx), params, has_biases, num_layers, dropout, train, bidirectional, sizes
        )
        return _PACK((output, sizes), {}), *last


def _as_list(hx):
    return [hx] if isinstance(hx, torch.Tensor) else list(hx)


for _kind in _CELLS:
    _implements_recurrent(_kind)


# Cells.


def _one_step(kind: str, input, states, w_ih, w_hh, b_ih, b_hh):
    cell = _CELLS[kind]
    if input.shape[-1] != w_ih.shape[1]:
        raise RuntimeError(f"input has inconsistent input_size: got {input.shape[-1]} expected {w_ih.shape[1]}")
    for i, state in enumerate(states):
        if state.shape[0] != input.shape[0]:
            raise RuntimeError(f"Input batch size {input.shape[0]} doesn't match hidden{i} batch size {state.shape[0]}")
        if state.shape[-1] != w_hh.shape[1]:
            raise RuntimeError(
                f"hidden{i} has inconsistent hidden_size: got {state.shape[-1]}, expected {w_hh.shape[1]}"
            )
    projected, b_hh = _project(cell, input, w_ih, b_ih, b_hh)
    return cell.step(projected, tuple(states), w_hh, b_hh)


@implements(torch.lstm_cell)
def lstm_cell(input, hx, w_ih, w_hh, b_ih=None, b_hh=None):
    return _one_step("lstm", input, hx, w_ih, w_hh, b_ih, b_hh)


@implements(torch.gru_cell)
def gru_cell(input, hx, w_ih, w_hh, b_ih=None, b_hh=None):
    return _one_step("gru", input, (hx,), w_ih, w_hh, b_ih, b_hh)[0]


@implements(torch.rnn_tanh_cell)
def rnn_tanh_cell(input, hx, w_ih, w_hh, b_ih=None, b_hh=None):
    return _one_step("rnn_tanh", input, (hx,), w_ih, w_hh, b_ih, b_hh)[0]


@implements(torch.rnn_relu_cell)
def rnn_relu_cell(input, hx, w_ih, w_hh, b_ih=None, b_hh=None):
    return _one_step("rnn_relu", input, (hx,), w_ih, w_hh, b_ih, b_hh)[0]


# Lists of sequences.


@implements(torch._C._nn.pad_sequence, aten.pad_sequence)
def pad_sequence(sequences, batch_first=False, padding_value=0.0, padding_side="right"):
    if not sequences:
        raise RuntimeError("pad_sequence: received an empty list of sequences")
    if padding_side not in ("left", "right"):
        raise RuntimeError(f"pad_sequence: padding_side must be left or right, but got {padding_side}")
    if any(sequence.ndim == 0 for sequence in sequences):
        raise RuntimeError("pad_sequence: a sequence needs at least one dimension, but got a 0-d tensor")
    longest = max(len(sequence) for sequence in sequences)
    padded = []
    for sequence in (cast(sequence, sequences[0].dtype) for sequence in sequences):
        missing = longest - len(sequence)
        widths = (missing, 0, 0) if padding_side == "left" else (0, missing, 0)
        config = [widths] + [(0, 0, 0)] * (sequence.ndim - 1)
        padded.append(lax.pad(sequence, like(sequence, padding_value), config) if missing else sequence)
    return stack(padded, 0 if batch_first else 1)


# Packed sequences: the rows of all sequences that are still running, step after step. Their lengths are Python values.


def _known_sizes(batch_sizes) -> tuple[int, ...]:
    return tuple(values(batch_sizes, "the batch sizes of a packed sequence").tolist())


def _valid(batch_sizes):
    """The mask of the sequences still running at each step: ``(time, batch)``."""
    sizes = np.asarray(batch_sizes, np.int32)
    shape = (len(sizes), int(sizes[0]))
    return lax.lt(lax.broadcasted_iota(np.int32, shape, 1), lax.broadcast_in_dim(sizes, shape, (0,)))


def _pad(data, batch_sizes, padding_value=0, total_length=None):
    """Packed rows as ``(time, batch, ...)``."""
    sizes = np.asarray(batch_sizes)
    starts, columns = np.cumsum(sizes) - sizes, np.arange(sizes[0])
    running = columns < sizes[:, None]
    rows = take_rows(data, np.where(running, starts[:, None] + columns, 0).astype(np.int32))
    inside = lax.broadcast_in_dim(_valid(batch_sizes), rows.shape, (0, 1))
    padding = np.asarray(padding_value, data.dtype)
    padded = rows if running.all() else lax.select(inside, rows, lax.full_like(rows, padding))
    more = (total_length or len(sizes)) - len(sizes)
    return lax.pad(padded, padding, [(0, more, 0)] + [(0, 0, 0)] * (padded.ndim - 1)) if more else padded


def _pack(padded, batch_sizes):
    """The rows of ``(time, batch, ...)`` that are within their sequence."""
    batch = padded.shape[1]
    rows = np.concatenate([t * batch + np.arange(size) for t, size in enumerate(batch_sizes)]).astype(np.int32)
    return take_rows(lax.collapse(padded, 0, 2), rows)


_PAD, _PACK = InnerRule(_pad, "_pad_packed_sequence"), InnerRule(_pack, "_pack_padded_sequence")


_UNPACKED = (
    "run the layer on the padded batch, and choose the last step of each sequence, "
    "output[torch.arange(len(lengths)), lengths - 1]"
)


@implements_tensors(torch._pack_padded_sequence, aten._pack_padded_sequence.default)
def _pack_padded_sequence(input, lengths, batch_first):
    counts = values(lengths, "a packed sequence", instead=_UNPACKED)
    if input.numel() == 0:
        raise RuntimeError(f"Cannot pack empty tensors: got one of size {list(input.shape)}")
    padded = input.transpose(0, 1) if batch_first else input
    if counts.size == 0 or counts.min() <= 0:
        raise RuntimeError(
            "Length of all samples has to be greater than 0, but found an element in 'lengths' that is <= 0"
        )
    if (np.diff(counts) > 0).any():
        raise RuntimeError(
            "`lengths` array must be sorted in decreasing order when `enforce_sorted` is True. You can pass "
            "`enforce_sorted=False` to pack_padded_sequence and/or pack_sequence to sidestep this requirement."
        )
    if len(counts) != padded.shape[1] or counts[0] > padded.shape[0]:
        raise RuntimeError(
            f"expected `lengths` of {padded.shape[1]} sequences of at most {padded.shape[0]} steps, got "
            f"{counts.tolist()}"
        )
    sizes = tuple(int((counts > step).sum()) for step in range(int(counts[0])))
    return _PACK((padded, sizes), {}), torch.tensor(sizes)


@implements_tensors(torch._pad_packed_sequence, aten._pad_packed_sequence.default)
def _pad_packed_sequence(data, batch_sizes, batch_first, padding_value=0.0, total_length=-1):
    sizes = _known_sizes(batch_sizes)
    if 0 < total_length < len(sizes):
        raise RuntimeError(
            f"Expected total_length to be at least the length of the longest sequence in input, but got "
            f"total_length={total_length} and max sequence length being {len(sizes)}"
        )
    padded = _PAD((data, sizes, padding_value, total_length if total_length > 0 else None), {})
    lengths = torch.tensor([sum(size > i for size in sizes) for i in range(sizes[0])])
    return padded.transpose(0, 1) if batch_first else padded, lengths
