"""torch.autograd.grad, double backward, custom functions, checkpointing and torch.func in a step, equal to eager."""

import functools

import cstorch
import pytest
import torch
from cstorch.errors import TraceError
from programs import linear, mlp, trains_as_eager
from torch import nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential


def test_autograd_grad(csx):
    def body(run, model, optimizer, x, i):
        loss = model(x).square().mean()
        for p, g in zip(model.parameters(), torch.autograd.grad(loss, list(model.parameters()))):
            p.grad = g
        optimizer.step()

    trains_as_eager(body)


def test_sgd_by_hand(csx):
    def body(run, model, optimizer, x, i):
        parameters = list(model.parameters())
        grads = torch.autograd.grad(model(x).square().mean(), parameters)
        with torch.no_grad():
            for p, g in zip(parameters, grads):
                p -= 0.1 / (i + 1) * g

    trains_as_eager(body)


def penalty(x, model):
    x = x.detach().requires_grad_()
    out = model(x).sum()
    (grad,) = torch.autograd.grad(out, x, create_graph=True)
    return out, (grad.norm(dim=1) - 1).square().mean()


def test_gradient_penalty(csx):
    def body(run, model, optimizer, x, i):
        optimizer.zero_grad()
        out, extra = penalty(x, model)
        loss = out / 100 + 10 * extra
        loss.backward()
        optimizer.step()
        run.see(loss, extra)

    trains_as_eager(body)


def test_a_step_through_a_step(csx):
    """One inner step of gradient descent, differentiated through (MAML)."""

    def body(run, model, optimizer, x, i):
        optimizer.zero_grad()
        weights = dict(model.named_parameters())
        inner = torch.func.functional_call(model, weights, (x[:2],)).square().mean()
        grads = torch.autograd.grad(inner, list(weights.values()), create_graph=True)
        fast = {name: p - 0.1 * g for (name, p), g in zip(weights.items(), grads)}
        torch.func.functional_call(model, fast, (x[2:],)).square().mean().backward()
        optimizer.step()

    trains_as_eager(body)


def test_backward_with_create_graph(csx):
    def body(run, model, optimizer, x, i):
        optimizer.zero_grad()
        model(x).square().mean().backward(create_graph=True)
        extra = sum(p.grad.square().sum() for p in model.parameters())
        for p in model.parameters():
            p.grad = None
        extra.backward()
        optimizer.step()
        run.see(extra)

    trains_as_eager(body)


def test_hessian_vector_products(csx):
    def body(run, model, optimizer, x, i):
        optimizer.zero_grad()
        weights = list(model.parameters())
        grads = torch.autograd.grad(model(x).square().mean(), weights, create_graph=True)
        products = torch.autograd.grad(grads, weights, [torch.ones_like(g) for g in grads])
        for p, g, h in zip(weights, grads, products):
            p.grad = g.detach() + 0.01 * h
        optimizer.step()

    trains_as_eager(body)


# -- checkpointing --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("use_reentrant", [True, False])
@pytest.mark.parametrize("preserve", [True, False])
def test_checkpoint_with_dropout(csx, use_reentrant, preserve):
    def body(run, model, optimizer, x, i):
        optimizer.zero_grad()
        x.requires_grad_()
        hidden = checkpoint(model[0], x, use_reentrant=use_reentrant, preserve_rng_state=preserve)
        loss = model[1](hidden).square().mean()
        loss.backward()
        optimizer.step()
        run.see(loss)

    drop = 0.4 if preserve else 0.0
    trains_as_eager(body, model=lambda: nn.Sequential(mlp(drop), nn.Sequential(nn.Dropout(0.3), nn.Linear(4, 2))))


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_checkpoint_sequential(csx, use_reentrant):
    def body(run, model, optimizer, x, i):
        optimizer.zero_grad()
        loss = checkpoint_sequential(model, 3, x.requires_grad_(), use_reentrant=use_reentrant).square().mean()
        loss.backward()
        optimizer.step()

    trains_as_eager(body, model=lambda: mlp(0.4))


def test_a_draw_that_depends_on_values_is_not_repeated_in_a_checkpoint(csx):
    _, compiled = linear()

    def part(x):
        return torch.bernoulli(compiled(x).sigmoid()) * compiled(x)

    step = cstorch.trace(lambda x: checkpoint(part, x, use_reentrant=False).sum().backward())
    with pytest.raises(TraceError, match=r"bernoulli.*preserve_rng_state=False"):
        step(torch.ones(2, 8))


# -- custom functions -----------------------------------------------------------------------------------------


class Cubed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, scale):
        ctx.save_for_backward(x)
        ctx.scale = scale
        return scale * x**3

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return 3 * ctx.scale * x.square() * grad, None


class WithContext(torch.autograd.Function):
    @staticmethod
    def forward(x):
        result = x.exp()
        return result, x + 1

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(output[0])
        ctx.mark_non_differentiable(output[1])
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx, grad, _):
        return grad * ctx.saved_tensors[0] * 0.5


class InPlace(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        x.mul_(2)
        ctx.mark_dirty(x)
        return x

    @staticmethod
    def backward(ctx, grad):
        return grad * 2


class Rounded(torch.autograd.Function):
    """A straight-through estimator."""

    @staticmethod
    def forward(ctx, x):
        return (x * 8).round() / 8

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad):
        return grad


FUNCTIONS = {
    "saved": lambda y, i: Cubed.apply(y, 0.5),
    "number of the step": lambda y, i: Cubed.apply(y, 1 / (1 + i)),
    "setup_context": lambda y, i: sum(WithContext.apply(y)),
    "in place": lambda y, i: InPlace.apply(y * 1.0),
    "straight through": lambda y, i: Rounded.apply(y),
}


@pytest.mark.parametrize("function", FUNCTIONS)
def test_custom_functions(csx, function):
    def body(run, model, optimizer, x, i):
        optimizer.zero_grad()
        loss = FUNCTIONS[function](model(x), i).square().mean()
        loss.backward()
        optimizer.step()
        run.see(loss)

    assert trains_as_eager(body).count == 1


def test_gradient_penalty_through_a_custom_function(csx):
    def body(run, model, optimizer, x, i):
        optimizer.zero_grad()
        x = x.detach().requires_grad_()
        (grad,) = torch.autograd.grad(Cubed.apply(model(x), 0.5).sum(), x, create_graph=True)
        grad.square().mean().backward()
        optimizer.step()

    trains_as_eager(body)


# -- torch.func -----------------------------------------------------------------------------------------------


def functional_loss(model, weights, x):
    return torch.func.functional_call(model, weights, (x,)).square().mean()


def func_grad(model, x):
    weights = {name: p.detach() for name, p in model.named_parameters()}
    return torch.func.grad(functools.partial(functional_loss, model))(weights, x)


def func_value_and_grad(model, x):
    weights = {name: p.detach() for name, p in model.named_parameters()}
    return torch.func.grad_and_value(functools.partial(functional_loss, model))(weights, x)[0]


def func_vjp(model, x):
    weights = {name: p.detach() for name, p in model.named_parameters()}
    value, pull = torch.func.vjp(lambda w: functional_loss(model, w, x), weights)
    return pull(torch.ones_like(value))[0]


def func_jvp(model, x):
    weights = {name: p.detach() for name, p in model.named_parameters()}
    tangents = {name: torch.ones_like(p) for name, p in weights.items()}
    _, change = torch.func.jvp(lambda w: functional_loss(model, w, x), (weights,), (tangents,))
    return {name: change * torch.ones_like(p) for name, p in weights.items()}


def func_per_sample(model, x):
    """The mean of gradients taken for each sample, clipped (DP-SGD)."""
    weights = {name: p.detach() for name, p in model.named_parameters()}
    each = torch.func.vmap(torch.func.grad(lambda w, s: functional_loss(model, w, s[None])), in_dims=(None, 0))(
        weights, x
    )
    return {name: g.clamp(-0.1, 0.1).mean(0) for name, g in each.items()}


def func_vmap(model, x):
    out = torch.func.vmap(lambda s: model(s).square().sum())(x)
    return dict(zip(dict(model.named_parameters()), torch.autograd.grad(out.mean(), list(model.parameters()))))


def func_jacrev(model, x):
    jacobian = torch.func.jacrev(lambda w: torch.func.functional_call(model, {"4.bias": w}, (x,)))(
        model[4].bias.detach()
    )
    return {name: jacobian.sum() * torch.ones_like(p) for name, p in model.named_parameters()}


def func_hessian(model, x):
    hessian = torch.func.hessian(lambda v: model(v).square().sum())(x[0])
    return {name: hessian.mean() * torch.ones_like(p) for name, p in model.named_parameters()}


@pytest.mark.parametrize(
    "gradients",
    [func_grad, func_value_and_grad, func_vjp, func_jvp, func_per_sample, func_vmap, func_jacrev, func_hessian],
)
def test_torch_func(csx, gradients):
    def body(run, model, optimizer, x, i):
        found = gradients(model, x)
        for name, p in model.named_parameters():
            p.grad = found[name].detach()
        optimizer.step()

    trains_as_eager(body)
