"""Hooks on tensors, parameters, modules and graph nodes run while the step is traced and act at every replay."""

import pytest
import torch
from programs import mlp, trains_as_eager
from torch import nn


def loss_of(model, x):
    return model(x).square().mean()


def on_parameters(run, model, x, i):
    return [p.register_hook(lambda g: g * 0.5) for p in model.parameters()]


def after_accumulation(run, model, x, i):
    def clamp(parameter):
        parameter.grad.clamp_(-0.01, 0.01)

    return [p.register_post_accumulate_grad_hook(clamp) for p in model.parameters()]


def on_modules(run, model, x, i):
    def scale(module, grad_input, grad_output):
        return tuple(None if g is None else 2 * g for g in grad_input)

    return [m.register_full_backward_hook(scale) for m in model]


def on_modules_before(run, model, x, i):
    return [m.register_full_backward_pre_hook(lambda module, g: tuple(0.5 * t for t in g)) for m in model]


def on_forward(run, model, x, i):
    return [m.register_forward_hook(lambda module, args, out: out * 1.5) for m in model]


def that_see(run, model, x, i):
    return [p.register_hook(lambda g: run.see(g)) for p in model.parameters()]


def that_depend_on_the_step(run, model, x, i):
    return [p.register_hook(lambda g: g / (1 + i)) for p in model.parameters()]


@pytest.mark.parametrize(
    "register",
    [on_parameters, after_accumulation, on_modules, on_modules_before, on_forward, that_see, that_depend_on_the_step],
)
def test_hooks_of_a_step(csx, register):
    def body(run, model, optimizer, x, i):
        optimizer.zero_grad()
        handles = register(run, model, x, i)
        loss_of(model, x).backward()
        optimizer.step()
        for handle in handles:
            handle.remove()

    trains_as_eager(body)


@pytest.mark.parametrize("register", [on_parameters, after_accumulation, on_modules, on_modules_before, on_forward])
def test_hooks_registered_before_the_step(csx, register):
    def model():
        made = mlp()
        register(None, made, None, None)
        return made

    def body(run, model, optimizer, x, i):
        optimizer.zero_grad()
        loss_of(model, x).backward()
        optimizer.step()

    trains_as_eager(body, model=model)


def test_hooks_on_activations_and_retained_gradients(csx):
    def body(run, model, optimizer, x, i):
        optimizer.zero_grad()
        x.requires_grad_()
        hidden = model[1](model[0](x))
        hidden.retain_grad()
        hidden.register_hook(lambda g: g * 2)
        out = model[2:](hidden)
        out.register_hook(lambda g: run.see(g))
        out.square().mean().backward()
        optimizer.step()
        run.see(hidden.grad, x.grad, x.grad.norm())

    trains_as_eager(body)


def test_hooks_on_graph_nodes(csx):
    def body(run, model, optimizer, x, i):
        optimizer.zero_grad()
        hidden = model[1](model[0](x))
        hidden.grad_fn.register_hook(lambda given, taken: tuple(None if g is None else g * 0.5 for g in given))
        hidden.grad_fn.register_prehook(lambda taken: tuple(g * 3 for g in taken))
        model[2:](hidden).square().mean().backward()
        optimizer.step()

    trains_as_eager(body)


def test_an_optimizer_stepped_in_backward(csx):
    """The recipe of one optimizer for each parameter, stepped as soon as its gradient is there."""

    def body(run, model, optimizer, x, i):
        loss = loss_of(model, x)
        loss.backward()
        run.see(loss)

    optimizers = {}

    def model():
        made = mlp()
        for p in made.parameters():
            optimizers[p] = torch.optim.AdamW([p], lr=0.02)

            def update(q):
                optimizers[q].step()
                optimizers[q].zero_grad()

            p.register_post_accumulate_grad_hook(update)
        return made

    trains_as_eager(body, model=model)


def test_backward_with_inputs_and_a_gradient(csx):
    def body(run, model, optimizer, x, i):
        optimizer.zero_grad()
        out = model(x)
        weights = [p for p in model.parameters() if p.dim() == 2]
        out.backward(torch.ones_like(out) / (i + 1), inputs=weights, retain_graph=True)
        torch.autograd.backward([out.sum(), out.square().mean()], inputs=list(model[4].parameters()))
        optimizer.step()

    trains_as_eager(body)


def test_gradients_kept_off(csx):
    def body(run, model, optimizer, x, i):
        optimizer.zero_grad()
        with torch.no_grad():
            target = model(x)
        with torch.set_grad_enabled(False):
            more = model[0](x)
        (model(x * 1.1) - target.detach()).square().mean().backward()
        optimizer.step()
        run.see(target, more)

    trains_as_eager(body)


def test_two_losses_share_a_graph(csx):
    def body(run, model, optimizer, x, i):
        optimizer.zero_grad()
        out = model(x)
        out.square().mean().backward(retain_graph=True)
        out.abs().mean().backward()
        optimizer.step()

    trains_as_eager(body)


def test_module_is_used_in_nn_sequential_with_dropout(csx):
    def body(run, model, optimizer, x, i):
        optimizer.zero_grad()
        loss_of(model, x).backward()
        optimizer.step()

    trains_as_eager(body, model=lambda: nn.Sequential(mlp(0.3), nn.Dropout(0.2)))


def test_what_hangs_on_a_parameter_stays_on_it_when_it_moves(csx):
    model = nn.Linear(2, 2)
    calls = []
    handle = model.weight.register_hook(lambda g: calls.append(1))
    model.weight.mine = "kept"
    for device in ("csx", "cpu"):
        model.to(device)
        model(torch.ones(1, 2).to(device)).sum().backward()
        assert model.weight.mine == "kept"
    handle.remove()
    model(torch.ones(1, 2)).sum().backward()
    assert calls == [1, 1]
