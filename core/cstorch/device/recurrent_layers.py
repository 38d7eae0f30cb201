"""`nn.RNN`, `nn.GRU` and `nn.LSTM` on csx: one operator for each layer and direction, not one cell for each time step.

Packed sequences, projections and LSTMs whose cell and hidden state differ in dtype go the way that PyTorch has for
every device, time step by time step.
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


def _fused(x: Tensor, hidden: Tensor, cell: Tensor, weights: Sequence[Tensor], reverse: bool) -> list[Tensor]:
    given = list(weights) if len(weights) == 4 else [*weights, *[x.new_zeros(weights[0].shape[0])] * 2]
    out, *last, _ = torch.ops.cstorch.lstm(x, *given, hidden.unsqueeze(0), cell.unsqueeze(0), reverse)
    return [out, *(state.squeeze(0) for state in last)]


def _layers(
    kind: str,
    x: Tensor,
    hidden: Tensor,
    cell: Tensor | None,
    parameters: Sequence[Tensor],
    has_biases: bool,
    dropout: float,
    train: bool,
    directions: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """All layers: the outputs of the last, and the last hidden states and cells of all."""
    if kind in ("tanh", "relu"):  # within autocast the states of others keep their dtype, as on the cpu
        (hidden,) = lowered(hidden)
    is_fused = cell is not None and fused_lstm.is_for(x) and not torch.is_autocast_enabled(NAME)
    each = 4 if has_biases else 2
    hiddens, cells = [], []
    for layer in range(len(parameters) // each // directions):
        outs = []
        for direction in range(directions):
            at = layer * directions + direction
            weights = parameters[at * each : (at + 1) * each]
            if is_fused and cell is not None:
                out, last_hidden, last_cell = _fused(x, hidden[at], cell[at], weights, bool(direction))
                hiddens.append(last_hidden)
                cells.append(last_cell)
                outs.append(out)
                continue
            of_inputs, of_hidden, *biases = weights
            first, second = biases if biases else (None, None)
            inside = second if kind == "gru" else None  # the reset gate multiplies it
            if inside is None and first is not None and second is not None:
                first = first + second
            gates = F.linear(x.flip(0) if direction else x, of_inputs, first)
            across, inside = (t if t is None else t.to(hidden.dtype) for t in lowered(of_hidden, inside))
            before = None if cell is None else cell[at]
            out, last, _ = torch.ops.cstorch.recurrent(kind, gates.to(hidden.dtype), hidden[at], before, across, inside)
            hiddens.append(out[-1])
            cells.append(last)
            outs.append(out.flip(0) if direction else out)
        x = torch.cat(outs, -1) if directions == 2 else outs[0]
        if dropout and layer + 1 < len(parameters) // each // directions:
            x = torch.dropout(x, dropout, train)
    return x, torch.stack(hiddens), torch.stack(cells)


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
        directions = 2 if bidirectional else 1
        expected = (4 if has_biases else 2) * layers * directions
        is_plain = len(parameters) == expected and (cell is None or hidden.shape == cell.shape)
        if not is_plain or x.numel() == 0 or hidden.shape[0] != layers * directions or x.dim() != 3:
            return operator.decompose(
                x, state, parameters, has_biases, layers, dropout, train, bidirectional, batch_first
            )
        x = x.transpose(0, 1) if batch_first else x
        out, hiddens, cells = _layers(kind, x, hidden, cell, parameters, has_biases, dropout, train, directions)
        out = out.transpose(0, 1) if batch_first else out
        return (out, hiddens, cells) if kind == "lstm" else (out, hiddens)

    return kernel


_library = torch.library.Library("aten", "IMPL", "AutogradPrivateUse1")
for _kind, _operator in (
    ("tanh", aten.rnn_tanh.input),
    ("relu", aten.rnn_relu.input),
    ("gru", aten.gru.input),
    ("lstm", aten.lstm.input),
):
    _library.impl(_operator, _kernel(_kind, _operator))
