"""Connectionist temporal classification in tensor arithmetic: PyTorch's kernel reads the lengths on the host.

The recursion over time is recorded step by step, for all sequences and states at once. Forward and backward run
through the same steps: what follows a state is what leads to it in the sequence read from its end. What eager checks
on the lengths (longer than the input, negative) is not checked in a program.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch.autograd.function import once_differentiable

from cstorch.compiler import realize  # noqa: F401  defines the operator cstorch::realize

_IMPOSSIBLE = -1e15
"""Log probability of what cannot be: differences of minus infinity are not numbers."""

Lengths = torch.Tensor | Sequence[int]


def ctc_loss(
    log_probs: torch.Tensor,
    targets: torch.Tensor,
    input_lengths: Lengths,
    target_lengths: Lengths,
    blank: int = 0,
    reduction: str | int = "mean",
    zero_infinity: bool = False,
) -> torch.Tensor:
    """`torch.nn.functional.ctc_loss` (and, with a number as reduction, `torch.ctc_loss`) with static shapes."""
    reduction = {"none": 0, "mean": 1, "sum": 2}[reduction] if isinstance(reduction, str) else reduction
    alone = log_probs.dim() == 2
    if alone:
        log_probs, targets = log_probs.unsqueeze(1), targets.reshape(1, -1)
    inputs, wanted = _lengths(input_lengths, log_probs), _lengths(target_lengths, log_probs)
    labels = _labels(targets.to(log_probs.device, torch.int64), target_lengths, wanted, blank)
    loss: torch.Tensor = _NegativeLogLikelihood.apply(log_probs, labels, inputs, wanted, blank)
    lost = loss > -_IMPOSSIBLE / 10
    loss = torch.where(lost, 0, loss) if zero_infinity else loss * torch.where(lost, torch.inf, 1)
    if reduction == 1:
        return (loss / wanted.clamp(min=1)).mean()
    return loss.sum() if reduction == 2 else loss.squeeze(0) if alone else loss


def _lengths(lengths: Lengths, log_probs: torch.Tensor) -> torch.Tensor:
    made = lengths if isinstance(lengths, torch.Tensor) else torch.tensor(list(lengths), dtype=torch.int64)
    return made.to(log_probs.device, torch.int64).reshape(-1).expand(log_probs.shape[1])


def _labels(targets: torch.Tensor, given: Lengths, lengths: torch.Tensor, blank: int) -> torch.Tensor:
    """Targets as one row for each sequence, filled up with blanks."""
    if targets.dim() == 1:  # one after the other
        width = targets.numel() if isinstance(given, torch.Tensor) else max(given, default=0)
        places = (lengths.cumsum(0) - lengths).unsqueeze(1) + torch.arange(width, device=targets.device)
        targets = F.pad(targets, (0, 1))[places.clamp(max=targets.numel())]
    inside = torch.arange(targets.shape[1], device=targets.device) < lengths.unsqueeze(1)
    return torch.where(inside, targets, blank)


class _NegativeLogLikelihood(torch.autograd.Function):
    """For each sequence: over all ways through its labels, with blanks before, between and after them."""

    @staticmethod
    def forward(
        ctx: Any, log_probs: torch.Tensor, labels: torch.Tensor, inputs: torch.Tensor, wanted: torch.Tensor, blank: int
    ) -> torch.Tensor:
        steps, count, classes = log_probs.shape
        states = F.pad(torch.stack([labels, torch.full_like(labels, blank)], 2).flatten(1), (1, 0), value=blank)
        end = (2 * wanted).unsqueeze(1)
        position = torch.arange(states.shape[1], device=states.device)
        time = torch.arange(steps, device=states.device).unsqueeze(1)
        mirror = (end - position).clamp(min=0)
        back = (inputs - 1 - time).clamp(min=0)
        mirrored = log_probs.gather(0, back.unsqueeze(2).expand(-1, -1, classes))
        both = torch.cat([states, states.gather(1, mirror)])
        emitted = torch.cat([log_probs, mirrored], 1).clamp(min=_IMPOSSIBLE).gather(2, both.expand(steps, -1, -1))
        before, after = _ways(emitted, both, blank).split(count, 1)

        finished = before.gather(0, inputs.view(1, -1, 1).expand(-1, -1, states.shape[1])).squeeze(0)
        in_label = torch.where(end > 0, finished.gather(1, (end - 1).clamp(min=0)), _IMPOSSIBLE)
        loss = -torch.logaddexp(finished.gather(1, end), in_label).squeeze(1)

        after = after[1:].gather(0, back.unsqueeze(2).expand(-1, -1, states.shape[1]))
        through = before[1:] + after.gather(2, mirror.expand(steps, -1, -1)) - emitted[:, :count]
        share = (through + loss.unsqueeze(1)).clamp(max=0).exp() * (position <= end)
        spent = torch.zeros_like(log_probs).scatter_add(2, states.expand(steps, -1, -1), share)
        # As eager's: the gradient of the logits behind the log_softmax that made `log_probs`.
        ctx.save_for_backward(torch.where((time < inputs).unsqueeze(2), log_probs.exp() - spent, 0))
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (of_loss,) = ctx.saved_tensors
        return of_loss * gradient.unsqueeze(1), None, None, None, None


def _ways(emitted: torch.Tensor, states: torch.Tensor, blank: int) -> torch.Tensor:
    """Log probability of all ways that lead to each state, before the first time step and after each."""
    follows = (states != blank) & (states != F.pad(states, (2, 0), value=blank)[:, :-2])
    skip = torch.where(follows, 0.0, _IMPOSSIBLE).to(emitted.dtype)
    first = torch.arange(states.shape[1], device=states.device) == 0
    ways = [torch.where(first, 0.0, _IMPOSSIBLE).to(emitted.dtype).expand(states.shape)]
    for now in emitted.unbind(0):
        shifted = F.pad(ways[-1], (2, 0), value=_IMPOSSIBLE)
        arrived = torch.logaddexp(ways[-1], shifted[:, 1:-1])
        # A buffer for each step: Inductor would compute the steps before again, three times for each.
        ways.append(torch.ops.cstorch.realize(torch.logaddexp(arrived, shifted[:, :-2] + skip) + now))
    return torch.stack(ways)
