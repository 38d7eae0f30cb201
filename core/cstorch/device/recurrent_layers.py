"""`nn.RNN`, `nn.GRU` and `nn.LSTM` on csx: one operator for each layer and direction, not one cell for each time step.

Packed sequences and projections go the way that PyTorch has for every device, time step by time step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F

from cstorch.device import fused_lstm, recurrent_cells  # noqa: F401  defines the operators
from cstorch.device.autocast import lowered
from cstorch.device.registration import NAME

aten = torch.ops.aten
Tensor = torch.Tensor


def _direction(
    kind: str, x: Tensor, hidden: Tensor, cell: Tensor | None, weights: Sequence[Tensor], reverse: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """One direction of a layer: its outputs in the order of the inputs, the last hidden state, the last cell."""
    of_inputs, of_hidden, *biases = weights
    if cell is not None and fused_lstm.is_for(x) and not torch.is_autocast_enabled(NAME):
        given = (*weights, *([] if biases else [x.new_zeros(of_inputs.shape[0])] * 2))
        out, last, last_cell, _ = torch.ops.cstorch.lstm(x, *given, hidden.unsqueeze(0), cell.unsqueeze(0), reverse)
        return out, last.squeeze(0), last_cell.squeeze(0)
    first, second = biases if biases else (None, None)
    inside = second if kind == "gru" else None  # the reset gate multiplies it
    if first is not None and second is not None and inside is None:
        first = first + second
    gates = F.linear(x.flip(0) if reverse else x, of_inputs, first).to(hidden.dtype)
    across, inside = (t if t is None else t.to(hidden.dtype) for t in lowered(of_hidden, inside))
    out, last_cell, _ = torch.ops.cstorch.recurrent(kind, gates, hidden, cell, across, inside)
    return out.flip(0) if reverse else out, out[-1], last_cell


def _layers(
    kind: str,
    x: Tensor,
    hidden: Tensor,
    cell: Tensor | None,
    layers: Sequence[Sequence[Sequence[Tensor]]],
    dropout: float,
    train: bool,
) -> tuple[Tensor, ...]:
    """All layers: the outputs of the last, the last hidden states and, for lstm, the last cells of all."""
    if kind in ("tanh", "relu"):  # within autocast the states of others keep their dtype, as on the cpu
        (hidden,) = lowered(hidden)
    ends: list[list[Tensor]] = []
    for number, directions in enumerate(layers):
        if number and dropout:
            x = torch.dropout(x, dropout, train)
        outs = []
        for reverse, weights in enumerate(directions):
            at = len(ends)
            out, *end = _direction(kind, x, hidden[at], None if cell is None else cell[at], weights, bool(reverse))
            outs.append(out)
            ends.append(end)
        x = torch.cat(outs, -1) if len(outs) > 1 else outs[0]
    return x, *(torch.stack(states) for states in list(zip(*ends, strict=True))[: 1 if cell is None else 2])


def _kernel(kind: str, operator: torch._ops.OpOverload) -> Callable[..., Any]:
    def kernel(
        x: Tensor,
        state: Any,
        parameters: Sequence[Tensor],
        has_biases: bool,
        layers: int,
        dropout: float,
        train: bool,
        bidirectional: bool,
        batch_first: bool,
    ) -> Any:
        hidden, cell = state if kind == "lstm" else (state, None)
        directions, each = 2 if bidirectional else 1, 4 if has_biases else 2
        is_plain = len(parameters) == each * directions * layers and (cell is None or hidden.shape == cell.shape)
        if not is_plain or x.numel() == 0:
            given = (x, state, parameters, has_biases, layers, dropout, train, bidirectional, batch_first)
            return operator.decompose(*given)
        of_each = [parameters[at : at + each] for at in range(0, len(parameters), each)]
        of_layers = [of_each[at : at + directions] for at in range(0, len(of_each), directions)]
        x = x.transpose(0, 1) if batch_first else x
        out, *states = _layers(kind, x, hidden, cell, of_layers, dropout, train)
        return (out.transpose(0, 1) if batch_first else out, *states)

    return kernel


_library = torch.library.Library("aten", "IMPL", "AutogradPrivateUse1")
for _kind, _operator in (
    ("tanh", aten.rnn_tanh.input),
    ("relu", aten.rnn_relu.input),
    ("gru", aten.gru.input),
    ("lstm", aten.lstm.input),
):
    _library.impl(_operator, _kernel(_kind, _operator))
