"""Operators for one direction of an LSTM layer with oneDNN's kernel, which PyTorch takes on the cpu in float32.

PyTorch's own operator (`aten::mkldnn_rnn_layer`) keeps what its backward needs only where autograd is on, and a program
runs without; `cstorch::lstm` always keeps it.
"""

from __future__ import annotations

from typing import Any

import torch

Tensor = torch.Tensor

_ARGUMENTS = "Tensor x, Tensor w, Tensor u, Tensor b, Tensor c, Tensor hidden, Tensor cell, bool reverse"
_library = torch.library.Library("cstorch", "FRAGMENT")
_library.define(f"lstm({_ARGUMENTS}) -> (Tensor out, Tensor last_hidden, Tensor last_cell, Tensor kept)")
_library.define(
    f"lstm_backward({_ARGUMENTS}, Tensor out, Tensor last_hidden, Tensor last_cell, Tensor kept, Tensor? of_out, "
    "Tensor? of_hidden, Tensor? of_cell) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)"
)


def is_for(x: Tensor) -> bool:
    """Whether PyTorch would run an LSTM on `x` with oneDNN's kernel."""
    return x.dtype == torch.float32 and torch.backends.mkldnn.is_available() and bool(torch.backends.mkldnn.enabled)


def _forward(
    x: Tensor, w: Tensor, u: Tensor, b: Tensor, c: Tensor, hidden: Tensor, cell: Tensor, reverse: bool
) -> tuple[Tensor, ...]:
    size = hidden.shape[-1]
    with torch.enable_grad():
        made: tuple[Tensor, ...] = torch.ops.aten.mkldnn_rnn_layer(
            x.contiguous(), w, u, b, c, hidden, cell, reverse, [], 2, size, 1, True, False, False, True
        )
    return made


def _backward(
    x: Tensor,
    w: Tensor,
    u: Tensor,
    b: Tensor,
    c: Tensor,
    hidden: Tensor,
    cell: Tensor,
    reverse: bool,
    out: Tensor,
    last_hidden: Tensor,
    last_cell: Tensor,
    kept: Tensor,
    of_out: Tensor | None,
    of_hidden: Tensor | None,
    of_cell: Tensor | None,
) -> tuple[Tensor, ...]:
    size = hidden.shape[-1]
    given = (x.contiguous(), w, u, b, c, hidden, cell, out, last_hidden, last_cell, of_out, of_hidden, of_cell)
    with torch.enable_grad():
        made: tuple[Tensor, ...] = torch.ops.aten.mkldnn_rnn_layer_backward(
            *given, reverse, 2, size, 1, True, True, False, [], False, kept
        )
    return made


def _like_forward(x: Tensor, w: Tensor, u: Tensor, b: Tensor, c: Tensor, hidden: Tensor, *_: Any) -> Any:
    out = x.new_empty(*x.shape[:2], hidden.shape[-1])
    return out, torch.empty_like(hidden), torch.empty_like(hidden), x.new_empty(0, dtype=torch.uint8)


_library.impl("lstm", _forward, "CPU")
_library.impl("lstm_backward", _backward, "CPU")
torch.library.register_fake("cstorch::lstm", _like_forward, lib=_library)
torch.library.register_fake(
    "cstorch::lstm_backward",
    lambda *given: tuple(torch.empty(t.shape, dtype=t.dtype, device=t.device) for t in given[:7]),
    lib=_library,
)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.set_materialize_grads(False)
    ctx.reverse = inputs[-1]
    ctx.save_for_backward(*inputs[:-1], *output)


def _differentiate(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
    if torch.is_grad_enabled():
        raise NotImplementedError(
            "a gradient of an LSTM's gradient is not there: oneDNN's kernel has none, on the cpu neither. Run this "
            "part of the step under torch.backends.mkldnn.flags(enabled=False)."
        )
    saved = ctx.saved_tensors
    return *torch.ops.cstorch.lstm_backward(*saved[:7], ctx.reverse, *saved[7:], *grads[:3]), None


torch.library.register_autograd("cstorch::lstm", _differentiate, setup_context=_keep, lib=_library)
