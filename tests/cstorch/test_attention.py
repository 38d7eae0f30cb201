"""scaled_dot_product_attention in a traced step: the numbers of eager, forward and backward, in each of its forms."""

from __future__ import annotations

import cstorch
import pytest
import torch
import torch.nn.functional as F

FORMS = {
    "plain": {},
    "causal": {"is_causal": True},
    "scaled": {"scale": 0.3},
    "bool mask": {"attn_mask": torch.ones(5, 5, dtype=torch.bool).tril()},
    "float mask": {"attn_mask": torch.linspace(-1, 1, 25).view(5, 5)},
}


def heads(requires_grad=True):
    torch.manual_seed(1)
    return [torch.randn(2, 5, 3, 8).requires_grad_(requires_grad) for _ in range(3)]


def attend(q, k, v, **kwargs):
    return F.scaled_dot_product_attention(*(t.transpose(1, 2) for t in (q, k, v)), **kwargs)


@pytest.mark.parametrize("form", FORMS)
def test_forward_and_gradients_equal_eager(csx, form):
    truth = heads()
    attend(*truth, **FORMS[form]).square().sum().backward()
    seen = []
    kwargs = FORMS[form]

    @cstorch.trace
    def step(q, k, v, mask):
        leaves = [t.detach().requires_grad_() for t in (q, k, v)]
        out = attend(*leaves, **{**kwargs, **({} if mask is None else {"attn_mask": mask})})
        keep(out, *torch.autograd.grad(out.square().sum(), leaves))

    @cstorch.step_closure
    def keep(*tensors):
        seen.append(tensors)

    step(*heads(False), kwargs.get("attn_mask"))
    step(*heads(False), kwargs.get("attn_mask"))
    for out, *gradients in seen:
        torch.testing.assert_close(out, attend(*truth, **kwargs))
        for gradient, tensor in zip(gradients, truth):
            torch.testing.assert_close(gradient, tensor.grad)
    flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
    assert any(node.target is flash for node in step.programs[0].graph.graph.nodes)


def test_dropout_and_a_learned_mask_take_the_composite_form(csx):
    mask = torch.nn.Parameter(torch.zeros(5, 5))
    cstorch.compile(torch.nn.ParameterList([mask]))
    seen = []

    @cstorch.trace
    def step(q, k, v):
        out = attend(q, k, v, attn_mask=mask, dropout_p=0.5)
        out.sum().backward()
        keep(out)
        mask.grad = None

    @cstorch.step_closure
    def keep(out):
        seen.append(out)

    batch = heads(False)
    for _ in range(2):
        step(*batch)
    assert not torch.equal(*seen)
