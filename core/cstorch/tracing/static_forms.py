"""Forms with static shapes for functions of torch that look at values or make shapes of them.

`x[mask] = v` and `cov` need no value on the host and no shape that depends on one; PyTorch's own way of computing
them, or their gradients, does. Each form here gives the same numbers. What eager PyTorch checks on the values (a
negative variance, a negative weight) is not checked in a program.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F

from cstorch.device import CsxTensor
from cstorch.device.tensor import refuse_read
from cstorch.tracing.ctc import ctc_loss


def _masked_put(x: torch.Tensor, mask: Any, value: Any, accumulate: bool = False) -> Any:
    """`x` with `value` where `mask` is set; NotImplemented unless one value goes to every place of the mask."""
    if isinstance(mask, (tuple, list)) and len(mask) == 1:
        mask = mask[0]
    if not (isinstance(mask, torch.Tensor) and mask.dtype == torch.bool and isinstance(value, torch.Tensor)):
        return NotImplemented
    trailing = x.dim() - mask.dim()
    if mask.dim() == 0 or trailing < 0 or x.shape[: mask.dim()] != mask.shape or value.dim() > trailing:
        return NotImplemented
    if accumulate:
        value = x + value
    return torch.where(mask.view(*mask.shape, *[1] * trailing), value.to(x.dtype), x)


def _set_item(x: torch.Tensor, index: Any, value: Any) -> Any:
    if not (isinstance(value, torch.Tensor) and value.requires_grad):
        return NotImplemented
    made = _masked_put(x, index, value)
    return made if made is NotImplemented else x.copy_(made)


def _index_put(x: torch.Tensor, indices: Sequence[Any], values: torch.Tensor, accumulate: bool = False) -> Any:
    return _masked_put(x, indices, values, accumulate) if values.requires_grad else NotImplemented


def _index_put_(x: torch.Tensor, indices: Sequence[Any], values: torch.Tensor, accumulate: bool = False) -> Any:
    made = _index_put(x, indices, values, accumulate)
    return made if made is NotImplemented else x.copy_(made)


def _index_fill(x: torch.Tensor, dim: Any, index: torch.Tensor, value: Any) -> Any:
    if not (isinstance(value, torch.Tensor) and value.requires_grad and isinstance(dim, int)):
        return NotImplemented
    if x.dim() == 0:
        chosen = torch.full_like(x, index.numel() > 0, dtype=torch.bool)
        return torch.where(chosen, value.to(x.dtype), x)
    mask = torch.zeros(x.shape[dim], dtype=torch.bool, device=x.device).index_fill(0, index.to(torch.int64), True)
    shape = [1] * x.dim()
    shape[dim] = -1
    return torch.where(mask.view(shape), value.to(x.dtype), x)


def _index_fill_(x: torch.Tensor, dim: Any, index: torch.Tensor, value: Any) -> Any:
    made = _index_fill(x, dim, index, value)
    return made if made is NotImplemented else x.copy_(made)


def _cov(
    x: torch.Tensor,
    *,
    correction: int = 1,
    fweights: torch.Tensor | None = None,
    aweights: torch.Tensor | None = None,
) -> torch.Tensor:
    x = x.view(1, -1) if x.dim() < 2 else x
    weights = fweights
    if aweights is not None:
        weights = aweights if weights is None else weights * aweights
    total: Any = x.shape[1] if weights is None else weights.sum()
    mean = (x if weights is None else x * weights).sum(1) / total
    norm = total - correction
    if aweights is not None and weights is not None and correction != 0:
        norm = total - correction * (weights * aweights).sum() / total
    norm = norm.clamp(min=0) if isinstance(norm, torch.Tensor) else max(norm, 0)
    centred = x - mean.unsqueeze(1)
    product = centred @ (centred if weights is None else centred * weights).t().conj()
    made: torch.Tensor = (product / norm).squeeze()
    return made


def _corrcoef(x: torch.Tensor) -> torch.Tensor:
    c = _cov(x)
    if c.dim() == 0:
        return c / c
    diagonal = c.diag()
    deviation = (diagonal.real if c.is_complex() else diagonal).sqrt()
    c = c / deviation.view(-1, 1) / deviation.view(1, -1)
    return torch.complex(c.real.clip(-1, 1), c.imag.clip(-1, 1)) if c.is_complex() else c.clip(-1, 1)


def _gaussian_nll_loss(
    input: torch.Tensor,  # noqa: A002
    target: torch.Tensor,
    var: torch.Tensor | float,
    full: bool = False,
    eps: float = 1e-6,
    reduction: str = "mean",
) -> Any:
    if not isinstance(var, torch.Tensor) or reduction not in ("none", "mean", "sum"):
        return NotImplemented
    if var.shape != input.shape:
        if input.shape[:-1] == var.shape:
            var = var.unsqueeze(-1)
        elif input.dim() != var.dim() or sum(v for i, v in zip(input.shape, var.shape, strict=True) if i != v) != 1:
            return NotImplemented  # eager says what is wrong
    bounded = var.clone()
    with torch.no_grad():  # as eager: the bound does not stop the gradient
        bounded.clamp_(min=eps)
    loss = 0.5 * (bounded.log() + (input - target) ** 2 / bounded)
    if full:
        loss = loss + 0.5 * math.log(2 * math.pi)
    return loss if reduction == "none" else loss.mean() if reduction == "mean" else loss.sum()


def _batch_norm(
    input: torch.Tensor,  # noqa: A002
    running_mean: torch.Tensor | None,
    running_var: torch.Tensor | None,
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    training: bool = False,
    momentum: Any = 0.1,
    eps: float = 1e-5,
) -> Any:
    """With a tensor as momentum, as `nn.BatchNorm*d(momentum=None)` in a step has it."""
    if not isinstance(momentum, torch.Tensor) or running_mean is None or running_var is None:
        return NotImplemented
    mean, var = torch.zeros_like(running_mean), torch.zeros_like(running_var)
    made = F.batch_norm(input, mean, var, weight, bias, training, 1.0, eps)  # leaves the batch's own
    with torch.no_grad():
        running_mean.lerp_(mean, momentum.to(mean.dtype))
        running_var.lerp_(var, momentum.to(var.dtype))
    return made


def _linear_cross_entropy(*args: Any, options: Any = None, **kwargs: Any) -> Any:
    """In one chunk: a program that is recorded would repeat the operations of the loop for each."""
    if options is None or (options.batch_chunk_size is None and options.chunking_method is None):
        return NotImplemented
    whole = dataclasses.replace(options, batch_chunk_size=None, chunking_method=None)
    return F.linear_cross_entropy(*args, options=whole, **kwargs)


def _one_hot(x: torch.Tensor, num_classes: int = -1) -> torch.Tensor:
    if num_classes < 1:
        raise refuse_read("one_hot() without num_classes, which counts the classes: give num_classes;")
    made = torch.zeros((*x.shape, num_classes), dtype=torch.int64, device=x.device)
    return made.scatter_(-1, x.unsqueeze(-1).long(), 1)


def _tensor_split(x: torch.Tensor, indices_or_sections: Any, dim: int = 0) -> Any:
    if isinstance(indices_or_sections, CsxTensor):
        raise refuse_read("tensor_split at indices in a traced tensor: use a list of numbers instead;")
    return NotImplemented


def _equal(x: torch.Tensor, other: torch.Tensor) -> Any:
    """As a tensor, which an assert statement of a step may ask for its truth."""
    return (x == other).all() if x.shape == other.shape else False


def _allclose(x: torch.Tensor, other: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    return torch.isclose(x, other, *args, **kwargs).all()


def _with_int32_labels(function: Callable[..., torch.Tensor]) -> Callable[..., Any]:
    """A loss that takes class labels of int32, which are usual on csx and which PyTorch's kernels refuse."""

    def form(x: torch.Tensor, target: Any, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(target, torch.Tensor) or target.dtype is not torch.int32:
            return NotImplemented
        return function(x, target.long(), *args, **kwargs)

    return form


FORMS: dict[Any, Callable[..., Any]] = {
    torch.Tensor.__setitem__: _set_item,
    torch.index_put: _index_put,
    torch.Tensor.index_put: _index_put,
    torch.index_put_: _index_put_,
    torch.Tensor.index_put_: _index_put_,
    torch.index_fill: _index_fill,
    torch.Tensor.index_fill: _index_fill,
    torch.Tensor.index_fill_: _index_fill_,
    torch.equal: _equal,
    torch.Tensor.equal: _equal,
    torch.allclose: _allclose,
    torch.Tensor.allclose: _allclose,
    torch.cov: _cov,
    torch.Tensor.cov: _cov,
    torch.corrcoef: _corrcoef,
    torch.Tensor.corrcoef: _corrcoef,
    F.gaussian_nll_loss: _gaussian_nll_loss,
    F.batch_norm: _batch_norm,
    F.ctc_loss: ctc_loss,
    torch.ctc_loss: ctc_loss,
    F.cross_entropy: _with_int32_labels(F.cross_entropy),
    F.nll_loss: _with_int32_labels(F.nll_loss),
    F.linear_cross_entropy: _linear_cross_entropy,
    F.one_hot: _one_hot,
    torch.tensor_split: _tensor_split,
    torch.Tensor.tensor_split: _tensor_split,
}
"""Form by function; a form returns NotImplemented where PyTorch's own way is static already."""


def static_form(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The result of `func` in its static form, or NotImplemented."""
    try:
        form = FORMS.get(func)
    except TypeError:
        return NotImplemented
    if form is None or not args or not isinstance(args[0], CsxTensor):
        return NotImplemented
    return form(*args, **kwargs)
