"""Operators that run a cell of a recurrent network over all time steps: one node of a program, however long the input.

`cstorch::recurrent` takes what the inputs contribute to the gates (one large matrix product, recorded before it) and
walks through time; `cstorch::recurrent_backward` walks back. What the weights and biases get is again one product over
all steps, recorded behind it. Cells and the order of their gates are PyTorch's: tanh and relu (`nn.RNN`), gru, lstm.
"""

from __future__ import annotations

from typing import Any

import torch

GATES = {"tanh": 1, "relu": 1, "gru": 3, "lstm": 4}
"""How many gates a kind of cell has."""
_KEPT = {"tanh": 0, "relu": 0, "gru": 4, "lstm": 6}
"""How many values of hidden size each step keeps for the way back: gru r, z, n and the hidden part of n; lstm the four
gates, the cell and its tanh."""

Tensor = torch.Tensor

_library = torch.library.Library("cstorch", "FRAGMENT")
_library.define(
    "recurrent(str kind, Tensor gates, Tensor hidden, Tensor? cell, Tensor weight, Tensor? bias) "
    "-> (Tensor out, Tensor last_cell, Tensor kept)"
)
_library.define(
    "recurrent_backward(str kind, Tensor grad, Tensor? grad_cell, Tensor out, Tensor kept, Tensor hidden, "
    "Tensor? cell, Tensor weight) -> (Tensor gates, Tensor products, Tensor hidden, Tensor cell)"
)


def _outputs(kind: str, gates: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    steps, width = gates.shape[0], hidden.shape[1]
    out = hidden.new_empty(steps, *hidden.shape)
    kept = hidden.new_empty(steps, hidden.shape[0], _KEPT[kind] * width)
    return out, hidden.new_empty(hidden.shape if kind == "lstm" else (0,)), kept


def _gradients(kind: str, grad: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    gates = grad.new_empty(*grad.shape[:2], GATES[kind] * grad.shape[2])
    products = grad.new_empty(gates.shape if kind == "gru" else (0,))
    return gates, products, torch.empty_like(hidden), grad.new_empty(hidden.shape if kind == "lstm" else (0,))


@torch.no_grad()
def _forward(
    kind: str, gates: Tensor, hidden: Tensor, cell: Tensor | None, weight: Tensor, bias: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    out, last, kept = _outputs(kind, gates, hidden)
    width, across = hidden.shape[1], weight.t()
    if kind == "lstm":
        assert cell is not None
        parts = [kept.narrow(2, at * width, size * width).unbind(0) for at, size in ((0, 4), (0, 2), (4, 1), (5, 1))]
        for now, h, all_gates, in_forget, c, squashed in zip(gates, out, *parts, strict=True):
            torch.addmm(now, hidden, across, out=all_gates)
            in_forget.sigmoid_()
            i, f, g, o = all_gates.split(width, 1)
            g.tanh_()
            o.sigmoid_()
            torch.mul(f, cell, out=c).addcmul_(i, g)
            torch.mul(o, torch.tanh(c, out=squashed), out=h)
            hidden, cell = h, c
        last.copy_(cell)
    elif kind == "gru":
        parts = [kept.narrow(2, at * width, size * width).unbind(0) for at, size in ((0, 2), (2, 1), (3, 1))]
        products = gates.new_empty(gates.shape[1:])
        new, others = products[:, 2 * width :], products[:, : 2 * width]
        for now, h, reset_update, n, hidden_part in zip(gates, out, *parts, strict=True):
            if bias is None:
                torch.mm(hidden, across, out=products)
            else:
                torch.addmm(bias, hidden, across, out=products)
            torch.add(now[:, : 2 * width], others, out=reset_update).sigmoid_()
            hidden_part.copy_(new)
            r, z = reset_update.split(width, 1)
            torch.addcmul(now[:, 2 * width :], r, hidden_part, out=n).tanh_()
            hidden = torch.lerp(n, hidden, z, out=h)
    else:
        for now, h in zip(gates, out, strict=True):
            torch.addmm(now, hidden, across, out=h)
            hidden = h.tanh_() if kind == "tanh" else h.relu_()
    return out, last, kept


@torch.no_grad()
def _backward(
    kind: str,
    grad: Tensor,
    grad_cell: Tensor | None,
    out: Tensor,
    kept: Tensor,
    hidden: Tensor,
    cell: Tensor | None,
    weight: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    gates, products, of_hidden, of_cell = _gradients(kind, grad, hidden)
    width, backwards = hidden.shape[1], range(grad.shape[0] - 1, -1, -1)
    of_hidden.zero_()
    if kind == "lstm":
        assert cell is not None
        i, f, g, o, c, squashed = kept.split(width, 2)
        before = torch.cat([cell.unsqueeze(0), c[:-1]])
        to_output, to_cell = squashed * o * (1 - o), o * (1 - squashed * squashed)
        to_gates = torch.stack([g * i * (1 - i), before * f * (1 - f), i * (1 - g * g)], 2)
        others = gates.unflatten(2, (4, width))[:, :, :3]
        of_cell.copy_(grad_cell) if grad_cell is not None else of_cell.zero_()
        for t in backwards:
            of_hidden.add_(grad[t])
            torch.mul(of_hidden, to_output[t], out=gates[t, :, 3 * width :])
            of_cell.addcmul_(of_hidden, to_cell[t])
            torch.mul(of_cell.unsqueeze(1), to_gates[t], out=others[t])
            of_cell.mul_(f[t])
            torch.mm(gates[t], weight, out=of_hidden)
    elif kind == "gru":
        r, z, n, hidden_part = kept.split(width, 2)
        before = torch.cat([hidden.unsqueeze(0), out[:-1]])
        to_update, to_new, to_reset = (before - n) * z * (1 - z), (1 - z) * (1 - n * n), hidden_part * r * (1 - r)
        for t in backwards:
            of_hidden.add_(grad[t])
            of_reset, of_update, of_new = gates[t].split(width, 1)
            torch.mul(of_hidden, to_new[t], out=of_new)
            torch.mul(of_hidden, to_update[t], out=of_update)
            torch.mul(of_new, to_reset[t], out=of_reset)
            products[t, :, : 2 * width].copy_(gates[t, :, : 2 * width])
            torch.mul(of_new, r[t], out=products[t, :, 2 * width :])
            of_hidden.mul_(z[t]).addmm_(products[t], weight)
    else:
        slope = 1 - out * out if kind == "tanh" else (out > 0).to(out.dtype)
        for t in backwards:
            of_hidden.add_(grad[t])
            torch.mul(of_hidden, slope[t], out=gates[t])
            torch.mm(gates[t], weight, out=of_hidden)
    return gates, products, of_hidden, of_cell


_library.impl("recurrent", _forward, "CPU")
_library.impl("recurrent_backward", _backward, "CPU")
torch.library.register_fake(
    "cstorch::recurrent", lambda kind, gates, hidden, *rest: _outputs(kind, gates, hidden), lib=_library
)
torch.library.register_fake(
    "cstorch::recurrent_backward",
    lambda kind, grad, of_cell, out, kept, hidden, *rest: _gradients(kind, grad, hidden),
    lib=_library,
)


def lstm_cell(
    inputs: Tensor,
    hidden: Tensor,
    cx: Tensor,
    input_bias: Tensor | None = None,
    hidden_bias: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """One step of an LSTM, as `aten::_thnn_fused_lstm_cell`: hidden state, cell, and the gates."""
    if input_bias is not None and hidden_bias is not None:
        inputs, hidden = inputs + input_bias, hidden + hidden_bias
    gates = inputs + hidden
    i, f, g, o = gates.chunk(4, 1)
    cy = torch.sigmoid(f) * cx + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(cy), cy, gates


def gru_cell(
    inputs: Tensor,
    hidden: Tensor,
    hx: Tensor,
    input_bias: Tensor | None = None,
    hidden_bias: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """One step of a GRU, as `aten::_thnn_fused_gru_cell`: hidden state, and what that operator would keep."""
    if input_bias is not None and hidden_bias is not None:
        inputs, hidden = inputs + input_bias, hidden + hidden_bias
    (ri, zi, ni), (rh, zh, nh) = inputs.chunk(3, 1), hidden.chunk(3, 1)
    new = torch.tanh(ni + nh * torch.sigmoid(ri + rh))
    return (hx - new) * torch.sigmoid(zi + zh) + new, inputs


def step_by_step(
    kind: str, gates: Tensor, hidden: Tensor, cell: Tensor | None, weight: Tensor, bias: Tensor | None
) -> tuple[Tensor, Tensor]:
    """What `cstorch::recurrent` computes (outputs, last cell), in operations of which each can be differentiated twice.

    Args:
        kind: "tanh", "relu", "gru" or "lstm".
        gates: What the inputs contribute, (steps, batch, gates x hidden); but for gru with the hidden bias added.
        hidden: The state before the first step, (batch, hidden).
        cell: The cell before the first step, for lstm.
        weight: Of hidden to gates, (gates x hidden, hidden).
        bias: Of hidden to gates, for gru.
    """
    outs = []
    for now in gates.unbind(0):
        products = torch.nn.functional.linear(hidden, weight, bias)
        if kind == "lstm":
            assert cell is not None
            hidden, cell, _ = lstm_cell(now, products, cell)
        elif kind == "gru":
            hidden, _ = gru_cell(now, products, hidden)
        else:
            hidden = torch.tanh(now + products) if kind == "tanh" else torch.relu(now + products)
        outs.append(hidden)
    return torch.stack(outs), hidden.new_empty(0) if cell is None else cell


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    kind, gates, hidden, cell, weight, bias = inputs
    out, _, kept = output
    ctx.kind = kind
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(gates, hidden, cell, weight, bias, out, kept)


def _differentiate(ctx: Any, grad: Tensor | None, grad_cell: Tensor | None, _: Any) -> tuple[Tensor | None, ...]:
    gates, hidden, cell, weight, bias, out, kept = ctx.saved_tensors
    if grad is None:
        grad = torch.zeros_like(out)
    if torch.is_grad_enabled():  # a gradient that is differentiated again
        inputs = (gates, hidden, cell, weight, bias)
        given = [t for t in inputs if t is not None and t.requires_grad]
        outs = step_by_step(ctx.kind, gates, hidden, cell, weight, bias)
        ends = [(o, g) for o, g in zip(outs, (grad, grad_cell), strict=True) if g is not None and o.requires_grad]
        outs, grads = zip(*ends, strict=True)
        found = iter(torch.autograd.grad(outs, given, grads, allow_unused=True, create_graph=True))
        made = [next(found) if t is not None and t.requires_grad else None for t in inputs]
        return None, *made
    of_gates, products, of_hidden, of_cell = torch.ops.cstorch.recurrent_backward(
        ctx.kind, grad, grad_cell, out, kept, hidden, cell, weight
    )
    if ctx.kind != "gru":
        products = of_gates
    before = torch.cat([hidden.unsqueeze(0), out[:-1]])
    of_weight = products.flatten(0, 1).t() @ before.flatten(0, 1)
    of_bias = None if bias is None else products.sum((0, 1))
    return None, of_gates, of_hidden, of_cell if cell is not None else None, of_weight, of_bias


torch.library.register_autograd("cstorch::recurrent", _differentiate, setup_context=_keep, lib=_library)
