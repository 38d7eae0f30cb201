"""Rules of layers and losses: samples come first, and what parameters get of them adds up."""

from __future__ import annotations

from typing import Any

import torch

from cstorch.compiler.micro_batch.labels import SUM, Along, Call, Label, MixesSamplesError
from cstorch.compiler.micro_batch.rules import elementwise, rule, with_rows

_SUM_OF = 2
"""The number by which PyTorch's losses know reduction="sum"; that of "mean" is 1, of "none" 0."""


@rule("convolution")
def _convolution(call: Call) -> Label:
    source, *parameters = call.args[:3]
    call.need(source, 0)
    for node in parameters:
        call.whole(node)
    return Along(0)


@rule("convolution_backward")
def _convolution_backward(call: Call) -> tuple[Label, ...]:
    grad, source, weight = call.args[:3]
    call.need(grad, 0)
    call.need(source, 0)
    call.whole(weight)
    return Along(0), SUM, SUM


@rule(
    "max_pool2d_with_indices", "max_pool3d_with_indices", "avg_pool1d", "avg_pool2d", "avg_pool3d",
    "max_pool2d_with_indices_backward", "max_pool3d_with_indices_backward", "avg_pool2d_backward",
    "avg_pool3d_backward", "_adaptive_avg_pool2d", "_adaptive_avg_pool3d", "_adaptive_avg_pool2d_backward",
    "_adaptive_avg_pool3d_backward", "adaptive_max_pool2d", "adaptive_max_pool2d_backward", "upsample_nearest1d",
    "upsample_nearest2d", "upsample_nearest3d", "upsample_bilinear2d", "upsample_bicubic2d", "upsample_linear1d",
    "upsample_trilinear3d", "reflection_pad1d", "reflection_pad2d", "reflection_pad1d_backward",
    "reflection_pad2d_backward", "replication_pad1d", "replication_pad2d", "replication_pad2d_backward",
    "pixel_shuffle", "pixel_unshuffle", "im2col", "col2im", "grid_sampler_2d", "channel_shuffle",
)  # fmt: skip
def _of_samples(call: Call) -> Any:
    for node in call.tensors:
        call.need(node, 0)
    value = call.node.meta["val"]
    return Along(0) if isinstance(value, torch.Tensor) else (Along(0),) * len(value)


@rule("upsample_nearest1d_backward", "upsample_nearest2d_backward", "upsample_bilinear2d_backward",
      "upsample_bicubic2d_backward", "upsample_linear1d_backward")  # fmt: skip
def _upsample_backward(call: Call) -> Any:
    call.args[2] = [call.part(call.args[2][0]), *call.args[2][1:]]
    return _of_samples(call)


# -- norms ---------------------------------------------------------------------------------------------------


@with_rows
@rule("native_layer_norm", "_fused_rms_norm")
def _layer_norm(call: Call) -> tuple[Label, ...]:
    source, shape = call.args[:2]
    dim = call.dim(source)
    if dim is None or dim >= source.meta["val"].dim() - len(shape):
        raise MixesSamplesError
    call.need(source, dim)
    for node in call.args[2:4]:
        call.whole(node)
    return (Along(dim),) * len(call.node.meta["val"])


@with_rows
@rule("native_layer_norm_backward", "_fused_rms_norm_backward")
def _layer_norm_backward(call: Call) -> tuple[Label, ...]:
    grad, source, shape = call.args[:3]
    dim = call.dim(grad) if call.dim(grad) is not None else call.dim(source)
    if dim is None or dim >= source.meta["val"].dim() - len(shape):
        raise MixesSamplesError
    is_layer = "layer" in call.name
    for node in (grad, source, *call.args[3 : 5 if is_layer else 4]):
        call.need(node, dim)
    for node in call.args[5:7] if is_layer else call.args[4:5]:
        call.whole(node)
    return Along(dim), *(SUM,) * (len(call.node.meta["val"]) - 1)


@rule("native_group_norm")
def _group_norm(call: Call) -> tuple[Label, ...]:
    source, *parameters = call.args[:3]
    call.need(source, 0)
    for node in parameters:
        call.whole(node)
    call.args[3] = call.part(call.args[3])
    return Along(0), Along(0), Along(0)


@rule("native_group_norm_backward")
def _group_norm_backward(call: Call) -> tuple[Label, ...]:
    for node in call.args[:4]:
        call.need(node, 0)
    call.whole(call.args[4])
    call.args[5] = call.part(call.args[5])
    return Along(0), SUM, SUM


@rule("native_batch_norm", "_native_batch_norm_legit", "_native_batch_norm_legit_no_training")
def _batch_norm(call: Call) -> tuple[Label, ...]:
    source, *parameters = call.args[:5]
    is_legit = "no_training" in call.name
    if not is_legit and call.args[5]:  # the statistics are those of all samples
        raise MixesSamplesError
    call.need(source, 0)
    for node in parameters:
        call.whole(node)
    return Along(0), Along(0), Along(0)  # the others are empty


@rule("native_batch_norm_backward")
def _batch_norm_backward(call: Call) -> tuple[Label, ...]:
    grad, source, *others = call.args[:7]
    if call.args[7]:
        raise MixesSamplesError
    call.need(grad, 0)
    call.need(source, 0)
    for node in others[:3]:
        call.whole(node)
    for node in others[3:]:  # empty
        call.need(node, 0)
    return Along(0), SUM, SUM


# -- lookups, attention, recurrence --------------------------------------------------------------------------


@with_rows
@rule("embedding")
def _embedding(call: Call) -> Label:
    weight, indices = call.args[:2]
    dim = call.dim(indices)
    if dim is None:
        raise MixesSamplesError
    call.whole(weight)
    call.need(indices, dim)
    return Along(dim)


@with_rows
@rule("embedding_dense_backward")
def _embedding_backward(call: Call) -> Label:
    grad, indices, *_, by_frequency = call.args
    dim = call.dim(indices) if call.dim(indices) is not None else call.dim(grad)
    if dim is None or by_frequency:
        raise MixesSamplesError
    call.need(grad, dim)
    call.need(indices, dim)
    return SUM


def _mask_of(call: Call) -> None:
    mask = call.kwargs.get("attn_mask")
    if mask is not None and mask.meta["val"].dim() == 4 and mask.meta["val"].shape[0] != 1:
        call.need(mask, 0)
    else:
        call.whole(mask)


@rule("_scaled_dot_product_flash_attention_for_cpu")
def _attention(call: Call) -> tuple[Label, ...]:
    for node in call.args[:3]:
        call.need(node, 0)
    _mask_of(call)
    return Along(0), Along(0)


@rule("_scaled_dot_product_flash_attention_for_cpu_backward")
def _attention_backward(call: Call) -> tuple[Label, ...]:
    for node in call.args[:6]:
        call.need(node, 0)
    _mask_of(call)
    return Along(0), Along(0), Along(0)


@rule("lstm")
def _lstm(call: Call) -> tuple[Label, ...]:
    source, *weights = call.args[:5]
    for node in (source, *call.args[5:7]):
        call.need(node, 1)
    for node in weights:
        call.whole(node)
    return Along(1), Along(1), Along(1), Along(0)  # the last is oneDNN's, for the way back alone


@rule("lstm_backward")
def _lstm_backward(call: Call) -> tuple[Label, ...]:
    source, *weights = call.args[:5]
    for node in (source, *call.args[5:7], *call.args[8:11], *call.args[12:15]):
        call.need(node, 1)
    call.need(call.args[11], 0)
    for node in weights:
        call.whole(node)
    return Along(1), SUM, SUM, SUM, SUM, Along(1), Along(1)


@rule("recurrent")
def _recurrent(call: Call) -> tuple[Label, ...]:
    _, gates, hidden, cell, *weights = call.args
    call.need(gates, 1)
    call.need(hidden, 0)
    call.need(cell, 0)
    for node in weights:
        call.whole(node)
    return Along(1), Along(0), Along(1)


@rule("recurrent_backward")
def _recurrent_backward(call: Call) -> tuple[Label, ...]:
    _, grad, grad_cell, out, kept, hidden, cell, weight = call.args
    for node, dim in ((grad, 1), (grad_cell, 0), (out, 1), (kept, 1), (hidden, 0), (cell, 0)):
        call.need(node, dim)
    call.whole(weight)
    return Along(1), Along(1), Along(0), Along(0)


# -- losses --------------------------------------------------------------------------------------------------


@with_rows
@rule("mse_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy", "soft_margin_loss")
def _loss(call: Call) -> Label:
    reduction = call.named("reduction")
    if reduction == 0:
        label: Label = elementwise(call)
        return label
    dims = {call.dim(node) for node in call.tensors} - {None}
    if reduction != _SUM_OF or len({node.meta["val"].shape for node in call.tensors}) != 1 or len(dims) != 1:
        raise MixesSamplesError
    (dim,) = dims
    assert dim is not None
    for node in call.tensors:
        call.need(node, dim)
    return SUM


@with_rows
@rule("mse_loss_backward", "smooth_l1_loss_backward", "huber_loss_backward", "binary_cross_entropy_backward",
      "soft_margin_loss_backward")  # fmt: skip
def _loss_backward(call: Call) -> Label:
    if call.named("reduction") == 1:  # it would divide by the elements of a micro-batch
        raise MixesSamplesError
    label: Label = elementwise(call)
    return label


@with_rows
@rule("nll_loss_forward", "nll_loss2d_forward")
def _nll_loss(call: Call) -> tuple[Label, ...]:
    source, target, weight, reduction = call.args[:4]
    call.need(source, 0)
    call.need(target, 0)
    call.whole(weight)
    if reduction == 1:  # it would divide by the targets of a micro-batch that count
        raise MixesSamplesError
    return (Along(0) if reduction == 0 else SUM), SUM


@with_rows
@rule("nll_loss_backward", "nll_loss2d_backward")
def _nll_loss_backward(call: Call) -> Label:
    grad, source, target, weight, reduction, _, total = call.args
    if reduction == 1:
        raise MixesSamplesError
    if grad.meta["val"].dim():
        call.need(grad, 0)
    else:
        call.whole(grad)
    call.need(source, 0)
    call.need(target, 0)
    call.whole(weight)
    call.whole(total)
    return Along(0)
